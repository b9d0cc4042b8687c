"""A map that forgets: what processes remember only to save work.

Its order is that in which the keys were put. A key that is put again goes to the end; one that is read stays where it
is. Beyond its bound the first key goes. To order it by use, take a value out with `pop` and put it back.
"""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedMap(dict[K, V]):
    """At most `most` keys."""

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        assert most > 0
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self._most:
            del self[next(iter(self))]
