"""What keeps a store small: deleting worlds and universes."""
