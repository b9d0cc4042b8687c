"""What touches the outside on behalf of effects. Knows nothing of storage."""
