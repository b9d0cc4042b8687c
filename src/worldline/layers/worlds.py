"""Worlds as things that exist: creating them, naming them, listing them, changing what they take.

A world's meta is the switch that every producer expects, byte for byte: a change makes all producers read it
again. It rarely changes and holds nothing that counts. The listing repeats it under the universe, in the same batch,
so that listing never walks a world's data. The id is never used again: a deleted world leaves its meta behind.

Names point to worlds, any number to one. `meta.name` is the name a world was created under or last renamed to; other
names that point to it are not listed in it. Deleting a world frees the names its caller knows in the same batch; one
that still points there leads to `NotFound` until it is removed (`features/deletion/batches.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.keys import journal as journal_keys
from worldline.keys import leases as lease_keys
from worldline.keys import lineage as lineage_keys
from worldline.keys import snapshots as snapshot_keys
from worldline.keys import worlds as keys
from worldline.model import ids, journal, leases, snapshots
from worldline.model import world_records as model
from worldline.store import kv


class WorldRecord(msgspec.Struct, frozen=True):
    """A world's meta as it was read. `raw` is what producers expect."""

    at: ids.Address
    meta: model.WorldMeta
    raw: bytes


def get(at: ids.Address) -> kv.Get:
    return kv.Get(keys.meta_key(at))


def decode(at: ids.Address, raw: bytes | None) -> WorldRecord:
    """The world, which must exist. A deleted one does not."""
    world = find(at, raw)
    if world is None:
        raise gone(at, raw)
    return world


def gone(at: ids.Address, raw: bytes | None) -> errors.NotFound:
    """The error that says that a world is not there, or not any more."""
    if raw is None:
        return errors.NotFound(f"no world {at.world.hex()} in this universe")
    return errors.NotFound(f"world {at.world.hex()} is deleted")


def find(at: ids.Address, raw: bytes | None) -> WorldRecord | None:
    if raw is None:
        return None
    meta = keys.META.unpack(raw)
    return None if meta.status is model.Status.DELETED else WorldRecord(at, meta, raw)


def get_name(universe: ids.UniverseId, name: str) -> kv.Get:
    return kv.Get(keys.name_key(universe, name))


def named(universe: ids.UniverseId, raw: bytes | None) -> ids.Address | None:
    """Where a name points."""
    name = keys.NAME.get(raw)
    return None if name is None else ids.Address(universe, ids.WorldId(name.world))


def list_range(universe: ids.UniverseId, *, after: ids.WorldId | None = None, count_max: int) -> kv.Range:
    """Worlds that are not deleted, in the order of their ids, from the one behind `after` on."""
    begin, end = keys.index(universe)
    if after is not None:
        begin = tuples.successor(keys.index_key(ids.Address(universe, after)))
    return kv.Range(begin, end, count_max=count_max)


def newest_range(universe: ids.UniverseId, *, count_max: int) -> kv.Range:
    """The same, the newest first: ids are time-ordered."""
    return kv.Range(*keys.index(universe), count_max=count_max, reverse=True)


def listed_at(universe: ids.UniverseId, page: kv.Page) -> list[ids.Address]:
    """The worlds of such a page by their keys alone: a record that cannot be read hides none of the others."""
    return [ids.Address(universe, keys.index_world(universe, key)) for key, _ in page.items]


def listed(universe: ids.UniverseId, page: kv.Page) -> list[tuple[ids.Address, model.WorldMeta]]:
    return [(ids.Address(universe, keys.index_world(universe, key)), keys.INDEX.unpack(raw)) for key, raw in page.items]


def create(
    batch: kv.Batch,
    at: ids.Address,
    *,
    name: str,
    program: str,
    program_hash: bytes,
    labels: dict[str, str],
    baseline: snapshots.StateSnapshot,
    time_us: int,
) -> WorldRecord:
    """A new world with a name of its own, an empty journal and a baseline from birth.

    Guards: the id and the name are free. The caller has put the baseline's blob, or puts it in this batch.
    """
    assert baseline.step == baseline.height == 0
    meta = model.WorldMeta(
        name=ids.check_name(name, "a world's name"),
        program=ids.check_name(program, "a program's name"),
        program_hash=program_hash,
        status=model.Status.ACTIVE,
        labels=check_labels(labels),
        created_us=time_us,
    )
    made = _new(batch, at, meta)
    batch.put(journal_keys.head_key(at), journal_keys.HEAD.pack(journal.GENESIS))
    batch.put(snapshot_keys.snapshot_key(at, 0), snapshot_keys.SNAPSHOT.pack(baseline))
    batch.put(snapshot_keys.baseline_key(at), snapshot_keys.BASELINE.pack(baseline))
    return made


def fork(
    batch: kv.Batch,
    parent: WorldRecord,
    at: ids.Address,
    *,
    meta: model.WorldMeta,
    lineage: model.Lineage,
    head: journal.Head,
    baseline: snapshots.StateSnapshot,
    owners: Sequence[WorldRecord] = (),
) -> WorldRecord:
    """A new world that continues where the history of another ends at `head`, from its own journal on.

    Guards: the id and the name are free. The parent's meta is expected, and that of the `owners` of what the fork
    needs: a world that is deleted meanwhile is neither forked nor pinned. The caller pins it (`snapshots.pin`).
    """
    for each in (parent, *owners):
        batch.expect(keys.meta_key(each.at), each.raw)
    return imported(batch, at, meta=meta, lineage=lineage, head=head, baseline=baseline)


def imported(
    batch: kv.Batch,
    at: ids.Address,
    *,
    meta: model.WorldMeta,
    lineage: model.Lineage,
    head: journal.Head,
    baseline: snapshots.StateSnapshot,
) -> WorldRecord:
    """A new world that continues where a history ends at `head` that is in the store already. Guards: the id and the
    name are free.
    """
    check_labels(meta.labels)
    made = _new(batch, at, meta)
    batch.put(lineage_keys.lineage_key(at), lineage_keys.LINEAGE.pack(lineage))
    batch.put(journal_keys.head_key(at), journal_keys.HEAD.pack(head))
    batch.put(snapshot_keys.baseline_key(at), snapshot_keys.BASELINE.pack(baseline))
    return made


def _new(batch: kv.Batch, at: ids.Address, meta: model.WorldMeta) -> WorldRecord:
    """A world's record, its name and its listing, and an epoch that no lease has had."""
    raw = keys.META.pack(meta)
    # A deleted world leaves its meta behind, so an id that was used is never free again.
    batch.absent(keys.meta_key(at))
    batch.put(keys.meta_key(at), raw)
    batch.absent(keys.name_key(at.universe, meta.name))
    batch.put(keys.name_key(at.universe, meta.name), keys.NAME.pack(keys.NameRecord(at.world)))
    batch.put(keys.index_key(at), keys.INDEX.pack(meta))
    # Number 0 belongs to no lease: the first acquire writes 1.
    batch.put(lease_keys.epoch_key(at), lease_keys.EPOCH.pack(leases.Epoch(0, b"")))
    return WorldRecord(at, meta, raw)


def change(
    batch: kv.Batch,
    world: WorldRecord,
    *,
    status: model.Status | None = None,
    labels: dict[str, str] | None = None,
    program: tuple[str, bytes] | None = None,
    name: str | None = None,
) -> WorldRecord:
    """Change what is given. A status that may not follow the present one is refused; a world is deleted by `bury`, with
    all it has. Guard: the meta as it was read.

    Two callers that make the same change of the same meta write the same bytes: each may take the other's success for
    its own.
    """
    meta = world.meta
    if meta.status is model.Status.DELETED:
        raise errors.Closed(f"world {meta.name!r} is deleted; nothing of it changes any more")
    if status is not None and status is not meta.status:
        if status not in model.TRANSITIONS[meta.status] or status is model.Status.DELETED:
            raise errors.Closed(
                f"world {meta.name!r} is {meta.status.name.lower()}; it cannot become {status.name.lower()}"
            )
        meta = msgspec.structs.replace(meta, status=status)
    if labels is not None:
        meta = msgspec.structs.replace(meta, labels=check_labels(labels))
    if program is not None:
        checked = ids.check_name(program[0], "a program's name")
        meta = msgspec.structs.replace(meta, program=checked, program_hash=program[1])
    if name is not None:
        meta = msgspec.structs.replace(meta, name=ids.check_name(name, "a world's name"))
    # Counted, so that the bytes change even if no value does: the meta is the guard of this batch.
    meta = msgspec.structs.replace(meta, revision=meta.revision + 1)
    raw = keys.META.pack(meta)
    batch.expect(keys.meta_key(world.at), world.raw)
    batch.put(keys.meta_key(world.at), raw)
    # The listing repeats the meta: only in the same batch do they stay equal.
    batch.put(keys.index_key(world.at), keys.INDEX.pack(meta))
    return WorldRecord(world.at, meta, raw)


def bury(batch: kv.Batch, world: WorldRecord) -> WorldRecord:
    """Delete a world: from now on there is none of this id, permanently. Guard: the meta as it was read.

    What stays of the meta says that, and when the world was made; name, program and labels go.
    """
    if model.Status.DELETED not in model.TRANSITIONS[world.meta.status]:
        raise errors.Closed(f"world {world.at.world.hex()} is deleted already")
    gone = model.WorldMeta(
        "", "", b"", model.Status.DELETED, {}, world.meta.created_us, revision=world.meta.revision + 1
    )
    batch.expect(keys.meta_key(world.at), world.raw)
    raw = keys.META.pack(gone)
    batch.put(keys.meta_key(world.at), raw)
    batch.delete(keys.index_key(world.at))
    return WorldRecord(world.at, gone, raw)


def is_deleted(raw: bytes | None) -> bool:
    """Whether there was a world, and it is deleted."""
    return raw is not None and keys.META.unpack(raw).status is model.Status.DELETED


def rename(batch: kv.Batch, world: WorldRecord, name: str, *, raw: bytes) -> WorldRecord:
    """Give a world another name and free its old one, whose record is `raw`.

    Guards: the meta as it was read, the new name is free, the old one still points here.
    """
    universe = world.at.universe
    if name == world.meta.name:
        raise errors.Exists(f"the world's name is {name!r} already")
    if named(universe, raw) != world.at:
        raise errors.NotFound(f"the name {world.meta.name!r} does not point to world {world.at.world.hex()}")
    renamed = change(batch, world, name=name)
    free_name(batch, universe, world.meta.name, raw=raw)
    point_name(batch, universe, name, world, raw=None)
    return renamed


def free_name(batch: kv.Batch, universe: ids.UniverseId, name: str, *, raw: bytes) -> None:
    """Take a name away from the world it points to, if it still points there."""
    batch.expect(keys.name_key(universe, name), raw)
    batch.delete(keys.name_key(universe, name))


def point_name(batch: kv.Batch, universe: ids.UniverseId, name: str, to: WorldRecord, *, raw: bytes | None) -> None:
    """Make a name point to a world of its universe: a new name, or one that points elsewhere (`raw`) now.

    Guard: the name as it was read. The world's meta is expected, so that no name is given to a world deleted meanwhile.
    """
    assert to.at.universe == universe
    key = keys.name_key(universe, name)
    if raw is None:
        batch.absent(key)
    elif named(universe, raw) == to.at:
        raise errors.Exists(f"the name {name!r} points to world {to.at.world.hex()} already")
    else:
        batch.expect(key, raw)
    batch.put(key, keys.NAME.pack(keys.NameRecord(to.at.world)))
    batch.expect(keys.meta_key(to.at), to.raw)


def expect_there(batch: kv.Batch, world: WorldRecord) -> None:
    """The world is not deleted, now and at the commit."""
    batch.expect(keys.meta_key(world.at), world.raw)


def expect_open(batch: kv.Batch, world: WorldRecord) -> None:
    """What every producer does: the world must take input, now and at the commit."""
    # Looked at for a clear error now, and expected, because it may change before the commit.
    if world.meta.status not in model.TAKES_INPUT:
        raise errors.Closed(f"world {world.meta.name!r} is {world.meta.status.name.lower()} and takes no input")
    batch.expect(keys.meta_key(world.at), world.raw)


def expect_running(batch: kv.Batch, world: WorldRecord) -> None:
    """For a worker that takes the lease to run a world: it must be one that runs, now and at the commit."""
    if world.meta.status is not model.Status.ACTIVE:
        raise errors.Closed(f"world {world.meta.name!r} is {world.meta.status.name.lower()} and does not run")
    batch.expect(keys.meta_key(world.at), world.raw)


def check_labels(labels: dict[str, str]) -> dict[str, str]:
    """Labels that people choose: as many as there may be, with names and values that are printable."""
    if len(labels) > limits.LABELS_MAX:
        raise errors.BadInput(f"{len(labels)} labels; the limit is {limits.LABELS_MAX}")
    for key, value in labels.items():
        ids.check_name(key, "a label's name")
        if value:
            ids.check_name(value, "a label's value")
    return dict(labels)
