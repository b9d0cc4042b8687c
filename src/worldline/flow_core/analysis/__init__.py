"""What a flow domain says of itself without data: what its actions do, what looks wrong, what can be reached."""
