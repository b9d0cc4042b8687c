"""Durable structures as functions over a batch or over what was read."""
