"""Trying other code on what a world has lived through: recorded inputs in, differences out. Nothing is journaled."""
