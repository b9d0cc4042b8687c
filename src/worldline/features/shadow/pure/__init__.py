"""Trying other code on the history of a world: recorded inputs in, differences out. Nothing is journaled."""
