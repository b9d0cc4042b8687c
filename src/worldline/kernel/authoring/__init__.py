"""What authors of programs write: declarations and the functions used inside them."""
