"""What keeps a store small and safe: deleting worlds and universes, and destroying keys."""
