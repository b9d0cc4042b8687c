"""Encrypted stores: opening them, their data keys, and codecs of users' own."""
