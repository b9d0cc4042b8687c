"""Ctrl-C in a script that hosts worlds: the first ends it cleanly, the second at once.

`asyncio.run` cancels the script's task at the first Ctrl-C; the worlds are then saved and released, which may have to
wait for code that does not return. So as long as worlds are hosted, the second one ends the process where it stands:
everything that is acknowledged is durable, and another process takes the rest over as after a crash.

A handler of the script's own is left alone, and the command line has its own (`worldline.terminal.shutdown`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

EXIT_CODE = 128 + signal.SIGINT  # as a shell reports it


@contextlib.contextmanager
def second_ends() -> Iterator[None]:
    """Have the second Ctrl-C end the process. After a first one this stays: the script is ending."""
    before: Any = signal.getsignal(signal.SIGINT)
    # Python lets only the main thread set handlers, and a handler of the script's own stays.
    if threading.current_thread() is not threading.main_thread() or not _is_pythons(before):
        yield
        return
    count = 0

    def received(number: int, frame: FrameType | None) -> Any:
        nonlocal count
        count += 1
        if count > 1:
            with contextlib.suppress(OSError):
                # Not `print`: the handler may have interrupted a write to the stream, which cannot be entered twice.
                os.write(sys.__stderr__.fileno(), b"worldline: ended at once by the second Ctrl-C\n")  # type: ignore[union-attr]
            # No cleanup: that is what the second Ctrl-C is for, and threads may never end.
            os._exit(EXIT_CODE)
        # The first one does what it does without this: `asyncio.run` cancels the script's task.
        return before(number, frame)

    signal.signal(signal.SIGINT, received)
    try:
        yield
    finally:
        # Only if it is still ours: code within the block may have set another.
        if not count and signal.getsignal(signal.SIGINT) is received:
            signal.signal(signal.SIGINT, before)


def _is_pythons(handler: Any) -> bool:
    """Whether it is the handler that Python has by itself, or the one that `asyncio.run` puts in its place."""
    return (
        handler is signal.default_int_handler or getattr(getattr(handler, "func", None), "__name__", "") == "_on_sigint"
    )
