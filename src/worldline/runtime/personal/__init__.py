"""Personal values outside of steps: kept for the kernel, sealed for clients and effects, checked."""
