"""Copies: a world as a file, a store as a backup, and both made worlds again."""
