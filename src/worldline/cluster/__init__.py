"""Roles beside the workers: which worker runs which world, clean-up, and counting what waits."""
