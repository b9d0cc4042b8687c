"""The webhook server: what is signed can be read in one way only, once, in time; no sender shuts another out."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests import aio, options
from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.features.relay import commands as relay_commands
from worldline.features.relay import inlet, sender_limits, webhook, webhook_signature
from worldline.kernel import user_values
from worldline.layers import inbox as inboxes
from worldline.model import inbox

app = wl.Program("post")
SECRET, NEXT, OTHER = b"0123456789abcdef", b"the next secret!", b"another secret!!"
NOW = 1_700_000_000
BODY = b'{"a": 1}'
FUZZ_CASES = options.number("fuzz_cases") // 200


class Served(msgspec.Struct):
    port: int
    env: envs.FixedEnv
    world: Any

    async def values(self) -> list[Any]:
        """What is in the inbox, read as values."""
        at = await self.world.address()
        page = (await self.world.connection.store.engine.read(inboxes.read_range(at, count_max=10_000))).page(0)
        return [value_of(each.item) for each in inboxes.decode(page.items)]


@asynccontextmanager
async def serving(
    told: Callable[[webhook.WebhookAnswer], None] = lambda _: None, **changes: Any
) -> AsyncIterator[Served]:
    async with wl.open("memory://", create=True) as universe:
        world = (await universe.create("post", app))._handle
        env = envs.FixedEnv(wall_us=NOW * 1_000_000)
        settings = webhook.WebhookSettings(**{"secrets": [SECRET], **changes})
        server = webhook.Webhook(inlet.Inlet(world, "hooks", None, None), settings, env, told=told)
        port = await server.start("127.0.0.1", 0)
        try:
            yield Served(port, env, world)
        finally:
            await server.close()


def value_of(item: inbox.Item | None) -> Any:
    assert isinstance(item, inbox.InboxEvent)
    return user_values.load(Any, user_values.load(wl.Envelope, item.payload.inline or b"").payload)


async def post(served: Served, raw: bytes, *, end: bool = False) -> tuple[int, dict[str, Any]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    with contextlib.suppress(ConnectionError):
        writer.write(raw)
        await writer.drain()
        if end:
            writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]), json.loads(body)


def request(
    body: bytes = BODY, *, id: str = "one", at: int = NOW, secret: bytes = SECRET, **changes: str | None
) -> bytes:
    """A request in our form. `changes`: headers, with `_` for `-`, that are other ones, or none."""
    headers: dict[str, str | None] = {
        "host": "here",
        "content-length": str(len(body)),
        "idempotency-key": id,
        "x-timestamp": str(at),
        "x-signature-256": webhook_signature.signature(secret, id=id, timestamp=at, body=body),
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    return raw_request(headers, body)


def standard(body: bytes = BODY, *, id: str = "msg_1", at: int = NOW, **changes: str) -> bytes:
    signed = webhook_signature.standard_signature(SECRET, id=id, timestamp=at, body=body)
    headers: dict[str, str | None] = {
        "content-length": str(len(body)),
        "webhook-id": id,
        "webhook-timestamp": str(at),
        "webhook-signature": signed,
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    return raw_request(headers, body)


def raw_request(headers: dict[str, str | None], body: bytes, first: str = "POST / HTTP/1.1") -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers.items() if value is not None)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


async def statuses(served: Served, *raw: bytes) -> list[int]:
    return [(await post(served, each))[0] for each in raw]


# --- Taken once, and by whom ---------------------------------------------------------------------------------------


def test_a_signed_post_is_taken_once() -> None:
    async def story() -> None:
        async with serving() as served:
            status, first = await post(served, request())
            assert (status, first["id"], first["already_enqueued"]) == (202, "one", False)
            # Tried again a minute later, and signed anew: it is the same.
            status, again = await post(served, request(at=NOW + 60))
            assert (status, again["stamp"], again["already_enqueued"]) == (200, first["stamp"], True)
            assert await statuses(served, request(b'{"a": 2}')) == [409]
            assert await served.values() == [{"a": 1}]

    aio.run(story())


def test_the_signature_in_figures() -> None:
    """What the documentation says, computed without our code."""
    content = b"worldline.v1:" + b"5:pay-7," + b"10:1700000000," + b"5:12.50,"
    ours = "sha256=" + hmac.new(SECRET, content, hashlib.sha256).hexdigest()
    assert webhook_signature.signature(SECRET, id="pay-7", timestamp=NOW, body=b"12.50") == ours
    # The example of the Standard Webhooks specification's own libraries.
    secret = webhook_signature.read_secret(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", "it")
    signed = webhook_signature.standard_signature(
        secret, id="msg_p5jXN8AQM9LWM0D4loKWxJek", timestamp=1_614_265_330, body=b'{"test": 2432232314}'
    )
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("form", ["ours", "standard"])
def test_no_signature_is_one_of_another_request(form: str) -> None:
    """Every way to move the borders between id, timestamp and body, and from one form to the other."""

    async def story() -> None:
        async with serving(rate=10_000.0, address_rate=10_000.0) as served:
            fields = {"id": "pay-7", "at": NOW, "body": b"12.50"}
            if form == "ours":
                honest = webhook_signature.signature(SECRET, id="pay-7", timestamp=NOW, body=b"12.50")
                content = b"worldline.v1:5:pay-7,10:1700000000,5:12.50,"
            else:
                honest = webhook_signature.standard_signature(SECRET, id="pay-7", timestamp=NOW, body=b"12.50")
                content = b"pay-7.1700000000.12.50"
            digest = hmac.new(SECRET, content, hashlib.sha256).digest()
            assert honest.endswith(digest.hex()) or honest == "v1," + base64.b64encode(digest).decode()
            taken = Counter[int]()
            for first in range(1, len(content)):
                for second in range(first + 1, len(content)):
                    id, at, body = content[:first], content[first + 1 : second], content[second + 1 :]
                    as_ours = {
                        "idempotency-key": id,
                        "x-timestamp": at,
                        "x-signature-256": b"sha256=" + digest.hex().encode(),
                    }
                    as_standard = {
                        "webhook-id": id,
                        "webhook-timestamp": at,
                        "webhook-signature": b"v1," + base64.b64encode(digest),
                    }
                    for headers in (as_ours, as_standard):
                        try:
                            signed = webhook_signature.Verifier([SECRET]).check(
                                {name: value.decode() for name, value in headers.items()}, body, now_seconds=NOW
                            )
                        except (webhook_signature.Unsigned, webhook_signature.Malformed) as error:
                            taken[type(error) is webhook_signature.Unsigned] += 1
                        else:
                            assert (signed.id, signed.timestamp, body) == (fields["id"], NOW, fields["body"])
                            taken[2] += 1
            assert taken[2] == (form == "standard")  # the honest one, which is the same in this form
            # Those that a sender could be made to say, through the door.
            signature = webhook_signature.signature(SECRET, id="pay-7", timestamp=NOW, body=b"12.50")
            forged = request(b"50", id="pay-7.12", x_signature_256=signature)
            dotted = standard(id="pay-7.1700000000.12")
            assert await statuses(served, forged, dotted) == [401, 400]
            assert await served.values() == []

    aio.run(story())


def test_the_standard_form_beside_ours() -> None:
    async def story() -> None:
        async with serving() as served:
            right = webhook_signature.standard_signature(SECRET, id="msg_1", timestamp=NOW, body=BODY)
            wrong = webhook_signature.standard_signature(OTHER, id="msg_1", timestamp=NOW, body=BODY)
            assert await statuses(
                served,
                standard(),
                standard(webhook_signature=f"v1a,AAAA {wrong} {right}"),
                standard(id="msg_2", webhook_signature=wrong),
                standard(webhook_signature=" ".join([wrong] * 17)),
                standard(webhook_timestamp=str(NOW + 1)),
                standard(webhook_timestamp=f"0{NOW}"),
                standard(webhook_id=""),
                request(),
            ) == [202, 200, 401, 400, 401, 400, 400, 202]
            assert await served.values() == [{"a": 1}, {"a": 1}]

    aio.run(story())


@pytest.mark.parametrize("form", [request, standard])
def test_only_what_was_signed_just_now_is_taken(form: Any) -> None:
    async def story() -> None:
        async with serving(tolerance_seconds=60) as served:
            old, new = form(id="old", at=NOW - 61), form(id="new", at=NOW + 61)
            assert await statuses(served, old, new) == [401, 401]
            assert "61 s away" in (await post(served, old))[1]["error"]
            assert await statuses(served, form(id="a", at=NOW - 60), form(id="b", at=NOW + 60)) == [202, 202]
            captured = form(id="c")
            assert await statuses(served, captured) == [202]
            served.env.advance_us(61_000_000)
            assert await statuses(served, captured) == [401]

    aio.run(story())


def test_an_old_and_a_new_secret_at_the_same_time() -> None:
    async def story() -> None:
        async with serving(secrets=[SECRET, NEXT], rate=2.0) as served:
            old, new = [[request(id=f"{key.hex()}{n}", secret=key) for n in range(3)] for key in (SECRET, NEXT)]
            assert await statuses(served, *old) == [202, 202, 429]
            # Each has a rate of its own.
            assert await statuses(served, *new) == [202, 202, 429]
            assert await statuses(served, request(id="x", secret=OTHER)) == [401]

    aio.run(story())


def test_a_body_that_was_signed_alone_is_taken_once_under_whichever_id() -> None:
    def signed(body: bytes, id: str | None) -> bytes:
        return request(
            body, idempotency_key=id, x_timestamp=None, x_signature_256=webhook_signature.body_signature(SECRET, body)
        )

    async def story() -> None:
        async with serving(form=webhook_signature.Form.BODY) as served:
            assert (
                await statuses(served, *(signed(BODY, f"x{n}") for n in range(20)), signed(BODY, None))
                == [202] + [200] * 20
            )
            assert await statuses(served, signed(b'{"a": 2}', "x0")) == [202]
            assert await served.values() == [{"a": 1}, {"a": 2}]
            assert await statuses(served, request(), standard()) == [401, 401]  # no other form
        async with serving(form=webhook_signature.Form.BODY, time_field="event.at") as served:
            for at in (NOW, '"2023-11-14T22:13:20Z"', '"2023-11-14T23:13:20+01:00"'):
                assert await statuses(served, signed(b'{"event": {"at": %b}}' % str(at).encode(), "x")) == [202]
            bad = (
                b"[]",
                b"{}",
                b'{"event": {"at": true}}',
                b'{"event": {"at": "2023-11-14T22:13:20"}}',
                b'{"event": 5}',
            )
            assert await statuses(served, *(signed(each, "x") for each in bad)) == [400] * 5
            captured = signed(b'{"event": {"at": %d}}' % NOW, "x")
            served.env.advance_us(301_000_000)  # also when the id is forgotten: it is too old
            assert await statuses(served, captured) == [401]

    aio.run(story())


# --- Who shuts whom out ------------------------------------------------------------------------------------------


def test_requests_without_a_signature_use_up_no_rate_of_those_that_have_one() -> None:
    async def story() -> None:
        async with serving(rate=5.0) as served:
            assert await statuses(served, *[request(x_signature_256="sha256=00")] * 20) == [401] * 20
            assert await statuses(served, *(request(id=f"i{n}") for n in range(7))) == [202] * 5 + [429] * 2
            served.env.advance_us(1_000_000)
            assert await statuses(served, request(id="later")) == [202]

    aio.run(story())


def test_an_address_that_floods_is_in_its_own_way_alone() -> None:
    async def story() -> None:
        async with serving(address_rate=4.0, proxies=["127.0.0.1"]) as served:
            flood = [
                request(x_signature_256="no", x_forwarded_for=f"203.0.113.7, 198.51.100.{n}, 192.0.2.1")
                for n in range(8)
            ]
            assert await statuses(served, *flood) == [401] * 4 + [429] * 4
            assert await statuses(served, request(x_forwarded_for="192.0.2.1")) == [429]
            assert await statuses(served, request(x_forwarded_for="192.0.2.2")) == [202]
            assert await statuses(served, request(x_forwarded_for="no address"), request()) == [200, 200]
        async with serving(address_rate=2.0) as served:  # without a proxy, what a sender writes says nothing
            flood = [request(x_signature_256="no", x_forwarded_for=f"192.0.2.{n}") for n in range(4)]
            assert await statuses(served, *flood) == [401, 401, 429, 429]
            assert await statuses(served, raw_request(PLAIN, BODY, "PUT /other HTTP/1.1")) == [429]

    aio.run(story())


def test_one_text_for_one_sender() -> None:
    same = {"2001:db8::1", "2001:db8:0:0:ffff::", "[2001:db8::2]", "2001:db8::3%eth0"}
    assert {sender_limits.normal(each) for each in same} == {"2001:db8::/64"}
    assert sender_limits.normal("::ffff:192.0.2.1") == sender_limits.normal(" 192.0.2.1 ") == "192.0.2.1"
    assert sender_limits.normal("192.0.2") == sender_limits.normal("") == ""
    assert sender_limits.address_of(("192.0.2.1", 5)) == "192.0.2.1"
    assert sender_limits.address_of(None) == sender_limits.address_of(()) == "unknown"


def test_rates_are_remembered_of_so_many_addresses_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WEBHOOK_ADDRESSES_MAX", 3)
    rates = sender_limits.Rates(envs.FixedEnv(), 1.0)
    assert [rates.allows(each) for each in ("a", "a", "b", "a", "c", "d")] == [True, False, True, False, True, True]
    assert not rates.allows("a")  # it was seen after "b", which is the one that was forgotten
    assert rates.allows("b")


def test_idle_connections_shut_no_sender_out() -> None:
    async def story() -> None:
        async with serving() as served:
            idle = [
                await asyncio.open_connection("127.0.0.1", served.port) for _ in range(limits.WEBHOOK_CONNECTIONS_MAX)
            ]
            idle[0][1].write(b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n12")  # in the middle of its body
            assert await statuses(served, request()) == [202]
            # The oldest of them were dropped, and told so.
            assert (await idle[0][0].read()).startswith(b"HTTP/1.1 503 ")
            for _, writer in idle:
                writer.close()

    aio.run(story())


def test_places_of_one_address_and_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WEBHOOK_CONNECTIONS_MAX", 6)
    monkeypatch.setattr(limits, "WEBHOOK_ADDRESS_CONNECTIONS_MAX", 3)

    async def story() -> None:
        places = sender_limits.OpenConnections(shared=("proxy",))

        def enter(address: str, *, waits: bool = True) -> sender_limits.ConnectionSlot | None:
            place = places.enter(address)
            if place is not None and waits:
                place.clock = asyncio.timeout(None)
                opened.append(place)
            return place

        opened: list[sender_limits.ConnectionSlot] = []
        monkeypatch.setattr(asyncio.Timeout, "reschedule", lambda *_: None)
        enter("a")
        enter("a", waits=False)
        enter("a")
        enter("a")  # in the place of the oldest that waits
        assert [each.dropped for each in opened] == [True, False, False]
        for _ in range(3):
            enter("proxy")
        enter("b")  # all places are taken: one of those that have most gives way
        assert [each.dropped for each in opened] == [True, True, False, False, False, False, False]
        for _ in range(5):
            enter("proxy")  # has no share, but is the one that has most
        assert not opened[2].dropped
        assert not opened[6].dropped
        for address in ("a", "a", "c"):
            assert enter(address, waits=False) is not None
        while enter("c", waits=False) is not None:
            pass
        assert enter("d") is None  # everybody is being answered
        places.leave(opened[-1])
        assert enter("d") is None

    aio.run(story())


def test_slow_clients_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WEBHOOK_HEAD_SECONDS", 0.05)
    monkeypatch.setattr(limits, "WEBHOOK_BODY_SECONDS", 0.05)

    async def story() -> None:
        async with serving() as served:
            for slow in (b"", b"POST / HT", request()[:-1]):
                assert (await post(served, slow))[0] == 408
            assert await served.values() == []

    aio.run(story())


# --- Bytes -------------------------------------------------------------------------------------------------------

PLAIN: dict[str, str | None] = {"content-length": "8"}
BAD: list[tuple[str, bytes, int]] = [
    ("no signature", request(x_signature_256=None), 401),
    ("another secret", request(secret=OTHER), 401),
    ("a signature that is none", request(x_signature_256="sha256=\xe9\xff"), 401),
    ("the body alone is signed", request(x_signature_256=webhook_signature.body_signature(SECRET, BODY)), 401),
    (
        "another body",
        request(x_signature_256=webhook_signature.signature(SECRET, id="one", timestamp=NOW, body=b"{}")),
        401,
    ),
    ("another id", request(idempotency_key="two"), 401),
    ("another time", request(x_timestamp=str(NOW + 1)), 401),
    ("no id", request(idempotency_key=None), 400),
    ("an id with a space", request(idempotency_key="a b"), 400),
    ("an id that is reserved", request(id="message:x"), 400),
    ("no timestamp", request(x_timestamp=None), 400),
    ("a timestamp in words", request(x_timestamp="now"), 400),
    ("a timestamp of another alphabet", request(x_timestamp="\xb2"), 400),
    ("a timestamp without end", request(x_timestamp="9" * 500), 400),
    ("no json", request(b"nothing"), 400),
    ("deep json", request(b"[" * 900), 400),
    ("deep json that ends", request(b"[" * 400 + b"]" * 400), 400),
    ("deeper than what is stored", request(b"[" * 100 + b"]" * 100), 400),
    ("half a character", request(b'"\\ud800"'), 400),
    ("bytes that are no text", request(b'"\xff"'), 400),
    ("a number that is too large", request(b"1" * 900), 400),
    ("another path", raw_request(PLAIN, BODY, "POST /other HTTP/1.1"), 404),
    ("another method", raw_request(PLAIN, BODY, "PUT / HTTP/1.1"), 405),
    ("another protocol", raw_request(PLAIN, BODY, "POST / HTTP/2.0"), 400),
    ("too large", request(b"1" * 2_000), 413),
    ("much too large", raw_request({"content-length": "9" * 12}, b""), 413),
    ("a length that has no end", raw_request({"content-length": "9" * 5_000}, b""), 400),
    ("no length", raw_request({"host": "x"}, b""), 400),
    ("a length below zero", raw_request({"content-length": "-1"}, b""), 400),
    ("a length of another alphabet", raw_request({"content-length": "\xb2"}, b""), 400),
    ("chunked", raw_request({**PLAIN, "transfer-encoding": "chunked"}, BODY), 400),
    ("a header twice", request().replace(b"host: here", b"x: 1\r\nX: 1"), 400),
    ("a header with a space in its name", raw_request({"content-length ": "8"}, BODY), 400),
    ("a header that goes on", raw_request({"x": "a\r\n b"}, BODY), 400),
    ("a line feed in a header", request(x="a\nb: c"), 400),
    ("no http", b"hello\r\n\r\n", 400),
    ("nothing", b"\r\n\r\n", 400),
    ("a large head", raw_request({"x": "y" * (limits.WEBHOOK_HEAD_BYTES_MAX + 10)}, b""), 431),
]


def test_what_is_not_right_is_refused_and_changes_nothing() -> None:
    async def story() -> dict[str, int]:
        async with serving(bytes_max=1_000) as served:
            answers = {}
            for what, raw, _ in BAD:
                status, body = await post(served, raw)
                assert list(body) == ["error"], what
                answers[what] = status
            assert await served.values() == []
            return answers

    assert aio.run(story()) == {what: status for what, _, status in BAD}


def test_any_bytes_get_a_status() -> None:
    """Requests with something wrong anywhere: none ends without a status, none is taken that was not signed."""

    async def story() -> None:
        random_bytes = random.Random(7)
        seen = Counter[int]()
        signed: list[Any] = []
        async with serving(bytes_max=4_000, rate=1e6, address_rate=1e6) as served:
            for number in range(FUZZ_CASES):
                raw, body = hostile(random_bytes, number)
                status, said = await post(served, raw, end=True)
                assert set(said) in ({"error"}, {"id", "stamp", "already_enqueued"}), raw
                assert status != 500, raw
                seen[status] += 1
                if status == 202:
                    signed.append(json.loads(body))
            # What was not changed, or only where it means nothing (the host, the case of a name), is taken as sent.
            assert await served.values() == signed
        assert {202, 400, 401} <= set(seen), seen

    aio.run(story())


def hostile(chance: random.Random, number: int) -> tuple[bytes, bytes]:
    body = b'{"n": %d}' % number if chance.random() < 0.8 else chance.randbytes(chance.randrange(40))
    form: Any = chance.choice([request, standard])
    raw = bytearray(form(body, id=f"id-{number}"))
    for _ in range(chance.choice([0, 1, 1, 2, 20])):
        place = chance.randrange(len(raw) + 1)
        what = chance.randrange(5)
        if what == 0:
            raw[place : place + 1] = bytes([chance.randrange(256)])
        elif what == 1:
            del raw[place : place + chance.randrange(1, 30)]
        elif what == 2:
            raw[place:place] = chance.randbytes(chance.randrange(1, 30))
        elif what == 3:
            raw[place:place] = chance.choice(PIECES)
        else:
            raw[place:place] = raw[: chance.randrange(len(raw) + 1)]
    return bytes(raw), body


PIECES = [
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\0",
    b":",
    b" ",
    b"\r\nTransfer-Encoding: chunked",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"\r\nContent-Length: 0",
    b"[" * 1_000,
    b'{"a":' * 500,
    b"\xff\xfe",
    b"x" * 20_000,
    b"\r\nExpect: 100-continue",
]


def test_a_bug_is_a_status_too_and_goes_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("a bug")

    async def story() -> list[str]:
        said: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: said.append(repr(about["exception"])))
        async with serving() as served:
            monkeypatch.setattr(inlet.Inlet, "put", broken)
            status, body = await post(served, request())
            assert (status, body) == (500, {"error": "the server failed"})
        return said

    assert aio.run(story()) == ["KeyError('a bug')"]


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (wl.errors.StoreError("gone"), 503),
        (wl.Overloaded("busy", retry_after=3), 503),
        (wl.errors.Closed("archived"), 409),
        (wl.NotFound("no world"), 404),
        (errors.Conflicted("busy"), 503),
        (errors.QuotaExceeded("worlds", used=1, limit=1, advice="delete some"), 503),
        (errors.IdReused("x"), 409),
        (errors.ValueTooLarge("long"), 400),
    ],
)
def test_what_keeps_a_value_out(raised: Exception, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def put(*_: Any, **__: Any) -> Any:
        raise raised

    async def story() -> None:
        async with serving() as served:
            monkeypatch.setattr(inlet.Inlet, "put", put)
            assert await statuses(served, request()) == [status]

    aio.run(story())


@pytest.mark.parametrize(
    ("raised", "error", "retry_after"),
    [
        (wl.errors.StoreError("secret place"), "the store is out of reach, or too busy", 1),
        (wl.Overloaded("1,000 waiting inputs", retry_after=3.7), "the world has too much to do", 3),
        (errors.QuotaExceeded("worlds", used=1, limit=1, advice="delete some"), "its quota is 1", 10),
    ],
)
def test_what_is_said_when_it_may_be_tried_again(raised: errors.Error, error: str, retry_after: int) -> None:
    answer = webhook._refused(raised).answer
    assert (answer.status, answer.retry_after) == (503, retry_after)
    assert error in answer.body["error"]
    assert "secret" not in answer.body["error"]


# --- Settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"secrets": []},
        {"secrets": [SECRET, b"short"]},
        {"secrets": [SECRET] * 9},
        {"tolerance_seconds": 0},
        {"tolerance_seconds": limits.WEBHOOK_TOLERANCE_SECONDS_MAX + 1},
        {"rate": 0.0},
        {"address_rate": -1.0},
        {"rate": float("nan")},
        {"proxies": ["localhost"]},
    ],
)
def test_settings_that_protect_nothing_are_refused(changes: dict[str, Any]) -> None:
    goes = inlet.Inlet(None, "hooks", None, None)  # type: ignore[arg-type]
    with pytest.raises(errors.BadInput):
        webhook.Webhook(goes, webhook.WebhookSettings(**{"secrets": [SECRET], **changes}), envs.FixedEnv())


def test_secrets_in_files(tmp_path: Path) -> None:
    coded = base64.b64encode(b"k" * 25)
    assert webhook_signature.read_secret(b" plain text secret\n", "it") == b"plain text secret"
    assert webhook_signature.read_secret(b"whsec_" + coded + b"\n", "it") == b"k" * 25
    assert webhook_signature.read_secret(b"whsec_" + coded.rstrip(b"="), "it") == b"k" * 25
    for bad in (b"whsec_", b"whsec_" + base64.b64encode(b"k" * 23), b"whsec_not base64", b"whsec_A"):
        with pytest.raises(errors.BadInput):
            webhook_signature.read_secret(bad, "it")


def test_the_command_takes_several_secrets(tmp_path: Path) -> None:
    for name, secret in (("a", SECRET), ("b", NEXT)):
        (tmp_path / name).write_bytes(secret)
        (tmp_path / name).chmod(0o600)
    words = ["w", "--inbox", "a", "--secret-file", str(tmp_path / "a"), "--secret-file", str(tmp_path / "b")]
    given = relay_commands.relay.make_context("relay", words).params
    names = (
        "secret_files",
        "path",
        "id_header",
        "timestamp_header",
        "signature_header",
        "tolerance",
        "body_only",
        "timestamp_field",
        "bytes_max",
        "rate",
        "address_rate",
        "proxies",
    )
    settings = relay_commands._settings(**{name: given[name] for name in names})
    assert settings == webhook.WebhookSettings(secrets=[SECRET, NEXT], proxies=())
    with pytest.raises(errors.BadInput, match="--body-only"):
        relay_commands._settings(**{name: given[name] for name in names} | {"timestamp_field": "at"})
    (tmp_path / "b").chmod(0o644)
    with pytest.raises(errors.BadInput, match=f"others can read its keys: chmod 600 {tmp_path / 'b'}"):
        relay_commands._settings(**{name: given[name] for name in names})
    (tmp_path / "b").chmod(0o600)
    (tmp_path / "b").write_bytes(bytes(limits.KEY_FILE_BYTES_MAX + 1))
    with pytest.raises(errors.TooLarge, match="the secret in"):
        relay_commands._settings(**{name: given[name] for name in names})


async def test_a_line_that_cannot_be_written_costs_no_place() -> None:
    """The terminal is gone: each request ends there, and no connection of it stays."""
    failing = True

    def told(_: webhook.WebhookAnswer) -> None:
        if failing:
            raise BrokenPipeError("the terminal is gone")

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # asyncio tells of a handler that has failed
    async with serving(told) as served:
        for _ in range(limits.WEBHOOK_ADDRESS_CONNECTIONS_MAX + 1):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(request())
            assert await asyncio.wait_for(reader.read(), 30) == b""
            writer.close()
        failing = False
        assert (await post(served, request()))[0] == webhook.TAKEN_BEFORE
