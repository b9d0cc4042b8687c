"""Rules over what the worlds of a universe may send, receive and use."""
