"""Flow domains of worlds, from outside."""
