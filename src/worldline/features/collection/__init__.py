"""Garbage collection of one universe, in turns: what is referred to, and what goes."""
