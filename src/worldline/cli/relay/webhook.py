"""Webhooks into an inbox: a small HTTP server that takes signed POSTs, each once.

A request is answered with 2xx when its value is durable, and not before. Its id comes from a header, so a sender that
tries again is answered with the stamp that the first try got. The signature, `sha256=` and an HMAC-SHA256 in hex, is
over the id, a full stop and the body: a body that was signed for one id is not taken under another. For senders that
sign the body alone, `signs_id` is off.

::

    202  taken, or taken before: {"id", "stamp", "already_enqueued"}
    400  no id, no length, not JSON, or not what the event's fields are        404  another path, no such world
    401  the signature is missing or wrong                                     405  not POST
    409  the id was used for another value, or the world takes no input        413  too large
    429, 503  too many requests, or the store is out of reach: `Retry-After` says when

Everything is bounded: connections, the size of the head and the body, requests a second, and how long a client may take
to send one. What is wrong is said in one line of JSON, without a word about the world to senders that are not known.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.cli.relay import inlet

TAKEN = 202
PREFIX = "sha256="
REASONS = {
    202: "Accepted", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 409: "Conflict", 413: "Content Too Large", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 503: "Service Unavailable",
}  # fmt: skip


class Settings(msgspec.Struct, frozen=True):
    """`rate`: requests a second, with as many at once. Headers are named in lower case."""

    secret: bytes
    path: str = "/"
    id_header: str = "idempotency-key"
    signature_header: str = "x-signature-256"
    signs_id: bool = True
    bytes_max: int = limits.RELAY_BYTES_MAX
    rate: float = 100.0

    def __post_init__(self) -> None:
        if len(self.secret) < limits.WEBHOOK_SECRET_BYTES_MIN:
            raise errors.BadInput(f"a secret has at least {limits.WEBHOOK_SECRET_BYTES_MIN} bytes")


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: dict[str, Any]
    retry_after: int = 0


class Rate:
    """So many a second on average, and as many at once after a rest."""

    def __init__(self, env: envs.Env, per_second: float) -> None:
        if per_second <= 0:
            raise errors.BadInput("a rate is a number above 0")
        self._env = env
        self._gap_us = 1_000_000 / per_second
        self._full_us = max(1_000_000.0, self._gap_us)
        self._next_us = 0.0  # when the next one would be on schedule

    def allows(self) -> bool:
        """Whether one more is within the rate. It counts only if it is."""
        now_us = self._env.monotonic_us()
        start_us = max(self._next_us, now_us - self._full_us + self._gap_us)
        if start_us > now_us:
            return False
        self._next_us = start_us + self._gap_us
        return True


class _Refused(Exception):
    def __init__(self, status: int, why: str, *, retry_after: int = 0) -> None:
        super().__init__(why)
        self.answer = Answer(status, {"error": why}, retry_after)


def signature(secret: bytes, id: str, body: bytes, *, signs_id: bool = True) -> str:
    """What a sender puts into the header."""
    signed = id.encode() + b"." + body if signs_id else body
    return PREFIX + hmac.new(secret, signed, hashlib.sha256).hexdigest()


class Webhook:
    """The server. `told` hears of each request how it was answered."""

    def __init__(
        self, goes: inlet.Inlet, settings: Settings, env: envs.Env, *,
        told: Callable[[Answer], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._goes = goes
        self._settings = settings
        self._told = told
        self._rate = Rate(env, settings.rate)
        self._server: asyncio.Server | None = None
        self._busy: dict[asyncio.Task[Any], None] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen. Returns the port, which is a free one if 0 is asked for."""
        self._server = await asyncio.start_server(
            self._connected, host, port, limit=limits.WEBHOOK_HEAD_BYTES_MAX, backlog=limits.WEBHOOK_CONNECTIONS_MAX
        )
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    async def close(self) -> None:
        """Take no more, and finish what was taken."""
        if self._server is not None:
            self._server.close()
        if self._busy:
            await asyncio.wait(list(self._busy), timeout=limits.WEBHOOK_SECONDS)

    # --- One connection, one request -------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy[task] = None
        try:
            try:
                answer = await self._answer(reader)
            except _Refused as refused:
                answer = refused.answer
            except TimeoutError:
                answer = Answer(408, {"error": "the request took too long to arrive"})
            except (asyncio.IncompleteReadError, ConnectionError):
                return  # the client is gone; nothing was taken
            self._told(answer)
            await _write(writer, answer)
        finally:
            del self._busy[task]
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> Answer:
        if len(self._busy) > limits.WEBHOOK_CONNECTIONS_MAX:
            raise _Refused(503, "too many connections", retry_after=1)
        async with asyncio.timeout(limits.WEBHOOK_SECONDS):
            method, path, headers = await _head(reader)
            if method != "POST":
                raise _Refused(405, "only POST is taken")
            if path != self._settings.path:
                raise _Refused(404, "nothing is taken at this path")
            if not self._rate.allows():
                raise _Refused(429, "too many requests", retry_after=1)
            body = await _body(reader, headers, self._settings.bytes_max)
        id = headers.get(self._settings.id_header, "")
        self._check_signature(id, body, headers)
        if not id or not id.isascii():
            raise _Refused(400, f"no id: send one, in ASCII, in the header {self._settings.id_header}")
        return await self._take(id, body)

    def _check_signature(self, id: str, body: bytes, headers: dict[str, str]) -> None:
        wanted = signature(self._settings.secret, id, body, signs_id=self._settings.signs_id)
        given = headers.get(self._settings.signature_header, "")
        if not hmac.compare_digest(wanted.encode(), given.encode("utf-8", "surrogateescape")):
            raise _Refused(401, "the signature is missing or wrong")

    async def _take(self, id: str, body: bytes) -> Answer:
        try:
            sending = await self._goes.put(inlet.decoded(body, "the body"), id=id)
        except errors.Overloaded as busy:
            raise _Refused(503, "the world has too much to do", retry_after=max(1, int(busy.retry_after))) from busy
        except (errors.IdReused, errors.Closed) as error:
            raise _Refused(409, str(error)) from error
        except errors.NotFound as error:
            raise _Refused(404, str(error)) from error
        except (errors.BadInput, errors.EncodeError) as error:
            raise _Refused(400, str(error)) from error
        except (errors.StoreError, errors.Conflicted) as error:
            raise _Refused(503, "the store is out of reach, or too busy", retry_after=1) from error
        said = {"id": sending.id, "stamp": sending.stamp.hex(), "already_enqueued": sending.repeated}
        return Answer(TAKEN, said)


async def _head(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    """The request line and the headers, whose names are in lower case."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise _Refused(431, "the head of the request is too large") from error
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    match first.split(" "):
        case [method, target, version] if version.startswith("HTTP/1."):
            headers: dict[str, str] = {}
            for line in lines:
                name, colon, value = line.partition(":")
                key = name.lower()
                if not colon or not name or name != name.strip() or key in headers:
                    raise _Refused(400, "a header is malformed, or given twice")
                headers[key] = value.strip()
            return method, target.partition("?")[0], headers
        case _:
            raise _Refused(400, "not an HTTP/1.1 request")


async def _body(reader: asyncio.StreamReader, headers: dict[str, str], bytes_max: int) -> bytes:
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers or not (length.isascii() and length.isdecimal()) or len(length) > 12:
        raise _Refused(400, "send the body with a Content-Length")
    if int(length) > bytes_max:
        raise _Refused(413, f"the body may have {bytes_max} bytes")
    return await reader.readexactly(int(length))


async def _write(writer: asyncio.StreamWriter, answer: Answer) -> None:
    body = json.dumps(answer.body).encode() + b"\n"
    lines = [
        f"HTTP/1.1 {answer.status} {REASONS[answer.status]}", "Content-Type: application/json",
        f"Content-Length: {len(body)}", "Connection: close",
    ]  # fmt: skip
    if answer.retry_after:
        lines.append(f"Retry-After: {answer.retry_after}")
    try:
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        async with asyncio.timeout(limits.WEBHOOK_SECONDS):
            await writer.drain()
    except (ConnectionError, TimeoutError):
        pass  # the client is gone; what was taken is durable, and its next try is told so
