"""Webhooks into an inbox: a small HTTP server that takes signed POSTs, each once.

A request is answered with 2xx when its value is durable, and not before. A sender that tries again under the same id is
answered with the stamp that the first try got. `webhook_signature.py` says what is signed and how replays end,
`sender_limits.py` who gets in.

::

    202  taken; 200 taken before: {"id", "stamp", "already_enqueued"}
    400  no id, no length, not JSON, or not what the event's fields are        404  another path, no such world
    401  the signature is missing or wrong, or of another time                 405  not POST
    408  too slow                                                              409  the id was used for another value,
    413  too large                                                                  or the world takes no input
    429, 503  too many requests, or the store is out of reach: `Retry-After` says when

Everything is bounded: connections, the size of the head and the body, requests a second, and how long a client may take
to send one. Every request gets a status, whatever its bytes are. What is wrong is said in one line of JSON, without a
word about the world to senders that are not known.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.features.relay import inlet, sender_limits, webhook_signature

TAKEN, TAKEN_BEFORE = 202, 200
FAULT, UNAVAILABLE = 500, 503
FORWARDED = "x-forwarded-for"
REASONS = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    413: "Content Too Large",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_LENGTH = re.compile(r"[0-9]{1,12}", re.ASCII)


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`rate`: requests a second of each secret, `address_rate` of each address before its signature is checked; both
    with as many at once. `proxies`: addresses whose `X-Forwarded-For` is believed. `time_field`: where a body that is
    signed alone has its timestamp.
    """

    secrets: Sequence[bytes]
    path: str = "/"
    headers: webhook_signature.Headers = webhook_signature.Headers()
    form: webhook_signature.Form = webhook_signature.Form.SIGNED_ID
    tolerance_seconds: int = limits.WEBHOOK_TOLERANCE_SECONDS
    time_field: str = ""
    bytes_max: int = limits.RELAY_BYTES_MAX
    rate: float = 100.0
    address_rate: float = 200.0
    proxies: Sequence[str] = ()

    def verifier(self) -> webhook_signature.Verifier:
        return webhook_signature.Verifier(
            self.secrets, form=self.form, headers=self.headers, tolerance_seconds=self.tolerance_seconds
        )


class WebhookAnswer(msgspec.Struct, frozen=True):
    status: int
    body: dict[str, Any]
    retry_after: int = 0


FULL = WebhookAnswer(503, {"error": "too many connections"}, 1)
DROPPED = WebhookAnswer(503, {"error": "dropped for a newer connection: the request did not arrive"}, 1)
SLOW = WebhookAnswer(408, {"error": "the request took too long to arrive"})

EARLY = WebhookAnswer(400, {"error": "the request ended too early"})


class _Refused(Exception):
    def __init__(self, status: int, why: str, *, retry_after: int = 0) -> None:
        super().__init__(why)
        self.answer = WebhookAnswer(status, {"error": why}, retry_after)


class Webhook:
    """The server. `told` is called for each request, with its answer."""

    def __init__(
        self,
        goes: inlet.Inlet,
        settings: WebhookSettings,
        env: envs.Env,
        *,
        told: Callable[[WebhookAnswer], None] = lambda _: None,
    ) -> None:
        self._goes = goes
        self._settings = settings
        self._env = env
        self._told = told
        self._verifier = settings.verifier()
        self._proxies = tuple(_proxy(each) for each in settings.proxies)
        self._places = sender_limits.OpenConnections(self._proxies)
        self._address_rates = sender_limits.Rates(env, settings.address_rate)
        self._secret_rates = [sender_limits.Rate(env, settings.rate) for _ in settings.secrets]
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
        """Accept no more, and finish what was accepted."""
        if self._server is not None:
            self._server.close()
        if self._busy:
            await asyncio.wait(list(self._busy), timeout=limits.WEBHOOK_SECONDS)

    # --- One connection, one request -------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy[task] = None
        place = self._places.enter(sender_limits.address_of(writer.get_extra_info("peername")))
        answer: WebhookAnswer | None = WebhookAnswer(
            500, {"error": "the server failed"}
        )  # of a bug, which goes on to the loop's log
        try:
            answer = FULL if place is None else await self._one(reader, place)
        finally:
            try:
                await self._end(reader, writer, place, answer)
            finally:  # whatever fails there: a place that is not left shuts a sender out for ever
                if place is not None:
                    self._places.leave(place)
                writer.close()
                del self._busy[task]

    async def _end(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        place: sender_limits.ConnectionSlot | None,
        answer: WebhookAnswer | None,
    ) -> None:
        """Tell and write the answer, and wait until the client has read it."""
        if answer is None:
            return
        self._told(answer)
        await _write(writer, answer)
        # A refused request may have bytes that were not read.
        if place is not None and answer.status not in (TAKEN, TAKEN_BEFORE) and not place.dropped:
            await _linger(reader, writer, place)

    async def _one(self, reader: asyncio.StreamReader, place: sender_limits.ConnectionSlot) -> WebhookAnswer | None:
        """The answer to one request. None: the client is gone, and nothing was taken."""
        try:
            return await self._answer(reader, place)
        except _Refused as refused:
            return refused.answer
        except TimeoutError:
            return DROPPED if place.dropped else SLOW
        except asyncio.IncompleteReadError:
            return EARLY
        except ConnectionError:
            return None
        finally:
            place.work()

    async def _answer(self, reader: asyncio.StreamReader, place: sender_limits.ConnectionSlot) -> WebhookAnswer:
        async with asyncio.timeout(limits.WEBHOOK_HEAD_SECONDS) as clock:
            place.wait(clock)
            method, path, headers = await _head(reader)
            sender = place.address
            # Only a proxy that is named is believed: others could write any sender there.
            if sender in self._proxies:
                sender = sender_limits.forwarded_for(headers.get(FORWARDED, ""), sender)
            if not self._address_rates.allows(sender):
                raise _Refused(429, "too many requests from this address", retry_after=1)
            if method != "POST":
                raise _Refused(405, "only POST is accepted")
            if path != self._settings.path:
                raise _Refused(404, "nothing is accepted at this path")
            length = _length(headers, self._settings.bytes_max)
            slowest = length / limits.WEBHOOK_BODY_BYTES_PER_SECOND_MIN
            # A larger body gets more time, at the slowest speed that is accepted.
            clock.reschedule(asyncio.get_running_loop().time() + limits.WEBHOOK_BODY_SECONDS + slowest)
            body = await reader.readexactly(length)
            place.work()
        signed = self._check(headers, body)
        if not self._secret_rates[signed.secret].allows():
            raise _Refused(429, "too many requests", retry_after=1)
        return await self._take(signed.id, body)

    def _check(self, headers: dict[str, str], body: bytes) -> webhook_signature.Signed:
        try:
            return self._verifier.check(headers, body, now_seconds=self._now_seconds())
        except webhook_signature.Malformed as error:
            raise _Refused(400, str(error)) from error
        except webhook_signature.Unsigned as error:
            raise _Refused(401, str(error)) from error

    def _now_seconds(self) -> int:
        return self._env.wall_us() // 1_000_000

    async def _take(self, id: str, body: bytes) -> WebhookAnswer:
        try:
            value = inlet.decoded(body, "the body")
            # In this form the time is in the body, so it is checked behind the decoding.
            if self._settings.time_field:
                self._verifier.check_time(
                    webhook_signature.time_in(value, self._settings.time_field), now_seconds=self._now_seconds()
                )
            sending = await self._goes.put(value, id=id)
        except webhook_signature.Unsigned as error:
            raise _Refused(401, str(error)) from error
        except webhook_signature.Malformed as error:
            raise _Refused(400, str(error)) from error
        except errors.Error as error:
            if error.http_status == FAULT:
                raise  # a bug, which goes on to the loop's log
            raise _refused(error) from error
        said = {"id": sending.id, "stamp": sending.stamp.hex(), "already_enqueued": sending.repeated}
        return WebhookAnswer(TAKEN_BEFORE if sending.repeated else TAKEN, said)


def _refused(error: errors.Error) -> _Refused:
    """The answer to a request that was not taken. Of the world's load and of the store, senders learn nothing more."""
    match error:
        case errors.Overloaded():
            why, retry_after = "the world has too much to do", max(1, int(error.retry_after))
        case errors.StoreError() | errors.Conflicted():
            why, retry_after = "the store is out of reach, or too busy", 1
        case _:
            why, retry_after = str(error), limits.WEBHOOK_SECONDS if error.http_status == UNAVAILABLE else 0
    return _Refused(error.http_status, why, retry_after=retry_after)


def _proxy(text: str) -> str:
    found = sender_limits.normal(text)
    if not found:
        raise errors.BadInput(f"a proxy is named by its address, not {text!r}")
    return found


async def _head(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    """The request line and the headers, whose names are in lower case."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise _Refused(431, "the head of the request is too large") from error
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    match first.split(" "):
        case [method, target, ("HTTP/1.0" | "HTTP/1.1")]:
            headers: dict[str, str] = {}
            for line in lines:
                name, colon, value = line.partition(":")
                key = name.lower()
                # Anything that another reader of the same bytes, such as a proxy, could understand differently.
                if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or key in headers:
                    raise _Refused(400, "a header is malformed, or given twice")
                headers[key] = value.strip(" \t")
            return method, target.partition("?")[0], headers
        case _:
            raise _Refused(400, "not an HTTP/1.1 request")


def _length(headers: dict[str, str], bytes_max: int) -> int:
    length = headers.get("content-length", "")
    # One way alone to say where a body ends: two readers of the bytes must not see two requests.
    if "transfer-encoding" in headers or not _LENGTH.fullmatch(length):
        raise _Refused(400, "send the body with a Content-Length")
    if int(length) > bytes_max:
        raise _Refused(413, f"the body may have {bytes_max} bytes")
    return int(length)


async def _write(writer: asyncio.StreamWriter, answer: WebhookAnswer) -> None:
    body = json.dumps(answer.body).encode() + b"\n"
    lines = [
        f"HTTP/1.1 {answer.status} {REASONS[answer.status]}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if answer.retry_after:
        lines.append(f"Retry-After: {answer.retry_after}")
    # If not: the client is gone; what was taken is durable, and its next try is told so.
    with contextlib.suppress(OSError):
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        async with asyncio.timeout(limits.WEBHOOK_SECONDS):
            await writer.drain()


async def _linger(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: sender_limits.ConnectionSlot
) -> None:
    """Read on for a moment: closing a connection with unread data resets it, and the client may lose its answer."""
    with contextlib.suppress(OSError):  # TimeoutError is one; so is the end of a connection that is gone already
        async with asyncio.timeout(limits.WEBHOOK_LINGER_SECONDS) as clock:
            place.wait(clock)
            if writer.can_write_eof():
                writer.write_eof()
            while await reader.read(limits.WEBHOOK_HEAD_BYTES_MAX):
                pass
    place.work()
