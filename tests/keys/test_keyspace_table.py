"""Every keyspace has one row, a key is found to be of the keyspace whose file makes it, and the views stand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.keys.golden_keys import KEYS
from tests.keys.samples import AT, UNIVERSE, WORKER
from worldline.base import errors
from worldline.codec import tuples
from worldline.features.copies import dormant_keyspace
from worldline.keys import keyspace_table, leases, space
from worldline.keys.keyspace_table import InBackup, InExport, Keyspace, OnDelete, OnFork, Sealed, Stamped
from worldline.model import ids

FEATURES = (
    "forks",
    "diff",
    "shadow",
    "compaction",
    "collection",
    "deletion",
    "erasure",
    "encryption",
    "copies",
    "quotas",
    "abroad",
    "proofs",
    "domains",
    "relay",
)
KINDS = (space.InStore, space.InUniverse, space.InWorld, space.InWorker)
WHOLE = [(name, build) for name, build, _ in KEYS if not name.endswith("prefix")]


def names(chosen: Callable[[Keyspace], bool]) -> str:
    """The keyspaces that are chosen, in words that are short enough for a table."""
    short = {space.InStore: "s", space.InUniverse: "u", space.InWorld: "w", space.InWorker: "worker"}
    return " ".join(f"{short[type(each.place)]}.{each.place.name}" for each in keyspace_table.KEYSPACES if chosen(each))


# --- Rows -------------------------------------------------------------------------------------------------------------


def test_every_ordinal_has_one_row() -> None:
    """`WORLD` in a universe is what the keys of worlds begin with, and no keyspace."""
    expected = [each for kind in KINDS for each in kind if each is not space.InUniverse.WORLD]
    rows = [(type(each.place), each.place) for each in keyspace_table.KEYSPACES]
    assert sorted(rows, key=str) == sorted(((type(each), each) for each in expected), key=str)
    assert all(keyspace_table.row(each).place is each for each in expected)


def test_no_column_has_a_default() -> None:
    assert Keyspace.__struct_defaults__ == ()


def test_ordinals_have_two_bytes_in_a_key() -> None:
    """Which is what `of` counts on, and `sealing`."""
    assert {len(space.part(each)) for kind in (space.KeyRoot, *KINDS) for each in kind} == {2}


@pytest.mark.parametrize(
    "each", keyspace_table.KEYSPACES, ids=lambda each: f"{type(each.place).__name__}.{each.place.name}"
)
def test_a_row_is_of_one_piece(each: Keyspace) -> None:
    in_universe = isinstance(each.place, space.InUniverse | space.InWorld)
    assert each.owner == "core" or each.owner in FEATURES
    assert each.counted is in_universe, "a quota counts all bytes under the prefix of the universe"
    assert each.why
    assert each.metric
    if isinstance(each.place, space.InWorld):
        assert each.fork is not OnFork.NOT_OF_WORLDS
        assert each.deletion in (OnDelete.STAYS, OnDelete.GOES)
    if not in_universe:
        assert each.sealed is Sealed.PLAIN, "a data key is that of a universe or a world"
        assert not each.references
    if each.references:
        assert each.sealed is not Sealed.PLAIN, "an address is a digest of data"
        assert each.deletion in (OnDelete.GOES, OnDelete.GOES_EXPECTED), "else a deleted world keeps its blobs"


def test_metrics_tell_keyspaces_apart() -> None:
    """But those of the store, of which there are few."""
    told = [each.metric for each in keyspace_table.KEYSPACES if not isinstance(each.place, space.InStore)]
    assert "store" not in told
    assert "other" not in told
    assert sorted(told) == sorted(dict.fromkeys(told))


# --- Views ------------------------------------------------------------------------------------------------------------

VIEWS: dict[str, tuple[Callable[[Keyspace], bool], str]] = {
    "sealed with the key of the universe": (
        lambda each: each.sealed is Sealed.UNIVERSE_KEY,
        "u.INDEX u.CAS u.CHUNK u.SEALED u.IMPORT u.GRANTS u.GRANT_LOG w.META w.LINEAGE w.TRIAL w.HELD",
    ),
    "sealed with the key of the world": (
        lambda each: each.sealed is Sealed.WORLD_KEY,
        "u.OPEN w.JOURNAL w.BASELINE w.SNAPSHOT w.SEGMENT w.INBOX w.SEEN w.DEAD w.TRACE",
    ),
    "stays when its world is deleted": (
        lambda each: isinstance(each.place, space.InWorld) and each.deletion is OnDelete.STAYS,
        "w.META w.EPOCH",
    ),
    "looked through for deleted worlds": (
        lambda each: each.deletion in (OnDelete.MENTIONS, OnDelete.GOES_EXPECTED, OnDelete.WITH_LINEAGE),
        "u.NAME u.OPEN u.DUE u.HINT u.SEALED u.SUBJECT",
    ),
    "changed by a restore": (lambda each: each.backup is InBackup.REWRITTEN, "u.INDEX u.OPEN w.META w.EPOCH"),
    "blobs of a backup": (lambda each: each.backup is InBackup.BLOBS, "u.CAS u.CHUNK u.UPLOAD"),
    "made anew by a restore": (lambda each: each.backup is InBackup.DERIVED, "s.UNIVERSE_NAME u.DUE u.HINT"),
    "in no backup": (
        lambda each: each.backup is InBackup.LEFT_OUT,
        (
            "s.SCHEMA s.UNIVERSE_DELETION s.ENCRYPTION s.RESTORING s.BACKUP s.SCRUBS u.GENERATION u.READY u.COLLECTION "
            "u.HOLDS u.CONDEMNED u.DATA_KEY u.IMPORT u.SEALS w.HOLDER w.ASSIGNMENT w.TRIAL worker.LIFE worker.WORLD"
        ),
    ),
    "in a world's file": (
        lambda each: each.export is InExport.CARRIED,
        "u.CAS u.CHUNK u.SEALED u.SUBJECT w.META w.HEAD w.JOURNAL w.SNAPSHOT w.SEGMENT w.INBOX w.SEEN w.DEAD",
    ),
    "made anew by an import": (
        lambda each: each.export is InExport.REBUILT,
        "u.NAME u.INDEX u.OPEN u.DUE u.HINT w.EPOCH w.BASELINE w.LINEAGE w.HELD",
    ),
    "read by forks": (lambda each: each.fork is OnFork.READ_THROUGH, "w.JOURNAL w.SNAPSHOT w.SEGMENT"),
    "shared by forks": (lambda each: each.fork is OnFork.SHARED_BY_LINEAGE, "u.SEALED u.SUBJECT"),
    "refers to blobs": (
        lambda each: bool(each.references),
        "u.OPEN w.JOURNAL w.BASELINE w.SNAPSHOT w.SEGMENT w.LINEAGE w.INBOX w.DEAD",
    ),
    "read by no check of doctor": (lambda each: not each.checks, "s.SCHEMA u.SEALS worker.LIFE worker.WORLD"),
    "ends in a stamp": (
        lambda each: each.stamped in (Stamped.APPENDED, Stamped.KEPT),
        "u.READY u.HINT u.QUOTA_LOG u.GRANT_LOG w.INBOX w.DEAD",
    ),
    "values with a stamp": (lambda each: each.stamped is Stamped.IN_VALUE, "w.SEEN"),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_stands(view: str) -> None:
    chosen, expected = VIEWS[view]
    assert names(chosen) == expected


def test_checks_are_those_of_doctor() -> None:
    """`world`, `history`, `quarantine` and `queues` are made for each world (`inspect/doctor.py`)."""
    told = {check for each in keyspace_table.KEYSPACES for check in each.checks}
    assert told == {
        "world",
        "history",
        "quarantine",
        "queues",
        "open",
        "due",
        "ready",
        "uploads",
        "deletions",
        "records",
    }


# --- Keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "build"), WHOLE, ids=[f"{i}-{name}" for i, (name, _) in enumerate(WHOLE)])
def test_a_key_is_of_the_keyspace_that_its_ordinals_say(name: str, build: Callable[[], bytes]) -> None:
    """By taking it apart, which `of` does not."""
    key = build()
    match tuples.unpack(key):
        case (1, int(part), *_):
            expected = keyspace_table.row(space.InStore(part))
        case (2, tuples.Uuid(), 6, tuples.Uuid(), int(part), *_):
            expected = keyspace_table.row(space.InWorld(part))
        case (2, tuples.Uuid(), int(part), *_):
            expected = keyspace_table.row(space.InUniverse(part))
        case (3, tuples.Uuid(), int(part), *_):
            expected = keyspace_table.row(space.InWorker(part))
        case _:
            raise AssertionError(name)
    assert keyspace_table.of(key) is expected
    found = keyspace_table.take_apart(key)
    assert found.keyspace is expected
    if isinstance(expected.place, space.InUniverse | space.InWorld):
        assert keyspace_table.of_suffix(key[len(space.universe(UNIVERSE)) :]) is expected
        assert found.universe == UNIVERSE
    of_world = isinstance(expected.place, space.InWorld) or expected.place is space.InUniverse.OPEN
    assert found.at == (AT if of_world else None)


def test_every_keyspace_has_a_key() -> None:
    """So that the test before this one has seen them all. Nothing makes keys of `READY` any more."""
    seen = [keyspace_table.of(build()) for _, build in WHOLE]
    assert [each.place for each in keyspace_table.KEYSPACES if each not in seen] == [space.InUniverse.READY]


def test_what_follows_the_ordinals_is_given_out() -> None:
    for name, build in WHOLE:
        key = build()
        found = keyspace_table.take_apart(key)
        assert key.endswith(tuples.pack(found.rest)), name


@pytest.mark.parametrize(
    "key", [b"", b"\x00", b"\x15", b"\x15\x02", bytes(64), b"\xff" * 64, space.universe(UNIVERSE), space.world(AT)]
)
def test_anything_else_is_of_none(key: bytes) -> None:
    assert keyspace_table.of(key) is None
    with pytest.raises(errors.DecodeError):
        keyspace_table.take_apart(key)


@pytest.mark.parametrize("root", [(1, 99), (2, tuples.Uuid(UNIVERSE), 99), (3, tuples.Uuid(UNIVERSE), 99)])
def test_an_ordinal_of_no_release_is_of_none(root: tuple[tuples.Item, ...]) -> None:
    assert keyspace_table.of(tuples.pack(root)) is None
    with pytest.raises(errors.DecodeError, match="of any keyspace"):
        keyspace_table.take_apart(tuples.pack(root))


def test_ordinals_alone_make_no_key_of_a_world() -> None:
    """What stands at the places of ids has to be ids."""
    forged = space.part(space.KeyRoot.UNIVERSE) + bytes(17) + space.part(space.InUniverse.META)
    assert keyspace_table.of(forged) is keyspace_table.row(space.InUniverse.META), (
        "a look at fixed places sees no difference"
    )
    with pytest.raises(errors.DecodeError):
        keyspace_table.take_apart(forged)
    other = ids.Address(ids.UniverseId(bytes(16)), AT.world)
    assert keyspace_table.take_apart(space.world(other) + space.part(space.InWorld.HEAD)).at == other


def test_metrics_name_keyspaces() -> None:
    found = {keyspace_table.metric_of(build()) for _, build in WHOLE}
    assert {"journal", "inbox", "seen", "dead", "open", "due", "cas", "chunk", "worker", "held", "store"} <= found
    assert {"world_meta", "universe_meta"} <= found, "two kinds of meta"
    assert keyspace_table.OTHER not in found
    for key in (b"", b"\x15\x02", b"\xff" * 64):
        assert keyspace_table.metric_of(key) == keyspace_table.OTHER


def test_a_copy_that_is_not_used_yet_is_not_counted_as_what_a_worker_holds() -> None:
    assert keyspace_table.metric_of(dormant_keyspace.held_key(AT)) == "held_copy"
    assert keyspace_table.metric_of(leases.held_key(WORKER, AT)) == "held"
