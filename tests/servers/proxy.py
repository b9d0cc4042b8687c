"""A TCP proxy that misbehaves to order: what a network does to a database connection, at a moment the test chooses.

It runs in the test's own event loop between a client and a server on the loopback. Its `mode` holds for all
connections: pass, or blackhole (accept everything, deliver nothing), and a delay for every piece of data. A `Trap` acts
once, on the next connection that sends a certain marker (bytes of the statement of interest, such as a key):

* `swallow`: the request reaches the server, which acts on it; its answer is thrown away and the connection reset.
* `drop`: the request does not reach the server; the connection is reset.
* `hold`: the request waits here until `release`, whatever becomes of the client; then the server gets it.
* `cut`: the connection is reset after so many bytes of the answer have been delivered.

A marker must arrive in one piece, which small statements on the loopback do.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, field
from typing import Literal

from tests.servers import listening

CHUNK_BYTES = 1 << 16

Action = Literal["swallow", "drop", "hold", "cut"]
Mode = Literal["pass", "blackhole"]


@dataclass(eq=False)
class Trap:
    marker: bytes
    action: Action
    bytes_max: int = 0
    sprung: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        self.released.set()


@dataclass(eq=False)
class _Link:
    """One client's connection and the server's end of it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    trap: Trap | None = None
    delivered: int = 0

    def reset(self) -> None:
        _reset(self.client)
        _reset(self.server)


class Proxy:
    """Listens on `port` once started. `aclose` ends it and every connection."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._links: dict[_Link, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._traps: list[Trap] = []
        self._resumed = asyncio.Event()
        self._resumed.set()
        self.delay_seconds = 0.0
        self.accepted = 0
        self.port = 0

    async def start(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def aclose(self) -> None:
        await self.refuse()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def refuse(self) -> None:
        """Reset everything and take no new connections, as if the server were gone. `start` takes them again."""
        if self._server is not None:
            server, self._server = self._server, None
            await listening.end(server)
        self.reset()

    def reset(self) -> None:
        """Reset all connections; new ones are welcome."""
        for link in list(self._links):
            link.reset()

    def set_mode(self, mode: Mode) -> None:
        if mode == "blackhole":
            self._resumed.clear()
        else:
            self._resumed.set()

    def trap(self, marker: bytes, action: Action, *, bytes_max: int = 0) -> Trap:
        trap = Trap(marker, action, bytes_max)
        self._traps.append(trap)
        return trap

    def disarm(self, trap: Trap) -> None:
        """Take a trap away, if it has not been sprung."""
        if trap in self._traps:
            self._traps.remove(trap)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        self.accepted += 1
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            _reset(writer)
            del self._tasks[task]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, to_server = await asyncio.open_connection("127.0.0.1", self._target_port)
        link = _Link(writer, to_server)
        self._links[link] = None
        try:
            async with asyncio.TaskGroup() as both:
                answers = both.create_task(self._answers(link, upstream))
                await self._requests(link, reader)
                answers.cancel()
        except* OSError:
            pass
        finally:
            del self._links[link]
            link.reset()

    async def _requests(self, link: _Link, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._resumed.wait()
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            trap = next((trap for trap in self._traps if trap.marker in data), None)
            if trap is not None:
                self._traps.remove(trap)
                link.trap = trap
                trap.sprung.set()
                if trap.action == "drop":
                    link.reset()
                    return
                if trap.action == "hold":
                    await trap.released.wait()
            link.server.write(data)
            await link.server.drain()

    async def _answers(self, link: _Link, upstream: asyncio.StreamReader) -> None:
        while data := await upstream.read(CHUNK_BYTES):
            await self._resumed.wait()
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            trap = link.trap
            if trap is not None and trap.action == "swallow":
                # The last message of an answer is ReadyForQuery: the server has committed by then.
                if data[-6:-1] == b"Z\x00\x00\x00\x05":
                    link.reset()
                    return
                continue
            if trap is not None and trap.action == "cut":
                data = data[: trap.bytes_max - link.delivered]
                link.delivered += len(data)
            link.client.write(data)
            await link.client.drain()
            if trap is not None and trap.action == "cut" and link.delivered >= trap.bytes_max:
                link.reset()
                return
        link.reset()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close by RST, not by a polite FIN."""
    if writer.transport.is_closing():
        return
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
