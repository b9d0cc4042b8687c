"""A proxy between a host and its S3 server that speaks HTTP, so that it can fail, stall and lie about single requests.

`fault` is asked with every request, by its method and path, and answers with one of `Fault`, or None: pass it on. What
it does is done with the real server's answer, or instead of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import Counter
from collections.abc import Callable

from tests.servers import listening

SLOW_PIECES = 8
SLOW_SECONDS = 0.02


class Fault(enum.StrEnum):
    UNAVAILABLE = "503"
    STALL = "accepted, and never answered"
    SLOW = "an answer in small pieces"
    WRONG = "a flipped byte in the body"
    TRUNCATED = "half of the body, and its end"
    SHORT = "half of the body, with the right length for it"
    MISSING = "404"
    UNTOLD = "done, and said to have failed"
    UNDONE = "not done, and said to be"
    STALE = "a listing from before"


class Request:
    def __init__(self, head: bytes, body: bytes) -> None:
        self.head = head
        self.body = body
        self.method, self.path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)

    @property
    def is_listing(self) -> bool:
        return self.method == "GET" and "list-type" in self.path


class S3Proxy:
    """Listens on `port`. `seen` counts what was asked for, `done` which faults happened."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.fault: Callable[[Request], Fault | None] = lambda _: None
        self.seen: Counter[str] = Counter()
        self.done: Counter[Fault] = Counter()
        self._listings: dict[str, bytes] = {}  # the first answer to each
        self.port = 0

    async def start(self) -> S3Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def refuse(self) -> None:
        """Take no connections; `start` takes them again."""
        if self._server is not None:
            server, self._server = self._server, None
            await listening.end(server)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    aclose = refuse

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        try:
            while (request := await _read_request(reader)) is not None:
                if not await self._serve(request, writer):
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            del self._tasks[task]
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        self.seen[request.method] += 1
        fault = self.fault(request)
        if fault is not None:
            self.done[fault] += 1
        match fault:
            case Fault.UNAVAILABLE:
                return await _say(writer, b"503 Slow Down", request)
            case Fault.MISSING:
                return await _say(writer, b"404 Not Found", request)
            case Fault.STALL:
                await asyncio.get_running_loop().create_future()
            case Fault.UNDONE:
                return await _say(writer, b'200 OK\r\nETag: "0"', request)
            case Fault.UNTOLD:
                await self._ask(request)
                return await _say(writer, b"500 Internal Server Error", request)
            case _:
                pass
        head, body = await self._ask(request)
        if request.is_listing:
            first = self._listings.setdefault(request.path.partition("?")[2], body)
            if fault is Fault.STALE:
                body, head = first, _with_length(head, len(first))
        return await _answer(writer, head, body, fault)

    async def _ask(self, request: Request) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            writer.write(request.head + request.body)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            return head, await _body(reader, head, has_body=request.method != "HEAD")
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    return Request(head, await reader.readexactly(int(_header(head, b"content-length") or b"0")))


def _header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.strip().lower() == name:
            return value.strip()
    return None


async def _body(reader: asyncio.StreamReader, head: bytes, *, has_body: bool) -> bytes:
    if not has_body or head.split(b" ", 2)[1] in (b"204", b"304"):
        return b""
    if (length := _header(head, b"content-length")) is not None:
        return await reader.readexactly(int(length))
    found = b""
    while size := int(await reader.readline(), 16):  # in chunks
        found += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readline()
    return found


def _with_length(head: bytes, length: int) -> bytes:
    lines = [
        line
        for line in head.rstrip(b"\r\n").split(b"\r\n")
        if not line.lower().startswith((b"content-length:", b"transfer-encoding:"))
    ]
    return b"\r\n".join([*lines, b"Content-Length: %d" % length]) + b"\r\n\r\n"


async def _say(writer: asyncio.StreamWriter, status: bytes, request: Request) -> bool:
    del request
    writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
    await writer.drain()
    return True


async def _answer(writer: asyncio.StreamWriter, head: bytes, body: bytes, fault: Fault | None) -> bool:
    if _header(head, b"transfer-encoding") is not None:
        head = _with_length(head, len(body))
    if fault is Fault.WRONG and body:
        body = body[: len(body) // 2] + bytes([body[len(body) // 2] ^ 1]) + body[len(body) // 2 + 1 :]
    elif fault is Fault.SHORT:
        body = body[: len(body) // 2]
        head = _with_length(head, len(body))
    elif fault is Fault.TRUNCATED:
        writer.write(head + body[: len(body) // 2])
        await writer.drain()
        return False
    writer.write(head)
    pieces = SLOW_PIECES if fault is Fault.SLOW else 1
    size = max(1, -(-len(body) // pieces))
    for start in range(0, len(body), size):
        writer.write(body[start : start + size])
        await writer.drain()
        if fault is Fault.SLOW:
            await asyncio.sleep(SLOW_SECONDS)
    await writer.drain()
    return True
