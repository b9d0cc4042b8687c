"""A small real HTTP server in the test's own event loop: it records every request and answers what it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from tests.servers import listening


@dataclass(frozen=True)
class Seen:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.headers.get("idempotency-key", "")


@dataclass(frozen=True)
class Reply:
    """What to answer. `pieces` are written one by one with a pause; `cut` ends the connection before the body does."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    pieces: tuple[bytes, ...] = ()
    pause_seconds: float = 0.0
    cut: bool = False


Answer = Callable[[Seen], Awaitable[Reply]]


class Server:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.seen: list[Seen] = []
        self.port = 0
        self.names: list[str | None] = []  # the TLS server names that were asked for
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = writer
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            line, *lines = head.decode("latin-1").split("\r\n")
            method, target, _ = line.split(" ")
            headers = {
                name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines if each)
            }
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            seen = Seen(method, target, headers, body)
            self.seen.append(seen)
            await self._write(writer, await self._answer(seen))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the other side went away, which some tests are about
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
            del self._serving[task]

    async def close(self) -> None:
        """Hang up on whoever is still there."""
        left = dict(self._serving)
        for writer in left.values():
            writer.transport.abort()
        await asyncio.gather(*left)

    async def _write(self, writer: asyncio.StreamWriter, reply: Reply) -> None:
        length = {} if reply.pieces else {"content-length": str(len(reply.body) + (1 if reply.cut else 0))}
        fields = {**length, "connection": "close", **reply.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"HTTP/1.1 {reply.status} Whatever\r\n{head}\r\n".encode("latin-1") + reply.body)
        await writer.drain()
        for piece in reply.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(reply.pause_seconds)


@contextlib.asynccontextmanager
async def serving(answer: Answer, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(answer)
    if tls is not None:
        tls.sni_callback = lambda _, name, __: server.names.append(name)
    accepting = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.port = accepting.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        await listening.end(accepting)
        await server.close()
        await accepting.wait_closed()


def always(reply: Reply) -> Answer:
    async def answer(seen: Seen) -> Reply:
        del seen
        return reply

    return answer
