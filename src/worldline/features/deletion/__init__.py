"""Deleting worlds and whole universes, and removing what they had."""
