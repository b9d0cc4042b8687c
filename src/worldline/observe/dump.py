"""What a process is doing now, to find out why it makes no progress: `kill -USR1`, `Host.dump()`.

Counts, names and ages; never payloads or state. Lists are sorted and cut at `LISTED_MAX`, and say how much is left out.
The stacks are those of the threads: where a handler hangs, and what blocks the event loop.
"""

from __future__ import annotations

import faulthandler
import tempfile
from collections.abc import Sequence

import msgspec

from worldline.effects import effect_worker
from worldline.runtime import role_loop
from worldline.runtime.holder_job import HolderJob
from worldline.worker import held_world, world_worker

LISTED_MAX = 100
STACKS_CHARACTERS_MAX = 16_384


class RoleDump(msgspec.Struct, frozen=True):
    name: str
    ticks: int
    last_error: str


class CycleDump(msgspec.Struct, frozen=True):
    worlds: int
    age_ms: int


class WorldDump(msgspec.Struct, frozen=True):
    world: str
    name: str
    epoch: int
    height: int
    busy: bool
    handed: int  # inputs that wait for the next step
    unread: bool  # there may be something in the inbox


class EffectDump(msgspec.Struct, frozen=True):
    intent: str
    effect: str
    world: str
    attempt: int


class DivergedDump(msgspec.Struct, frozen=True):
    """A world whose code did not do the same again."""

    world: str
    name: str
    height: int


class Dump(msgspec.Struct, frozen=True):
    """A process, as it stands."""

    worker: str
    name: str
    roles: list[RoleDump]
    cycles: list[CycleDump]
    worlds: list[WorldDump]
    worlds_omitted: int
    effects: list[EffectDump]
    effects_omitted: int
    diverged: list[DivergedDump]
    stacks: str = ""


def dump(
    loops: Sequence[role_loop.Loop],
    worlds: world_worker.WorldWorker | None,
    effects: effect_worker.EffectWorker | None,
    jobs: Sequence[HolderJob],
    *,
    worker: str,
    name: str,
    now_us: int,
) -> Dump:
    # Sorted: two dumps of one process can be compared line by line.
    held = [] if worlds is None else sorted(worlds.held, key=lambda each: each.at)
    cycles = [] if worlds is None else list(worlds.under_way().values())
    claims = [] if effects is None else sorted(effects.claims(), key=lambda each: each.intent)
    return Dump(
        worker,
        name,
        [RoleDump(each.name, each.ticks, "" if each.last_error is None else repr(each.last_error)) for each in loops],
        [CycleDump(len(each.worlds), (now_us - each.began_us) // 1000) for each in cycles],
        [_world(each) for each in held[:LISTED_MAX]],
        max(0, len(held) - LISTED_MAX),
        [
            EffectDump(each.intent.hex(), each.work.name, each.at.world.hex(), each.work.attempt)
            for each in claims[:LISTED_MAX]
        ],
        max(0, len(claims) - LISTED_MAX),
        _diverged(jobs),
    )


def _world(each: held_world.HeldWorld) -> WorldDump:
    return WorldDump(
        each.at.world.hex(), each.name, each.lease.epoch, each.head.height, each.busy, len(each.handed), each.unread
    )


def _diverged(jobs: Sequence[HolderJob]) -> list[DivergedDump]:
    latest = [each for job in jobs for each in job.diverged.items()][
        -LISTED_MAX:
    ]  # the last ones: a dump is about what goes wrong now
    return [DivergedDump(at.world.hex(), each.name, each.height) for at, each in latest]


def stacks() -> str:
    """The stacks of all threads, most recent call first."""
    # A real file: `faulthandler` writes to a file descriptor, without running any Python code of the stuck threads.
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read(STACKS_CHARACTERS_MAX).decode(errors="replace")
