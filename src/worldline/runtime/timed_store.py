"""An engine and an object store whose calls are told of: how long each took, and what came of it.

They stand around the real ones only in a process that has listeners (`compose.told`); all others call the store
directly. What is told costs the caller two readings of the clock and one small record; what it adds up to is counted by
the listener. A call that is cancelled is not told of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from worldline.base import errors
from worldline.runtime import facts
from worldline.store import kv
from worldline.store.objects import objects_interface as objects


class TimedEngine:
    """Reads and commits are told of; hints and the rest go straight through."""

    def __init__(
        self, engine: kv.Engine, name: str, monotonic_us: Callable[[], int], listening: facts.Telemetry
    ) -> None:
        self._engine = engine
        self._name = name
        self._monotonic_us = monotonic_us
        self._telemetry = listening
        # Bound once: calls that are not measured pass through no further method.
        self.wait = engine.wait
        self.freeze = functools.partial(kv.freeze, engine)
        self.raise_stamps = functools.partial(kv.raise_stamps, engine)
        self.scrub = functools.partial(kv.scrub, engine)
        self.durability = engine.durability
        self.close = engine.close

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        began_us = self._monotonic_us()
        try:
            found = await self._engine.read(*requests)
        # Only what the store answers: a call that is cancelled says nothing of the store.
        except errors.StoreError as error:
            self._telemetry.tell(facts.StoreCallFailed(self._name, "read", error.code))
            raise
        self._telemetry.tell(facts.StoreRead(self._name, self._monotonic_us() - began_us))
        return found

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        began_us = self._monotonic_us()
        try:
            outcomes = await self._engine.commit(*batches)
        except errors.StoreError as error:
            self._telemetry.tell(facts.StoreCallFailed(self._name, "commit", error.code))
            raise
        self._telemetry.tell(facts.CommitAnswered(self._name, batches, outcomes, self._monotonic_us() - began_us))
        return outcomes


class TimedObjects:
    """Every call is told of, with the bytes that it moved."""

    def __init__(
        self, inner: objects.Objects, name: str, monotonic_us: Callable[[], int], listening: facts.Telemetry
    ) -> None:
        self.inner = inner
        self._name = name
        self._monotonic_us = monotonic_us
        self._telemetry = listening
        self.close = inner.close

    async def put(self, name: str, body: bytes) -> None:
        began_us = self._monotonic_us()
        try:
            await self.inner.put(name, body)
        except errors.StoreError as error:
            self._failed("put", error)
            raise
        self._done("put", began_us, len(body))

    async def get(self, name: str) -> bytes:
        began_us = self._monotonic_us()
        try:
            body = await self.inner.get(name)
        except errors.StoreError as error:
            self._failed("get", error)
            raise
        self._done("get", began_us, len(body))
        return body

    async def list(self, prefix: str, *, after: str = "", count_max: int = 1000) -> list[objects.ListedObject]:
        began_us = self._monotonic_us()
        try:
            found = await self.inner.list(prefix, after=after, count_max=count_max)
        except errors.StoreError as error:
            self._failed("list", error)
            raise
        # Names are listed, and no bodies move.
        self._done("list", began_us, 0)
        return found

    async def delete(self, name: str) -> None:
        began_us = self._monotonic_us()
        try:
            await self.inner.delete(name)
        except errors.StoreError as error:
            self._failed("delete", error)
            raise
        self._done("delete", began_us, 0)

    def _done(self, call: facts.ObjectCall, began_us: int, size: int) -> None:
        self._telemetry.tell(facts.ObjectDone(self._name, call, size, self._monotonic_us() - began_us))

    def _failed(self, call: facts.ObjectCall, error: errors.StoreError) -> None:
        self._telemetry.tell(facts.ObjectFailed(self._name, call, error.code))
