"""Metrics, traces and logs of a process."""
