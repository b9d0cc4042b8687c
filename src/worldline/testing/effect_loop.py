"""An event loop for effects whose own functions a test runs: `Script().on(fetch, fetch)`.

The loop runs in a thread of its own, because the test's thread may have one that is running. Time is real there: what
such a function waits for, the test waits for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any

from worldline.effects import attempt


def run(coroutine: Coroutine[Any, Any, Any], timeout_us: int | None = None) -> Any:
    """What the coroutine returns or raises; `TimeoutError` if it takes longer than one attempt may."""
    done: Future[tuple[Any, BaseException | None]] = Future()
    context = copy_context()  # the effect asks for its attempt, and for what the test has replaced
    work = coroutine if timeout_us is None else attempt.within(timeout_us, coroutine)

    def drive() -> None:
        try:
            done.set_result(context.run(asyncio.run, _ended(work)))
        except BaseException as error:  # noqa: BLE001 - of the loop itself; raised in the test's thread
            done.set_exception(error)

    # A daemon: an effect that never ends must not keep the test process alive.
    threading.Thread(target=drive, name="worldline-test-effect", daemon=True).start()
    answer, raised = done.result()
    if raised is not None:
        raise raised
    return answer


async def _ended(work: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """What the effect answers or raises, caught here: its traceback has no calls of the loop then."""
    try:
        return await work, None
    except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
        return None, error
