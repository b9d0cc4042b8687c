"""One process: its roles, a watch for hangs, and ending a script."""
