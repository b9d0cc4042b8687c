"""Lines of JSON into an inbox, in their order: the next is sent when the one before is durable.

A line that is refused is named with its number, and the others go on. A signal ends it between two lines: the line that
is being sent is finished first. With ids, the same lines may be relayed again and are put once: `--ids NAME` gives
the line of number 7 the id `NAME-7`, `--id FIELD` takes the id from a field.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from worldline.base import errors, limits
from worldline.features.relay import inlet
from worldline.runtime import daemon_threads

# What concerns one line. Whatever else goes wrong concerns all, and ends the relay.
OF_A_LINE = (errors.BadInput, errors.EncodeError, errors.IdReused)
TRIES_MAX = 1_000


class LineIdSource(msgspec.Struct, frozen=True):
    """Where the id of a line comes from: a name and the number of the line, or a field of the value."""

    name: str | None = None
    field: str | None = None

    def of(self, number: int, value: Any) -> str | None:
        if self.name is not None:
            return f"{self.name}-{number}"
        if self.field is None:
            return None
        found = value.get(self.field) if isinstance(value, dict) else None
        if not isinstance(found, str | int) or isinstance(found, bool):
            raise errors.BadInput(f"there is no id in field {self.field!r}")
        return str(found)


class Count(msgspec.Struct):
    """What has happened to the lines so far."""

    lines: int = 0
    sent: int = 0
    repeated: int = 0  # of those that were sent: the same was there under the same id
    refused: int = 0
    interrupted: bool = False


class Lines:
    """One relay of lines. `complain` is told of each line that is refused, `tell` of every line."""

    def __init__(
        self,
        stream: BinaryIO,
        goes: inlet.Inlet,
        ids: LineIdSource,
        *,
        complain: Callable[[int, str], None],
        tell: Callable[[Count], None] = lambda _: None,
    ) -> None:
        self._stream = stream
        self._goes = goes
        self._ids = ids
        self._complain = complain
        self._tell = tell
        self._reader = daemon_threads.DaemonPool(1, "worldline-reader-lines")  # a line may never come
        self.count = Count()

    async def run(self, stopped: asyncio.Event) -> Count:
        """Until the lines end, or it is stopped."""
        stopping: asyncio.Future[Any] = asyncio.ensure_future(stopped.wait())
        try:
            while not stopped.is_set():
                reading = asyncio.get_running_loop().run_in_executor(self._reader, self._next)
                waited: list[asyncio.Future[Any]] = [reading, stopping]
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                # The thread may wait for a line for ever; it keeps no process alive.
                if not reading.done():
                    break
                line = reading.result()
                if not line:
                    return self.count
                await self._one(line)
                self._tell(self.count)
        finally:
            stopping.cancel()
        self.count.interrupted = True
        return self.count

    def _next(self) -> bytes:
        """The next line. Of one that is too long, the rest is skipped, and it is still too long."""
        # One byte more than a line may have, so that one that is too long is seen to be.
        line = self._stream.readline(limits.RELAY_BYTES_MAX + 1)
        rest = line
        while len(rest) > limits.RELAY_BYTES_MAX and not rest.endswith(b"\n"):
            rest = self._stream.readline(limits.RELAY_BYTES_MAX + 1)
        return line

    async def _one(self, line: bytes) -> None:
        count = self.count
        count.lines += 1
        if not line.strip():
            return
        try:
            if len(line) > limits.RELAY_BYTES_MAX:
                raise errors.TooLarge("a line", size=len(line), limit=limits.RELAY_BYTES_MAX)
            value = inlet.decoded(line, "it")
            sending = await self._put(value, self._ids.of(count.lines, value))
        except OF_A_LINE as error:
            count.refused += 1
            self._complain(count.lines, str(error))
        else:
            count.sent += 1
            count.repeated += sending.repeated

    async def _put(self, value: Any, id: str | None) -> Any:
        for _ in range(TRIES_MAX):
            try:
                return await self._goes.put(value, id=id)
            except errors.Overloaded as busy:  # nothing was taken: this source can wait
                await asyncio.sleep(busy.retry_after)
        raise errors.Conflicted("the world has had too much to do for too long")
