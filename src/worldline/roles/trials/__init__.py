"""The crash budget beyond the store: last attempts in child processes, effects beside worlds on trial, quarantines."""
