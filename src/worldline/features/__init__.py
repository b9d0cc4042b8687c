"""What worlds and stores can do besides running: each feature in a folder of its own, apart from the others."""
