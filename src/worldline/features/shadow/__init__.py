"""Trying other code on a stored world, without a trace."""
