"""Bringing a world back: baseline, then the changes above it, each height from exactly one place.

Reading is done here, on the event loop; the rows are put together and checked in the kernel's thread. Both digests are
recomputed over everything that is read. No user code runs: whether the code would do the same again is for
`worldline.features.proofs.calls` to say, and a run whose code has changed finds out when it next continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor

import msgspec

from worldline.base import errors, limits, probes
from worldline.kernel import replay, state_rows
from worldline.kernel.authoring.program import Program
from worldline.kernel.machine import Machine
from worldline.kernel.rows.cells import Fetch
from worldline.layers import blobs as blob_layer
from worldline.layers import journal as journals
from worldline.layers import snapshots as snapshot_layer
from worldline.layers.history import history_line, journal_pages, saved_state, step_reader
from worldline.model import ids, journal
from worldline.model import snapshots as snapshot_model
from worldline.model.change import Row
from worldline.model.rows import Rows
from worldline.model.trie.unsaved import Unsaved
from worldline.model.world_records import Lineage
from worldline.runtime.world_bounds import StepRules, WorldBounds
from worldline.store import kv

PAGE_BYTES = journal_pages.PAGE_BYTES
GATHERS_MAX = 5  # of a world whose baseline moves on, and is compacted, while it is read


class RestoredWorld(msgspec.Struct, frozen=True):
    machine: Machine
    head: journal.Head
    head_raw: bytes
    baseline: snapshot_model.StateSnapshot
    baseline_raw: bytes
    entries: int  # above the baseline
    unsaved: Unsaved  # what has changed since
    lineage: Lineage | None  # of a fork
    bounds: WorldBounds | None = None  # what its universe lets it do, if not everything


class Material(msgspec.Struct, frozen=True):
    """Everything that was read of a world, before any of it is used: the baseline, the steps above it, and the blobs
    that their changes need (`loaded`).
    """

    at: ids.Address
    head: journal.Head
    head_raw: bytes
    baseline: snapshot_model.StateSnapshot
    baseline_raw: bytes
    base: saved_state.LoadedState
    steps: list[step_reader.StoredStep]
    loaded: dict[bytes, bytes]
    lineage: Lineage | None = None
    bases: dict[bytes, Row] = {}  # cells that were left out of `base`, and that deltas of the steps start from
    ruled: kv.ReadResult | None = None  # what the rules of its universe are decoded from, if they were asked for


async def restore(
    engine: kv.Engine,
    blobs: blob_layer.Blobs,
    program: Program,
    at: ids.Address,
    executor: Executor,
    *,
    strict: bool = False,
) -> RestoredWorld:
    """The world as it stands at its head."""
    material = await gather(engine, blobs, at)
    return await asyncio.get_running_loop().run_in_executor(executor, build, material, program, strict)


def build(
    material: Material, program: Program, strict: bool = False, cells_of: Callable[[Unsaved], Fetch] | None = None
) -> RestoredWorld:
    """Make a machine of the baseline's rows and the changes above it. No user code runs. `cells_of`: where it gets the
    cells from that were left out, and the trie that they are saved in.
    """
    unsaved = Unsaved(material.base.header)
    fetch = None
    if material.base.cold:
        assert cells_of is not None, "the cells that were left out must be somewhere"
        unsaved.track()
        fetch = cells_of(unsaved)
    head, rows = fold(material, unsaved)
    machine = state_rows.machine_of(program, head.state, rows.items(), material.at, strict=strict, fetch=fetch)
    if fetch is None and cells_of is not None:
        machine.cells.save_in(cells_of(unsaved))
    return RestoredWorld(
        machine,
        material.head,
        material.head_raw,
        material.baseline,
        material.baseline_raw,
        head.height - material.baseline.height,
        unsaved,
        material.lineage,
    )


def fold(material: Material, unsaved: Unsaved | None = None) -> tuple[journal.Head, Rows]:
    """The rows as they stand at the end of what was read, and that end. Both digests of every step are checked.
    `unsaved` is told what has changed above the baseline.
    """
    start, rows = standing(material.baseline, material.base)
    for key, row in material.bases.items():
        rows.put(key, row)
    if unsaved is not None and unsaved.tracked:
        unsaved.know(rows.keys())
        head = step_reader.fold(start, material.steps, rows, material.loaded, unsaved.take)
    else:
        head = step_reader.fold(start, material.steps, rows, material.loaded)
    # Each step was checked against the one before; this ties the last of them to the head.
    if head.chain != material.head.chain:
        raise errors.DigestMismatch("the journal's head", expected=material.head.chain, actual=head.chain)
    return msgspec.structs.replace(material.head, state=head.state), rows


async def gather(
    engine: kv.Engine,
    blobs: blob_layer.Blobs,
    at: ids.Address,
    *,
    baseline: snapshot_model.StateSnapshot | None = None,
    up_to: int | None = None,
    cells_max: int | None = None,
    rules: StepRules | None = None,
) -> Material:
    """Read a world: from its baseline, or from an earlier snapshot; to its head, or to the step end at or below a
    height. What a fork has of its parent is read from there. `cells_max`: in bytes; if its state may take more memory
    than this, the cells of the baseline are left out. `rules`: read too, for a holder.
    """
    for _ in range(GATHERS_MAX):
        try:
            return await _gather(engine, blobs, at, baseline=baseline, up_to=up_to, cells_max=cells_max, rules=rules)
        except errors.NotRetained:
            # A snapshot that was asked for does not move on: a second read would find the same gap.
            if baseline is not None:
                raise
            probes.hit("restore.compacted-meanwhile")
    raise errors.Conflicted(f"the journal of world {at.world.hex()} was compacted again and again while it was read")


async def _gather(
    engine: kv.Engine,
    blobs: blob_layer.Blobs,
    at: ids.Address,
    *,
    baseline: snapshot_model.StateSnapshot | None,
    up_to: int | None,
    cells_max: int | None,
    rules: StepRules | None,
) -> Material:
    own = snapshot_layer.get_baseline(at), journals.get_head(at), history_line.get(at)
    read = await engine.read(*own, *(() if rules is None else rules.reads(at)))
    ruled = None if rules is None else msgspec.structs.replace(read, answers=read.answers[len(own) :])
    baseline_raw, head_raw = read.value(0), read.value(1)
    lineage = history_line.decode_lineage(read.value(2))
    line = history_line.line_of(at, lineage)
    head = journals.decode_head(head_raw)
    start = baseline or snapshot_layer.decode_baseline(baseline_raw)
    assert head_raw is not None
    assert baseline_raw is not None
    base = await saved_state.load(blobs, start.root, cells_max=cells_max)
    top = head.height if up_to is None else up_to
    try:
        steps = await read_steps(engine, blobs, line, above=start.height, up_to=top)
    except errors.Corrupt as error:
        whole = await saved_state.load(blobs, start.root) if base.cold else base
        why = await _damage(engine, blobs, line, (start, whole), top)
        raise errors.DecodeError(f"{error}; {why}" if why else str(error)) from error
    if up_to is not None:
        # A height inside a step means the step end below it.
        head = steps[-1].head() if steps else snapshot_layer.head_of(start, state=bytes(limits.DIGEST_BYTES))
    loaded: dict[bytes, bytes] = {}
    steps = await load_changes(blobs, steps, loaded)
    bases = await saved_state.lookup(blobs, base.header.root, step_reader.bases(steps)) if base.cold else {}
    return Material(at, head, head_raw, start, baseline_raw, base, steps, loaded, lineage, bases, ruled)


async def read_steps(
    engine: kv.Engine, blobs: blob_layer.Blobs, line: history_line.HistoryLine, *, above: int, up_to: int
) -> list[step_reader.StoredStep]:
    """Whole steps in (above, up_to]. `above` is the end of a step."""
    return [step async for page in step_pages(engine, blobs, line, above=above, up_to=up_to) for step in page]


async def step_pages(
    engine: kv.Engine,
    blobs: blob_layer.Blobs,
    line: history_line.HistoryLine,
    *,
    above: int,
    up_to: int,
    changes: bool = True,
) -> AsyncIterator[list[step_reader.StoredStep]]:
    """The same, page by page. `NotRetained` for a step whose changes were dropped, unless they are not asked for."""
    pages = journal_pages.Pages(engine, blobs, line, above=above)
    reader = pages.reader
    while reader.height < up_to or not reader.is_whole:
        items = await pages.items(bytes_max=PAGE_BYTES)
        if not items:
            reader.check_end()
            raise await journal_pages.missing(engine, line.at, reader.at, reader.height + 1, up_to)
        steps = reader.take(items)
        # Pages end where they end: steps above the wanted height may be in the last one.
        while steps and steps[-1].height > up_to:
            steps.pop()
        for step in steps if changes else ():
            if step.dropped:
                raise journal_pages.dropped(step.height)
        if steps:
            yield steps


async def _damage(
    engine: kv.Engine,
    blobs: blob_layer.Blobs,
    line: history_line.HistoryLine,
    start: tuple[snapshot_model.StateSnapshot, saved_state.LoadedState],
    up_to: int,
) -> str:
    """Where a journal that cannot be read is damaged: once more, value by value."""
    head, rows = standing(*start)
    pages = journal_pages.Pages(engine, blobs, line, above=head.height)
    reader = pages.reader
    loaded: dict[bytes, bytes] = {}
    while reader.height < up_to or not reader.is_whole:
        items = await pages.items(bytes_max=PAGE_BYTES)
        if not items:
            return ""
        at = reader.at
        for index, item in enumerate(items):
            try:
                steps = await load_changes(blobs, reader.take([item]), loaded)
                head = step_reader.fold(head, steps, rows, loaded)
            except errors.NotRetained:
                return ""
            except errors.Corrupt as error:
                why = await explain(blobs, reader, items[index:], head, rows)
                return f"{step_reader.item_name(at, item)}: {why or error}"
    return ""


async def explain(
    blobs: blob_layer.Blobs,
    reader: step_reader.StepReader,
    items: Sequence[step_reader.Item],
    head: journal.Head,
    rows: Rows,
) -> str:
    """What is wrong in a value whose checksum is: `items` begin with it, head and rows are those of the last step
    before. The digests of what can still be read tell the step, and often the row; nothing if they all hold.
    """
    loaded: dict[bytes, bytes] = {}
    try:
        for item in items:
            steps = reader.take([item], checked=False)
            for step in steps:
                head = step_reader.fold(head, await load_changes(blobs, [step], loaded), rows, loaded)
            if steps:
                return ""
    except errors.Corrupt as error:
        return str(error)
    return ""


async def load_changes(
    blobs: blob_layer.BlobReader, steps: Sequence[step_reader.StoredStep], loaded: dict[bytes, bytes]
) -> list[step_reader.StoredStep]:
    """Add the blobs that the changes of these steps need to `loaded`. Returns the steps, with the changes of those in
    place that are a blob as a whole. `Corrupt` says which step's blob is missing.
    """
    found: list[step_reader.StoredStep] = []
    for each in steps:
        step = each
        if not step.needs_blobs:
            found.append(step)
            continue
        if step_reader.is_apart(step):
            [address] = step_reader.needed(step)
            step = step.with_changes(await _load_for(blobs, step, address))
        for address in step_reader.needed(step):
            if address not in loaded:
                loaded[address] = await _load_for(blobs, step, address)
        found.append(step)
    return found


async def _load_for(blobs: blob_layer.BlobReader, step: step_reader.StoredStep, address: bytes) -> bytes:
    try:
        return await blobs.get(address)
    except (errors.Corrupt, errors.NotFound) as error:
        raise errors.Corrupt(f"changes of step {step.step}, which ends at height {step.height}: {error}") from error


def standing(saved: snapshot_model.StateSnapshot, base: saved_state.LoadedState) -> tuple[journal.Head, Rows]:
    """The head that a snapshot was taken at, and the rows of its state: what steps above it are folded into."""
    return snapshot_layer.head_of(saved, state=base.state), Rows(base.rows())


read_entries = journal_pages.entries


async def load_referenced(blobs: blob_layer.BlobReader, entries: Sequence[journal.JournalEntry]) -> dict[bytes, bytes]:
    """The large payloads that these entries refer to, by address."""
    loaded: dict[bytes, bytes] = {}
    for entry in entries:
        if entry.blob and entry.blob not in loaded:
            loaded[entry.blob] = await blobs.get(entry.blob)
        if entry.kind in journal.INPUTS:
            carried = replay.payload_of(filled(entry, loaded))
            if carried is not None and carried.ref is not None and carried.ref not in loaded:
                loaded[carried.ref] = await blob_layer.load(blobs, carried)
    return loaded


def filled(entry: journal.JournalEntry, loaded: dict[bytes, bytes]) -> journal.JournalEntry:
    """The entry with its payload in place, if that was stored apart."""
    return msgspec.structs.replace(entry, payload=loaded[entry.blob], blob=b"") if entry.blob else entry
