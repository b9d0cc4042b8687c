"""Personal values in steps: sealed where they are written, opened where they are read."""
