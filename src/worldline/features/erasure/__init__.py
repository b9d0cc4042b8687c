"""Erasing personal values and whole worlds' keys, and the ledger of what was erased."""
