"""The cells of flow domains inside a step: what jobs do and derive, without I/O."""
