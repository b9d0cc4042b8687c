"""Canonical bytes: tuple keys, values, digests, frames. Pure."""
