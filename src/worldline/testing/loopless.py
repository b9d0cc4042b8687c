"""A thread without an event loop, even if it has one: asyncio used inside a workflow must fail at once.

Worlds are stepped where no loop can be found. In a test that may be a thread with a running loop, or the main thread,
where some of asyncio would quietly make one; so for the time of a step the running loop is one that refuses everything
with a hint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, cast

from worldline.kernel import here

_MESSAGE = "no running event loop: workflows and reducers run without one"


class _Refusing:
    """Is found as the running loop. Whatever is asked of it, it refuses."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{_MESSAGE} (asyncio asked for {name})")

    def __hash__(self) -> NoReturn:
        raise RuntimeError(_MESSAGE)


_REFUSING = cast("asyncio.AbstractEventLoop", _Refusing())


@contextmanager
def loopless() -> Iterator[None]:
    """Hide this thread's event loop, if there is one, and refuse what asyncio is asked for meanwhile."""
    before = asyncio._get_running_loop()  # noqa: SLF001 - made for those who drive coroutines themselves
    asyncio._set_running_loop(_REFUSING)  # noqa: SLF001
    token = here.interruptible.set(True)
    try:
        yield
    finally:
        here.interruptible.reset(token)
        asyncio._set_running_loop(before)  # noqa: SLF001
