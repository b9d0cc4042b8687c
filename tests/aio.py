"""Running coroutines in tests.

`run` is `asyncio.run` that is strict about what is left behind: a task still pending when the test's coroutine has
ended, or an error that only reached the loop's exception handler, fails the test. It also has a deadline, so a test
that hangs says so. `conftest.py` runs every `async def test_...` through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from tests import options
from worldline.base import errors

T = TypeVar("T")

RUN_SECONDS = options.seconds("test_seconds")
# Closing a transport or a pool takes a few turns of the loop after `close` has returned.
SETTLE_SECONDS = 2.0


def run(main: Coroutine[Any, Any, T], *, seconds: float = RUN_SECONDS) -> T:
    return asyncio.run(_strict(main, seconds))


async def _strict(main: Coroutine[Any, Any, T], seconds: float) -> T:
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(str(context)))
    async with asyncio.timeout(seconds):
        result = await main
    left = await _leaked()
    assert not left, f"tasks left running: {left}"
    assert not complaints, f"errors that nobody awaited: {complaints}"
    return result


async def _leaked() -> list[str]:
    """The tasks that do not end by themselves. They are cancelled, so that one failure does not cause others."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if not others:
        return []
    _, pending = await asyncio.wait(others, timeout=SETTLE_SECONDS)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return sorted(repr(task.get_coro()) for task in pending)


async def journaled(sent: Any, timeout: float | None = None) -> int:
    """The height at which an event is journaled, whether its world has taken it or not."""
    try:
        height: int = await sent.applied(timeout)
    except errors.Unhandled as error:
        return error.height
    return height


async def until(holds: Callable[[], Awaitable[bool]], *, seconds: float = 60.0) -> None:
    """Ask again and again until the condition holds; fail at the deadline."""
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110 - what is waited for happens outside this loop
            await asyncio.sleep(0.005)
