"""Records of what keeps worlds small and private for years."""
