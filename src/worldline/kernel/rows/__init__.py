"""A world's state as rows: their keys, and the record of which of them a step changes."""
