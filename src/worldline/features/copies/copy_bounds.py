"""How much may be made of a copy: no small file becomes a large store, or takes all memory, while it is read.

Compressed bytes can stand for 20,000 times as many. What journals and states compress to is known, so a file that says
far more is refused, unless the caller has said how much it may be. Counted is what is unpacked, of blocks of the file
and of segments inside it, and something for each record; not what deltas of a history add up to, which costs time and
no room.
"""

from __future__ import annotations

from worldline.base import errors, limits


class CopyBounds:
    """Of one copy. `packed`: its size; `bytes_max`: how much it may unpack to, if the caller has said so."""

    def __init__(self, what: str, packed: int, bytes_max: int | None = None) -> None:
        if bytes_max is not None and bytes_max < 0:
            raise errors.BadInput(f"bytes_max counts bytes; it cannot be {bytes_max}")
        self._what = what
        self.bytes_max = max(limits.COPY_BYTES_FREE, limits.COPY_RATIO_MAX * packed) if bytes_max is None else bytes_max
        self.state_bytes_max = max(limits.COPY_STATE_BYTES_MAX, bytes_max or 0)
        self._unpacked = 0

    def unpack(self, size: int) -> None:
        """So many bytes were unpacked. `CopyTooLarge` if they are too many by now."""
        # Each record costs memory of its own, so many empty ones must count, too.
        self._unpacked += size + limits.COPY_RECORD_BYTES
        if self._unpacked > self.bytes_max:
            raise errors.CopyTooLarge(
                f"{self._what}, unpacked,",
                size=self._unpacked,
                limit=self.bytes_max,
                advice="it may be made to fill a disk; with --bytes-max N (bytes_max=) more is accepted",
            )

    def keep(self, size: int) -> None:
        """So many bytes of one state, or of one step, are in memory. `CopyTooLarge` if they are too many."""
        if size > self.state_bytes_max:
            raise errors.CopyTooLarge(
                f"a state in {self._what}",
                size=size,
                limit=self.state_bytes_max,
                advice="it is checked in memory; with --bytes-max N (bytes_max=) more is accepted",
            )
