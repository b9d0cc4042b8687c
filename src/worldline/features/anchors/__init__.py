"""Anchors: what a world's history was at a time, kept outside of its store."""
