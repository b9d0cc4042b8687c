"""The simulated machines: hosts that run the real roles, and clients."""
