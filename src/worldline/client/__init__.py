"""The SDK: open a universe, talk to its worlds."""
