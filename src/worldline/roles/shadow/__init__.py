"""Trying other code on a stored world, without writing anything."""
