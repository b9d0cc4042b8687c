"""Stepping worlds in a test's own thread: with no event loop in sight, and with Ctrl-C.

That may be a thread with a running loop, or the main thread, where a signal can arrive. Hosts step worlds in threads of
their own that have neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from worldline.kernel import context
from worldline.worker import no_asyncio


@contextmanager
def loopless() -> Iterator[None]:
    """Hide this thread's event loop, if there is one, and let an interrupt end the test."""
    # On a host, only the code itself can have raised a KeyboardInterrupt; here it is a Ctrl-C that must end the test.
    before = context.interruptible.set(True)
    try:
        # A workflow that awaits something of asyncio must fail here as it does on a host.
        with no_asyncio.without_asyncio():
            yield
    finally:
        context.interruptible.reset(before)
