"""Threads that run worlds. A workflow or reducer that uses asyncio there must fail at once, and the same everywhere.

A thread without an event loop is not enough: some of asyncio makes one where there is none (`asyncio.run`). So in the
threads that run worlds the running loop is one that refuses everything with a hint.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, cast

_MESSAGE = "no running event loop: workflows and reducers run without one"


class _Refusing:
    """Is found as the running loop. Whatever is asked of it, it refuses."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{_MESSAGE} (asyncio asked for {name})")

    def __hash__(self) -> NoReturn:
        raise RuntimeError(_MESSAGE)


_REFUSING = cast("asyncio.AbstractEventLoop", _Refusing())


def refuse_asyncio() -> None:
    """From here on, in this thread: the `initializer` of an executor whose thread runs worlds."""
    asyncio._set_running_loop(_REFUSING)  # noqa: SLF001 - made for code that drives coroutines itself


@contextmanager
def without_asyncio() -> Iterator[None]:
    """For a while, in a thread that may have an event loop of its own."""
    before = asyncio._get_running_loop()  # noqa: SLF001
    task = _swap_task(before, None)
    refuse_asyncio()
    try:
        yield
    finally:
        asyncio._set_running_loop(before)  # noqa: SLF001
        _swap_task(before, task)


def _swap_task(loop: asyncio.AbstractEventLoop | None, task: asyncio.Task[Any] | None) -> asyncio.Task[Any] | None:
    """Put another task in the place of the running one. From Python 3.14 on that is the thread's, and no loop is asked
    for it: a workflow would see the task of a test that steps its world, and in hosts none.
    """
    if sys.version_info >= (3, 14) and isinstance(loop, asyncio.AbstractEventLoop):
        return asyncio.tasks._swap_current_task(loop, task)  # noqa: SLF001
    return None
