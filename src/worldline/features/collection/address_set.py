"""Addresses that were marked: eight bytes of each, in one table.

Two addresses that begin with the same eight bytes count as one: then a blob stays that might have gone, and none
goes that must stay. There is room for `most`. When that is used up, the upper half of the addresses that are judged is
left to a later collection (`above`), and forgotten.
"""

from __future__ import annotations

from array import array

from worldline.base import limits, probes

_BYTES = 8
_FREE = 0  # a slot; an address that begins with so many zeros counts as 1
_SLOTS_MIN = 1 << 12
# One more than the largest number: no bound above.
_END = 1 << 8 * _BYTES


class Marked:
    """Those from the address `above` on."""

    def __init__(self, *, above: bytes = b"", most: int = limits.MARKED_MAX) -> None:
        assert most > 0
        self._most = most
        # A collection after a partial one begins where that one left off, so its table holds other addresses.
        self._low = int.from_bytes(above[:_BYTES], "big") if above else 0
        self._high = _END
        self._clear(_SLOTS_MIN)

    def __len__(self) -> int:
        return self._count

    def add(self, address: bytes) -> bool:
        """Returns whether it was not known. One that is not judged is never known."""
        number = int.from_bytes(address[:_BYTES], "big")
        if not self._low <= number < self._high:
            # It answers "new", so the marker follows it: what it refers to may lie in the part that is judged.
            return True
        if not self._insert(number or 1):
            return False
        if self._count == self._most:
            self._leave_half()
        # At most half full: probing is linear, and runs of used slots grow fast beyond that.
        elif self._count * 2 > len(self._slots):
            self._rebuild(2 * len(self._slots))
        return True

    def __contains__(self, address: bytes) -> bool:
        # Eight bytes decide: a false "marked" keeps a blob that might go, and a false "not marked" cannot happen.
        return self._slots[self._place(int.from_bytes(address[:_BYTES], "big") or 1)] != _FREE

    def judges(self, address: bytes) -> bool:
        """Whether it is known of this address that it is marked, or not."""
        return self._low <= int.from_bytes(address[:_BYTES], "big") < self._high

    @property
    def begins(self) -> bytes:
        """The first address that is judged."""
        return _address(self._low)

    @property
    def above(self) -> bytes:
        """Where a later collection begins; empty: at the first address."""
        return b"" if self._high == _END else _address(self._high)

    def _leave_half(self) -> None:
        """Addresses are digests, so about half of them go."""
        probes.hit("collection.half-is-left")
        # Digests are spread evenly, so one turn is enough but for chance; the loop ends when one address is left.
        while self._count == self._most and self._high - self._low > 1:
            self._high = self._low + (self._high - self._low) // 2
            self._rebuild(len(self._slots))

    def _rebuild(self, slots: int) -> None:
        # The slot of a number depends on the size of the table and on what else is in it, so each is inserted again.
        before = self._slots
        self._clear(slots)
        for number in before:
            if number != _FREE and number < self._high:
                self._insert(number)

    def _clear(self, slots: int) -> None:
        self._slots = array("Q", bytes(_BYTES * slots))
        self._mask = slots - 1
        self._count = 0

    def _insert(self, number: int) -> bool:
        place = self._place(number)
        if self._slots[place] != _FREE:
            return False
        self._slots[place] = number
        self._count += 1
        return True

    def _place(self, number: int) -> int:
        """Where it is, or where there is room for it."""
        slots, mask = self._slots, self._mask
        place = number & mask  # numbers are parts of digests, so their low bits are spread already
        while slots[place] not in (_FREE, number):
            place = (place + 1) & mask
        return place


def _address(number: int) -> bytes:
    return number.to_bytes(_BYTES, "big").ljust(limits.DIGEST_BYTES, b"\x00")
