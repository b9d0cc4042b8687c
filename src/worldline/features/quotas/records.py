"""The records that are stored of quotas: what a universe may have, each change of it, and what was last counted."""

from __future__ import annotations

import msgspec


class QuotaRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a universe may have. None: without bound."""

    worlds: int | None  # not deleted
    bytes: int | None  # keys and values in the store, and the bodies of objects
    effects: int | None  # open: waiting for an effect worker, or with one
    pins: int | None  # forks that need a snapshot of the world they come from

    def __post_init__(self) -> None:
        if any(each is not None and each < 0 for each in (self.worlds, self.bytes, self.effects, self.pins)):
            raise ValueError("a quota is not negative")


UNBOUNDED = QuotaRecord(None, None, None, None)


class Quotas(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The quota of a universe, and how often it has been changed. `worlds` and `pins`: there are not more of them than
    this; counted on from here by each one that is made while they are bounded, and counted anew when that is too many.
    None: not counted since the quota was changed. `made`: how many were made so, which makes each record another.
    """

    changes: int
    quota: QuotaRecord
    worlds: int | None = None
    pins: int | None = None
    made: int = 0


class QuotaChangeRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One change: the number of the change, the quota from then on, and the store's time of it."""

    change: int
    quota: QuotaRecord
    time_us: int


class Usage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a universe had when it was last counted, which took from one time to another. `bytes` is None if only the
    rest was counted.
    """

    worlds: int
    bytes: int | None
    effects: int
    pins: int
    began_us: int
    time_us: int
