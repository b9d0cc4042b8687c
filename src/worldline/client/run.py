"""What was started or sent, from outside: a workflow run, an event on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from worldline.base import failures
from worldline.client import answers, delivery
from worldline.codec import structs
from worldline.kernel import commands, values
from worldline.kernel.authoring.calls import Call, Seconds, to_us
from worldline.kernel.machine import Ended
from worldline.kernel.runs import Failure, RunStatus
from worldline.model import journal as journals
from worldline.model.journal import Kind

if TYPE_CHECKING:
    from worldline.client.world import World

R_co = TypeVar("R_co", covariant=True)


class Sent:
    """An event that is durably on its way."""

    def __init__(self, world: World, sending: delivery.Sending) -> None:
        self._world = world
        self._sending = sending

    async def applied(self, timeout: Seconds | None = None) -> int:
        """The height at which the world has taken it."""
        limit = None if timeout is None else to_us(timeout, "timeout") / 1_000_000
        async with asyncio.timeout(limit):
            return await answers.applied(self._world.universe, self._sending)


class Run(Generic[R_co]):
    """A workflow run, from outside."""

    def __init__(
        self, world: World, call: Call[R_co] | None, run_id: str, standing: commands.Standing, since: int
    ) -> None:
        self.id = run_id
        self._world = world
        self._call = call
        self._standing = standing
        self._since = since

    async def result(self, timeout: Seconds | None = None) -> R_co:
        """What the run returned. `RunFailed` if it raised, `TimeoutError` if it takes longer."""
        limit = None if timeout is None else to_us(timeout, "timeout") / 1_000_000
        async with asyncio.timeout(limit):
            return await self._result(None)

    async def _result(self, finished: asyncio.Future[journals.Entry] | None) -> R_co:
        """The same; `finished` is told of the end, if it was asked for before the start."""
        if self._standing.status in (RunStatus.RUNNING, RunStatus.BLOCKED):
            universe, at = self._world.universe, await self._world.address()
            entry = await answers.entry(universe, at, Kind.RUN_FINISHED, self.id, self._since, expected=finished)
            ended = structs.decode(Ended, await answers.payload_of(universe, entry))
            self._standing = commands.Standing(self.id, ended.status, attached=True, data=ended.data)
        return self._decode(self._standing)

    async def cancel(self, reason: str = "") -> None:
        """Cancel it where it waits. Returns when that is journaled, not when the run has ended."""
        await self._world.command(commands.CANCEL, commands.CancelRun(self.id, reason))

    def __await__(self) -> Generator[Any, Any, R_co]:
        return self.result().__await__()

    def _decode(self, standing: commands.Standing) -> R_co:
        if standing.status is RunStatus.FINISHED:
            if self._call is None:
                found: R_co = values.load(Any, standing.data)
                return found
            result: R_co = self._call.target.signature.result(standing.data)
            return result
        why = structs.decode(Failure, standing.data)
        kind = failures.RunCancelled if standing.status is RunStatus.CANCELLED else failures.RunFailed
        raise kind(f"run {self.id!r}: {why.message}", code=why.code)
