"""Flow domains in worlds: acting on them, looking at them, and repairing their cells."""
