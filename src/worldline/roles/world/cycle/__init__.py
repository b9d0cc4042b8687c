"""One cycle: read, step, commit, act."""
