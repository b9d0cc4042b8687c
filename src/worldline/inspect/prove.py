"""Proving a world: running its whole journal through the code again, in the kernel's thread, comparing every digest.

A proof starts at the world's birth, or at the earliest snapshot that is kept. Each step's input is given to the machine
at its recorded time; what comes out must be what the journal has, byte for byte, and every snapshot on the way must
come out as it was saved. The chain is checked over everything (`worldline.inspect.verify`), also where no code is.

A world outlives its code. Entries are proved by the very program that wrote them, told by its hash. Below a change of
program whose old code is not loaded nothing can be run again: that part is reported as unverifiable, and the proof goes
on from the snapshot that was taken at the change. The entries since the last change are always run, also by code that
has been edited since: that is what a worker would do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from worldline.base import errors
from worldline.client.connection import Connection
from worldline.client.handle import Handle
from worldline.codec import structs
from worldline.inspect import verify
from worldline.inspect.verify import Steps
from worldline.kernel import commands, replay
from worldline.kernel import snapshots as kernel_snapshots
from worldline.kernel.authoring.program import Program
from worldline.kernel.state import Machine
from worldline.layers import cas, worlds
from worldline.model import ids, journal, payload, snapshot
from worldline.model.journal import Kind
from worldline.roles import restore

T = TypeVar("T")


class Span(msgspec.Struct, frozen=True):
    """Heights that could not be run again: their program is not loaded."""

    first: int
    last: int
    program_hash: str


class Proof(msgspec.Struct, frozen=True):
    """What was proved. `steps` are all that were read, `proved` those that came out the same when run again."""

    height: int
    steps: int
    proved: int
    entries: int
    snapshots: int
    chain: str
    state: str
    unverifiable: list[Span] = []
    difference: replay.Difference | None = None

    @property
    def holds(self) -> bool:
        """What could be run came out the same."""
        return self.difference is None


async def prove(
    world: Handle,
    *,
    programs: Sequence[Program] = (),
    up_to: int | None = None,
    whole: bool = True,
    progress: verify.Progress = verify.no_progress,
) -> Proof:
    """Replay a world and compare. `Damaged` if the stored bytes are wrong before any code is run.

    `programs`: code that may have written parts of the journal, besides what the universe knows. `up_to`: stop at the
    last step end at or below this height. Not `whole`: begin at the latest snapshot instead of the first.
    """
    universe, at = world.universe, await world.address()
    meta = worlds.decode(at, (await universe.store.engine.read(worlds.get(at))).value(0)).meta
    known = [each for each in [*programs, *universe.programs.values()] if each.name == meta.program]
    if not known:
        raise errors.BadInput(
            f"the program {meta.program!r} is not loaded; a proof runs its code: name its file with --app FILE"
        )
    top = await verify.head(universe, at)
    kept = await verify.records(universe, at)
    if up_to is not None:
        kept = [each for each in kept if each.height <= up_to]
    start = await verify.first(universe, at, kept) if whole else kept[-1]
    prover = Prover(universe, at, known, kept, current=meta.program_hash)
    await prover.begin(start)
    try:
        walk = verify.Walk(universe, at, start, top)
        async for steps in walk.steps(progress):
            chosen = [step for step in steps if up_to is None or step[-1].height <= up_to]
            await prover.take(chosen, walk.loaded)
            if len(chosen) < len(steps) or prover.difference is not None:
                break
        return prover.proof()
    finally:
        await prover.close()


class Prover:
    """Holds the machine that the journal is run through, and changes it where the world's program was changed."""

    def __init__(
        self,
        universe: Connection,
        at: ids.Address,
        known: Sequence[Program],
        kept: Sequence[snapshot.Snapshot],
        *,
        current: bytes,
    ) -> None:
        self._universe = universe
        self._at = at
        self._programs = {program.hash: program for program in reversed(known)}
        self._programs.setdefault(current, known[0])
        self._kept = {each.height: each for each in kept}
        self._machine: Machine | None = None
        self._hash = b""
        self._height, self._chain, self._state = 0, b"", b""
        self._spans: list[Span] = []
        self._steps = self._proved = self._entries = self._snapshots = 0
        self.difference: replay.Difference | None = None

    async def begin(self, start: snapshot.Snapshot) -> None:
        """Stand at a snapshot, with the program that saved it if that is loaded."""
        self._hash = start.program_hash
        self._height, self._chain = start.height, start.chain
        program = self._programs.get(start.program_hash)
        if program is None:
            self._machine = None
            return
        try:
            parts = await restore.load_parts(self._universe.blobs, start.root)
        except (errors.Corrupt, errors.NotFound) as error:
            raise verify.Damaged(start.height, f"the snapshot of step {start.step}: {error}") from error
        machine, _ = await self._in_thread(lambda: kernel_snapshots.load(program, parts, self._at))
        self._machine, self._state = machine, machine.state

    async def take(self, steps: Steps, loaded: dict[bytes, bytes]) -> None:
        """Run steps that follow each other, or note that they cannot be run."""
        for group, changed in _at_changes(steps, loaded):
            for last in (step[-1] for step in group):
                verify.check_record(self._kept.get(last.height), last)
            if changed is None:
                await self._run(group, loaded)
            else:
                await self._change(group[0], changed, loaded)
            if self.difference is not None:
                return
            last = group[-1][-1]
            self._height, self._chain, self._state = last.height, last.chain, last.state

    async def _change(
        self, step: list[journal.Entry], changed: commands.ChangeProgram, loaded: dict[bytes, bytes]
    ) -> None:
        """The step in which the world goes on under other code: run by the new one, over the old one's state."""
        program, before = self._programs.get(changed.after), self._machine
        if program is not None and before is not None:
            self._machine = await self._in_thread(lambda: _under(program, before, self._at))
        else:
            self._machine = None
        self._hash = changed.after
        await self._run([step], loaded)
        taken = self._kept.get(step[-1].height)
        if self._machine is None and program is not None and taken is not None:
            await self.begin(taken)

    async def _run(self, steps: Steps, loaded: dict[bytes, bytes]) -> None:
        self._steps += len(steps)
        self._entries += sum(map(len, steps))
        machine = self._machine
        if machine is None:
            self._note(steps)
            return
        proved, snapshots, self.difference = await self._in_thread(lambda: self._replay(machine, steps, loaded))
        self._proved += proved
        self._snapshots += snapshots

    def _replay(
        self, machine: Machine, steps: Steps, loaded: dict[bytes, bytes]
    ) -> tuple[int, int, replay.Difference | None]:
        """In the kernel's thread. How many steps and snapshots came out the same, and the first that did not."""

        def load(carried: payload.Payload) -> bytes:
            return carried.inline if carried.inline is not None else loaded[carried.ref or b""]

        snapshots = 0
        for index, step in enumerate(steps):
            filled = [restore.filled(entry, loaded) for entry in step]
            difference = replay.again(machine, filled, self._at, load)
            record = self._kept.get(step[-1].height)
            if difference is None and record is not None and record.program_hash == machine.program.hash:
                difference = _same_snapshot(machine, record)
                snapshots += 1
            if difference is not None:
                return index, snapshots, difference
        return len(steps), snapshots, None

    def _note(self, steps: Steps) -> None:
        first, last = steps[0][0].height, steps[-1][-1].height
        if self._spans and self._spans[-1].last == first - 1 and self._spans[-1].program_hash == self._hash.hex():
            first = self._spans.pop().first
        self._spans.append(Span(first, last, self._hash.hex()))

    def proof(self) -> Proof:
        return Proof(
            self._height, self._steps, self._proved, self._entries, self._snapshots, self._chain.hex(),
            self._state.hex(), self._spans, self.difference,
        )  # fmt: skip

    async def close(self) -> None:
        if self._machine is not None:
            await self._in_thread(self._machine.close)

    async def _in_thread(self, do: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._universe.executor, do)


def _under(program: Program, before: Machine, at: ids.Address) -> Machine:
    """The same state, under another program."""
    machine, _ = kernel_snapshots.load(program, kernel_snapshots.save(before), at)
    before.close()
    return machine


def _same_snapshot(machine: Machine, record: snapshot.Snapshot) -> replay.Difference | None:
    digests = [cas.address(part) for part in kernel_snapshots.save(machine)]
    root = cas.address(restore.root_bytes(digests))
    if root == record.root:
        return None
    return replay.Difference(record.height, record.step, f"snapshot {record.root.hex()}", f"snapshot {root.hex()}")


def _at_changes(steps: Steps, loaded: dict[bytes, bytes]) -> Iterator[tuple[Steps, commands.ChangeProgram | None]]:
    """Steps in groups, each change of program in a group of its own."""
    group: Steps = []
    for step in steps:
        changed = _change(step, loaded)
        if changed is None:
            group.append(step)
            continue
        if group:
            yield group, None
        yield [step], changed
        group = []
    if group:
        yield group, None


def _change(step: list[journal.Entry], loaded: dict[bytes, bytes]) -> commands.ChangeProgram | None:
    for entry in step:
        if entry.kind is Kind.PROGRAM_CHANGED:
            return structs.decode(commands.ChangeProgram, restore.filled(entry, loaded).payload)
    return None
