"""What was started or sent, from outside: a workflow run, an event on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Generic, TypeVar

from worldline.base import errors, failures
from worldline.client import answers, delivery, run_list
from worldline.client.connection import Connection
from worldline.client.handle import Handle
from worldline.codec import structs
from worldline.kernel import commands, values
from worldline.kernel.authoring.calls import Call, Seconds, to_us
from worldline.kernel.runs import ENDED, Failure, RunStatus
from worldline.kernel.state import Ended
from worldline.model import journal as journals
from worldline.model.journal import Kind

R_co = TypeVar("R_co", covariant=True)


def limit_seconds(timeout: Seconds | None) -> float | None:
    return None if timeout is None else to_us(timeout, "timeout") / 1_000_000


class Sent:
    """An event that is durably on its way."""

    def __init__(self, universe: Connection, sending: delivery.Sending) -> None:
        self._universe = universe
        self._sending = sending

    async def applied(self, timeout: Seconds | None = None) -> int:
        """The height at which the world has taken it. `NotHosted` if no process has run the world for too long."""
        async with asyncio.timeout(limit_seconds(timeout)):
            return await answers.applied(self._universe, self._sending)


class Run(Generic[R_co]):
    """A workflow run, from outside. `id` names it in its world, `workflow` is what it runs."""

    def __init__(
        self, world: Handle, run_id: str, workflow: str, standing: commands.Standing, *, since: int,
        call: Call[R_co] | None = None,
    ) -> None:  # fmt: skip
        self.id = run_id
        self.workflow = workflow
        self._world = world
        self._call = call
        self._standing = standing
        self._since = since

    async def status(self) -> RunStatus:
        """How the run stands now: running, finished, failed, cancelled, or blocked by a change of code."""
        if self._standing.status not in ENDED:
            for find in (run_list.runs, run_list.from_journal):
                found = next((each for each in (await find(self._world))[0] if each.id == self.id), None)
                if found is not None:
                    self._standing = commands.Standing(self.id, found.status, attached=True, data=found.data)
                    break
            else:
                raise errors.NotFound(f"world {self._world.name!r} has no run {self.id!r}")
        return self._standing.status

    async def result(self, timeout: Seconds | None = None) -> R_co:
        """What the run returned. `RunFailed` if it raised, `TimeoutError` if it takes longer, `NotHosted` if no process
        has run the world for too long.
        """
        async with asyncio.timeout(limit_seconds(timeout)):
            self._standing = await ended(self._world, self._standing, since=self._since)
        return result_of(self._standing, self._call)

    async def cancel(self, reason: str = "") -> None:
        """Cancel it where it waits. Returns when that is journaled, not when the run has ended."""
        await self._world.command(commands.CANCEL, commands.CancelRun(self.id, reason))

    def __await__(self) -> Generator[Any, Any, R_co]:
        return self.result().__await__()


async def ended(
    world: Handle, standing: commands.Standing, *, since: int, expected: asyncio.Future[journals.Entry] | None = None
) -> commands.Standing:
    """The run's end; waits for it. `expected` is told of the end, if that was asked for before the start."""
    if standing.status in ENDED:
        return standing
    universe, at = world.universe, await world.address()
    entry = await answers.entry(universe, at, Kind.RUN_FINISHED, standing.run, since, expected=expected)
    found = structs.decode(Ended, await answers.payload_of(universe, entry))
    return commands.Standing(found.run, found.status, attached=True, data=found.data)


def result_of(standing: commands.Standing, call: Call[R_co] | None) -> R_co:
    """What a run that has ended returned, or raise what it ended with. Without its call, as plain data."""
    if standing.status is RunStatus.FINISHED:
        result: R_co = values.load(Any, standing.data) if call is None else call.target.signature.result(standing.data)
        return result
    why = structs.decode(Failure, standing.data)
    kind = failures.RunCancelled if standing.status is RunStatus.CANCELLED else failures.RunFailed
    raise kind(f"run {standing.run!r}: {why.message}", code=why.code, data=why.data)
