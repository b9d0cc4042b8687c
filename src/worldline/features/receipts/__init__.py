"""Receipts that are signed by the process that performed the effect, and checking them."""
