"""The effect worker: it claims effects, performs them and returns results."""
