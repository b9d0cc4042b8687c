"""Encrypted stores: values and objects sealed on their way in, keys, and their rotation."""
