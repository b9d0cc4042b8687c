"""What keeps a store small, safe and movable: added to a batch, or decoded from what was read."""
