"""The records of client ids: each is written once, noted with an age once, and kept for the window in true time."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from worldline.base import limits
from worldline.keys import inbox as inbox_keys
from worldline.sim.runtime.truth import AppliedBatch

DRIFT_MAX = 0.01  # of the clocks by which time is counted


class ClientIds:
    """`window_us`: how long they are kept; 0: that is not looked at."""

    def __init__(self, broken: Callable[[str, str], None], *, window_us: int) -> None:
        self._broken = broken
        self._window_us = window_us
        self._recorded_us: dict[bytes, int] = {}  # when each was recorded, in virtual time

    def changed(self, applied: AppliedBatch, key: bytes, old: bytes | None, new: bytes | None) -> None:
        """A record was written, changed or deleted, of a world that is there."""
        if old is None:
            self._recorded_us[key] = applied.now_us  # true time: the window must hold whatever the clocks of hosts show
        elif new is None:
            kept_us = applied.now_us - self._recorded_us.get(key, 0)
            if kept_us < self._window_us * (1 - DRIFT_MAX):
                self._broken("KEPT", f"an id was forgotten after {kept_us // 1000} ms")
        # A record that changes while an item is appended was overwritten: the input was enqueued a second time.
        elif applied.batch.appends or not _is_noted(old, new):
            self._broken("J2", "an id that was used before was taken for new")


def _is_noted(old: bytes, new: bytes) -> bool:
    """Whether the record of an id is the same but for the age that a janitor has noted."""
    was, is_now = (inbox_keys.SEEN.unpack(each[: -limits.STAMP_BYTES]) for each in (old, new))
    stamps = [each[-limits.STAMP_BYTES :] for each in (old, new)]
    return msgspec.structs.replace(is_now, age_us=0) == was and stamps[0] == stamps[1]
