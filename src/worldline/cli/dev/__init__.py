"""What `worldline dev` does while it runs: hosting, edits, and showing runs."""
