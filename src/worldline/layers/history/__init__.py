"""Steps and states read back: folded into rows, or written to a file."""
