"""Performing `http.request`: one attempt, from the URL to the answer, within a policy.

A host is resolved once for each hop, every address it has is checked, and the connection goes to one of those very
addresses, with the host's name kept for TLS and the Host header; so a name that answers differently the next time gains
nothing. Redirects are followed here, each through the same gates. To another origin go only headers that say nothing
about the caller, and no body, unless the policy lets bodies go. There are no cookies, no proxies from the
environment, no connections kept from one request to the next, and no decoding: what one world was answered cannot reach
another, and no small answer unfolds into a large one.

Ends in one of three ways, whatever the server sends: a `Response`; `TryAgain` (or `TimeoutError`), for what another
attempt may mend; `Fatal`, for what none will. Errors show scheme, host and path of a URL and nothing else of it: names,
passwords and queries are secrets, and a URL that cannot be parsed is not shown at all.
"""

from __future__ import annotations

import asyncio
import email.utils
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
import msgspec

from worldline.base import failures, grammar, limits, probes
from worldline.codec import outside_json
from worldline.effects import egress
from worldline.model.http_response import Response, shown_url

Resolve = Callable[[str, int], Awaitable[list[str]]]

CONNECT_SECONDS = 10.0
KEY_HEADER = "Idempotency-Key"
# What the connection is about is ours to say; a Host of one's own would lead past the allow-list.
_OURS = ("host", "idempotency-key", "content-length", "transfer-encoding", "connection", "te", "trailer", "upgrade")
# What goes along to another origin. Any other header may be a credential, whatever it is called; so may the idempotency
# key be, which lets its holder ask how a request has ended.
_HARMLESS = ("accept", "accept-encoding", "accept-language", "user-agent")
_OF_A_BODY = ("content-type",)
_TOKEN = egress.HEADER_NAME
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_EXCERPT_CHARACTERS = 200


class Hop(msgspec.Struct, frozen=True):
    """One request on the way: the first, or one that a redirect asks for."""

    method: str
    url: httpx.URL
    headers: dict[str, str]
    body: bytes

    def __str__(self) -> str:
        """For messages: without what may hold secrets."""
        return f"{self.method} {shown_url(str(self.url))}"


class HttpClient:
    """Makes requests under one policy. Holds no connections, so there is nothing to close."""

    def __init__(
        self, policy: egress.Egress, *, resolve: Resolve | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._policy = policy
        self._resolve = resolve or resolve_by_system
        self._tls = tls

    async def request(
        self,
        method: str,
        url: str,
        *,
        key: str,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        body: bytes = b"",
        credential: egress.Filled | None = None,
    ) -> Response:
        """One attempt, with all its redirects. `key` goes along as the idempotency key, `credential` to its origin."""
        hop = first_hop(method, url, key=key, params=params or {}, headers=headers or {}, json=json, body=body)
        if credential is not None:
            hop = authorized(hop, credential)
        seconds = self._policy.seconds_max
        try:
            async with asyncio.timeout(seconds):
                return judge(await self._follow(hop))
        except TimeoutError:
            raise TimeoutError(f"{hop} took longer than {seconds:g} s") from None

    async def _follow(self, hop: Hop) -> Response:
        for _ in range(self._policy.redirects_max + 1):
            answer = await self._send(hop)
            following = redirected(hop, answer, bodies_to_others=self._policy.redirect_bodies)
            if following is None:
                return answer
            hop = following
        raise failures.Fatal(
            f"{hop}: more than {grammar.count(self._policy.redirects_max, 'redirect')}", code="too_many_redirects"
        )

    async def _send(self, hop: Hop) -> Response:
        """Through the gates, then to the first address that takes the connection."""
        if hop.url.scheme not in ("http", "https"):
            raise egress.refused(f"{hop}: only http and https are spoken here")
        if hop.url.userinfo:
            raise egress.refused(f"{hop.url.host}: a name and password in a URL are not sent; use a header")
        unreachable: httpx.TransportError | None = None
        for address in await self._addresses(hop):
            try:
                return await self._send_to(hop, address)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                probes.hit("http.address-unreachable")
                unreachable = error  # nothing has been sent: the next address may be tried
            except (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL):
                # Its text would quote what cannot be sent, a header's value for example; so would the cause.
                raise bad(f"{hop}: there is something in it that cannot be sent as HTTP") from None
            except httpx.TransportError as error:
                raise _lost(hop, error) from error
        assert unreachable is not None, "a host has an address"
        raise _lost(hop, unreachable) from unreachable

    async def _addresses(self, hop: Hop) -> list[egress.Address]:
        """Where the hop may go: every address of its host, all of them checked."""
        host, port = _host(hop.url), _port(hop.url)
        literal = egress.check_host(self._policy, host, port)
        if literal is not None:
            found = [literal]
        else:
            try:
                texts = await self._resolve(host, port)
            except UnicodeError as error:  # a label that is too long
                raise bad(f"{hop}: {host} is not a host name") from error
            except OSError as error:
                raise failures.TryAgain(f"{hop}: {host} cannot be resolved: {error}", code="resolve_failed") from error
            found = list(dict.fromkeys(egress.parse_address(text) for text in texts))
            if not found:
                raise failures.TryAgain(f"{hop}: {host} has no address", code="resolve_failed")
        egress.check_addresses(self._policy, host, port, found)
        return found[: limits.HTTP_ADDRESSES_MAX]

    async def _send_to(self, hop: Hop, address: egress.Address) -> Response:
        request = httpx.Request(
            hop.method,
            # The address that was checked, not the name: a second lookup could answer differently.
            hop.url.copy_with(host=str(address)),
            headers=[
                (b"Host", hop.url.netloc),
                *((name.encode(), _latin(value)) for name, value in hop.headers.items()),
            ],
            content=hop.body,
            extensions={"timeout": {"connect": CONNECT_SECONDS}, "sni_hostname": _host(hop.url)},
        )
        async with httpx.AsyncHTTPTransport(
            verify=self._context(), trust_env=False, limits=httpx.Limits(max_connections=1, max_keepalive_connections=0)
        ) as transport:
            response = await transport.handle_async_request(request)
            try:
                return await self._read(hop, response)
            finally:
                await response.aclose()

    async def _read(self, hop: Hop, response: httpx.Response) -> Response:
        """The answer, cut off as soon as it is larger than the policy lets in."""
        most = self._policy.response_bytes_max
        announced = response.headers.get("content-length", "0")
        if hop.method != "HEAD" and announced.isdecimal() and int(announced[:20]) > most:
            raise _too_large(hop, most)
        body = bytearray()
        # Counted while it is read: what a server announces is not what it has to send.
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > most:
                raise _too_large(hop, most)
        return Response(response.status_code, dict(response.headers), bytes(body), str(hop.url))

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = httpx.create_ssl_context(trust_env=False)
        return self._tls


async def resolve_by_system(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(place[0]) for *_, place in found]


# --- Pure --------------------------------------------------------------------------------------------------------


def first_hop(
    method: str, url: str, *, key: str, params: Mapping[str, str], headers: Mapping[str, str], json: Any, body: bytes
) -> Hop:
    """The request as it was asked for, with what is ours to add. What cannot be sent is refused permanently."""
    verb = method.upper()
    if not _TOKEN.fullmatch(verb) or verb in ("CONNECT", "TRACE"):
        raise bad(f"{method!r} is not a method that is sent")
    try:
        where = httpx.URL(url)
        where = where.copy_merge_params(dict(params)) if params else where
    except (httpx.InvalidURL, TypeError, ValueError):
        raise bad("the URL, or a parameter, cannot be read as one") from None
    if not where.is_absolute_url:
        raise bad("the URL is not a whole one; it begins with http:// or https://")
    if json is not None and body:
        raise bad("json= and body= are two bodies; give one")
    if json is not None:
        try:
            # Sorted, so that each attempt sends the same bytes under the same idempotency key.
            body = msgspec.json.encode(json, order="sorted")
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.EncodeError) as error:
            raise bad(f"json= cannot be written as JSON ({type(error).__name__})") from None
        if outside_json.is_too_deep(body):  # from Python 3.14 on no RecursionError says so
            raise bad(f"json= cannot be written as JSON: it is nested deeper than {limits.JSON_DEPTH_MAX}")
    sent = {"User-Agent": "worldline", "Accept": "*/*", "Accept-Encoding": "identity"}
    if json is not None:
        sent["Content-Type"] = "application/json"
    given = _checked(headers)
    names = [name.lower() for name in given]
    kept = {name: value for name, value in sent.items() if name.lower() not in names}
    if not _VALUE.fullmatch(key):
        raise bad(f"the idempotency key {key!r} cannot stand in a header")
    return Hop(verb, where, {**kept, **given, KEY_HEADER: key}, body)


def authorized(hop: Hop, credential: egress.Filled) -> Hop:
    """The request with a credential, if it goes where that belongs. A redirect to another origin leaves it behind."""
    where = origin(hop.url)
    if where != credential.origin:
        raise egress.refused(f"{hop}: its credential goes to {credential.origin} and nowhere else")
    if credential.header.lower() in [name.lower() for name in hop.headers]:
        raise bad(f"{hop}: its credential is the header {credential.header}; leave that out of headers=")
    if not _VALUE.fullmatch(credential.value) or credential.value != credential.value.strip():
        raise bad(f"{hop}: its credential has characters that a header cannot have")
    return Hop(hop.method, hop.url, {**hop.headers, credential.header: credential.value}, hop.body)


def _checked(headers: Mapping[Any, Any]) -> dict[str, str]:
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise bad("the names and values of headers are texts")
        if name.lower() in _OURS or name.lower().startswith("proxy-"):
            hint = "; use wl.http.request.options(key=...)" if name.lower() == KEY_HEADER.lower() else ""
            raise bad(f"the header {name} is not a caller's to set{hint}")
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value) or value != value.strip():
            raise bad(f"the header {name!r} has characters that a header cannot have")
    return dict(headers)


def redirected(hop: Hop, answer: Response, *, bodies_to_others: bool = False) -> Hop | None:
    """The request that a redirect asks for, if the answer is one. What is meant for one origin stays with it."""
    location = answer.headers.get("location")
    if answer.status not in (301, 302, 303, 307, 308) or not location:
        return None
    try:
        url = hop.url.join(location)
    except (httpx.InvalidURL, ValueError):
        raise bad(f"{hop} redirects to what is no URL") from None
    # What was sent encrypted must not be sent on in the clear.
    if hop.url.scheme == "https" and url.scheme != "https":
        raise egress.refused(f"{hop} redirects from https to {url.scheme}")
    becomes_get = (answer.status == 303 and hop.method != "HEAD") or (
        answer.status in (301, 302) and hop.method == "POST"
    )
    method, body = ("GET", b"") if becomes_get else (hop.method, hop.body)
    if origin(url) == origin(hop.url):
        kept = {name: value for name, value in hop.headers.items() if not becomes_get or name.lower() not in _OF_A_BODY}
        return Hop(method, url, kept, body)
    if (body or method not in ("GET", "HEAD")) and not bodies_to_others:
        raise egress.refused(
            f"{hop} redirects to {shown_url(str(url))}, another origin, and its body was meant for this one; "
            "use that URL, or Egress(redirect_bodies=True)"
        )
    harmless = _HARMLESS + (_OF_A_BODY if body else ())
    return Hop(method, url, {name: value for name, value in hop.headers.items() if name.lower() in harmless}, body)


def judge(answer: Response) -> Response:
    """429 and 5xx are failures of this attempt; every other status is an answer."""
    if answer.status != 429 and answer.status < 500:
        return answer
    excerpt = " ".join(answer.text[:_EXCERPT_CHARACTERS].split())
    raise failures.TryAgain(
        f"{shown_url(answer.url)} answered {answer.status}{': ' if excerpt else ''}{excerpt}",
        after=retry_after(answer),
        code=f"http_{answer.status}",
    )


def retry_after(answer: Response) -> float:
    """How many seconds the server asks us to wait. A date is taken against the server's own clock."""
    wanted = answer.headers.get("retry-after", "").strip()
    if wanted.isdecimal():
        seconds = float(wanted)
    else:
        try:
            there = email.utils.parsedate_to_datetime(answer.headers.get("date", ""))
            seconds = (email.utils.parsedate_to_datetime(wanted) - there).total_seconds()
        except (ValueError, TypeError, OverflowError):  # the last one: a year that no date can have
            return 0.0
    return min(max(seconds, 0.0), float(limits.RETRY_AFTER_SECONDS_MAX))


def bad(message: str) -> failures.Fatal:
    return failures.Fatal(message, code="bad_input")


def _lost(hop: Hop, error: httpx.TransportError) -> failures.TryAgain:
    return failures.TryAgain(f"{hop}: {str(error) or type(error).__name__}", code="connection_failed")


def _too_large(hop: Hop, most: int) -> failures.Fatal:
    return failures.Fatal(f"{hop}: the answer is larger than {most} bytes", code="response_too_large")


def origin(url: httpx.URL) -> egress.UrlOrigin:
    return egress.UrlOrigin(url.scheme, _host(url), _port(url))


def _latin(value: str) -> bytes:
    return value.encode("latin-1")


def _host(url: httpx.URL) -> str:
    return url.raw_host.decode("ascii").lower().removesuffix(".")


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)
