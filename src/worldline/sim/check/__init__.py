"""The invariants: checked with every commit, at the end of a run, and for lateness."""
