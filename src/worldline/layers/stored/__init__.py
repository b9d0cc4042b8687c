"""Steps read back: folded into rows, or written to a file."""
