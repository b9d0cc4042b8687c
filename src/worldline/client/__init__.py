"""One universe of a store as a process has it: inputs in, answers out, and what can be read of worlds."""
