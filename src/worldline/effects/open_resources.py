"""The resources of one host: opened when the first effect needs them, shared by all, closed with the host.

Each open resource has a task of its own, which enters its context manager, waits, and leaves it: libraries that tie a
context to a task work, and an attempt that is cancelled meanwhile does not cut the opening short for others. One that
fails to open fails the attempts that wait for it, and the next attempt opens it again.

Closing goes in the opposite order of opening, so that whatever a resource uses is still open while it closes. Errors
are logged: nothing that a resource does keeps the others, or the host, from closing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar, copy_context
from typing import Any

from worldline.base import failures
from worldline.base.secret import KNOWN, SecretSource
from worldline.codec import printable
from worldline.kernel import user_errors
from worldline.kernel.authoring.resources import Resource

log = printable.logger("worldline.adapter")

CLOSE_SECONDS = 10.0

# Where `wl.secret` finds secrets while a resource is opened or closed, in no attempt.
opened_with: ContextVar[SecretSource | None] = ContextVar("worldline_resource_secrets", default=None)


class _Opened:
    """One resource from the first call for it until it is closed. Made in the event loop that it belongs to."""

    def __init__(self, resource: Resource[Any]) -> None:
        self.resource = resource
        self.value: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.close = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def fail(self, why: str) -> None:
        """It is not open. The attempts that wait for it are told, once."""
        if not self.value.done():
            self.value.set_exception(failures.ResourceFailed(f"resource {self.resource.name} cannot be opened: {why}"))
            self.value.exception()  # marked as seen: the attempts that waited may have been cancelled


class Resources:
    def __init__(self, secrets: SecretSource | None = None) -> None:
        self._known: dict[Resource[Any], _Opened] = {}  # opening or open
        self._order: list[_Opened] = []  # open, each behind those that it uses
        self._closed = False
        self._context = copy_context()  # of the host: a resource belongs to no attempt, also not to the first
        self._context.run(opened_with.set, secrets)

    async def fill(self, uses: Mapping[str, Resource[Any]]) -> dict[str, Any]:
        """What to pass for each parameter. `ResourceFailed` if one cannot be opened."""
        return {label: await self._get(resource) for label, resource in uses.items()}

    async def close(self) -> None:
        """Close what is open, and stop what is being opened."""
        self._closed = True
        # Those that are being opened first: they may use ones that are open.
        for opened in [each for each in self._known.values() if not each.value.done()]:
            await self._stop(opened)
        for opened in reversed(self._order):
            await self._stop(opened)
        self._order = []
        self._known = {}

    async def _get(self, resource: Resource[Any]) -> Any:
        if resource.is_overridden:
            return resource.overriding
        opened = self._known.get(resource)
        if opened is None:
            if self._closed:
                raise failures.ResourceFailed(f"resource {resource.name}: the host is closing")
            opened = self._known[resource] = _Opened(resource)
            opened.task = asyncio.get_running_loop().create_task(
                self._keep(opened), name=f"resource {resource.name}", context=self._context.copy()
            )
        await asyncio.wait([opened.value])  # unlike the future itself, this can be cancelled without harm to others
        return opened.value.result()

    async def _keep(self, opened: _Opened) -> None:
        """Open it, keep it open, close it: all in one task."""
        resource = opened.resource
        limit = asyncio.timeout(resource.timeout_us / 1_000_000)
        try:
            async with limit:
                used = await self.fill(resource.uses)
                context = resource.opening(used)
                value = await context.__aenter__()
        except BaseException as error:  # noqa: BLE001 - the user's code: whatever it raises, it is not open
            # Forgotten, so that the next attempt opens it again.
            self._known.pop(resource, None)
            took_too_long = isinstance(error, TimeoutError) and limit.expired()
            why = f"not open after {resource.timeout_us / 1e6:g} s" if took_too_long else user_errors.message_of(error)
            opened.fail(why)
            return
        self._order.append(opened)
        opened.value.set_result(value)
        await self._wait(opened)
        try:
            await context.__aexit__(None, None, None)
        except BaseException as error:  # noqa: BLE001 - the same: it counts as closed
            log.warning("resource %s: closing it failed: %s", resource.name, KNOWN.text(user_errors.message_of(error)))

    @staticmethod
    async def _wait(opened: _Opened) -> None:
        """Until it is to be closed. A resource may have cancelled the task that it was opened in."""
        while not opened.close.is_set():
            try:
                await opened.close.wait()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                while task is not None and task.cancelling():
                    task.uncancel()

    @staticmethod
    async def _stop(opened: _Opened) -> None:
        assert opened.task is not None
        # Before the cancel: a task that has just opened its resource must find that it is to close it.
        opened.close.set()
        if not opened.value.done():
            opened.task.cancel()
        _, late = await asyncio.wait([opened.task], timeout=CLOSE_SECONDS)
        opened.fail("the host is closing")  # its task was cancelled before it had begun
        if late:
            log.warning("resource %s is not closed after %g s: left as it is", opened.resource.name, CLOSE_SECONDS)
            opened.task.cancel()
