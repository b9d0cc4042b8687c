"""Personal values: kept apart from what refers to them, and erased."""
