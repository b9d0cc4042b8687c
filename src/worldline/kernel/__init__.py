"""The pure core: programs, reducers, workflows, replay. No I/O, no clock, no event loop."""
