"""What `worldline why` says of a world, and what it asks features for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from worldline.kernel.machine import Machine
from worldline.model import ids
from worldline.store import kv


class Reason(msgspec.Struct, frozen=True):
    """One thing that a world waits for. `stuck`: it stays so until a person acts."""

    kind: str
    what: str
    stuck: bool = False
    run: str = ""
    since: datetime | None = None
    until: datetime | None = None  # the next attempt, or the time a timer fires
    error: str = ""
    command: str = ""
    trace: str = ""  # where in its code it failed last
    ways: list[str] = []  # every command that helps, the mildest first, if there is more than one
    cell: str = ""  # of a flow domain
    intent: str = ""  # of a flow domain, that is on its way


class AskedWorld(msgspec.Struct, frozen=True):
    """The world that is asked about, and how commands about it are written. `name`: as a shell takes it."""

    engine: kv.Engine
    at: ids.Address
    name: str
    option: str

    def command(self, text: str) -> str:
        return f"worldline {text}{self.option}"


class FeatureReasons:
    """What a feature knows of why a world waits. It overrides what it needs; the rest says nothing."""

    async def of_missing(self, engine: kv.Engine, at: ids.Address) -> str:
        """Say what became of a world that is not there any more."""
        del engine, at
        return ""

    async def of_status(self, asked: AskedWorld) -> str:
        """Say why a world is paused or archived."""
        del asked
        return ""

    async def of_universe(self, asked: AskedWorld) -> list[Reason]:
        """Say what is true of all worlds of its universe."""
        del asked
        return []

    def of_state(self, asked: AskedWorld, machine: Machine) -> list[Reason]:
        """Say what in its state does not go on."""
        del asked, machine
        return []

    def of_effects(
        self, asked: AskedWorld, machine: Machine, effects: Mapping[ids.IntentId, Reason]
    ) -> Mapping[ids.IntentId, Reason]:
        """Say more of open effects and timers: all of them come back, in their order."""
        del asked, machine
        return effects
