"""Every keyspace, and how each job of the runtime treats it: one row for each ordinal of `space.py`.

A job that walks through keys of many kinds (a deletion, a backup, a collection, metrics) asks this table which of them
concern it. No column has a default: a new ordinal without a row, or a row without a treatment, is found at import or by
`tests/keys/test_keyspace_table.py`. What an ordinal's keys and values are is said in the file of that keyspace.

`of` says which row a key belongs to, and `take_apart` also whose key it is. Both read the ordinals that stand at fixed
places in a key; whether the rest is well formed is for the file of the keyspace to say.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.keys import space
from worldline.keys.space import InStore, InUniverse, InWorker, InWorld, KeyRoot
from worldline.model import ids

OTHER = "other"  # the metric of what is no key of ours

Ordinal = InStore | InUniverse | InWorld | InWorker


class Sealed(enum.Enum):
    """What the values are sealed with in an encrypted store. Sealed is what holds users' data, and digests of such data
    that could be guessed. Plain is what says where things are: ids, heights, sizes, times, epochs.
    """

    PLAIN = enum.auto()
    UNIVERSE_KEY = enum.auto()  # shared by worlds, or still to be read when a world's key is destroyed
    WORLD_KEY = enum.auto()  # of a keyspace in a universe, the first item behind the ordinal is the world


class OnDelete(enum.Enum):
    """What becomes of it when a world is deleted. All of a universe goes with the universe."""

    STAYS = enum.auto()
    GOES = enum.auto()
    GOES_EXPECTED = enum.auto()  # other processes write it without expecting the world: deleted as it was read
    MENTIONS = enum.auto()  # keys of the universe that lead to worlds: those that lead to this one are looked for
    WITH_LINEAGE = enum.auto()  # goes with the last world that shares it


class InBackup(enum.Enum):
    COPIED = enum.auto()
    REWRITTEN = enum.auto()  # copied, and changed by a restore (`features/copies/restore_batches.py`)
    BLOBS = enum.auto()  # its blobs have files of their own; a restore that is made again keeps those that are there
    DERIVED = enum.auto()  # a restore writes it from what was copied
    LEFT_OUT = enum.auto()


class InExport(enum.Enum):
    """What becomes of it when a world is written into a file and imported."""

    CARRIED = enum.auto()
    REBUILT = enum.auto()  # the import, or the first step after it, writes what the new world needs
    LEFT_OUT = enum.auto()


class OnFork(enum.Enum):
    OWN = enum.auto()  # a fork has its own from the beginning on
    READ_THROUGH = enum.auto()  # a fork reads that of its parents, up to its height
    SHARED_BY_LINEAGE = enum.auto()  # there is one for all worlds of a lineage
    NOT_OF_WORLDS = enum.auto()


class Stamped(enum.Enum):
    """Where a stamp of the engine's stands."""

    NOWHERE = enum.auto()
    APPENDED = enum.auto()  # the engine ends the key in a new one
    KEPT = enum.auto()  # the key ends in one that was assigned before
    IN_VALUE = enum.auto()  # the value ends in one


class Keyspace(msgspec.Struct, frozen=True):
    place: Ordinal
    owner: str  # "core", or the feature that it goes with
    sealed: Sealed
    deletion: OnDelete
    backup: InBackup
    export: InExport
    fork: OnFork
    references: str  # to blobs: the name of their reader in `features/collection/references.py`; empty: it has none
    counted: bool  # in the bytes of a universe's quota
    stamped: Stamped
    checks: tuple[str, ...]  # of `worldline doctor` that read it (`inspect/doctor.py`)
    metric: str  # the `kind` of `worldline_store_written_bytes_total`
    why: str  # what it holds, and why it is treated so


class KeyPlace(msgspec.Struct, frozen=True):
    """A key taken apart. `universe`, `world`: whose it is; `rest`: the items behind the ordinal and that world."""

    keyspace: Keyspace
    universe: ids.UniverseId | None
    world: ids.WorldId | None
    rest: tuple[tuples.Item, ...]

    @property
    def at(self) -> ids.Address | None:
        return None if self.universe is None or self.world is None else ids.Address(self.universe, self.world)


# --- The table --------------------------------------------------------------------------------------------------------

PLAIN, ALL_KEY, OWN_KEY = Sealed
STAYS, GOES, EXPECTED, MENTIONS, LINEAGE = OnDelete
COPIED, REWRITTEN, BLOBS, DERIVED, OMITTED = InBackup
CARRIED, REBUILT, OUT = InExport
OWN, THROUGH, SHARED, NO_WORLD = OnFork
NO, APPENDED, KEPT, IN_VALUE = Stamped

# Those of `Keyspace` but the last one, in its order.
_Columns = tuple[Ordinal, str, Sealed, OnDelete, InBackup, InExport, OnFork, str, bool, Stamped, tuple[str, ...], str]

S, U, W = InStore, InUniverse, InWorld

_IN_STORE: tuple[tuple[_Columns, str], ...] = (
    (
        (S.SCHEMA, "core", PLAIN, STAYS, OMITTED, OUT, NO_WORLD, "", False, NO, (), "store"),
        "the format, which is read before anything else; another store has its own",
    ),
    (
        (S.UNIVERSE_NAME, "core", PLAIN, STAYS, DERIVED, OUT, NO_WORLD, "", False, NO, ("records",), "store"),
        "names of universes: a restore writes them last, from its manifest, so that no process finds half a universe",
    ),
    (
        (S.UNIVERSE_DELETION, "deletion", PLAIN, STAYS, OMITTED, OUT, NO_WORLD, "", False, NO, ("records",), "store"),
        "outside of the universe, so that its last key can go; a universe that goes has no name and is in no backup",
    ),
    (
        (S.ENCRYPTION, "encryption", PLAIN, STAYS, OMITTED, OUT, NO_WORLD, "", False, NO, ("records",), "store"),
        "the master keys in use, which are those of this store alone",
    ),
    (
        (S.RESTORING, "copies", PLAIN, STAYS, OMITTED, OUT, NO_WORLD, "", False, NO, ("records",), "store"),
        "the restore that is being made of this store",
    ),
    (
        (S.BACKUP, "copies", PLAIN, STAYS, OMITTED, OUT, NO_WORLD, "", False, NO, ("records",), "store"),
        "the backup that is being made of this store",
    ),
    (
        (S.SCRUBS, "erasure", PLAIN, STAYS, OMITTED, OUT, NO_WORLD, "", False, NO, ("records",), "store"),
        "what the files of this engine may still hold; a restore that erases again owes a scrub of its own",
    ),
    (
        (S.LEDGER, "erasure", PLAIN, STAYS, COPIED, OUT, NO_WORLD, "", False, NO, ("records",), "store"),
        "ids and times of what was erased: it outlives what it is about, and has a file of its own in a backup",
    ),
)

_IN_UNIVERSE: tuple[tuple[_Columns, str], ...] = (
    (
        (U.META, "core", PLAIN, STAYS, COPIED, OUT, NO_WORLD, "", True, NO, ("records",), "universe_meta"),
        "the name of a universe, which producers expect",
    ),
    (
        (U.GENERATION, "core", PLAIN, STAYS, OMITTED, OUT, NO_WORLD, "", True, NO, ("records",), "generation"),
        "a number of this store's collections: blobs of a restore are put in its own",
    ),
    (
        (U.NAME, "core", PLAIN, MENTIONS, COPIED, REBUILT, OWN, "", True, NO, ("records",), "name"),
        "names lead to worlds by ids",
    ),
    (
        (U.INDEX, "core", ALL_KEY, GOES, REWRITTEN, REBUILT, OWN, "", True, NO, ("world",), "index"),
        "the same as META of a world, which is archived by a restore; read when a world's key is destroyed",
    ),
    (
        (U.CAS, "core", ALL_KEY, STAYS, BLOBS, CARRIED, NO_WORLD, "", True, NO, ("history",), "cas"),
        "the blobs themselves, shared by worlds; a collection deletes what nothing refers to",
    ),
    (
        (U.OPEN, "core", OWN_KEY, EXPECTED, REWRITTEN, REBUILT, OWN, "open work", True, NO, ("queues", "open"), "open"),
        "a claim of the old store waits again in a restored one; effect workers resolve it without expecting the world",
    ),
    (
        (U.DUE, "core", PLAIN, MENTIONS, DERIVED, REBUILT, OWN, "", True, NO, ("queues", "due"), "due"),
        "pointers to open work, written again with it",
    ),
    (
        (U.READY, "core", PLAIN, STAYS, OMITTED, OUT, NO_WORLD, "", True, APPENDED, ("ready",), "ready"),
        "hints of format 1.0, which nothing reads",
    ),
    (
        (U.HINT, "core", PLAIN, MENTIONS, DERIVED, REBUILT, OWN, "", True, APPENDED, ("queues", "ready"), "hint"),
        "hints lead to worlds and are never the truth; a world that goes on is given one",
    ),
    (
        (U.CHUNK, "core", ALL_KEY, STAYS, BLOBS, CARRIED, NO_WORLD, "", True, NO, ("history", "uploads"), "chunk"),
        "pieces of blobs: kept by a record, or by an upload",
    ),
    (
        (U.UPLOAD, "core", PLAIN, STAYS, BLOBS, OUT, NO_WORLD, "", True, NO, ("uploads",), "upload"),
        "keeps its own chunks, no blob; an object under way is kept by the generation that it expects",
    ),
    (
        (U.COLLECTION, "collection", PLAIN, STAYS, OMITTED, OUT, NO_WORLD, "", True, NO, ("records",), "collection"),
        "where a collection of this store begins",
    ),
    (
        (U.HOLDS, "collection", PLAIN, STAYS, OMITTED, OUT, NO_WORLD, "", True, NO, ("records",), "holds"),
        "what keeps the collections of this store from deleting; no address",
    ),
    (
        (U.CONDEMNED, "collection", PLAIN, STAYS, OMITTED, OUT, NO_WORLD, "", True, NO, ("records",), "condemned"),
        "addresses of blobs that go: it must not keep them",
    ),
    (
        (U.SEALED, "core", ALL_KEY, LINEAGE, COPIED, CARRIED, SHARED, "", True, NO, ("history",), "sealed"),
        "personal values, which forks share; each is small, and in no blob",
    ),
    (
        (U.SUBJECT, "core", PLAIN, LINEAGE, COPIED, CARRIED, SHARED, "", True, NO, ("history", "records"), "subject"),
        "counts of erasures of the values that forks share",
    ),
    (
        (U.DATA_KEY, "encryption", PLAIN, STAYS, OMITTED, OUT, NO_WORLD, "", True, NO, ("records",), "data_key"),
        "a key, wrapped by a master key of this store: what is copied is opened first",
    ),
    (
        (U.WORLD_KEY, "encryption", PLAIN, STAYS, COPIED, OUT, OWN, "", True, NO, ("records",), "world_key"),
        "a key, destroyed when its world is deleted: that it was destroyed stays, and is all that is copied of it",
    ),
    (
        (U.IMPORT, "copies", ALL_KEY, STAYS, OMITTED, OUT, OWN, "", True, NO, ("records",), "import"),
        "an import under way: what it has written of its world is read as that world's",
    ),
    (
        (U.QUOTAS, "quotas", PLAIN, STAYS, COPIED, OUT, NO_WORLD, "", True, NO, ("records",), "quotas"),
        "numbers that an operator has chosen, and what was counted",
    ),
    (
        (U.QUOTA_LOG, "quotas", PLAIN, STAYS, COPIED, OUT, NO_WORLD, "", True, APPENDED, ("records",), "quota_log"),
        "numbers that an operator had chosen, in the order of their changes",
    ),
    (
        (U.SEALS, "encryption", PLAIN, GOES, OMITTED, OUT, OWN, "", True, NO, (), "seals"),
        "how often a key of this store was used; a world's goes with its key",
    ),
    (
        (U.AGE, "core", PLAIN, STAYS, COPIED, OUT, NO_WORLD, "", True, NO, ("records",), "age"),
        "the age by which copied records are forgotten, so it goes with them",
    ),
    (
        (U.SETTINGS, "core", PLAIN, STAYS, COPIED, OUT, NO_WORLD, "", True, NO, ("records",), "settings"),
        "numbers that an operator has chosen for every process",
    ),
    (
        (U.DELETION, "deletion", PLAIN, GOES, COPIED, OUT, OWN, "", True, NO, ("deletions",), "deletion"),
        "a deletion that is not finished goes on in a restored store; its record goes with the last key of the world",
    ),
    (
        (U.GRANTS, "core", ALL_KEY, STAYS, COPIED, OUT, NO_WORLD, "", True, NO, ("records",), "grants"),
        "names of peers and worlds, and rules over them",
    ),
    (
        (U.GRANT_LOG, "core", ALL_KEY, STAYS, COPIED, OUT, NO_WORLD, "", True, APPENDED, ("records",), "grant_log"),
        "the changes of these, in order",
    ),
)

_IN_WORLD: tuple[tuple[_Columns, str], ...] = (
    (
        (W.META, "core", ALL_KEY, STAYS, REWRITTEN, CARRIED, OWN, "", True, NO, ("world",), "world_meta"),
        "names, labels and a program's hash; what stays is a tombstone. A restored world is archived",
    ),
    (
        (W.EPOCH, "core", PLAIN, STAYS, REWRITTEN, REBUILT, OWN, "", True, NO, ("world",), "epoch"),
        "the fencing number, which never comes twice: it stays, and a restore goes on above it",
    ),
    (
        (W.HOLDER, "core", PLAIN, GOES, OMITTED, OUT, OWN, "", True, NO, ("world",), "holder"),
        "the process that has the lease in this store",
    ),
    (
        (W.ASSIGNMENT, "core", PLAIN, GOES, OMITTED, OUT, OWN, "", True, NO, ("world",), "assignment"),
        "the worker of this store that should have the world",
    ),
    (
        (W.HEAD, "core", PLAIN, GOES, COPIED, CARRIED, OWN, "", True, NO, ("history",), "head"),
        "digests of the history, none of a blob; a fork's goes on from its parent's",
    ),
    (
        (W.JOURNAL, "core", OWN_KEY, GOES, COPIED, CARRIED, THROUGH, "journal", True, NO, ("history",), "journal"),
        "the history; a file has all of it as segments",
    ),
    (
        (W.BASELINE, "core", OWN_KEY, GOES, COPIED, REBUILT, OWN, "baselines", True, NO, ("history",), "baseline"),
        "the state that a restart begins at; an import begins at the last one of its file",
    ),
    (
        (W.SNAPSHOT, "core", OWN_KEY, GOES, COPIED, CARRIED, THROUGH, "snapshots", True, NO, ("history",), "snapshot"),
        "where a world's states are: none is found without its key",
    ),
    (
        (W.SEGMENT, "core", OWN_KEY, GOES, COPIED, CARRIED, THROUGH, "segments", True, NO, ("history",), "segment"),
        "where older parts of the history are: none is found without its key",
    ),
    (
        (W.LINEAGE, "core", ALL_KEY, GOES, COPIED, REBUILT, OWN, "scripts of forks", True, NO, ("history",), "lineage"),
        "where a fork comes from, still read when its key is destroyed; an import says here whose steps it has",
    ),
    (
        (W.RETAIN, "core", PLAIN, GOES, COPIED, OUT, OWN, "", True, NO, ("history",), "retain"),
        "pins by step and height; what they keep is a snapshot, or in a journal. No fork is in a file",
    ),
    (
        (W.INBOX, "core", OWN_KEY, GOES, COPIED, CARRIED, OWN, "inbox", True, APPENDED, ("queues",), "inbox"),
        "unread inputs; answers among them are left out of a file: they are to another world's intents",
    ),
    (
        (W.SEEN, "core", OWN_KEY, GOES, COPIED, CARRIED, OWN, "", True, IN_VALUE, ("records",), "seen"),
        "ids of inputs and digests of items, which could be guessed",
    ),
    (
        (W.DEAD, "core", OWN_KEY, GOES, COPIED, CARRIED, OWN, "dead letters", True, KEPT, ("records",), "dead"),
        "inputs that could not be taken, under the stamps that they had",
    ),
    (
        (W.TRIAL, "core", ALL_KEY, GOES, OMITTED, OUT, OWN, "", True, NO, ("quarantine",), "trial"),
        "counts of deaths in this store, and the digest of an input; read when the world's key is destroyed",
    ),
    (
        (W.TRACE, "core", OWN_KEY, GOES, COPIED, OUT, OWN, "", True, NO, ("records",), "trace"),
        "tracebacks, as text; covered by no digest",
    ),
    (
        (W.HELD, "copies", ALL_KEY, GOES, COPIED, REBUILT, OWN, "", True, NO, ("records",), "held_copy"),
        "the status that a copy had, and where it came from",
    ),
    (
        (W.BROUGHT, "core", PLAIN, GOES, COPIED, OUT, OWN, "", True, NO, ("records",), "brought"),
        "sizes of unread messages of other universes, by sender, for their share of the inbox",
    ),
)

_IN_WORKER: tuple[tuple[_Columns, str], ...] = (
    (
        (InWorker.LIFE, "core", PLAIN, STAYS, OMITTED, OUT, NO_WORLD, "", False, NO, (), "worker"),
        "heartbeats of the processes at this store",
    ),
    (
        (InWorker.WORLD, "core", PLAIN, GOES, OMITTED, OUT, NO_WORLD, "", False, NO, (), "held"),
        "the worlds that a worker holds; it goes with the holder's record",
    ),
)

KEYSPACES = tuple(Keyspace(*columns, why) for columns, why in (*_IN_STORE, *_IN_UNIVERSE, *_IN_WORLD, *_IN_WORKER))

# The reader of each keyspace with references to blobs.
REFERRING = {each.references: each.place for each in KEYSPACES if each.references}


# --- Which keyspace a key is of ---------------------------------------------------------------------------------------

# Every ordinal is a small number, and so takes as many bytes as this one: they stand at fixed places.
_ORDINAL = len(space.part(KeyRoot.UNIVERSE))
_ID = 1 + limits.ID_BYTES  # with its type code
_OF_STORE = slice(_ORDINAL, 2 * _ORDINAL)
_BEHIND_ID = slice(_ORDINAL + _ID, 2 * _ORDINAL + _ID)  # that of the universe or the worker
_BEHIND_WORLD = slice(2 * (_ORDINAL + _ID), 3 * _ORDINAL + 2 * _ID)
_NO_UNIVERSE = space.part(KeyRoot.UNIVERSE) + bytes(_ID)

_STORE, _UNIVERSE, _WORKER = map(space.part, KeyRoot)
_WORLD = space.part(InUniverse.WORLD)
_STORES = {space.part(each.place): each for each in KEYSPACES if isinstance(each.place, InStore)}
_UNIVERSES = {space.part(each.place): each for each in KEYSPACES if isinstance(each.place, InUniverse)}
_WORLDS = {space.part(each.place): each for each in KEYSPACES if isinstance(each.place, InWorld)}
_WORKERS = {space.part(each.place): each for each in KEYSPACES if isinstance(each.place, InWorker)}
# With the type: ordinals of different kinds are equal as numbers.
_BY_PLACE = {(type(each.place), int(each.place)): each for each in KEYSPACES}


def row(place: Ordinal) -> Keyspace:
    """The row of an ordinal."""
    return _BY_PLACE[type(place), int(place)]


def in_universe(chosen: Callable[[Keyspace], bool]) -> tuple[InUniverse, ...]:
    """The ordinals in a universe whose rows are chosen."""
    return tuple(each.place for each in KEYSPACES if isinstance(each.place, InUniverse) and chosen(each))


def in_world(chosen: Callable[[Keyspace], bool]) -> tuple[InWorld, ...]:
    """The ordinals in a world whose rows are chosen."""
    return tuple(each.place for each in KEYSPACES if isinstance(each.place, InWorld) and chosen(each))


def of(key: bytes) -> Keyspace | None:
    """The keyspace of a key, or of a beginning of one that has its ordinals. None if no release has made such a key."""
    root = key[:_ORDINAL]
    if root == _UNIVERSE:
        second = key[_BEHIND_ID]
        return _WORLDS.get(key[_BEHIND_WORLD]) if second == _WORLD else _UNIVERSES.get(second)
    if root == _WORKER:
        return _WORKERS.get(key[_BEHIND_ID])
    return _STORES.get(key[_OF_STORE]) if root == _STORE else None


def of_suffix(suffix: bytes) -> Keyspace | None:
    """The keyspace of a key without the prefix of its universe."""
    return of(_NO_UNIVERSE + suffix)


def metric_of(key: bytes) -> str:
    """One word for metrics, such as journal, inbox, head or cas: `worker` is a heartbeat, `held` a world that a worker
    holds, `store` what is of no universe.
    """
    found = of(key)
    return OTHER if found is None else found.metric


def take_apart(key: bytes) -> KeyPlace:
    """The keyspace of a key, and whose it is. `DecodeError` if no release has made such a key."""
    found = of(key)
    items = tuples.unpack(key)
    if found is None:
        raise errors.DecodeError("not a key of any keyspace")
    match found.place, items:
        case InStore(), (_, _, *rest):
            return KeyPlace(found, None, None, tuple(rest))
        case InWorker(), (_, tuples.Uuid(), _, *rest):
            return KeyPlace(found, None, None, tuple(rest))
        case InWorld(), (_, tuples.Uuid(universe), _, tuples.Uuid(world), _, *rest):
            return KeyPlace(found, ids.UniverseId(universe), ids.WorldId(world), tuple(rest))
        # Before the next case, which would fit as well: sealed with a world's key, the first item is that world.
        case InUniverse(), (_, tuples.Uuid(universe), _, tuples.Uuid(world), *rest) if found.sealed is Sealed.WORLD_KEY:
            return KeyPlace(found, ids.UniverseId(universe), ids.WorldId(world), tuple(rest))
        case InUniverse(), (_, tuples.Uuid(universe), _, *rest):
            return KeyPlace(found, ids.UniverseId(universe), None, tuple(rest))
        case _:
            raise errors.DecodeError("not a key of any keyspace")
