"""Who may send to a universe."""
