"""Proofs of entries and rows for someone without the store, and worlds proved in the background."""
