"""What holds for all keys: they are those of the golden tables, are taken apart as they were built, and keep apart."""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Callable
from typing import Any

import pytest

from tests.keys import samples
from tests.keys.golden_keys import KEYS, NONCE, PARSED, RANGES
from tests.keys.samples import AT, DIGEST, INTENT, STAMP, UNIVERSE, WORKER
from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.features.collection import keyspace as collection_keyspace
from worldline.features.copies import dormant_keyspace
from worldline.features.copies import keyspace as copy_keyspace
from worldline.features.deletion import keyspace as deletion_keyspace
from worldline.features.deletion import universe_keyspace
from worldline.features.encryption import keyspace as encryption_keyspace
from worldline.features.encryption import master_key_keyspace
from worldline.features.erasure import keyspace as erasure_keyspace
from worldline.features.erasure import scrub_keyspace
from worldline.features.quotas import keyspace as quota_keyspace
from worldline.keys import (
    age,
    cas,
    chunks,
    imports,
    inbox,
    journal,
    leases,
    lineage,
    personal_records,
    personal_subjects,
    ready,
    schema,
    segments,
    snapshots,
    space,
    traces,
    trial,
    universe_settings,
    universes,
    work,
    worlds,
)
from worldline.model import ids

MODULES = (
    age,
    cas,
    chunks,
    imports,
    collection_keyspace,
    copy_keyspace,
    encryption_keyspace,
    deletion_keyspace,
    master_key_keyspace,
    dormant_keyspace,
    inbox,
    journal,
    leases,
    erasure_keyspace,
    lineage,
    quota_keyspace,
    ready,
    schema,
    scrub_keyspace,
    personal_records,
    segments,
    snapshots,
    personal_subjects,
    traces,
    trial,
    universe_keyspace,
    universe_settings,
    universes,
    work,
    worlds,
)

# These look at the whole key; `stamp_of` looks at the end only, and trusts the range that was read.
# of all kinds of keys that a worker or a world has
WIDE = ("leases.workers", "worlds.all_worlds", "personal_subjects.records")
PARTS = ("inbox.stamp_of", "leases.owner_of", "worlds.world_of")  # read a part of a key and say nothing of the rest
WHOLE = [row for row in PARSED if row[0] not in PARTS]
NOT_KEYS = (
    "age.decode",
    "journal.pack_frame",
    "journal.pack_part",
    "journal.pack_whole",
    "journal.unpack_frame",
    "journal.frame_prefix",
    "cas.object_folder",
    "cas.object_name",
    "ready.hint_value",
    "ready.hint_world",
    "encryption_keyspace.is_world",
    "encryption_keyspace.is_unstamped",
    "encryption_keyspace.of_object",
    "encryption_keyspace.sealing",
    "encryption_keyspace.sealed_ranges",
    "encryption_keyspace.whose",
    "encryption_keyspace.whose_object",
    "segments.unpack",
    "worlds.behind",
)


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
    assert listed - found == {"schema.KEY", "master_key_keyspace.KEY", "scrub_keyspace.COUNT", "scrub_keyspace.LAST"}


def short(module: types.ModuleType) -> str:
    """What this file calls it: keyspaces of features all have the same name in their folders."""
    return next(name for name, each in globals().items() if each is module)


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
        case "deletion_keyspace.deletion_world", world:
            return deletion_keyspace.deletion_key(ids.Address(UNIVERSE, world))
        case "universe_keyspace.deletion_universe", universe:
            return universe_keyspace.deletion_key(universe)
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
        case "collection_keyspace.condemned_address", of:
            return collection_keyspace.condemned_key(UNIVERSE, of)
        case "chunks.chunk_number", number:
            return chunks.chunk_key(UNIVERSE, DIGEST, NONCE, number)
        case "imports.import_world", imported:
            return imports.import_key(imported)
        case "chunks.upload_name", (of, nonce):
            return chunks.upload_key(UNIVERSE, of, nonce)
        case "personal_records.parse", (root, subject, value):
            return personal_records.value_key(root, subject, value)
        case "leases.held_address", at:
            return leases.held_key(WORKER, at)
        case "leases.worker_of", worker:
            return leases.worker_key(worker)
        case "encryption_keyspace.owner", (universe, None):
            return encryption_keyspace.universe_key(universe)
        case "encryption_keyspace.owner", (universe, world):
            return encryption_keyspace.world_key(ids.Address(universe, world))
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
        lambda: collection_keyspace.condemned_key(UNIVERSE, bytes(31)),
        lambda: chunks.upload_key(UNIVERSE, DIGEST, NONCE[1:]),
        lambda: personal_records.values(AT, NONCE[1:]),
        lambda: personal_subjects.subject_key(AT, NONCE[1:]),
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
    space.KeyRoot: {"STORE": 1, "UNIVERSE": 2, "WORKER": 3},
    space.InStore: {
        "SCHEMA": 1,
        "UNIVERSE_NAME": 2,
        "UNIVERSE_DELETION": 20,
        "ENCRYPTION": 22,
        "RESTORING": 24,
        "BACKUP": 25,
        "SCRUBS": 26,
        "LEDGER": 27,
    },
    space.InUniverse: {
        "META": 1,
        "GENERATION": 2,
        "NAME": 3,
        "INDEX": 4,
        "CAS": 5,
        "WORLD": 6,
        "OPEN": 7,
        "DUE": 8,
        "READY": 9,
        "HINT": 10,
        "CHUNK": 15,
        "UPLOAD": 16,
        "COLLECTION": 17,
        "HOLDS": 18,
        "CONDEMNED": 19,
        "DELETION": 20,
        "SEALED": 22,
        "SUBJECT": 23,
        "DATA_KEY": 25,
        "WORLD_KEY": 26,
        "IMPORT": 27,
        "QUOTAS": 29,
        "QUOTA_LOG": 30,
        "SEALS": 31,
        "AGE": 37,
        "SETTINGS": 38,
        "GRANTS": 60,
        "GRANT_LOG": 61,
    },
    space.InWorld: {
        "META": 1,
        "EPOCH": 2,
        "HOLDER": 3,
        "ASSIGNMENT": 4,
        "HEAD": 5,
        "JOURNAL": 6,
        "BASELINE": 7,
        "SNAPSHOT": 8,
        "SEGMENT": 9,
        "LINEAGE": 10,
        "RETAIN": 11,
        "INBOX": 12,
        "SEEN": 13,
        "DEAD": 14,
        "TRIAL": 15,
        "TRACE": 20,
        "HELD": 31,
        "BROUGHT": 35,
    },
    space.InWorker: {"LIFE": 1, "WORLD": 2},
}


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
    keys[ready.blocked_key(AT)] = "ready.hint_key"  # a hint as others, under a key that can be told
    assert journal.frame_key(AT, 9) < journal.part_key(AT, 9, 1) < journal.part_key(AT, 9, 255)
    assert journal.part_key(AT, 9, 255) < journal.frame_key(AT, 10)
    for key, name in keys.items():
        assert not any(other.startswith(key) for other in keys if other != key), name
    wide = [(name, build()) for name, build, begin, end in RANGES if name not in WIDE]
    for name, (begin, end) in wide:
        module = name.split(".")[0]
        assert {keys[key].split(".")[0] for key in keys if begin <= key < end} <= {module}, name
        assert len({keys[key] for key in keys if begin <= key < end}) == (name not in EMPTY), name
