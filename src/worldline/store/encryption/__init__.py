"""Values and objects that are sealed on their way into a store: what is above knows nothing of it."""
