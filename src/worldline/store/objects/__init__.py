"""Immutable bodies, too large for rows: in a folder, in S3, in memory."""
