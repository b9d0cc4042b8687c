"""Branches of worlds: making them, and seeing where they come from."""
