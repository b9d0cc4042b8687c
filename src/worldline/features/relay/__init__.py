"""Bringing what others say into inboxes: lines from stdin, and webhooks."""
