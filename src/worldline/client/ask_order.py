"""Asks on their way to worlds that this process holds: no input that comes after an ask overtakes it.

An input is handed to the world's next cycle, in the order in which inputs come. It may have to take another way:
through the inbox, if that is too full to be read at once, or to the world as it is taken again. An ask is acked by its
answer alone, so its client may send something else meanwhile. So what comes after an ask that has left the straight way
waits here until the ask is durable, or has failed. Sends are acked, and need no such care.

Inputs to a world of another process come when they are in its inbox.
"""

from __future__ import annotations

import asyncio

from worldline.model import ids, inbox

_ANSWERED = (inbox.InboxEvent, inbox.Control)


class AskLine:
    """The asks that are on their way to one world, by their numbers, in the order in which they came."""

    __slots__ = ("asides", "asks", "count")

    def __init__(self) -> None:
        self.asks: dict[int, AskPlace] = {}
        self.asides: dict[int, AskPlace] = {}  # those that are not on the straight way
        self.count = 0

    def add(self, place: AskPlace) -> None:
        self.asks[place.number] = place
        self.count += 1


class AskPlace:
    """An input's place behind the asks that came before it: those with lower numbers. An ask is in line itself."""

    __slots__ = ("_is_ask", "_line", "_waiting", "number")

    def __init__(self, line: AskLine, *, is_ask: bool) -> None:
        # Places of inputs that are no asks share the next ask's number: they need to be behind the asks before them
        # only.
        self.number = line.count
        self._line = line
        self._is_ask = is_ask
        self._waiting: list[asyncio.Future[None]] = []
        if is_ask:
            line.add(self)

    @property
    def may_be_blocked(self) -> bool:
        """Whether some ask is not on the straight way."""
        return bool(self._line.asides)

    def step_aside(self) -> None:
        """Note that it is not on the straight way. If it is an ask, what comes after it waits."""
        if self._is_ask:
            # Only asks are kept here: a send is acked, so its client cannot have sent something after it yet.
            self._line.asides[self.number] = self

    def go_straight(self) -> None:
        """Note that it is handed over, or need not delay what comes after it."""
        # Another place may have the same number: an input that is no ask must not remove the ask of its number.
        if self._line.asides.pop(self.number, None) is self:
            self._tell()

    def leave(self) -> None:
        """Leave the line: it was processed, is in the inbox, or has failed."""
        if self._is_ask:
            self._line.asides.pop(self.number, None)
            # Both dictionaries before telling: the tasks that wake look at them again.
            del self._line.asks[self.number]
            self._tell()

    async def wait_straight(self) -> None:
        """Wait, before it is handed over, until every ask before it is on the straight way, or has left."""
        self.step_aside()
        await self._wait(self._line.asides)

    async def wait_through(self) -> None:
        """Wait, as it was handed over and has to take another way, until every ask before it has left."""
        self.step_aside()
        await self._wait(self._line.asks)

    async def _wait(self, others: dict[int, AskPlace]) -> None:
        while True:
            # They leave in order, as a rule: then each is told once.
            last = others.get(self.number - 1)
            last = last or next((each for number, each in others.items() if number < self.number), None)
            if last is None:
                return
            await last.moved()

    async def moved(self) -> None:
        """Wait until this ask is on the straight way or has left."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(told)
        await told

    def _tell(self) -> None:
        # Swapped first: a task that waits again puts itself into the new list and is told by the next move.
        waiting, self._waiting = self._waiting, []
        for told in waiting:
            if not told.done():  # the task that waited for it may be cancelled
                told.set_result(None)


class Arrivals:
    """The lines of one process."""

    def __init__(self) -> None:
        self._lines: dict[ids.Address, AskLine] = {}

    def enter(self, at: ids.Address, item: inbox.Item) -> AskPlace | None:
        """Give an input its place, which it has to `leave`. None if it is no ask, and there is nothing to overtake."""
        lines = self._lines
        if not is_ask(item):
            line = lines.get(at) if lines else None  # as a rule no ask is on its way: then no address is hashed
            return None if line is None else AskPlace(line, is_ask=False)
        line = lines.get(at)
        if line is None:
            line = lines[at] = AskLine()
        return AskPlace(line, is_ask=True)

    def leave(self, at: ids.Address, place: AskPlace) -> None:
        place.leave()
        line = self._lines.get(at)
        if line is not None and not line.asks:  # else this would keep a line for every world ever asked
            del self._lines[at]


def is_ask(item: inbox.Item) -> bool:
    """Whether the caller waits for an answer, and not only until the input is durable."""
    return isinstance(item, _ANSWERED) and item.correlation != ""
