"""Flow domains of worlds, for people."""
