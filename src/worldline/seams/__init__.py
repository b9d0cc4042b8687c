"""What a feature may bring to the core."""
