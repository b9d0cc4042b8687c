"""Worker A loses its lease at every boundary, worker B goes on: the end is that of a twin which nothing befell.

Both are real processes with all roles; the driver is a client in this one and does not care who answers. A is killed
right before or right after one of its commits, or stands still with it in its hands until B is through. Compared are
the bytes of every world's state as a snapshot would save it (but for the times in it), the state's digest after every
step, the entries, what runs returned, what was refused, and what the outside has seen; and every commit there was is
audited as in the simulation.

`make test` takes every so-many-th boundary (the option `failover_stride`), `make soak` all of them.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from pathlib import Path

import msgspec
import pytest

from tests import options
from tests.chaos import history, ledger, opening
from tests.chaos.fates import Fate
from tests.chaos.processes import Crew, Nursery, Process
from tests.kits import kit as kits
from tests.kits import scenario
from tests.servers import postgres
from tests.store import postgres_kit
from worldline.api.universe_api import Universe
from worldline.codec import digest
from worldline.features.proofs import calls as proof_calls
from worldline.inspect import doctor
from worldline.kernel import state_rows as kernel_snapshots
from worldline.kernel.machine import Machine
from worldline.model import journal, leases
from worldline.model.journal import Kind
from worldline.sim.check import checkers
from worldline.sim.check.audit import Audit, never_proven

STRIDE = options.number("failover_stride")
AT_ONCE = 3
STORY = Path(__file__).parent / "story.py"
UP = ("up", "FILE", "--lease-ttl", "0.8", "--claim-ttl", "0.8", "--scan", "0.2")
SECONDS = 60.0
BOUNDARIES_MIN = 20


class End(msgspec.Struct, frozen=True):
    """Everything about a finished world that must not depend on who ran it."""

    root: bytes
    entries: list[tuple[Kind, bytes]]
    ends: kits.Ends


class Run:
    """The scenario on a store of its own."""

    def __init__(self, nursery: Nursery, url: str, folder: Path) -> None:
        self.crew = Crew(nursery, url, folder, file=STORY)
        self.url = url
        self.universe: Universe

    async def open(self) -> None:
        self.universe = await opening.recorded(self.url, self.crew.objects, knows=scenario.PROGRAMS)

    async def through(self, fate: Fate | None, at: int) -> bool:
        """To the end of the story, with A's fate at its `at`-th commit. Returns whether A met it."""
        first = self.crew.start("a", *UP, fate=f"{fate}/{at}" if fate else "")
        driving = asyncio.ensure_future(scenario.drive(self.universe))
        met = False
        try:
            while not driving.done() and not met:
                await asyncio.wait([driving], timeout=0.02)
                met = await self._has_met(first, fate)
            if not met:
                await driving
                first.ask_to_end()
                while not met and first.alive:
                    await asyncio.sleep(0.02)
                    met = await self._has_met(first, fate)
            if met:
                await self._succeed(first, driving)
        finally:
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)
        await self.crew.end()
        return met

    async def _has_met(self, first: Process, fate: Fate | None) -> bool:
        if fate is None:
            return False
        if fate is Fate.PAUSED:
            return first.stopped
        if not first.alive and not (first.folder / "exit").exists():
            self.crew.killed[first.label] = opening.ENV.wall_us()
            return True
        return False

    async def _succeed(self, first: Process, driving: asyncio.Future[tuple[kits.Ends, kits.Ends]]) -> None:
        """B takes over, to the end. If A only stood still, it goes on after that, and must not change a thing."""
        second = self.crew.start("b", *UP)
        await second.wait_ready()
        async with asyncio.timeout(SECONDS):
            await driving
        if first.alive:
            first.signal(signal.SIGCONT)
            await first.wait_ready()

    async def ends(self) -> dict[str, End]:
        """Where the worlds have got to, when nobody is at work any more."""
        found = {}
        for program in scenario.PROGRAMS:
            world = self.universe.world(program.name)
            root = _root(await world._handle.machine())
            entries = _comparable(await kits.entries(world))
            found[program.name] = End(root, entries, await kits.ends(world, self.universe._connection.store.engine))
        return found

    async def check(self) -> None:
        """The simulator's auditor over every commit, the worlds replayed, the queues as they should be."""
        is_folder = "://" not in self.url
        audit = Audit(in_stamp_order=is_folder, proven_dead=self._proven_dead if is_folder else never_proven)
        committed, contents = history.split(await checkers.contents(self.universe._connection.store.engine))
        copy = history.replay(await history.in_order(committed, self.url), audit)
        checkers.same_contents(contents, copy, audit)
        for name in ("bank", "shop"):
            await checkers.replayed(self.universe._connection, name, audit)
            assert (await proof_calls.prove(self.universe.world(name)._handle)).holds
        assert audit.violations == []
        assert (await doctor.examine(self.universe._connection, repair=False)).findings == []
        seen = {(call.name, call.key) for call in ledger.read(self.crew.ledger)}
        assert {name: sum(service == name for service, _ in seen) for name in scenario.KEYS} == scenario.KEYS

    def _proven_dead(self, _: leases.Holder, now_us: int) -> bool:
        """In a folder the death of a process is known at once, by the lock it held."""
        return any(killed <= now_us for killed in self.crew.killed.values())

    async def close(self) -> None:
        self.crew.close()
        await opening.close(self.universe)


def _root(machine: Machine) -> bytes:
    """A digest of the rows that would be saved now: of their meanings, not of when and where they came about."""
    return digest.hash_parts(b"rows", *(key + row.meaning for key, row in kernel_snapshots.rows_of(machine)))


def _comparable(entries: list[journal.JournalEntry]) -> list[tuple[Kind, bytes]]:
    """The entries of every step that changed something, with the digest of the state after it."""
    steps: dict[int, list[journal.JournalEntry]] = {}
    for entry in entries:
        steps.setdefault(entry.step, []).append(entry)
    kept = [step for step in steps.values() if not any(entry.kind is Kind.LATE_ANSWER for entry in step)]
    return [(entry.kind, entry.state) for step in kept for entry in step]


async def one(engine: str, nursery: Nursery, folder: Path, fate: Fate | None, at: int) -> tuple[bool, dict[str, End]]:
    url = str(folder / "store")
    if engine == "postgres":
        url = postgres.shared().url(schema=postgres_kit.fresh_schema())
    run = Run(nursery, url, folder / "crew")
    await run.open()
    try:
        met = await run.through(fate, at)
        await run.check()
        return met, await run.ends()
    finally:
        await run.close()


@pytest.mark.parametrize("fate", Fate)
@pytest.mark.parametrize("engine", ["lmdb", "postgres"])
async def test_the_end_is_that_of_the_twin(engine: str, fate: Fate, nursery: Nursery, tmp_path: Path) -> None:
    _, twin = await one(engine, nursery, tmp_path / "twin", None, 0)
    first = list(Fate).index(fate) + 1  # so that the fates take different boundaries
    boundaries = itertools.count(first, STRIDE)
    over: list[int] = []

    async def some() -> None:
        while not over:
            at = next(boundaries)
            met, ends = await one(engine, nursery, tmp_path / str(at), fate, at)
            assert ends == twin, f"another end when worker A was {fate} commit {at}"
            if not met:
                over.append(at)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(some())
    assert min(over) > BOUNDARIES_MIN
