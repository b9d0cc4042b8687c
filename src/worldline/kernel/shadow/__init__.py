"""Trying other code on a world's history: recorded inputs in, differences out. Nothing is journaled."""
