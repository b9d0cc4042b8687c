"""The embedded engine: one LMDB database in a folder."""
