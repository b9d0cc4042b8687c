"""`make demo`: a world is killed in the middle of an effect and goes on. Every figure comes from this very run."""
