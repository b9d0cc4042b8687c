"""A layer of faults over an engine, by script: each call of `commit` takes the next step and has its fate.

Reads and waits go through. When the script is at its end, so do commits, or the last step is repeated for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import errors
from worldline.store import kv


class Through(msgspec.Struct, frozen=True):
    """Nothing happens to this call."""


class Lost(msgspec.Struct, frozen=True):
    """The answers are lost. `applied`: the call had reached the store. `late`: it reaches it right after the next one.

    `only` are the places of the batches whose answers are lost, if not all; the others are applied and answered.
    """

    applied: bool = False
    late: bool = False
    only: tuple[int, ...] | None = None


class Unreachable(msgspec.Struct, frozen=True):
    """The call fails, and certainly did nothing."""

    error: type[errors.StoreError] = errors.StoreUnavailable


class After(msgspec.Struct, frozen=True):
    """Other writers come first: these batches are committed, then the call takes the step `then`."""

    rivals: list[kv.Batch]
    then: Through | Lost | Unreachable = Through()


Step = Through | Lost | Unreachable | After


class Faulty:
    """An engine with a script. `calls` counts the commits that were asked for."""

    def __init__(self, engine: kv.Engine, script: Sequence[Step], *, forever: bool = False) -> None:
        self._engine = engine
        self._script = list(script)
        self._forever = forever
        self._late: list[kv.Batch] = []
        self.calls = 0

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        return await self._engine.read(*requests)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        self.calls += 1
        late, self._late = self._late, []
        try:
            return await self._take(self._next(), batches)
        finally:
            await self._engine.commit(*late)

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        return await self._engine.wait(prefix, seen, timeout_ms)

    async def durability(self) -> kv.Durability:
        return await self._engine.durability()

    async def close(self) -> None:
        await self._engine.close()

    def _next(self) -> Step:
        if not self._script:
            return Through()
        return self._script[0] if self._forever and len(self._script) == 1 else self._script.pop(0)

    async def _take(self, step: Step, batches: Sequence[kv.Batch]) -> list[kv.Outcome]:
        match step:
            case After(rivals, then):
                for outcome in await self._engine.commit(*rivals):
                    assert isinstance(outcome, kv.Ok), outcome
                return await self._take(then, batches)
            case Unreachable(error):
                raise error("scripted")
            case Lost():
                return await self._lose(step, batches)
            case Through():
                return await self._engine.commit(*batches)

    async def _lose(self, step: Lost, batches: Sequence[kv.Batch]) -> list[kv.Outcome]:
        def lost(place: int) -> bool:
            return step.only is None or place in step.only

        sent = [batch for place, batch in enumerate(batches) if step.applied or not lost(place)]
        if step.late:
            self._late = [batch for place, batch in enumerate(batches) if lost(place)]
        answers = iter(await self._engine.commit(*sent))
        outcomes: list[kv.Outcome] = []
        for place in range(len(batches)):
            answer = next(answers) if step.applied or not lost(place) else None
            outcomes.append(kv.CommitUnknown("scripted") if answer is None or lost(place) else answer)
        return outcomes
