"""Ready hints: a world may have something to do. A lost or doubled hint costs time, never correctness.

A hint is appended in the batch that gives the world something to do, so its key is new and is never written again. A
worker that has seen a hint reads the world's inbox after that, and so reads the item that the hint was left for. The
step that takes the item deletes the hint; if the inbox was empty, a batch of its own does.

Scans start at a mark: see `worldline.runtime.hint_scan`.

A world with a blocked run has one hint more, which no input takes away: it stays until the world has adopted code under
which no run is blocked. A worker with other code finds the world by it (`worldline.runtime.blocked_scan`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from worldline.base import errors, limits
from worldline.keys import ready as keys
from worldline.model import ids, inbox
from worldline.store import kv

URGENT = 0  # a caller waits for the answer: requests and commands from outside
NORMAL = 1  # every other input
LATER = 2  # the inbox may be empty; the holder or a free worker checks where the world is assigned
PRIORITIES = (URGENT, NORMAL, LATER)
BLOCKED = keys.BLOCKED  # none of these: there is nothing to do until other code is hosted


class Hint(msgspec.Struct, frozen=True):
    """One hint as it was read."""

    key: bytes
    raw: bytes
    at: ids.Address
    priority: int

    @property
    def stamp(self) -> bytes:
        return self.key[-limits.STAMP_BYTES :]


def leave(batch: kv.Batch, at: ids.Address, *, priority: int) -> None:
    """Append a hint, behind the items that it is for: its stamp is the greatest of them. The batch has a guard of its
    own.
    """
    batch.append(keys.hint_prefix(at.universe, priority), keys.hint_value(at.world))


def mark_blocked(batch: kv.Batch, at: ids.Address) -> None:
    """Say that a run of the world is blocked. The batch has a guard of its own."""
    batch.put(keys.blocked_key(at), keys.hint_value(at.world))


def mark_unmarked(batch: kv.Batch, at: ids.Address) -> None:
    """The same, of a world that has no such hint yet. Guard: it has none."""
    batch.absent(keys.blocked_key(at))
    mark_blocked(batch, at)


def unmark_blocked(batch: kv.Batch, at: ids.Address) -> None:
    """No run is blocked any more. The batch has a guard of its own."""
    batch.delete(keys.blocked_key(at))


def get_blocked(at: ids.Address) -> kv.Get:
    return kv.Get(keys.blocked_key(at))


def priority_of(item: inbox.Item) -> int:
    """How urgent an input from outside is."""
    asked = isinstance(item, inbox.Control) or (isinstance(item, inbox.InboxEvent) and bool(item.correlation))
    return URGENT if asked else NORMAL


def prefix(universe: ids.UniverseId) -> bytes:
    """What the keys of all hints begin with, to wait for new ones."""
    return keys.every_hint(universe)[0]


def read_range(universe: ids.UniverseId, *, priority: int, start: bytes = b"", count_max: int) -> kv.Range:
    """Hints of one priority, oldest first. `start` is a mark: never above the `stable` of an earlier page."""
    begin, end = keys.hints(universe, priority, start=start)
    return kv.Range(begin, end, count_max=count_max)


def decode(universe: ids.UniverseId, page: kv.Page, *, priority: int) -> list[Hint]:
    """The hints of a page. A damaged one is left out: hints may be lost, and `doctor` reports it."""
    found: list[Hint] = []
    for key, raw in page.items:
        try:
            found.append(Hint(key, raw, ids.Address(universe, keys.hint_world(raw)), priority))
        # Skipped, not raised: one damaged hint must not keep workers from all others.
        except errors.Corrupt:
            continue
    return found


def get(hint: Hint) -> kv.Get:
    """Whether a hint that was read before is still there: its value is never another one."""
    return kv.Get(hint.key)


def remove(batch: kv.Batch, hints: Iterable[Hint]) -> None:
    """Delete hints in the step that takes what they were left for."""
    for hint in hints:
        batch.delete(hint.key)


def clear(batch: kv.Batch, hints: Sequence[Hint]) -> None:
    """Delete hints whose world's inbox was found empty after they were seen. Guard: the newest of them."""
    newest = max(hints, key=lambda hint: hint.stamp)
    batch.expect(newest.key, newest.raw)
    remove(batch, hints)


def compact(batch: kv.Batch, hints: Sequence[Hint]) -> Hint:
    """Delete all hints of one world but the newest, which is returned. Guard: the oldest of them."""
    ordered = sorted(hints, key=lambda hint: hint.stamp)
    assert len(ordered) > 1
    # The newest is expected too: it is to stand for all the others, so it must still be there.
    batch.expect(ordered[-1].key, ordered[-1].raw)
    batch.expect(ordered[0].key, ordered[0].raw)
    remove(batch, ordered[:-1])
    return ordered[-1]
