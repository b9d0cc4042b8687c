"""Commands that keep a store small, safe and movable."""
