"""The trace of a stored world's flow domains: its steps are run again, from a saved state on, with a recorder.

Whatever is run is compared with the journal, byte for byte, as a proof does: a trace of something else than what
happened is refused. A world of flow domains alone needs no program: documents are data of it. Nothing is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from worldline.base import errors, failures, limits
from worldline.client.world_handle import Handle
from worldline.codec import canonical
from worldline.features.domains.pure import job_trace
from worldline.features.domains.pure.job_trace import Gap, Trace, TraceFilter, TraceRecorder
from worldline.flow_core.authoring.document_domain import name_of
from worldline.kernel.authoring.program import Program
from worldline.layers import worlds
from worldline.layers.history import history_line, journal_pages, saved_state, step_reader
from worldline.model import row_keys, snapshots
from worldline.runtime import world_reader, world_restore
from worldline.runtime.feature import parts_of
from worldline.runtime.personal import store_vault as vaults
from worldline.runtime.step_prover import Cold, PersonalValuePlace, Prover

CELLS_BYTES_MAX = 16 * limits.MIB  # of the world, in memory; of a larger one the cells stay in the store


async def trace(
    world: Handle, wanted: TraceFilter, *, above: int | None = None, up_to: int | None = None, last: int | None = None
) -> Trace:
    """The events of the steps that end in (above, up_to]; if it is not said above what, of the last entries, as far as
    states are kept. `NotRetained` if they are not kept from there on, `BadInput` if a program is needed and not known.
    """
    connection, at = world.connection, await world.address()
    engine = connection.store.engine
    line, top = await world_reader.line_of(engine, at), await world_reader.head(engine, at)
    up_to = top.height if up_to is None else up_to
    if not (above is None or 0 <= above <= up_to) or not 0 <= up_to <= top.height:
        raise errors.BadInput(f"no heights {above or 0} to {up_to}: the journal's head is at height {top.height}")
    saved, above = await _start(world, line, above, up_to, last or limits.FLOW_TRACE_ENTRIES)
    base = await saved_state.load(connection.blobs, saved.root, cells_max=CELLS_BYTES_MAX)
    run = asyncio.get_running_loop().run_in_executor
    head, rows = await run(connection.executor, world_restore.standing, saved, base)
    vault = await vaults.vault_of(engine, connection.store.env, line)
    prover = Prover(
        line,
        await _programs(world),
        head,
        rows,
        folded_to=above,
        cold=Cold.of(connection.blobs, base, CELLS_BYTES_MAX) if base.cold else None,
        sealed=PersonalValuePlace(vault, await vault.has_erased()),
        parts=parts_of(connection.store.features),
    )
    recorder = TraceRecorder(wanted, above=above)
    try:
        async for page in world_restore.step_pages(engine, connection.blobs, line, above=saved.height, up_to=up_to):
            loaded: dict[bytes, bytes] = {}
            steps = await world_restore.load_changes(connection.blobs, page, loaded)
            for each in steps:
                if each.height > above:  # payloads only of the steps that are told of
                    loaded |= await world_restore.load_referenced(connection.blobs, each.entries())
            await run(connection.executor, _take, prover, recorder, steps, loaded, above)
            if recorder.is_full:
                break
    except errors.NotRetained:  # it was compacted meanwhile
        raise await world_reader.not_retained(engine, line, above) from None
    finally:
        await run(connection.executor, prover.close)
    return recorder.trace(_gaps(prover))


def wanted_of(domain: Any, key: str | None, intent: str | None, *, graphs: bool) -> TraceFilter:
    """What users ask for: a domain is a class, a document, or its name."""
    name = domain if isinstance(domain, str) else "" if domain is None else name_of(domain)
    return TraceFilter(name, key, intent or "", graphs)


async def _start(
    world: Handle, line: history_line.HistoryLine, above: int | None, up_to: int, last: int
) -> tuple[snapshots.StateSnapshot, int]:
    """The saved state that steps are run from, and the height above which they are told of."""
    engine = world.connection.store.engine
    # A state can be made only where both entries and what steps changed are kept.
    lost = max(await journal_pages.changes_above(engine, line), (await journal_pages.kept(engine, line)).above)
    kept = [each for each in await world_reader.records(engine, line) if each.height >= lost]
    wanted = up_to if above is None else above
    if not kept or wanted < kept[0].height:
        raise await world_reader.not_retained(engine, line, wanted)
    above = max(up_to - last, kept[0].height) if above is None else above
    return [each for each in kept if each.height <= above][-1], above


async def _programs(world: Handle) -> dict[bytes, Program]:
    """The programs that may have made the steps, by hash."""
    connection, at = world.connection, await world.address()
    meta = worlds.decode(at, (await connection.store.engine.read(worlds.get(at))).value(0)).meta
    known = connection.programs.get(meta.program)
    if known is not None:
        # Under both hashes: if other code made a step, the comparison with the journal finds it.
        return {meta.program_hash: known, known.hash: known}
    if not await _is_alone(world):
        raise errors.BadInput(
            f"the program {meta.program!r} of world {meta.name!r} is not loaded; the world has more than flow domains, "
            f"and a trace runs that, too: name its file with --app FILE"
        )
    return {}


async def _is_alone(world: Handle) -> bool:
    """Whether the world has nothing but flow domains. Of its state, one row is read."""
    past = await world.past((await world.head()).height)
    await past.fetch([row_keys.DOMAINS])
    row = past.rows.get(row_keys.DOMAINS)
    fields: Any = [False] if row is None else canonical.decode(row.meaning)
    return fields[0] is True


def _take(
    prover: Prover,
    recorder: TraceRecorder,
    steps: Sequence[step_reader.StoredStep],
    loaded: dict[bytes, bytes],
    above: int,
) -> None:
    """In the thread."""
    for step in steps:
        if step.height <= above:
            prover.take([step], loaded)
            continue
        if recorder.is_full:
            return
        entries = [world_restore.filled(entry, loaded) for entry in step.entries()]
        recorder.begin(entries)
        proved = prover.proved
        with job_trace.told(recorder):
            prover.take([step], loaded)
        if prover.difference is not None:
            raise failures.Diverged(
                f"no trace: run again, a step does not come out as it is journaled, {prover.difference}"
            )
        if prover.proved > proved:
            recorder.end(entries)
        else:
            recorder.skip()


def _gaps(prover: Prover) -> list[Gap]:
    found = [
        Gap(each.first, each.last, f"made by program {each.program_hash[:12]}, which is not loaded")
        for each in prover.spans
    ]
    found += [Gap(each.first, each.last, "personal values of it were erased") for each in prover.erased]
    return sorted(found, key=lambda each: each.first)
