"""The golden table of keys, and what holds for all of them."""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Callable
from typing import Any

import pytest

from tests.keys import samples
from tests.keys.samples import AT, DIGEST, INTENT, STAMP, UNIVERSE, WORKER
from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.keys import (
    cas,
    chunks,
    inbox,
    journal,
    leases,
    lineage,
    ready,
    schema,
    segments,
    snapshots,
    space,
    traces,
    trial,
    universes,
    work,
    worlds,
)
from worldline.keys.upkeep import (
    collection,
    copying,
    data_keys,
    deletions,
    encryption,
    held,
    quotas,
    sealed,
    subjects,
    universe_deletions,
)
from worldline.model import ids

MODULES = (
    cas, chunks, collection, copying, data_keys, deletions, encryption, held, inbox, journal, leases, lineage, quotas,
    ready, schema, sealed, segments, snapshots, subjects, traces, trial, universe_deletions, universes, work, worlds,
)  # fmt: skip

# Written out, so that a change of any of them is noticed: the first is "in universe U", the second "in its world W".
U = "1502" + "30101112131415161718191a1b1c1d1e1f"
W = U + "1506" + "30202122232425262728292a2b2c2d2e2f"
WORKER_HEX = "1503" + "30303132333435363738393a3b3c3d3e3f"
WORLD_ID = "30202122232425262728292a2b2c2d2e2f"
INTENT_ID = "30404142434445464748494a4b4c4d4e4f"
STAMP_HEX = "33505152535455565758595a5b"
DIGEST_HEX = "01" + DIGEST.hex() + "00"
NONCE = samples.counted(0x70)
NONCE_ID = "30707172737475767778797a7b7c7d7e7f"

KEYS: list[tuple[str, Callable[[], bytes], str]] = [
    ("schema.KEY", lambda: schema.KEY, "1501" + "1501"),
    ("encryption.KEY", lambda: encryption.KEY, "1501" + "1516"),
    ("data_keys.universe_key", lambda: data_keys.universe_key(UNIVERSE), U + "1519"),
    ("data_keys.world_key", lambda: data_keys.world_key(AT), U + "151a" + WORLD_ID),
    ("universes.name_key", lambda: universes.name_key("main"), "1501" + "1502" + "026d61696e00"),
    ("universes.meta_key", lambda: universes.meta_key(UNIVERSE), U + "1501"),
    ("universes.generation_key", lambda: universes.generation_key(UNIVERSE), U + "1502"),
    ("worlds.name_key", lambda: worlds.name_key(UNIVERSE, "zoë/1"), U + "1503" + "027a6fc3ab2f3100"),
    ("copying.restoring_key", copying.restoring_key, "1501" + "1518"),
    ("copying.backup_key", copying.backup_key, "1501" + "1519"),
    ("copying.import_key", lambda: copying.import_key(AT), U + "151b" + WORLD_ID),
    ("held.held_key", lambda: held.held_key(AT), W + "151f"),
    ("inbox.seen_prefix", lambda: inbox.seen_prefix(AT), W + "150d"),
    ("inbox.dead_prefix", lambda: inbox.dead_prefix(AT), W + "150e" + "33"),
    ("worlds.index_key", lambda: worlds.index_key(AT), U + "1504" + WORLD_ID),
    ("cas.blob_key", lambda: cas.blob_key(UNIVERSE, DIGEST), U + "1505" + DIGEST_HEX),
    ("cas.blob_key", lambda: cas.blob_key(UNIVERSE, bytes(32)), U + "1505" + "01" + "00ff" * 32 + "00"),
    (
        "chunks.chunk_key",
        lambda: chunks.chunk_key(UNIVERSE, DIGEST, NONCE, 0),
        U + "150f" + DIGEST_HEX + NONCE_ID + "14",
    ),
    (
        "chunks.chunk_key",
        lambda: chunks.chunk_key(UNIVERSE, DIGEST, NONCE, 266),
        U + "150f" + DIGEST_HEX + NONCE_ID + "16010a",
    ),
    ("deletions.deletion_key", lambda: deletions.deletion_key(AT), U + "1514" + WORLD_ID),
    (
        "universe_deletions.deletion_key",
        lambda: universe_deletions.deletion_key(UNIVERSE),
        "1501" + "1514" + "30101112131415161718191a1b1c1d1e1f",
    ),
    ("universes.grants_key", lambda: universes.grants_key(UNIVERSE), U + "153c"),
    ("universes.grant_log_key", lambda: universes.grant_log_key(UNIVERSE, STAMP), U + "153d" + STAMP_HEX),
    ("universes.grant_log_prefix", lambda: universes.grant_log_prefix(UNIVERSE), U + "153d33"),
    ("quotas.quotas_key", lambda: quotas.quotas_key(UNIVERSE), U + "151d" + "14"),
    ("quotas.usage_key", lambda: quotas.usage_key(UNIVERSE), U + "151d" + "1501"),
    ("quotas.log_key", lambda: quotas.log_key(UNIVERSE, STAMP), U + "151e" + STAMP_HEX),
    ("quotas.log_prefix", lambda: quotas.log_prefix(UNIVERSE), U + "151e33"),
    ("sealed.value_key", lambda: sealed.value_key(AT, NONCE, INTENT), U + "1516" + WORLD_ID + NONCE_ID + INTENT_ID),
    ("subjects.subject_key", lambda: subjects.subject_key(AT, NONCE), U + "1517" + WORLD_ID + "14" + NONCE_ID),
    (
        "subjects.value_key",
        lambda: subjects.value_key(AT, NONCE, INTENT),
        U + "1517" + WORLD_ID + "1501" + NONCE_ID + INTENT_ID,
    ),
    ("chunks.upload_key", lambda: chunks.upload_key(UNIVERSE, DIGEST, NONCE), U + "1510" + DIGEST_HEX + NONCE_ID),
    ("collection.collection_key", lambda: collection.collection_key(UNIVERSE), U + "1511"),
    ("collection.holds_key", lambda: collection.holds_key(UNIVERSE), U + "1512"),
    ("collection.condemned_key", lambda: collection.condemned_key(UNIVERSE, DIGEST), U + "1513" + DIGEST_HEX),
    ("worlds.meta_key", lambda: worlds.meta_key(AT), W + "1501"),
    ("leases.epoch_key", lambda: leases.epoch_key(AT), W + "1502"),
    ("leases.holder_key", lambda: leases.holder_key(AT), W + "1503"),
    ("leases.assignment_key", lambda: leases.assignment_key(AT), W + "1504"),
    ("trial.trial_key", lambda: trial.trial_key(AT), W + "150f"),
    ("journal.head_key", lambda: journal.head_key(AT), W + "1505"),
    ("journal.frame_key", lambda: journal.frame_key(AT, 1), W + "1506" + "1501"),
    ("journal.frame_key", lambda: journal.frame_key(AT, 70_000), W + "1506" + "17011170"),
    ("journal.part_key", lambda: journal.part_key(AT, 70_000, 3), W + "1506" + "17011170" + "1503"),
    ("snapshots.baseline_key", lambda: snapshots.baseline_key(AT), W + "1507"),
    ("snapshots.snapshot_key", lambda: snapshots.snapshot_key(AT, 0), W + "1508" + "14"),
    ("snapshots.snapshot_key", lambda: snapshots.snapshot_key(AT, 300), W + "1508" + "16012c"),
    ("lineage.lineage_key", lambda: lineage.lineage_key(AT), W + "150a"),
    ("segments.segment_key", lambda: segments.segment_key(AT, 1), W + "1509" + "1501"),
    ("segments.segment_key", lambda: segments.segment_key(AT, 70_000), W + "1509" + "17011170"),
    ("lineage.pin_count_key", lambda: lineage.pin_count_key(AT), W + "150b" + "14"),
    ("lineage.pin_key", lambda: lineage.pin_key(AT, samples.WORLD), W + "150b" + "1501" + WORLD_ID),
    ("inbox.item_prefix", lambda: inbox.item_prefix(AT), W + "150c" + "33"),
    ("inbox.item_key", lambda: inbox.item_key(AT, STAMP), W + "150c" + STAMP_HEX),
    (
        "inbox.seen_key",
        lambda: inbox.seen_key(AT, samples.counted(0x70)),
        W + "150d" + "14" + "30707172737475767778797a7b7c7d7e7f",
    ),
    ("inbox.seen_key", lambda: inbox.seen_key(AT, "order\x001"), W + "150d" + "1501" + "016f7264657200ff3100"),
    ("inbox.seen_key", lambda: inbox.seen_key(AT, "a" * 64), W + "150d" + "1501" + "01" + "61" * 64 + "00"),
    (
        "inbox.seen_key",
        lambda: inbox.seen_key(AT, "a" * 65),
        W + "150d" + "1502" + "01635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae000",
    ),
    ("inbox.dead_key", lambda: inbox.dead_key(AT, STAMP), W + "150e" + STAMP_HEX),
    ("traces.trace_key", lambda: traces.trace_key(AT, limits.TRACE_SLOTS + 3), W + "1514" + "1503"),
    ("work.open_key", lambda: work.open_key(AT, INTENT), U + "1507" + WORLD_ID + INTENT_ID),
    (
        "work.queue_prefix",
        lambda: work.queue_prefix(UNIVERSE, "mail"),
        U + "1508" + "026d61696c00" + "14",
    ),
    ("work.queues_prefix", lambda: work.queues_prefix(UNIVERSE, "ma"), U + "1508" + "026d61"),
    ("work.queues_prefix", lambda: work.queues_prefix(UNIVERSE, "mail"), U + "1508" + "026d61696c"),
    (
        "work.due_key",
        lambda: work.due_key(AT, INTENT, queue="mail", due_us=samples.TIME_US),
        U + "1508" + "026d61696c00" + "14" + "1b060a24181e4000" + WORLD_ID + INTENT_ID,
    ),
    ("ready.hint_prefix", lambda: ready.hint_prefix(UNIVERSE, 0), U + "150a" + "14" + "33"),
    ("ready.hint_key", lambda: ready.hint_key(UNIVERSE, 3, STAMP), U + "150a" + "1503" + STAMP_HEX),
    ("leases.worker_key", lambda: leases.worker_key(WORKER), WORKER_HEX + "1501"),
    ("leases.held_key", lambda: leases.held_key(WORKER, AT), WORKER_HEX + "1502" + U[4:] + WORLD_ID),
]

RANGES: list[tuple[str, Callable[[], tuple[bytes, bytes]], str, str]] = [
    ("universes.names", universes.names, "1501" + "1502", "1501" + "1503"),
    ("data_keys.world_keys", lambda: data_keys.world_keys(UNIVERSE), U + "151a", U + "151b"),
    ("worlds.names", lambda: worlds.names(UNIVERSE), U + "1503", U + "1504"),
    ("worlds.index", lambda: worlds.index(UNIVERSE), U + "1504", U + "1505"),
    ("cas.blobs", lambda: cas.blobs(UNIVERSE), U + "1505", U + "1506"),
    (
        "chunks.chunks",
        lambda: chunks.chunks(UNIVERSE, DIGEST, NONCE),
        U + "150f" + DIGEST_HEX + NONCE_ID,
        U + "150f" + DIGEST_HEX + NONCE_ID[:-2] + "80",
    ),
    ("deletions.deletions", lambda: deletions.deletions(UNIVERSE), U + "1514", U + "1515"),
    ("universe_deletions.deletions", universe_deletions.deletions, "1501" + "1514", "1501" + "1515"),
    ("universes.grant_log", lambda: universes.grant_log(UNIVERSE), U + "153d33", U + "153d34"),
    ("copying.imports", lambda: copying.imports(UNIVERSE), U + "151b", U + "151c"),
    ("quotas.log", lambda: quotas.log(UNIVERSE), U + "151e33", U + "151e34"),
    ("chunks.uploads", lambda: chunks.uploads(UNIVERSE), U + "1510", U + "1511"),
    ("worlds.all_worlds", lambda: worlds.all_worlds(UNIVERSE), U + "1506", U + "1507"),
    ("collection.condemned", lambda: collection.condemned(UNIVERSE), U + "1513", U + "1514"),
    (
        "sealed.values",
        lambda: sealed.values(AT, NONCE),
        U + "1516" + WORLD_ID + NONCE_ID,
        U + "1516" + WORLD_ID + NONCE_ID[:-2] + "80",
    ),
    ("sealed.lineages", lambda: sealed.lineages(UNIVERSE), U + "1516", U + "1517"),
    ("sealed.all_values", lambda: sealed.all_values(AT), U + "1516" + WORLD_ID, U + "1516" + WORLD_ID[:-2] + "30"),
    ("subjects.records", lambda: subjects.records(AT), U + "1517" + WORLD_ID, U + "1517" + WORLD_ID[:-2] + "30"),
    ("subjects.subjects", lambda: subjects.subjects(AT), U + "1517" + WORLD_ID + "14", U + "1517" + WORLD_ID + "15"),
    ("journal.frames", lambda: journal.frames(AT), W + "1506" + "1501", W + "1507"),
    ("journal.frames", lambda: journal.frames(AT, above=255), W + "1506" + "160100", W + "1507"),
    ("snapshots.snapshots", lambda: snapshots.snapshots(AT), W + "1508", W + "1509"),
    ("snapshots.snapshots", lambda: snapshots.snapshots(AT, up_to=6), W + "1508", W + "1508" + "1507"),
    ("segments.segments", lambda: segments.segments(AT), W + "1509" + "1501", W + "150a"),
    ("segments.segments", lambda: segments.segments(AT, above=255), W + "1509" + "160100", W + "150a"),
    ("lineage.pins", lambda: lineage.pins(AT), W + "150b" + "1501", W + "150b" + "1502"),
    ("inbox.items", lambda: inbox.items(AT), W + "150c" + "33", W + "150c" + "34"),
    ("inbox.items", lambda: inbox.items(AT, start=STAMP), W + "150c" + STAMP_HEX, W + "150c" + "34"),
    ("inbox.seen_made", lambda: inbox.seen_made(AT), W + "150d" + "14", W + "150d" + "15"),
    (
        "inbox.seen_made_before",
        lambda: inbox.seen_made_before(AT, samples.counted(0x70)),
        W + "150d" + "14",
        W + "150d" + "14" + "30707172737475767778797a7b7c7d7e7f",
    ),
    ("inbox.seen_chosen", lambda: inbox.seen_chosen(AT), W + "150d" + "1501", W + "150d" + "1503"),
    ("inbox.dead", lambda: inbox.dead(AT), W + "150e" + "33", W + "150e" + "34"),
    ("traces.traces", lambda: traces.traces(AT), W + "1514", W + "1515"),
    ("work.open_work", lambda: work.open_work(AT), U + "1507" + WORLD_ID, U + "1507" + WORLD_ID[:-2] + "30"),
    ("work.open_all", lambda: work.open_all(UNIVERSE), U + "1507", U + "1508"),
    (
        "work.due_until",
        lambda: work.due_until(UNIVERSE, queue="mail", until_us=samples.TIME_US),
        U + "1508" + "026d61696c00" + "14",
        U + "1508" + "026d61696c00" + "14" + "1b060a24181e4001",
    ),
    ("work.due_all", lambda: work.due_all(UNIVERSE), U + "1508", U + "1509"),
    ("ready.former_hints", lambda: ready.former_hints(UNIVERSE), U + "1509", U + "150a"),
    ("ready.every_hint", lambda: ready.every_hint(UNIVERSE), U + "150a", U + "150b"),
    ("ready.hints", lambda: ready.hints(UNIVERSE, 3), U + "150a" + "1503" + "33", U + "150a" + "1503" + "34"),
    (
        "ready.hints",
        lambda: ready.hints(UNIVERSE, 3, start=STAMP),
        U + "150a" + "1503" + STAMP_HEX,
        U + "150a" + "1503" + "34",
    ),
    ("leases.held", lambda: leases.held(WORKER), WORKER_HEX + "1502", WORKER_HEX + "1503"),
    ("leases.workers", leases.workers, "1503", "1504"),
]

# How each key is taken apart, and what must come out: parse(build(x)) == x.
PARSED: list[tuple[str, Callable[[bytes], Any], bytes, Any]] = [
    ("worlds.index_world", lambda key: worlds.index_world(UNIVERSE, key), worlds.index_key(AT), samples.WORLD),
    ("lineage.pin_fork", lambda key: lineage.pin_fork(AT, key), lineage.pin_key(AT, samples.WORLD), samples.WORLD),
    ("universes.name_of", universes.name_of, universes.name_key("zoë"), "zoë"),
    ("worlds.name_of", lambda key: worlds.name_of(UNIVERSE, key), worlds.name_key(UNIVERSE, "zoë/1"), "zoë/1"),
    ("work.open_address", lambda key: work.open_address(UNIVERSE, key), work.open_key(AT, INTENT), (AT, INTENT)),
    ("journal.frame_height", lambda key: journal.frame_height(AT, key), journal.frame_key(AT, 70_000), 70_000),
    ("journal.frame_place", lambda key: journal.frame_place(AT, key), journal.part_key(AT, 70_000, 3), (70_000, 3)),
    ("snapshots.snapshot_step", lambda key: snapshots.snapshot_step(AT, key), snapshots.snapshot_key(AT, 0), 0),
    (
        "deletions.deletion_world",
        lambda key: deletions.deletion_world(UNIVERSE, key),
        deletions.deletion_key(AT),
        samples.WORLD,
    ),
    (
        "universe_deletions.deletion_universe",
        universe_deletions.deletion_universe,
        universe_deletions.deletion_key(UNIVERSE),
        UNIVERSE,
    ),
    ("segments.segment_height", lambda key: segments.segment_height(AT, key), segments.segment_key(AT, 9), 9),
    ("inbox.stamp_of", inbox.stamp_of, inbox.item_key(AT, STAMP), STAMP),
    ("inbox.stamp_of", inbox.stamp_of, inbox.dead_key(AT, STAMP), STAMP),
    ("work.open_intent", lambda key: work.open_intent(AT, key), work.open_key(AT, INTENT), INTENT),
    (
        "work.pointer",
        lambda key: work.pointer(UNIVERSE, key),
        work.due_key(AT, INTENT, queue="mail", due_us=0),
        work.Pointer("mail", 0, AT, INTENT),
    ),
    ("leases.held_address", lambda key: leases.held_address(WORKER, key), leases.held_key(WORKER, AT), AT),
    ("leases.worker_of", leases.worker_of, leases.worker_key(WORKER), WORKER),
    ("data_keys.owner", data_keys.owner, data_keys.world_key(AT), (UNIVERSE, samples.WORLD)),
    ("data_keys.owner", data_keys.owner, data_keys.universe_key(UNIVERSE), (UNIVERSE, None)),
    (
        "chunks.chunk_number",
        lambda key: chunks.chunk_number(UNIVERSE, DIGEST, NONCE, key),
        chunks.chunk_key(UNIVERSE, DIGEST, NONCE, 266),
        266,
    ),
    (
        "chunks.upload_name",
        lambda key: chunks.upload_name(UNIVERSE, key),
        chunks.upload_key(UNIVERSE, DIGEST, NONCE),
        (DIGEST, NONCE),
    ),
    ("worlds.world_of", lambda key: worlds.world_of(UNIVERSE, key), journal.frame_key(AT, 7), samples.WORLD),
    ("cas.blob_address", lambda key: cas.blob_address(UNIVERSE, key), cas.blob_key(UNIVERSE, DIGEST), DIGEST),
    (
        "collection.condemned_address",
        lambda key: collection.condemned_address(UNIVERSE, key),
        collection.condemned_key(UNIVERSE, DIGEST),
        DIGEST,
    ),
    (
        "copying.import_world",
        lambda key: copying.import_world(UNIVERSE, key),
        copying.import_key(AT),
        AT,
    ),
    (
        "sealed.parse",
        lambda key: sealed.parse(UNIVERSE, key),
        sealed.value_key(AT, NONCE, INTENT),
        (AT, NONCE, INTENT),
    ),
    ("leases.owner_of", leases.owner_of, leases.held_key(WORKER, AT), WORKER),
]

# These look at the whole key; `stamp_of` looks at the end only, and trusts the range that was read.
WIDE = ("leases.workers", "worlds.all_worlds", "subjects.records")  # of all kinds of keys that a worker or a world has
PARTS = ("inbox.stamp_of", "leases.owner_of", "worlds.world_of")  # read a part of a key and say nothing of the rest
WHOLE = [row for row in PARSED if row[0] not in PARTS]
NOT_KEYS = (
    "journal.pack_frame", "journal.pack_part", "journal.pack_whole", "journal.unpack_frame", "journal.frame_prefix",
    "cas.object_folder", "cas.object_name", "ready.hint_value",
    "ready.hint_world", "data_keys.is_world", "data_keys.is_unstamped", "data_keys.of_object", "data_keys.sealing",
    "data_keys.whose", "data_keys.whose_object",
    "segments.unpack", "worlds.behind",
)  # fmt: skip


@pytest.mark.parametrize(("name", "build", "expected"), KEYS, ids=[row[0] for row in KEYS])
def test_golden_keys(name: str, build: Callable[[], bytes], expected: str) -> None:
    key = build()
    assert key.hex() == expected
    assert len(key) <= limits.KEY_BYTES_MAX


@pytest.mark.parametrize(("name", "build", "begin", "end"), RANGES, ids=[row[0] for row in RANGES])
def test_golden_ranges(name: str, build: Callable[[], tuple[bytes, bytes]], begin: str, end: str) -> None:
    assert tuple(bound.hex() for bound in build()) == (begin, end)
    assert begin < end


@pytest.mark.parametrize(("name", "parse", "key", "expected"), PARSED, ids=[row[0] for row in PARSED])
def test_a_key_is_taken_apart_as_it_was_built(
    name: str, parse: Callable[[bytes], Any], key: bytes, expected: Any
) -> None:
    assert parse(key) == expected


def test_the_tables_name_every_function() -> None:
    """A new key, range or parser has to come here too."""
    listed = {row[0] for row in KEYS} | {row[0] for row in RANGES} | {row[0] for row in PARSED} | {*NOT_KEYS}
    found = {f"{short(module)}.{name}" for module in MODULES for name in public_functions(module)}
    assert found <= listed
    assert listed - found == {"schema.KEY", "encryption.KEY"}


def short(module: types.ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def public_functions(module: types.ModuleType) -> list[str]:
    members = inspect.getmembers(module, inspect.isfunction)
    return [name for name, found in members if found.__module__ == module.__name__ and not name.startswith("_")]


FOREIGN = ids.Address(ids.UniverseId(samples.counted(0x90)), ids.WorldId(samples.counted(0xA0)))


@pytest.mark.parametrize(("name", "parse", "key", "expected"), WHOLE, ids=[row[0] for row in WHOLE])
def test_other_keys_are_refused(name: str, parse: Callable[[bytes], Any], key: bytes, expected: Any) -> None:
    """Every other key there is, cut keys, keys with something behind, and keys with something else inside."""
    others = {build() for _, build, _ in KEYS} - {key}
    others |= {key[:size] for size in range(len(key))}
    others |= {key + tail for tail in (b"\x00", b"\x14", b"\x15\x01", b"\x26", STAMP)}
    others |= {b"", b"\xff", b"\x00" * 40, FOREIGN.universe, key.replace(samples.UNIVERSE, FOREIGN.universe)} - {key}
    accepted = [other for other in others if not refused(parse, other)]
    assert all(build_again(name, parse(other)) == other for other in accepted)


def refused(parse: Callable[[bytes], Any], key: bytes) -> bool:
    try:
        return parse(key) is None
    except errors.DecodeError:
        return True


def build_again(name: str, parsed: Any) -> bytes:
    """What a parser accepts must be the key of what it says."""
    match name, parsed:
        case "worlds.index_world", world:
            return worlds.index_key(ids.Address(UNIVERSE, world))
        case "universes.name_of", name_of_universe:
            return universes.name_key(name_of_universe)
        case "worlds.name_of", name_of_world:
            return worlds.name_key(UNIVERSE, name_of_world)
        case "work.open_address", (opener, opened):
            return work.open_key(opener, opened)
        case "deletions.deletion_world", world:
            return deletions.deletion_key(ids.Address(UNIVERSE, world))
        case "universe_deletions.deletion_universe", universe:
            return universe_deletions.deletion_key(universe)
        case "lineage.pin_fork", fork:
            return lineage.pin_key(AT, fork)
        case "journal.frame_height", height:
            return journal.frame_key(AT, height)
        case "journal.frame_place", (height, part):
            return journal.part_key(AT, height, part) if part else journal.frame_key(AT, height)
        case "segments.segment_height", height:
            return segments.segment_key(AT, height)
        case "snapshots.snapshot_step", step:
            return snapshots.snapshot_key(AT, step)
        case "work.open_intent", intent:
            return work.open_key(AT, intent)
        case "work.pointer", work.Pointer(queue, due_us, at, intent):
            return work.due_key(at, intent, queue=queue, due_us=due_us)
        case "cas.blob_address", of:
            return cas.blob_key(UNIVERSE, of)
        case "collection.condemned_address", of:
            return collection.condemned_key(UNIVERSE, of)
        case "chunks.chunk_number", number:
            return chunks.chunk_key(UNIVERSE, DIGEST, NONCE, number)
        case "copying.import_world", imported:
            return copying.import_key(imported)
        case "chunks.upload_name", (of, nonce):
            return chunks.upload_key(UNIVERSE, of, nonce)
        case "sealed.parse", (root, subject, value):
            return sealed.value_key(root, subject, value)
        case "leases.held_address", at:
            return leases.held_key(WORKER, at)
        case "leases.worker_of", worker:
            return leases.worker_key(worker)
        case "data_keys.owner", (universe, None):
            return data_keys.universe_key(universe)
        case "data_keys.owner", (universe, world):
            return data_keys.world_key(ids.Address(universe, world))
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("parse", "prefix", "tail"),
    [
        # Truth values are numbers to Python; no key of ours holds one.
        (lambda key: journal.frame_height(AT, key), journal.frame_key(AT, 1)[:-2], (True,)),
        (lambda key: snapshots.snapshot_step(AT, key), snapshots.snapshot_key(AT, 0)[:-1], (False,)),
        (lambda key: segments.segment_height(AT, key), segments.segment_key(AT, 1)[:-2], (True,)),
        (leases.worker_of, leases.workers()[0], (tuples.Uuid(WORKER), True)),
        (
            lambda key: work.pointer(UNIVERSE, key),
            work.due_all(UNIVERSE)[0],
            ("mail", False, 1, tuples.Uuid(samples.WORLD), tuples.Uuid(INTENT)),
        ),
        # Nothing here counts below its first number.
        (lambda key: journal.frame_height(AT, key), journal.frame_key(AT, 1)[:-2], (0,)),
        (lambda key: journal.frame_place(AT, key), journal.frame_key(AT, 1)[:-2], (1, 0)),
        (lambda key: journal.frame_place(AT, key), journal.frame_key(AT, 1)[:-2], (1, 256)),
        (lambda key: journal.frame_place(AT, key), journal.frame_key(AT, 1)[:-2], (1, 1, 1)),
        (lambda key: journal.frame_height(AT, key), journal.frame_key(AT, 1)[:-2], (1, 1)),
        (lambda key: journal.frame_height(AT, key), journal.frame_key(AT, 1)[:-2], (-1,)),
        (lambda key: snapshots.snapshot_step(AT, key), snapshots.snapshot_key(AT, 0)[:-1], (-1,)),
        (lambda key: segments.segment_height(AT, key), segments.segment_key(AT, 1)[:-2], (0,)),
        (
            lambda key: work.pointer(UNIVERSE, key),
            work.due_all(UNIVERSE)[0],
            ("mail", -1, 1, tuples.Uuid(samples.WORLD), tuples.Uuid(INTENT)),
        ),
        (
            lambda key: work.pointer(UNIVERSE, key),
            work.due_all(UNIVERSE)[0],
            ("mail", 1, -1, tuples.Uuid(samples.WORLD), tuples.Uuid(INTENT)),
        ),
    ],
)
def test_what_no_builder_makes_is_refused(
    parse: Callable[[bytes], Any], prefix: bytes, tail: tuple[tuples.Item, ...]
) -> None:
    with pytest.raises(errors.DecodeError, match=r"not an? "):
        parse(prefix + tuples.pack(tail))


@pytest.mark.parametrize("key", [b"", STAMP, b"\x33" + STAMP[1:], worlds.meta_key(AT), journal.frame_key(AT, 2**60)])
def test_a_key_without_a_stamp_has_none(key: bytes) -> None:
    with pytest.raises(errors.DecodeError, match="not a stamped key"):
        inbox.stamp_of(key)


def test_a_workers_other_keys_are_told_from_its_life() -> None:
    assert leases.worker_of(leases.held_key(WORKER, AT)) is None


@pytest.mark.parametrize(
    "build",
    [
        lambda: space.universe(ids.UniverseId(b"short")),
        lambda: worlds.meta_key(ids.Address(UNIVERSE, ids.WorldId(b"short"))),
        lambda: worlds.meta_key(ids.Address(ids.UniverseId(bytes(17)), samples.WORLD)),
        lambda: cas.blob_key(UNIVERSE, bytes(31)),
        lambda: chunks.chunk_key(UNIVERSE, bytes(31), NONCE, 0),
        lambda: collection.condemned_key(UNIVERSE, bytes(31)),
        lambda: chunks.upload_key(UNIVERSE, DIGEST, NONCE[1:]),
        lambda: sealed.values(AT, NONCE[1:]),
        lambda: subjects.subject_key(AT, NONCE[1:]),
        lambda: inbox.seen_key(AT, bytes(15)),
        lambda: inbox.seen_key(AT, b""),
        lambda: inbox.seen_key(AT, ""),
        lambda: inbox.seen_made_before(AT, bytes(15)),
        lambda: work.open_key(AT, ids.IntentId(b"short")),
        lambda: leases.worker_key(ids.WorkerId(b"short")),
        lambda: universes.name_key(""),
        lambda: universes.name_key("a" * 129),
        lambda: worlds.name_key(UNIVERSE, " a"),
        lambda: work.queue_prefix(UNIVERSE, "/"),
    ],
)
def test_what_is_no_id_and_no_name_becomes_no_key(build: Callable[[], object]) -> None:
    with pytest.raises(errors.BadInput):
        build()


@pytest.mark.parametrize(
    "build",
    [
        lambda: journal.frame_key(AT, 0),
        lambda: chunks.chunk_key(UNIVERSE, DIGEST, NONCE, -1),
        lambda: snapshots.snapshot_key(AT, -1),
        lambda: traces.trace_key(AT, 0),
        lambda: inbox.item_key(AT, STAMP[:-1]),
        lambda: inbox.dead_key(AT, STAMP + b"x"),
        lambda: inbox.items(AT, start=STAMP + b"x"),
        lambda: ready.hint_prefix(UNIVERSE, -1),
        lambda: ready.hint_key(UNIVERSE, 1, STAMP[:-1]),
        lambda: ready.hints(UNIVERSE, 1, start=STAMP + b"x"),
        lambda: work.due_key(AT, INTENT, queue="mail", due_us=-1),
    ],
)
def test_wrong_numbers_and_stamps_are_bugs(build: Callable[[], object]) -> None:
    with pytest.raises(AssertionError):
        build()


def test_the_longest_keys_fit() -> None:
    """The longest names, of escaped and of wide characters, and the largest numbers."""
    most = 2**64 - 1
    name = "\U0001f30d" * 32
    assert len(name.encode()) == limits.NAME_BYTES_MAX
    longest = [
        universes.name_key(name),
        worlds.name_key(UNIVERSE, name),
        work.due_key(AT, INTENT, queue=name, due_us=most),
        work.due_until(UNIVERSE, queue=name, until_us=most - 1)[1],
        inbox.seen_key(AT, "\x00" * limits.CLIENT_ID_BYTES_MAX),
        inbox.seen_key(AT, "\x00" * 100_000),
        cas.blob_key(UNIVERSE, bytes(32)),
        chunks.chunk_key(UNIVERSE, bytes(32), NONCE, most),
        journal.frame_key(AT, most),
        inbox.item_key(AT, STAMP) + b"\x00",
    ]
    assert max(len(key) for key in longest) <= limits.KEY_BYTES_MAX


def test_long_client_ids_are_kept_apart_from_the_text_of_their_digests() -> None:
    """A short id whose bytes are the digest of a long one does not meet the long one's record."""
    long = "a" * 65
    chosen = tuples.unpack(inbox.seen_key(AT, "b" * 32)[len(space.world(AT)) :])
    hashed = tuples.unpack(inbox.seen_key(AT, long)[len(space.world(AT)) :])
    assert (chosen[:2], hashed[:2]) == ((13, 1), (13, 2))
    assert inbox.seen_key(AT, "a" * 65) != inbox.seen_key(AT, "a" * 66)


def test_object_names_are_made_of_hex_and_end_in_the_nonce() -> None:
    name = cas.object_name(UNIVERSE, DIGEST, b"\x01\xff")
    assert name == f"101112131415161718191a1b1c1d1e1f/cas/60/{DIGEST.hex()}-01ff"


ORDINALS: dict[type[enum.IntEnum], dict[str, int]] = {
    space.Root: {"STORE": 1, "UNIVERSE": 2, "WORKER": 3},
    space.InStore: {
        "SCHEMA": 1, "UNIVERSE_NAME": 2, "UNIVERSE_DELETION": 20, "ENCRYPTION": 22, "RESTORING": 24, "BACKUP": 25,
    },
    space.InUniverse: {
        "META": 1, "GENERATION": 2, "NAME": 3, "INDEX": 4, "CAS": 5, "WORLD": 6, "OPEN": 7, "DUE": 8, "READY": 9,
        "HINT": 10, "CHUNK": 15, "UPLOAD": 16, "COLLECTION": 17, "HOLDS": 18, "CONDEMNED": 19, "DELETION": 20,
        "SEALED": 22, "SUBJECT": 23, "DATA_KEY": 25, "WORLD_KEY": 26, "IMPORT": 27, "QUOTAS": 29, "QUOTA_LOG": 30,
        "GRANTS": 60, "GRANT_LOG": 61,
    },
    space.InWorld: {
        "META": 1, "EPOCH": 2, "HOLDER": 3, "ASSIGNMENT": 4, "HEAD": 5, "JOURNAL": 6, "BASELINE": 7, "SNAPSHOT": 8,
        "SEGMENT": 9, "LINEAGE": 10, "RETAIN": 11, "INBOX": 12, "SEEN": 13, "DEAD": 14, "TRIAL": 15, "TRACE": 20,
        "HELD": 31,
    },
    space.InWorker: {"LIFE": 1, "WORLD": 2},
}  # fmt: skip


@pytest.mark.parametrize("kind", ORDINALS)
def test_ordinals_stand(kind: type[enum.IntEnum]) -> None:
    """`__members__` lists aliases too, so a number given twice shows."""
    assert {name: int(member) for name, member in kind.__members__.items()} == ORDINALS[kind]
    assert len({*kind.__members__.values()}) == len(kind.__members__)


EMPTY = ("inbox.seen_made_before", "ready.former_hints")


def test_no_keyspace_reaches_into_another() -> None:
    """Of all keys of all kinds, none is the beginning of another, and each lies in the ranges of its own kind only.
    Parts of a frame are the exception: they are found behind their frame, and before the next.
    """
    keys = {key: name for name, build, _ in KEYS if not name.endswith(("_prefix", "part_key")) for key in [build()]}
    assert journal.frame_key(AT, 9) < journal.part_key(AT, 9, 1) < journal.part_key(AT, 9, 255)
    assert journal.part_key(AT, 9, 255) < journal.frame_key(AT, 10)
    for key, name in keys.items():
        assert not any(other.startswith(key) for other in keys if other != key), name
    wide = [(name, build()) for name, build, begin, end in RANGES if name not in WIDE]
    for name, (begin, end) in wide:
        module = name.split(".")[0]
        assert {keys[key].split(".")[0] for key in keys if begin <= key < end} <= {module}, name
        assert len({keys[key] for key in keys if begin <= key < end}) == (name not in EMPTY), name
