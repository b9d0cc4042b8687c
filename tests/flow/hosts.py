"""Hosts as the contract suite sees them. A desk is one host over one document; the suite runs on every kind of desk.

The events of jobs and Core are the same on every desk; those of runners exist where there are runners.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from worldline import flow
from worldline.base.env import FixedEnv
from worldline.flow_core import flow_records, jobs, js_values, patches

KEY = "k"
Handlers = Mapping[str, flow.Handler]


class VirtualEnv(FixedEnv):
    """A clock that stands still until it is moved; what sleeps wakes when its time has come, in order of time."""

    def __init__(self) -> None:
        super().__init__(wall_us=0)
        self._sleeping: list[tuple[int, int, asyncio.Future[None]]] = []
        self._slept = 0

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleeping, (self.wall_us() + int(seconds * 1_000_000), self._slept, future))
        self._slept += 1
        await future

    async def advance(self, ms: int) -> None:
        """Move the clock, waking sleepers on the way."""
        until = self.wall_us() + ms * 1_000
        while self._sleeping and self._sleeping[0][0] <= until:
            due, _, future = heapq.heappop(self._sleeping)
            self.advance_us(max(0, due - self.wall_us()))
            if not future.done():
                future.set_result(None)
            await settled()
        self.advance_us(until - self.wall_us())


async def settled() -> None:
    """Until nothing happens without the clock: more turns of the loop than any test has tasks in a row."""
    for _ in range(200):
        await asyncio.sleep(0)


class Desk(Protocol):
    """What the suite needs of a host."""

    async def act(self, type: str, input: Any = js_values.MISSING, *, key: str = KEY, id: str = "") -> flow.Result: ...
    async def submit(self, type: str, input: Any = js_values.MISSING, *, key: str = KEY, id: str = "") -> None: ...
    async def idle(self) -> None: ...
    async def advance(self, ms: int) -> None: ...
    async def snapshot(self, key: str = KEY) -> flow_records.Snapshot: ...
    async def seed(self, snapshot: flow_records.Snapshot, *, key: str = KEY) -> None: ...
    async def inject(self, requirement_id: str, given: object, *, key: str = KEY) -> None: ...
    async def patch(self, given: list[patches.Patch], *, key: str = KEY) -> None: ...
    async def fatal(self, key: str = KEY) -> str: ...
    def events(self, key: str = KEY) -> list[flow.Event]: ...
    async def close(self) -> None: ...


class Standalone:
    """The host of `worldline.flow`."""

    has_runners = True

    def __init__(self, document: Mapping[str, Any], handlers: Handlers, **options: Any) -> None:
        self.env = VirtualEnv()
        self._events: list[flow.Event] = []
        self.on_event: Callable[[flow.Event], None] = lambda _: None
        limits = options.pop("handling", {})
        self.host = flow.Host(document, env=self.env, trace=self._heard, **options)
        for type, handler in handlers.items():
            self.host.register(type, handler, **limits)

    def _heard(self, event: flow.Event) -> None:
        self._events.append(event)
        self.on_event(event)

    async def act(self, type: str, input: Any = js_values.MISSING, *, key: str = KEY, id: str = "") -> flow.Result:
        return await self.host.dispatch(type, input, key=key, id=id)

    async def submit(self, type: str, input: Any = js_values.MISSING, *, key: str = KEY, id: str = "") -> None:
        self.host.submit(type, input, key=key, id=id)

    async def idle(self) -> None:
        await settled()

    async def advance(self, ms: int) -> None:
        await self.env.advance(ms)

    async def snapshot(self, key: str = KEY) -> flow_records.Snapshot:
        return self.host.snapshot(key)

    async def seed(self, snapshot: flow_records.Snapshot, *, key: str = KEY) -> None:
        self.host.seed(snapshot, key=key)

    async def inject(self, requirement_id: str, given: object, *, key: str = KEY) -> None:
        self.host.inject(requirement_id, given, key=key)

    async def patch(self, given: list[patches.Patch], *, key: str = KEY) -> None:
        self.host.patch(given, source="test", key=key)

    async def fatal(self, key: str = KEY) -> str:
        return self.host.fatal(key)

    def events(self, key: str = KEY) -> list[flow.Event]:
        return [each for each in self._events if each.key == key]

    async def close(self) -> None:
        await self.host.close()


def types(desk: Desk, key: str = KEY) -> list[str]:
    """The events of jobs, Core and effects, in order; those of runners are looked at apart."""
    return [each.type for each in desk.events(key) if not each.type.startswith("runner:")]


def said(desk: Desk, type: str, field: str, key: str = KEY) -> list[Any]:
    """One field of every event of a type."""
    return [each.fields[field] for each in desk.events(key) if each.type == type]


def failure(code: str = jobs.EFFECT_EXECUTION_FAILED) -> jobs.Failure:
    return jobs.Failure(code, "no")
