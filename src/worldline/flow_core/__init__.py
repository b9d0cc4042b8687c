"""Flow domains: state, computed values and actions as data, evaluated by a pure Core. Nothing here does I/O."""
