"""Importing a world: its keys are written in many batches, and it is there only with the last of them.

A marker says that an import is under way. It is put by the first batch, changed by every other and deleted by the last
one, which makes the world. So what a killed process leaves behind is found by its marker, and an import that was swept
conflicts at its next batch and makes no world without its keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.features.copies import dormant_worlds, keyspace, records
from worldline.features.encryption import keyspace as encryption_keyspace
from worldline.keys import imports, space
from worldline.keys import inbox as inbox_keys
from worldline.keys import personal_records as sealed_keys
from worldline.keys import personal_subjects as subject_keys
from worldline.keys import segments as segment_keys
from worldline.keys import snapshots as snapshot_keys
from worldline.layers import inbox as inboxes
from worldline.layers import universes, worlds
from worldline.model import ids, journal, snapshots
from worldline.model import world_records as model
from worldline.store import kv


class Import(msgspec.Struct, frozen=True):
    """An import under way, or abandoned. `raw`: its marker as stored."""

    at: ids.Address
    raw: bytes
    age_us: int  # of the universe, when it began


def begin(batch: kv.Batch, at: ids.Address, *, token: bytes, source: str, time_us: int, age_us: int) -> Import:
    """Guard: the world's id was never used."""
    raw = keyspace.COPYING.pack(records.Copying(token, source, time_us, age_us=age_us))
    # The guard, and what makes two imports of one id conflict.
    batch.absent(imports.import_key(at))
    batch.put(imports.import_key(at), raw)
    return Import(at, raw, age_us)


def advance(batch: kv.Batch, under_way: Import) -> Import:
    """What every batch of an import does. Guard: no batch was written since, and the import was not swept."""
    key, record = imports.import_key(under_way.at), keyspace.COPYING.unpack(under_way.raw)
    raw = keyspace.COPYING.pack(msgspec.structs.replace(record, batches=record.batches + 1))
    batch.expect(key, under_way.raw)
    batch.put(key, raw)
    return Import(under_way.at, raw, under_way.age_us)


def put_segment(batch: kv.Batch, at: ids.Address, record: journal.Segment, *, age_us: int) -> None:
    """Index a segment whose body was put and checked. It is as old here as the import."""
    record = msgspec.structs.replace(record, age_us=age_us)
    batch.put(segment_keys.segment_key(at, record.last_height), segment_keys.SEGMENT.pack(record))


def put_dropped(batch: kv.Batch, at: ids.Address, record: journal.DroppedEntries) -> None:
    """Say that the first entries are not kept any more."""
    batch.put(segment_keys.segment_key(at, record.last_height), segment_keys.DROPPED.pack(record))


def put_snapshot(batch: kv.Batch, at: ids.Address, record: snapshots.StateSnapshot, *, age_us: int) -> None:
    """Record a saved state that was put and checked. It is as old here as the import."""
    record = msgspec.structs.replace(record, age_us=age_us)
    batch.put(snapshot_keys.snapshot_key(at, record.step), snapshot_keys.SNAPSHOT.pack(record))


def put_seen(batch: kv.Batch, at: ids.Address, seen: records.CopiedSeenId) -> None:
    """An id that was seen, with the stamp that its input had."""
    record, stamp = seen.record[: -limits.STAMP_BYTES], seen.record[-limits.STAMP_BYTES :]
    batch.put(inbox_keys.seen_prefix(at) + seen.seen, inboxes.unaged(record) + stamp)


def put_unread(batch: kv.Batch, at: ids.Address, unread: records.CopiedInput) -> None:
    """Append an unread input. It gets a stamp of this store, and so does the record of its id."""
    index = batch.append(inbox_keys.item_prefix(at), unread.item)
    if unread.seen:
        batch.put(inbox_keys.seen_prefix(at) + unread.seen, inboxes.unaged(unread.record), stamp=index)


def put_dead(batch: kv.Batch, at: ids.Address, letter: bytes, *, number: int) -> None:
    """A dead letter, under a stamp that no engine assigns: like that of an input handed over inside of a process."""
    batch.put(inbox_keys.dead_key(at, number.to_bytes(8, "big") + b"\xff" * 4), letter)


def put_sealed(batch: kv.Batch, at: ids.Address, apart: records.Apart) -> None:
    """A personal value. It is filed under the imported world, with which a lineage begins."""
    # Unpacked to be checked: a file may say anything.
    sealed_keys.KEPT.unpack(apart.record)
    match tuples.unpack(apart.key):
        case (tuples.Uuid(subject), tuples.Uuid(value)):
            batch.put(sealed_keys.value_key(at, subject, value), apart.record)
        case _:
            raise errors.DecodeError("not a personal value")


def put_subject(batch: kv.Batch, at: ids.Address, apart: records.Apart) -> None:
    """What is known of a subject, or that a value was erased."""
    # Unpacked to be checked, too.
    subject_keys.ERASURES.unpack(apart.record)
    match tuples.unpack(apart.key):
        case (0, tuples.Uuid(subject)):
            batch.put(subject_keys.subject_key(at, subject), apart.record)
        case (1, tuples.Uuid(subject), tuples.Uuid(value)):
            batch.put(subject_keys.value_key(at, subject, value), apart.record)
        case _:
            raise errors.DecodeError("not a subject of personal values")


def finish(
    batch: kv.Batch,
    under_way: Import,
    *,
    meta: model.WorldMeta,
    lineage: model.Lineage,
    head: journal.Head,
    baseline: snapshots.StateSnapshot,
    source: str,
    time_us: int,
    generation_raw: bytes | None,
) -> worlds.WorldRecord:
    """All of it is there: the world is made, archived. Guards: the id and the name are free. Expects the generation
    that all its blobs were put at, or raised to.
    """
    universes.expect_generation(batch, under_way.at.universe, generation_raw)
    batch.expect(imports.import_key(under_way.at), under_way.raw)
    batch.delete(imports.import_key(under_way.at))
    dormant_worlds.hold(batch, under_way.at, status=meta.status, source=source, time_us=time_us)
    archived = msgspec.structs.replace(meta, status=model.Status.ARCHIVED)
    baseline = msgspec.structs.replace(baseline, age_us=under_way.age_us)
    return worlds.imported(batch, under_way.at, meta=archived, lineage=lineage, head=head, baseline=baseline)


def sweep(batch: kv.Batch, under_way: Import, left_keys: Sequence[bytes]) -> Import:
    """Delete some keys of an abandoned import; if there are none left, the data key of the world that it would have
    become, and its marker. Guard: the marker.
    """
    for key in left_keys:
        batch.delete(key)  # not expected: each batch of an import changes the marker, which is
    if left_keys:
        return advance(batch, under_way)
    batch.expect(imports.import_key(under_way.at), under_way.raw)
    batch.delete(imports.import_key(under_way.at))
    scope = encryption_keyspace.world_key(under_way.at)
    batch.delete(scope)  # nothing is sealed with it any more, and an import that goes on conflicts with the marker
    batch.delete(encryption_keyspace.seals_key(scope))
    return under_way


def imports_range(universe: ids.UniverseId, *, count_max: int) -> kv.Range:
    return kv.Range(*imports.imports(universe), count_max=count_max)


def decode_imports(universe: ids.UniverseId, page: kv.Page) -> list[Import]:
    return [
        Import(imports.import_world(universe, key), raw, keyspace.COPYING.unpack(raw).age_us) for key, raw in page.items
    ]


def keys_ranges(at: ids.Address, *, count_max: int) -> list[kv.Range]:
    """What there is of a world that is being imported."""
    own = (space.world(at), space.world(at) + b"\xff")
    places = (own, sealed_keys.all_values(at), subject_keys.records(at))
    return [kv.Range(begin, end, count_max=count_max) for begin, end in places]
