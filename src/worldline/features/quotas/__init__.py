"""What a universe may have: what refuses outside producers, and what counts."""
