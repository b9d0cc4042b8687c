"""Reading the store as an auditor: what a key is for (`keys/keyspace_table.py`), and what a batch is about.

The layers build keys and never take strange ones apart; here every key of a commit is decoded.
"""

from __future__ import annotations

import functools

import msgspec

from worldline.base import errors
from worldline.codec import structs, tuples
from worldline.kernel import part_inputs
from worldline.keys import inbox as inbox_keys
from worldline.keys import journal, keyspace_table, space, work
from worldline.model import ids, inbox
from worldline.model.journal import JournalEntry, Kind
from worldline.model.work import WorkKind, WorkState
from worldline.store import kv


class KeyPurpose(msgspec.Struct, frozen=True):
    """What a key is for. `what`: the metric of its keyspace: epoch, holder, head, journal, inbox, ...; `rest`: what
    follows.
    """

    what: str
    at: ids.Address | None = None
    rest: tuple[tuples.Item, ...] = ()


_FORKED = part_inputs.FORKED.encode()
METAS = ("world_meta", "universe_meta")


# Auditors ask for the same keys again and again; bounded, as a campaign runs for days.
@functools.lru_cache(maxsize=1 << 17)
def place(key: bytes) -> KeyPurpose:
    """Take a stored key apart."""
    if keyspace_table.of(key) is None:  # where a range may begin, or what an ablation has put
        return KeyPurpose(keyspace_table.OTHER, None, tuples.unpack(key))
    found = keyspace_table.take_apart(key)
    return KeyPurpose(found.keyspace.metric, found.at, found.rest)


def is_journal(begin: bytes) -> bool:
    """Whether a range that begins here is one of frames."""
    try:
        return place(begin).what == "journal"
    except errors.Corrupt:
        return False  # ranges may begin where no key can be


def intent_of(where: KeyPurpose) -> ids.IntentId:
    [intent] = where.rest
    assert isinstance(intent, tuples.Uuid)
    return ids.IntentId(intent.raw)


# What a commit is about, by the keys it writes; the first that fits counts.
_BY_KEY = (
    ("epoch", "acquire"),
    ("snapshot", "snapshot"),
    ("head", "step"),
    ("worker", "beat"),
    ("cas", "blob"),
    ("chunk", "blob"),
    ("seen", "enqueue"),
    ("trial", "mark"),
    ("hint", "hint"),
    ("due", "due"),
)


def about(batch: kv.Batch) -> str:
    """One word for what a batch does: the boundary it stands at."""
    written = [place(key).what for key in batch.puts]
    # The most specific first: a fork also writes a head, and a deletion a world's meta.
    if "lineage" in written:
        return "fork"
    if "deletion" in written:
        return "delete" if "world_meta" in written else "remove"
    if any(each in written for each in METAS):  # a world that is made writes a head, too, and is no step
        return "create"
    for key, put in batch.puts.items():
        where = place(key)
        # A step opens work as well; without a head it is a claim, an answer or a firing.
        if where.what == "open" and not any(place(other).what == "head" for other in batch.puts):
            return _work(put.value)
    written = [place(key).what for key in (*batch.puts, *batch.deletes)]
    if "condemned" in written:
        return "sweep" if "cas" in written else "condemn"
    if "segment" in written or any(place(key).what == "snapshot" for key in batch.deletes):
        return "compact"
    if "holder" in written and "epoch" not in written:
        return "release"
    if "seen" in written and "head" not in written and not batch.appends:
        return "other"  # a janitor notes how old the universe is
    return next((name for what, name in _BY_KEY if what in written), "other")


def boundary(batch: kv.Batch) -> str:
    """Where a batch stands: what it is about, and apart from that the first step of a fork, its first own state, and a
    message that comes from elsewhere.
    """
    doing = about(batch)
    if doing == "step" and any(_FORKED in put.value and _begins_fork(put) for put in batch.puts.values()):
        return "begin"
    if doing == "enqueue" and any(isinstance(_item(each), inbox.Message) for each in batch.appends):
        return "deliver"
    if doing == "snapshot" and any(place(key).what == "retain" for key in batch.deletes):
        return "lean"
    return doing


def _item(append: kv.Append) -> inbox.Item | None:
    """Return what is appended, if that is to an inbox."""
    is_item = place(append.prefix + kv.ZERO_STAMP).what == "inbox"
    return inbox_keys.ITEM.unpack(append.value) if is_item else None


def _begins_fork(put: kv.Put) -> bool:
    if place(put.key).what != "journal":
        return False
    [first, *_] = journal.unpack_frame(put.value).entries
    entry = structs.decode(JournalEntry, first)
    if entry.kind is not Kind.CONTROL or entry.blob:  # the first input of a fork is small
        return False
    item: inbox.Item = structs.decode(inbox.Item, entry.payload)  # type: ignore[arg-type]
    return isinstance(item, inbox.Control) and item.command == part_inputs.FORKED


def _work(raw: bytes) -> str:
    found = work.WORK.unpack(raw)
    if found.kind is WorkKind.TIMER:
        return "fire"
    if found.state is WorkState.CLAIMED:
        return "claim"
    return "settle" if found.state in (WorkState.SETTLED, WorkState.SENT) else "back off"


assert space.FORMAT_MAJOR == 2, "the auditor reads format 2"
