"""Effects that processes may have died of, and worlds on trial, in one process: neither is blamed for the other.

An effect whose attempt before died with its process is under suspicion, and so is a world on trial. If both run when
the process dies, its death proves nothing against either. So such an effect is not claimed where a world is on trial
(`effects/effect_worker.py`): another process may have it, or this one when the trial is over, which is soon. It does
not wait for ever: after a while it is performed all the same. Then it waits only for the marks that stand, and a mark
that is made while it runs says so (`Trial.beside`), so that a death is not counted. A world on trial never waits for
it.

The other way round, an effect that is performed alone is told before something else begins that its process may die of
(`disturb`): it says in its claim that it is not alone any more, and its death is not counted either.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

MARK_SECONDS = 30.0  # how long an effect waits for marks that stand: a restore may take its time


class Beside:
    def __init__(self) -> None:
        self._effects = 0  # attempts at such effects, begun or about to begin
        self._marks = 0
        self._alone: dict[int, Callable[[], Awaitable[None]]] = {}  # attempts that are alone, and how they are told
        self._number = 0
        self._unmarked: asyncio.Future[None] | None = None  # ends when no mark stands

    @property
    def has_effects(self) -> bool:
        return self._effects > 0

    @property
    def has_marks(self) -> bool:
        return self._marks > 0

    @contextlib.contextmanager
    def marked(self) -> Iterator[None]:
        """A mark is made, and stands."""
        self._marks += 1
        try:
            yield
        finally:
            self._marks -= 1
            if not self._marks and self._unmarked is not None:
                waiting, self._unmarked = self._unmarked, None
                if not waiting.done():
                    waiting.set_result(None)

    @contextlib.asynccontextmanager
    async def effect(self, disturbed: Callable[[], Awaitable[None]] | None = None) -> AsyncIterator[None]:
        """An attempt at such an effect. It begins when no mark stands that does not know of it. `disturbed`: it is
        alone, and this is awaited before it is not any more.
        """
        self._effects += 1  # before the wait: a mark made from now on knows
        self._number += 1
        number = self._number
        try:
            if self._effects > 1:
                await self.disturb()
            if disturbed is not None:
                self._alone[number] = disturbed
                if self._effects > 1:  # since it was claimed
                    await self.disturb()
            if self._marks:
                if self._unmarked is None:
                    self._unmarked = asyncio.get_running_loop().create_future()
                # `wait` leaves the future alone when time is up: other attempts wait for it, too.
                await asyncio.wait([self._unmarked], timeout=MARK_SECONDS)
                if self._marks:
                    await self.disturb()
            yield
        finally:
            self._alone.pop(number, None)
            self._effects -= 1

    async def disturb(self) -> None:
        """Something is about to run that a process may die of: whatever is alone is not any more."""
        while self._alone:
            # One by one, looked up again each time: attempts begin and end while one is told.
            number, tell = next(iter(self._alone.items()))
            await tell()
            self._alone.pop(number, None)
