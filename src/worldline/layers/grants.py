"""Who may send to the worlds of a universe from outside of it.

A universe takes messages of its own worlds, and of no other universe unless a grant covers them. Grants are kept in the
receiving universe, as one record. A message from another universe expects that record in the batch that enqueues it,
so a grant that is taken back stops every message that is not in an inbox yet. Each change of the record is kept, too,
in the same commit: that is the universe's own journal of who was allowed what.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import errors, limits
from worldline.keys import grants as keys
from worldline.model import grant, ids
from worldline.store import kv

_NONE = grant.Grants(0, [])


class Record(msgspec.Struct, frozen=True):
    """The grants of a universe as they were read. `raw` is None if it has never had any."""

    universe: ids.UniverseId
    grants: grant.Grants
    raw: bytes | None

    def covers(self, *, universe: bytes, world: str, to: str, event: str) -> bool:
        """Whether a message may come here from this world of this universe."""
        return universe == self.universe or any(
            each.covers(universe=universe, world=world, to=to, event=event) for each in self.grants.grants
        )


def get(universe: ids.UniverseId) -> kv.Get:
    return kv.Get(keys.grants_key(universe))


def decode(universe: ids.UniverseId, raw: bytes | None) -> Record:
    found = keys.GRANTS.get(raw)
    return Record(universe, _NONE if found is None else found, raw)


def expect(batch: kv.Batch, record: Record) -> None:
    """For a message from another universe: what allowed it must still stand at the commit."""
    assert record.raw is not None, "without a record nothing is allowed"
    batch.expect(keys.grants_key(record.universe), record.raw)


def allow(batch: kv.Batch, record: Record, wanted: grant.Grant, *, time_us: int) -> None:
    """Add a grant. Guard: the record as it was read."""
    found = [*record.grants.grants, wanted]
    if len(found) > limits.GRANTS_MAX:
        raise errors.TooLarge("the grants of a universe", size=len(found), limit=limits.GRANTS_MAX)
    _change(batch, record, found, [wanted], allowed=True, time_us=time_us)


def deny(batch: kv.Batch, record: Record, taken: Sequence[grant.Grant], *, time_us: int) -> None:
    """Take these grants back. Guard: the record as it was read."""
    assert taken, "taking nothing back is no change"
    left = [each for each in record.grants.grants if each not in taken]
    _change(batch, record, left, list(taken), allowed=False, time_us=time_us)


def _change(
    batch: kv.Batch, record: Record, found: list[grant.Grant], changed: list[grant.Grant], *, allowed: bool,
    time_us: int,
) -> None:  # fmt: skip
    key = keys.grants_key(record.universe)
    if record.raw is None:
        batch.absent(key)
    else:
        batch.expect(key, record.raw)
    number = record.grants.changes + 1
    batch.put(key, keys.GRANTS.pack(grant.Grants(number, found)))
    batch.append(
        keys.log_prefix(record.universe), keys.CHANGE.pack(grant.GrantChange(number, allowed, changed, time_us))
    )


def log_range(universe: ids.UniverseId, *, count_max: int) -> kv.Range:
    """The changes, the newest first."""
    begin, end = keys.log(universe)
    return kv.Range(begin, end, count_max=count_max, reverse=True)


def decode_log(page: kv.Page) -> list[grant.GrantChange]:
    return [keys.CHANGE.unpack(raw) for _, raw in page.items]
