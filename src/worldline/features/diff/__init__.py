"""Comparing two worlds, or two heights of one, since the state that both have come from."""
