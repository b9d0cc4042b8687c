"""Looking at worlds and checking them."""
