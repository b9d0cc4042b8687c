"""The names of the roles that a process may have. What each of them does is in `host/process.py`."""

from __future__ import annotations

import enum


class Role(enum.StrEnum):
    WORLDS = "worlds"
    ADAPTER = "adapter"
    TIMERS = "timers"
    ORCHESTRATOR = "orchestrator"
    JANITOR = "janitor"


EMBEDDED = (Role.WORLDS, Role.ADAPTER, Role.TIMERS)
HOSTING = (*EMBEDDED, Role.JANITOR)  # of a process that hosts, unless it is part of a cluster
ALL = tuple(Role)
