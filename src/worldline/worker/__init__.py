"""The world worker: it holds worlds under leases and runs their steps: read, step, commit, act."""
