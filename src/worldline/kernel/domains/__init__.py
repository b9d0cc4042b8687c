"""Flow domains in worlds."""
