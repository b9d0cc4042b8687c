"""Worlds as files: written, read and checked."""
