"""Running users' code: what it can call, how deep it may recurse, how the coroutine of a run is rebuilt."""
