"""Proving a world: running its whole journal through the code again, in the kernel's thread, comparing every digest.

A proof starts at the world's birth, or at the earliest snapshot that is kept. Each step's input is given to the machine
at its recorded time; what comes out must be what the journal has, byte for byte, and every snapshot on the way must
come out as it was saved. The chain is checked over everything (`worldline.inspect.verify`), also where no code is.

A world outlives its code. Entries are proved by the very program that wrote them, told by its hash. What was written by
code that is not loaded cannot be run again: that part is reported as unverifiable, and the proof resumes behind it, or
at the next snapshot where it was dropped what steps changed (`worldline.runtime.step_prover`). Entries since the last
change are always run, also by code that has been edited since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from worldline.base import errors
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.inspect import verify
from worldline.kernel import replay
from worldline.kernel.authoring.program import Program
from worldline.layers import worlds
from worldline.layers.history import history_line, saved_state, step_reader
from worldline.model import journal
from worldline.model import snapshots as snapshot
from worldline.model.rows import Rows
from worldline.runtime import world_reader, world_restore
from worldline.runtime.feature import parts_of
from worldline.runtime.personal import store_vault as vaults
from worldline.runtime.step_prover import PersonalValuePlace, Prover, Span, differing_row

T = TypeVar("T")


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
    start: int = 0  # the height of the snapshot that it begins at: entries below were not run, or are not kept
    erased: list[Span] = []  # heights of steps that had personal values which were erased: not run again
    difference: replay.CodeDifference | None = None

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
    since: int | None = None,
    progress: verify.Progress = verify.no_progress,
) -> Proof:
    """Replay a world and compare. `Damaged` if the stored bytes are wrong before any code is run.

    `programs`: code that may have written parts of the journal, besides what the universe knows. `up_to`: stop at the
    last step end at or below this height. Not `whole`: begin at the latest snapshot instead of the first. `since`:
    begin at the latest snapshot at or below this height.
    """
    connection, at = world.connection, await world.address()
    meta = worlds.decode(at, (await connection.store.engine.read(worlds.get(at))).value(0)).meta
    known = [each for each in [*programs, *connection.programs.values()] if each.name == meta.program]
    if not known and not (await world.machine()).domains.alone:
        raise errors.BadInput(
            f"the program {meta.program!r} is not loaded; a proof runs its code: name its file with --app FILE"
        )
    top = await verify.head(connection, at)
    line = await world_reader.line_of(connection.store.engine, at)
    above = (await verify.entries_kept(connection, line)).above
    kept = [each for each in await verify.records(connection, line) if each.height >= above]
    if up_to is not None:
        if not 0 <= up_to <= top.height:
            raise errors.BadInput(f"no height {up_to}: the journal's head is at height {top.height}")
        kept = [each for each in kept if each.height <= up_to]
    if not kept:
        raise await world_reader.not_retained(connection.store.engine, line, above if up_to is None else up_to)
    start = _start(kept, whole=whole, since=since)
    loaded = {program.hash: program for program in reversed(known)}
    if known:
        # The code that is loaded may be an edited form of it: entries since the last change are run with it all the
        # same.
        loaded.setdefault(meta.program_hash, known[0])
    saved = {each.height: each for each in kept}
    vault = await vaults.vault_of(connection.store.engine, connection.store.env, line)
    sealed = PersonalValuePlace(vault, await vault.has_erased())
    parts = parts_of(connection.store.features)
    prover = Prover(line, loaded, *await _standing(connection, start), saved=saved, sealed=sealed, parts=parts)
    try:
        walk = verify.VerifyWalk(connection, line, start, top, kept=saved)
        async for steps in walk.steps(progress):
            for last in (step[-1] for step in steps):
                verify.check_record(saved.get(last.height), last)
            chosen = [step for step in walk.stored if up_to is None or step.height <= up_to]
            taken = await _take(connection, prover, chosen, walk.loaded)
            if taken < len(walk.stored):
                if prover.difference is not None:
                    why = await _explained(connection, line, prover, walk.stored[taken], walk.loaded)
                    return _proof(prover, start, why)
                break
        return _proof(prover, start)
    finally:
        await _in_thread(connection, prover.close)


async def _take(
    connection: Connection, prover: Prover, chosen: list[step_reader.StoredStep], loaded: dict[bytes, bytes]
) -> int:
    """Have steps proved. Behind steps that can neither be run nor folded the proof resumes at the next snapshot."""
    taken = 0
    while True:
        taken += await _in_thread(connection, prover.take, chosen[taken:], loaded)
        record = prover.wanted_snapshot
        if taken == len(chosen) or record is None:
            return taken
        prover.stand(*await _standing(connection, record))


async def _standing(connection: Connection, start: snapshot.StateSnapshot) -> tuple[journal.Head, Rows]:
    try:
        return world_restore.standing(start, await saved_state.load(connection.blobs, start.root))
    except (errors.Corrupt, errors.NotFound) as error:
        raise verify.Damaged(start.height, f"the snapshot of step {start.step}: {error}") from error


def _start(kept: list[snapshot.StateSnapshot], *, whole: bool, since: int | None) -> snapshot.StateSnapshot:
    """Where the proof begins."""
    if since is None and not whole:
        return kept[-1]
    if since is None:
        return kept[0]
    below = [each for each in kept if each.height <= since]
    if not below:
        raise errors.NotFound(f"no snapshot at or below height {since} is kept; the earliest is at {kept[0].height}")
    return below[-1]


async def _explained(
    connection: Connection,
    line: history_line.HistoryLine,
    prover: Prover,
    step: step_reader.StoredStep,
    loaded: dict[bytes, bytes],
) -> replay.CodeDifference:
    """The difference, with the row and the field in which a state differs: for that, what the step has changed is read
    again, from the state before it.
    """
    difference = prover.difference
    assert difference is not None
    if difference.field or not difference.journal.startswith("state ") or step.dropped:
        return difference
    engine, height = connection.store.engine, prover.head.height
    baseline = await world_reader.saved_below(engine, line, height)
    try:
        material = await world_restore.gather(engine, connection.blobs, line.at, baseline=baseline, up_to=height)
    # The rows before the step cannot be made, so the difference is said without the field.
    except errors.NotRetained:
        return difference
    _, rows = await _in_thread(connection, world_restore.fold, material)
    changed = step_reader.resolve(step, rows, loaded)
    return msgspec.structs.replace(difference, field=differing_row(changed, prover.derived))


def _proof(prover: Prover, start: snapshot.StateSnapshot, difference: replay.CodeDifference | None = None) -> Proof:
    head = prover.head
    return Proof(
        head.height,
        prover.steps,
        prover.proved,
        prover.entries,
        prover.snapshots,
        head.chain.hex(),
        head.state.hex(),
        prover.spans,
        start.height,
        prover.erased,
        difference,
    )


async def _in_thread(connection: Connection, do: Callable[..., T], *given: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(connection.executor, do, *given)
