"""Bringing a world back: baseline, then the entries above it, each height from exactly one place.

Reading is done here, on the event loop; the machine is loaded and replayed in the kernel's thread. The chain is
recomputed over everything that is read, and what the code derives is compared with what the journal has, so a restored
world is a proven one. If the program has changed since the baseline, the entries above it must still come out the same;
see `worldline.roles.world.take` for how the change is then adopted.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

import msgspec

from worldline.base import errors, limits
from worldline.codec import canonical
from worldline.kernel import replay, snapshots
from worldline.kernel.authoring.program import Program
from worldline.kernel.state import Machine
from worldline.layers import blobs as blob_layer
from worldline.layers import journal as journals
from worldline.layers import snapshots as snapshot_layer
from worldline.model import ids, journal, payload
from worldline.model import snapshot as snapshot_model
from worldline.store import kv


class Restored(msgspec.Struct, frozen=True):
    machine: Machine
    head: journal.Head
    head_raw: bytes
    baseline: snapshot_model.Snapshot
    baseline_raw: bytes
    program_hash: bytes  # of the code that wrote the baseline
    entries: int  # above the baseline


class Material(msgspec.Struct, frozen=True):
    """Everything that was read of a world, before any of it is run."""

    at: ids.Address
    head: journal.Head
    head_raw: bytes
    baseline: snapshot_model.Snapshot
    baseline_raw: bytes
    parts: list[bytes]
    entries: list[journal.Entry]
    loaded: dict[bytes, bytes]


async def restore(
    engine: kv.Engine,
    blobs: blob_layer.Blobs,
    program: Program,
    at: ids.Address,
    executor: Executor,
    *,
    strict: bool = False,
) -> Restored:
    """The world as it stands at its head."""
    material = await gather(engine, blobs, at)
    return await asyncio.get_running_loop().run_in_executor(executor, build, material, program, strict)


def build(material: Material, program: Program, strict: bool = False) -> Restored:
    """Load the baseline and replay what is above it. `Diverged` if the code does not do what the journal says."""
    machine, program_hash = snapshots.load(program, material.parts, material.at, strict=strict)
    verified = journals.verify(snapshot_layer.head_of(material.baseline, state=machine.state), material.entries)
    if verified.chain != material.head.chain:
        raise errors.DigestMismatch("the journal's head", expected=material.head.chain, actual=verified.chain)

    def load(carried: payload.Payload) -> bytes:
        return carried.inline if carried.inline is not None else material.loaded[carried.ref or b""]

    for entries in replay.steps(material.entries):
        replay.check(machine, [filled(entry, material.loaded) for entry in entries], material.at, load)
    return Restored(
        machine,
        material.head,
        material.head_raw,
        material.baseline,
        material.baseline_raw,
        program_hash,
        len(material.entries),
    )


async def gather(
    engine: kv.Engine, blobs: blob_layer.Blobs, at: ids.Address, *, baseline: snapshot_model.Snapshot | None = None,
    up_to: int | None = None,
) -> Material:  # fmt: skip
    """Read a world: from its baseline, or from an earlier snapshot; to its head, or to the step end at or below a
    height.
    """
    read = await engine.read(snapshot_layer.get_baseline(at), journals.get_head(at))
    baseline_raw, head_raw = read.value(0), read.value(1)
    head = journals.decode_head(head_raw)
    start = baseline or snapshot_layer.decode_baseline(baseline_raw)
    assert head_raw is not None
    assert baseline_raw is not None
    parts = await load_parts(blobs, start.root)
    entries = await read_entries(engine, at, above=start.height, up_to=head.height if up_to is None else up_to)
    if up_to is not None:
        entries, head = cut(entries, snapshot_layer.head_of(start, state=bytes(limits.DIGEST_BYTES)))
    loaded = await load_referenced(blobs, entries)
    return Material(at, head, head_raw, start, baseline_raw, parts, entries, loaded)


def cut(entries: list[journal.Entry], start: journal.Head) -> tuple[list[journal.Entry], journal.Head]:
    """Whole steps only: a height inside a step means the step end below it."""
    while entries and not entries[-1].chain:
        entries.pop()
    if not entries:
        return [], start
    last = entries[-1]
    return entries, journal.Head(last.step, last.height, last.chain, last.state, last.time_us)


async def load_parts(blobs: blob_layer.Blobs, root: bytes) -> list[bytes]:
    digests = canonical.decode(await blobs.get(root))
    if not isinstance(digests, list):
        raise errors.DecodeError("a snapshot's root is a list of its parts")
    return [await blobs.get(each) for each in digests if isinstance(each, bytes)]


async def save_parts(blobs: blob_layer.Blobs, parts: list[bytes]) -> tuple[bytes, int]:
    """Put a snapshot's parts and root into the CAS. Returns the root and the size of it all."""
    digests = [await blobs.put(part) for part in parts]
    return await blobs.put(root_bytes(digests)), sum(map(len, parts))


def root_bytes(digests: list[ids.Digest]) -> bytes:
    return canonical.encode(list(digests))


async def read_entries(engine: kv.Engine, at: ids.Address, *, above: int, up_to: int) -> list[journal.Entry]:
    """Entries in (above, up_to], page by page."""
    entries: list[journal.Entry] = []
    while above < up_to:
        read = await engine.read(journals.read_range(at, above=above, bytes_max=4 * limits.MIB))
        page = journals.decode(at, read.page(0).items, above=above)
        if not page:
            raise errors.DecodeError(f"height {above + 1} is missing: the head says {up_to}")
        entries += page
        above = page[-1].height
    return [entry for entry in entries if entry.height <= up_to]


async def load_referenced(blobs: blob_layer.Blobs, entries: list[journal.Entry]) -> dict[bytes, bytes]:
    """The large payloads that these entries refer to, by address."""
    loaded: dict[bytes, bytes] = {}
    for entry in entries:
        if entry.blob and entry.blob not in loaded:
            loaded[entry.blob] = await blobs.get(entry.blob)
        if entry.kind in journal.INPUTS:
            carried = replay.payload_of(filled(entry, loaded))
            if carried is not None and carried.ref is not None and carried.ref not in loaded:
                loaded[carried.ref] = await blobs.load(carried)
    return loaded


def filled(entry: journal.Entry, loaded: dict[bytes, bytes]) -> journal.Entry:
    """The entry with its payload in place, if that was stored apart."""
    return msgspec.structs.replace(entry, payload=loaded[entry.blob], blob=b"") if entry.blob else entry
