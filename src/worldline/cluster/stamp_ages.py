"""How old a stamped key is, at least, though nothing of its age is stored.

An inbox item has no time of its own, only a stamp. But every page says up to which stamp nothing new can appear
(`stable`). This remembers such marks, each with the time at which it was read: a key below a mark was there by then. So
the age is a lower bound, short by no more than the pause between two marks; and no key is older than the first mark,
which was read when the process began.

Bounded: when there are too many marks, every second one of the older half goes, so old ages get coarser.
"""

from __future__ import annotations

from bisect import bisect_right

from worldline.store import kv

MARKS_MAX = 4_096


class StampAges:
    """Times are of this process's own monotonic clock."""

    def __init__(self) -> None:
        self._marks: list[kv.Stamp] = []  # rising
        self._read_us: list[int] = []  # when each was read

    def mark(self, stable: kv.Stamp, *, now_us: int) -> None:
        """Everything below this stamp is there now."""
        if self._marks and stable <= self._marks[-1]:
            if stable == self._marks[-1]:
                return  # what is below it was there at the first time already
            self._marks.clear()  # another store, or an older copy of it, stands in its place
            self._read_us.clear()
        self._marks.append(stable)
        self._read_us.append(now_us)
        if len(self._marks) > MARKS_MAX:
            del self._marks[1 : MARKS_MAX // 2 : 2]
            del self._read_us[1 : MARKS_MAX // 2 : 2]

    def age_us(self, stamp: bytes, *, now_us: int) -> int:
        """How long a key under this stamp has been there, at least. 0: not known to be any older than now."""
        index = bisect_right(self._marks, stamp)
        return now_us - self._read_us[index] if index < len(self._marks) else 0
