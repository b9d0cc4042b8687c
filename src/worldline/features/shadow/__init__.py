"""Trying other code on a stored world, writing nothing."""
