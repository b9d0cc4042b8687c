"""One store under chaos: its processes, steady clients, the end of it, and the checks of everything that happened.

A test makes a `Field`, starts roles, lets clients work while it breaks things, and calls `finish`: whoever is down is
started again, clients get their last answers, everything open comes to its end, and every process ends in order. Then
the simulator's own checkers look at each commit there was, at the worlds, and at what reached the outside.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

from tests import aio, options
from tests.campaign.check import kept
from tests.campaign.load import programs, workloads
from tests.chaos import audits, ledger, opening
from tests.chaos.processes import Crew, Nursery, Process
from worldline.api.universe_api import Universe
from worldline.layers import inbox as inboxes
from worldline.layers import leases
from worldline.layers import work as works
from worldline.sim.check.audit import Audit

CHAOS_SECONDS = options.seconds("chaos_seconds")
QUIET_SECONDS = 90.0
CLIENTS = 12

LEASE_TTL = ("--lease-ttl", "0.8", "--scan", "0.2")
WORKER = ("worker", "FILE", *LEASE_TTL)
ADAPTER = ("adapter", "FILE", "--claim-ttl", "0.8", "--scan", "0.2")
TIMER = ("timer", "--scan", "0.2")
ORCHESTRATOR = ("orchestrator", "--turn", "0.3")
JANITOR = ("janitor", "--turn", "0.3", "--round", "0.5")
UP = ("up", "FILE", *LEASE_TTL, "--claim-ttl", "0.8")

# What clients do, and how often.
KINDS = {"add": 4, "ask": 4, "transfer": 4, "order": 3, "agent": 1, "herd": 1, "poison": 1, "sized": 1}
WORLDS = {"counter": "counters", "account": "bank", "shop": "orders", "desk": "agents"}
COUNT = 3  # of each


class Field:
    def __init__(self, nursery: Nursery, url: str, folder: Path, *, seed: str, direct: str = "") -> None:
        self.crew = Crew(nursery, url, folder)
        self.draws = random.Random(seed)
        self.roles: dict[str, tuple[tuple[str, ...], Process]] = {}
        self.history = workloads.History()
        self.universe: Universe
        self._url = url
        self._direct = direct or url  # where the store is reached whatever is done to the way there
        self._numbers = itertools.count()
        self._working = True
        self._open = False
        self._clients: list[asyncio.Task[None]] = []

    # --- Beginning ----------------------------------------------------------------------------------------------

    async def open(self) -> Field:
        """Make the store and its worlds."""
        self.universe = await opening.recorded(self._url, self.crew.objects, knows=programs.PROGRAMS)
        self._open = True
        for name, program in _worlds():
            await self.universe.create(name, {each.name: each for each in programs.PROGRAMS}[program])
        return self

    async def start(self, name: str, words: tuple[str, ...], *, exec_: bool = False) -> Process:
        """Start a role and wait until it is ready."""
        process = self.begin(name, words, exec_=exec_)
        await process.wait_ready()
        return process

    def begin(self, name: str, words: tuple[str, ...], *, exec_: bool = False) -> Process:
        process = self.crew.start(name, *words, exec_=exec_)
        self.roles[name] = words, process
        return process

    def work(self) -> None:
        """Let clients work, until the end."""
        self._clients = [asyncio.ensure_future(self._steady(number)) for number in range(CLIENTS)]

    async def _steady(self, client: int) -> None:
        """One operation after the other, each repeated under its id until it is answered."""
        opened = self.universe._connection
        while self._working:
            op = self._draw(client)
            self.history.begun[op.id] = op
            self.history.answered[op.id] = await workloads.insist(lambda op=op: workloads.do(opened, op))  # type: ignore[misc]
            await asyncio.sleep(0.02)

    def _draw(self, client: int) -> workloads.Op:
        [kind] = self.draws.choices(list(KINDS), list(KINDS.values()))
        world, to = self.draws.sample([f"{workloads.KINDS[kind][1]}-{number}" for number in range(COUNT)], 2)
        number = next(self._numbers)
        return workloads.Op(
            f"{client}-{number}", kind, world, self.draws.randint(1, 60), to if kind == "transfer" else ""
        )

    async def answered(self, more: int) -> None:
        """Until clients have got so many more answers."""
        wanted = len(self.history.answered) + more

        async def enough() -> bool:
            self._check_clients()
            self.crew.check()
            return len(self.history.answered) >= wanted

        await aio.until(enough, seconds=QUIET_SECONDS)

    def _check_clients(self) -> None:
        for task in self._clients:
            if task.done():
                task.result()

    # --- Chaos --------------------------------------------------------------------------------------------------

    async def for_a_while(self, least: float, most: float) -> AsyncIterator[None]:
        """Turns of chaos with pauses in between, until its time is over."""
        ends = time.monotonic() + CHAOS_SECONDS
        while time.monotonic() < ends:
            await asyncio.sleep(self.draws.uniform(least, most))
            self._check_clients()
            self.crew.check()
            yield

    async def kill(self, name: str) -> None:
        """kill -9."""
        await self.crew.kill(self.roles[name][1])

    def revive(self, name: str, *, exec_: bool = False) -> Process:
        """A new life, if it has none."""
        words, process = self.roles[name]
        return process if process.alive else self.begin(name, words, exec_=exec_)

    # --- The end ------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """No more faults: all that is left is done, everybody ends in order, and everything is checked."""
        for name, (_, process) in list(self.roles.items()):
            process.signal(signal.SIGCONT)
            self.revive(name)
        # Nobody is asked to end before it could know what that means.
        await asyncio.gather(*(process.wait_ready() for _, process in self.roles.values()))
        self._working = False
        _, waiting = await asyncio.wait(self._clients, timeout=QUIET_SECONDS)
        self._check_clients()
        if waiting:
            raise AssertionError(f"not answered: {self._unanswered()}\n{await self._left()}\n{self._said()}")
        await self.quiet()
        self.crew.check()
        await self.crew.end()
        await self._close()
        await self.check()

    async def quiet(self) -> None:
        """Nothing is unread, nothing is open (V1)."""

        async def nothing_left() -> bool:
            self.crew.check()
            return not await self._left()

        try:
            await aio.until(nothing_left, seconds=QUIET_SECONDS)
        except TimeoutError:
            raise AssertionError(f"not done: {await self._left()}\n{self._said()}") from None

    async def _left(self) -> dict[str, str]:
        """For each world that has something to do: what, and who holds it."""
        left = {}
        for name, _ in _worlds():
            at = await self.universe.world(name)._handle.address()
            read = await self.universe._connection.store.engine.read(
                inboxes.read_range(at, count_max=100), works.open_range(at, count_max=100), *leases.reads(at)
            )
            unread, opened = len(read.page(0).items), len(read.page(1).items)
            if unread or opened:
                state = leases.decode(at, *(read.value(index) for index in (2, 3, 4)))
                left[name] = f"{unread} unread, {opened} open, epoch {state.epoch.number}, {state.holder}"
        return left

    def _unanswered(self) -> list[workloads.Op]:
        return [op for op in self.history.begun.values() if op.id not in self.history.answered]

    def _said(self) -> str:
        return "\n".join(f"{each.label}: {each.said}" for each in self.crew.everybody if each.alive)

    async def check(self) -> None:
        """The simulator's checkers, over what really happened."""
        worlds = [name for name, _ in _worlds()]
        await audits.check(
            self.crew, self.universe, self._direct, knows=programs.PROGRAMS, worlds=worlds, more=self._promises
        )

    async def _promises(self, universe: Universe, copy: dict[bytes, bytes], audit: Audit) -> None:
        """What clients were told, and what reached the outside."""
        calls = ledger.read(self.crew.ledger)
        for call in calls:
            audit.called(call)
        done: dict[tuple[str, str], object] = {(call.name, call.key): None for call in calls}
        found = kept.Kept(dict(_worlds()), list(self.history.begun.values()), self.history.answered, copy, done)
        await kept.promises(universe._connection, found, audit)

    async def aclose(self) -> None:
        """Whatever happened, nobody is left."""
        self.crew.close()
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await self._close()

    async def _close(self) -> None:
        if self._open:
            self._open = False
            await opening.close(self.universe)


def _worlds() -> list[tuple[str, str]]:
    return [(f"{name}-{number}", program) for name, program in WORLDS.items() for number in range(COUNT)]
