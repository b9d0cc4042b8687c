"""Ranges that are larger than a page: what is left of one, and all of one.

Each page is a snapshot of its own. The next page begins behind the last key of the one before it, never at a number of
keys: what is written or deleted between two reads shifts nothing.

`RangePages` and `RangeItems` are iterators and no generators, so a loop over them may be left at any place: nothing is
suspended in them that would have to be closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import msgspec

from worldline.codec import tuples
from worldline.store import kv


def rest_of(asked: kv.Range, page: kv.Page) -> kv.Range | None:
    """What is left of a range behind this page of it. None if that was the last."""
    if not page.more:
        return None
    last = page.items[-1][0]
    if asked.reverse:
        return msgspec.structs.replace(asked, end=last)
    return msgspec.structs.replace(asked, begin=tuples.successor(last))


class RangePages:
    """All of a range, page by page: one at least. `asked`: with the bounds of each page; None: no page at all."""

    __slots__ = ("_engine", "_rest", "time_us")

    def __init__(self, engine: kv.Engine | kv.Frozen, asked: kv.Range | None) -> None:
        self._engine = engine
        self._rest = asked
        self.time_us = 0  # the store's, at the last page

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> kv.Page:
        asked = self._rest
        if asked is None:
            raise StopAsyncIteration
        read = await self._engine.read(asked)
        page = read.page(0)
        self._rest = rest_of(asked, page)
        self.time_us = read.time_us
        return page


class RangeItems:
    """The same, item by item: a page is read when those of the one before it are used up."""

    __slots__ = ("_items", "_pages")

    def __init__(self, engine: kv.Engine | kv.Frozen, asked: kv.Range | None) -> None:
        self._pages = RangePages(engine, asked)
        self._items: Iterator[tuple[bytes, bytes]] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[bytes, bytes]:
        while True:
            for item in self._items:
                return item
            self._items = iter((await anext(self._pages)).items)
