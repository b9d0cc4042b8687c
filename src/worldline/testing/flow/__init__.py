"""Flow domains in tests."""
