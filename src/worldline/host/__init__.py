"""One process: which store, which roles, which programs."""
