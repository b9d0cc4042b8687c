"""Limits, errors and the environment: what every other package stands on."""
