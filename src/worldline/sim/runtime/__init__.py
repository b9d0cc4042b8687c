"""What a simulation runs on: one event loop, clocks, the store itself, and reading its keys."""
