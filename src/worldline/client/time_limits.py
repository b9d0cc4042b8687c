"""A caller's `timeout=`: a wait that ends with a `TimeoutError` which says what has not come and how to wait on.

Nothing is lost by it: what was sent is durable, and a run continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from worldline.client.world_handle import Handle
from worldline.kernel.authoring.calls import Seconds, to_us
from worldline.store import urls


class Within:
    """A block that ends after so long. `said`: what the error says then, of a time such as "5 s"."""

    def __init__(self, timeout: Seconds | None, said: Callable[[str], str]) -> None:
        self._seconds = None if timeout is None else to_us(timeout, "timeout") / 1_000_000
        self._said = said
        self._limit = asyncio.timeout(self._seconds)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError as late:  # of this block: what is raised inside passes by
            raise TimeoutError(self._said(f"{self._seconds:g} s")) from late


def of_run(world: Handle, run_id: str, limit: str) -> str:
    if not run_id:  # it timed out before the run had an id: there is nothing to attach to
        return f"world {world.name!r} was not reached within {limit}: no run was started"
    return (
        f"run {run_id!r} of world {world.name!r} has not ended within {limit} and continues; wait for it with "
        f"`await (await world.attach({run_id!r})).result()`; `{_why(world)}` says what it waits for"
    )


def of_request(world: Handle, request: str, client_id: str | None, limit: str) -> str:
    again = f"id={client_id!r}" if client_id is not None else "an id= of your own, given the first time too,"
    return (
        f"world {world.name!r} has not answered {request} within {limit}; the request stays in its inbox: asking again "
        f"with {again} waits for the same answer; `{_why(world)}` says what it waits for"
    )


def of_event(event_id: str, limit: str) -> str:
    return (
        f"the event {event_id} was not processed within {limit}; it is durable and stays in the inbox: wait for it "
        f"again with `await sent.applied()`"
    )


def _why(world: Handle) -> str:
    return f"worldline why {world.name}{urls.option('store', world.connection.store.url)}"
