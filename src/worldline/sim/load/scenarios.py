"""Users' own programs under simulation: what a scenario is, and driving one.

A scenario is a coroutine function, or an async generator function, over a `Universe` of the ordinary SDK. It talks to
worlds while the machines that host them die, freeze and lose their store; its own machine does not. What follows its
one `yield` runs when the faults have ended and everything has come to rest: the place for assertions. Whatever a
scenario raises is a broken invariant, called `scenario`.

Effects run as they are written, in virtual time. What they may not touch is the real outside: a `Script` answers for
those that would.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Executor
from typing import Any
from unittest import mock

import msgspec

from worldline.api.universe_api import Universe
from worldline.base import errors
from worldline.client.connection import Connection
from worldline.effects import attempt, open_resources
from worldline.effects import retry_policy as policies
from worldline.flow_core.flow_records import Snapshot
from worldline.kernel.authoring import scripts
from worldline.kernel.authoring.calls import Effect
from worldline.kernel.authoring.program import Program
from worldline.runtime.personal.outside_desk import CollectingDesk

UNIVERSE = "simulated"  # the name of the one that is
SCENARIO = "scenario"
FOR_EVER_SECONDS = 1_000_000
PATIENCE_SECONDS = 600  # virtual ones, from the end of the faults until everything must be done

Drive = Callable[[Universe], AsyncIterator[None] | Awaitable[None]]


class Scenario(msgspec.Struct, frozen=True):
    """What is simulated besides the project's own workloads. `script`: answers for effects that have one in it."""

    programs: list[Program]
    drive: Drive
    script: scripts.Script | None = None

    def __post_init__(self) -> None:
        if not (inspect.isasyncgenfunction(self.drive) or inspect.iscoroutinefunction(self.drive)):
            raise errors.BadInput("a scenario is an async function of a universe: async def scenario(universe): ...")


class Driven:
    """A scenario under way."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._rest: AsyncGenerator[None, None] | None = None
        self.failed: BaseException | None = None

    async def begin(self, connection: Connection) -> None:
        """Up to the `yield`, while everything breaks."""
        for program in self._scenario.programs:
            connection.knows(program)
        # A coroutine, or a generator if it has a `yield`: nothing of it has run yet.
        started = self._scenario.drive(Universe(connection))
        if isinstance(started, AsyncGenerator):
            self._rest = started
            await self._step(anext(started, None))
        else:
            assert isinstance(started, Coroutine)
            await self._step(started)

    async def finish(self) -> None:
        """From the `yield` on, when all is at rest."""
        # What failed before the `yield` has its verdict: going further would only cover it.
        if self._rest is not None and self.failed is None:
            await self._step(self._past(self._rest))

    async def _past(self, rest: AsyncGenerator[None, None]) -> None:
        async for _ in rest:
            raise errors.BadInput("a scenario has one `yield`: before it things break, after it nothing does")

    async def _step(self, work: Awaitable[Any]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - whatever a user's scenario raises is its verdict
            self.failed = error

    def verdict(self) -> str:
        """Return what the scenario has to complain about, with the line that did."""
        if self.failed is None:
            return ""
        traceback = self.failed.__traceback__
        line = 0
        while traceback is not None:
            # The last line of the scenario itself: deeper frames are the library's.
            if traceback.tb_frame.f_code is self._code():
                line = traceback.tb_lineno
            traceback = traceback.tb_next
        said = str(self.failed).strip() or "no message"
        return f"line {line}: {type(self.failed).__name__}: {said}"

    def _code(self) -> object:
        return getattr(self._scenario.drive, "__code__", None)


@contextlib.contextmanager
def scripted(script: scripts.Script | None) -> Iterator[None]:
    """Let a script answer for the effects it knows, for the length of a block."""
    if script is None:
        yield
        return
    reading, run = scripts.ScriptProgress(script), attempt.run

    async def answer(
        effect: Effect[..., Any],
        arguments: bytes,
        this: attempt.Attempt,
        policy: policies.RetryPolicy,
        *,
        threads: Executor,
        resources: open_resources.Resources,
        desk: CollectingDesk,
        snapshot: Snapshot | None,
    ) -> attempt.AttemptResult:
        if effect.name not in script.answers:  # effects without an answer run as they are written, in virtual time
            return await run(
                effect, arguments, this, policy, threads=threads, resources=resources, desk=desk, snapshot=snapshot
            )
        said = desk.at(functools.partial(reading.attempt, effect, arguments, policy.judge, snapshot=snapshot))
        timeout_us = policy.timeout_us
        try:
            async with asyncio.timeout(None if timeout_us is None else timeout_us / 1_000_000):
                await asyncio.sleep(FOR_EVER_SECONDS if said.after_us is None else said.after_us / 1_000_000)
        except TimeoutError:
            return attempt.AttemptResult(False, code="timeout", message="the attempt took too long", timed_out=True)
        return attempt.AttemptResult(
            said.ok,
            said.data,
            said.code,
            said.message,
            said.final,
            said.timed_out,
            after_us=said.retry_us,
            failed_with=said.failed_with,
            sealed=desk.new,
            mistake=said.mistake,
        )

    # Where an attempt is made, and nowhere deeper: claims, retries and receipts around it are the real ones.
    with mock.patch.object(attempt, "run", answer):
        yield
