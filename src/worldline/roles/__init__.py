"""Bounded loops: read, step, commit, act. The only place where the two legs of the system meet."""
