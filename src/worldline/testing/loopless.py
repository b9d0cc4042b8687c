"""Stepping worlds in a test's own thread: with no event loop in sight, and with Ctrl-C.

That may be a thread with a running loop, or the main thread, where a signal can arrive. Hosts step worlds in threads of
their own that have neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from worldline.kernel import here
from worldline.roles import refusing_loop


@contextmanager
def loopless() -> Iterator[None]:
    """Hide this thread's event loop, if there is one, and let an interrupt end the test."""
    token = here.interruptible.set(True)
    try:
        with refusing_loop.without_asyncio():
            yield
    finally:
        here.interruptible.reset(token)
