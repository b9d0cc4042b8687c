"""Removing what was deleted: worlds and whole universes."""
