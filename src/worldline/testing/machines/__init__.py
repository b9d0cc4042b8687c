"""Hypothesis machines: any order of what may happen."""
