"""The ordered key-value store (read, commit, wait), its engines, and objects."""
