"""Many universes in one process: which they are, and taking turns between them."""
