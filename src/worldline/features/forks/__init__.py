"""Branches of worlds: making them, taking worlds back, and seeing where they come from."""
