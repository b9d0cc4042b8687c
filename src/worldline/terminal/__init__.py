"""What commands share: options, the store, words as values, answers and errors."""
