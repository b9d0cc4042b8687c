"""Records of what keeps a store small, safe and movable."""
