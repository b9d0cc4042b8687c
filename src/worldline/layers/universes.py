"""Universes: a namespace, a shared CAS, an isolation boundary. A store holds any number of them, by name.

A universe takes messages of its own worlds, and of no other universe unless a grant covers them. Grants are kept in the
receiving universe, as one record. A message from another universe expects that record in the batch that enqueues it,
so a grant that is taken back stops every message that is not in an inbox yet. Each change of the record is kept, too,
in the same commit: that is the universe's own journal of who was allowed what.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import errors, limits
from worldline.keys import ready as ready_keys
from worldline.keys import universes as keys
from worldline.keys import work as work_keys
from worldline.model import blobs, ids
from worldline.model import world_records as model
from worldline.store import kv


def get(name: str) -> kv.Get:
    return kv.Get(keys.name_key(name))


def decode(raw: bytes | None) -> ids.UniverseId | None:
    """The universe a name stands for, or None if there is none of that name."""
    found = keys.NAME.get(raw)
    return None if found is None else ids.UniverseId(found.universe)


def get_meta(universe: ids.UniverseId) -> kv.Get:
    return kv.Get(keys.meta_key(universe))


def name_of(raw: bytes | None) -> str:
    """The name in a universe's record; empty if there is none."""
    found = keys.META.get(raw)
    return "" if found is None else found.name


def expect_there(batch: kv.Batch, universe: ids.UniverseId, raw: bytes | None) -> None:
    """For a batch that makes something new in a universe: it is not being deleted, now and at the commit."""
    if raw is None or is_closed(raw):  # the first for type checkers
        raise errors.NotFound(f"universe {universe.hex()} is deleted")
    batch.expect(keys.meta_key(universe), raw)


def is_closed(raw: bytes | None) -> bool:
    """Whether a universe is deleted, or is being deleted, by its record."""
    return raw is None or bool(keys.META.unpack(raw).closed)


def created_us(raw: bytes | None) -> int:
    """When a universe was made, by its record."""
    found = keys.META.get(raw)
    return 0 if found is None else found.created_us


def names_range(*, count_max: int) -> kv.Range:
    """All universes of a store, by name."""
    begin, end = keys.names()
    return kv.Range(begin, end, count_max=count_max)


def decode_names(page: kv.Page) -> list[tuple[str, ids.UniverseId]]:
    """The names of such a page. One that cannot be read is left out: `doctor` reports it."""
    found: list[tuple[str, ids.UniverseId]] = []
    for key, raw in page.items:
        try:
            found.append((keys.name_of(key), ids.UniverseId(keys.NAME.unpack(raw).universe)))
        except errors.Corrupt:
            continue
    return found


def waiting_range(universe: ids.UniverseId) -> kv.Range:
    """The first of the due queues' pointers and of the hints: whether anything waits in a universe."""
    return kv.Range(work_keys.due_all(universe)[0], ready_keys.every_hint(universe)[1], count_max=1)


def create(batch: kv.Batch, universe: ids.UniverseId, *, name: str, time_us: int) -> None:
    """A new universe. Guards: the name is free, and the id was never used."""
    batch.absent(keys.name_key(name))
    batch.put(keys.name_key(name), keys.NAME.pack(keys.UniverseName(universe)))
    batch.absent(keys.meta_key(universe))
    batch.put(keys.meta_key(universe), keys.META.pack(model.UniverseMeta(name, time_us)))


def get_generation(universe: ids.UniverseId) -> kv.Get:
    return kv.Get(keys.generation_key(universe))


def decode_generation(raw: bytes | None) -> int:
    """Read the garbage-collection generation; a universe never collected is at 0."""
    found: blobs.Generation | None = keys.GENERATION.get(raw)
    return 0 if found is None else found.number


def is_marking(raw: bytes | None) -> bool:
    """Whether a garbage collection marks, by its generation as it was read."""
    found: blobs.Generation | None = keys.GENERATION.get(raw)
    return found is not None and found.marking


class GenerationRecord(msgspec.Struct, frozen=True):
    """A universe's generation as it was read: before anything was put that a batch is going to refer to."""

    universe: ids.UniverseId
    raw: bytes | None

    def expect(self, batch: kv.Batch) -> None:
        expect_generation(batch, self.universe, self.raw)


def expect_generation(batch: kv.Batch, universe: ids.UniverseId, raw: bytes | None) -> None:
    """For a batch that publishes references: no collection has begun since the generation was read, which was before
    anything that is referred to was put. `raw`: as it was read; None if there was none, and then the batch makes it.
    """
    key = keys.generation_key(universe)
    if raw is not None:
        batch.expect(key, raw)
    # A batch may publish several references: the first one makes the record for all.
    elif key not in batch.puts:
        batch.absent(key)
        batch.put(key, keys.GENERATION.pack(blobs.Generation(0)))


def is_collected(conflict: kv.Conflict, universe: ids.UniverseId) -> bool:
    """Whether nothing but the generation has changed: what is referred to has to be put again, and that is all."""
    return [key for key, _ in conflict.found] == [keys.generation_key(universe)]


# --- Who may send from other universes --------------------------------------------------------------------------------

_NO_GRANTS = model.Grants(0, [])


class Granted(msgspec.Struct, frozen=True):
    """The grants of a universe as they were read. `raw` is None if it has never had any."""

    universe: ids.UniverseId
    grants: model.Grants
    raw: bytes | None

    def covers(self, *, universe: bytes, world: str, to: str, event: str) -> bool:
        """Whether a message may come here from this world of this universe."""
        return universe == self.universe or any(
            each.covers(universe=universe, world=world, to=to, event=event) for each in self.grants.grants
        )


def get_grants(universe: ids.UniverseId) -> kv.Get:
    return kv.Get(keys.grants_key(universe))


def decode_grants(universe: ids.UniverseId, raw: bytes | None, newest: kv.Page) -> Granted:
    """`newest`: what `newest_grant_change` has read. `Corrupt` if the record is not the one that the last change left:
    an older one, sealed as it once was, would bring back what was taken back since.
    """
    found = keys.GRANTS.get(raw) or _NO_GRANTS
    # The log is appended in the same commit, under stamps that grow: an older record cannot match its end.
    changes = [each.change for each in decode_grant_log(newest)]
    if found.changes != (changes[0] if changes else 0):
        raise errors.Corrupt(
            f"the grants of universe {universe.hex()} are those of change {found.changes}, and the last change is "
            f"{changes[0] if changes else 0}: one of the two was put back or removed; restore the store from a backup"
        )
    return Granted(universe, found, raw)


def newest_grant_change(universe: ids.UniverseId) -> kv.Range:
    return grant_log_range(universe, count_max=1)


def expect_grants(batch: kv.Batch, record: Granted) -> None:
    """For a message from another universe: what allowed it must still stand at the commit."""
    assert record.raw is not None, "without a record nothing is allowed"
    batch.expect(keys.grants_key(record.universe), record.raw)


def allow(batch: kv.Batch, record: Granted, grant: model.Grant, *, time_us: int) -> None:
    """Add a grant. Guard: the record as it was read."""
    found = [*record.grants.grants, grant]
    if len(found) > limits.GRANTS_MAX:
        raise errors.TooLarge("the grants of a universe", size=len(found), limit=limits.GRANTS_MAX)
    number = record.grants.changes + 1
    change_grants(
        batch,
        record,
        msgspec.structs.replace(record.grants, changes=number, grants=found),
        model.GrantChange(number, True, [grant], time_us),
    )


def deny(batch: kv.Batch, record: Granted, taken: Sequence[model.Grant], *, time_us: int) -> None:
    """Take these grants back. Guard: the record as it was read."""
    assert taken, "taking nothing back is no change"
    left = [each for each in record.grants.grants if each not in taken]
    number = record.grants.changes + 1
    change_grants(
        batch,
        record,
        msgspec.structs.replace(record.grants, changes=number, grants=left),
        model.GrantChange(number, False, list(taken), time_us),
    )


def change_grants(batch: kv.Batch, record: Granted, grants: model.Grants, change: model.GrantChange) -> None:
    """Put another record, and what was changed, into the log. Guard: the record as it was read."""
    assert grants.changes == change.change == record.grants.changes + 1
    key, raw = keys.grants_key(record.universe), keys.GRANTS.pack(grants)
    if len(raw) > limits.VALUE_BYTES_MAX:
        raise errors.TooLarge("the grants and rules of a universe", size=len(raw), limit=limits.VALUE_BYTES_MAX)
    if record.raw is None:
        batch.absent(key)
    else:
        batch.expect(key, record.raw)
    batch.put(key, raw)
    # In the same batch: a grant without its line in the log would be refused at the next read.
    batch.append(keys.grant_log_prefix(record.universe), keys.GRANT_CHANGE.pack(change))


def grant_log_range(universe: ids.UniverseId, *, count_max: int) -> kv.Range:
    """The changes, the newest first."""
    begin, end = keys.grant_log(universe)
    return kv.Range(begin, end, count_max=count_max, reverse=True)


def decode_grant_log(page: kv.Page) -> list[model.GrantChange]:
    return [keys.GRANT_CHANGE.unpack(raw) for _, raw in page.items]
