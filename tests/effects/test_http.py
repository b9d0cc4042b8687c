"""`http_client.request` against a real server: what is sent, what comes back, the caps, and what becomes of each
failure.
"""

from __future__ import annotations

import asyncio
import gc
import random
import socket
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import aio, options
from tests.effects.http_kit import LOCAL, PLANTED, Names, echo, refused
from tests.servers import web
from tests.servers.web import Reply, Seen
from worldline import testing
from worldline.base import errors, failures
from worldline.effects import http_client
from worldline.model.http_response import Response

TODAY = "Wed, 21 Oct 2015 07:28:00 GMT"
FUZZ_CASES = options.number("fuzz_cases") // 400


# --- What is sent and what comes back ------------------------------------------------------------------------------


async def test_a_request_and_its_answer() -> None:
    async with web.serving(echo) as server:
        client = http_client.HttpClient(LOCAL)
        answer = await client.request(
            "post",
            f"{server.url}/a?x=1",
            key="k1",
            params={"y": "ü"},
            headers={"X-Mine": "1"},
            json={"b": [1], "a": None},
        )
    [seen] = server.seen
    assert (seen.method, seen.target, seen.body) == ("POST", "/a?x=1&y=%C3%BC", b'{"a":null,"b":[1]}')
    assert (seen.key, seen.headers["x-mine"], seen.headers["content-type"]) == ("k1", "1", "application/json")
    assert seen.headers["host"] == f"127.0.0.1:{server.port}"
    assert seen.headers["accept-encoding"] == "identity"
    assert (answer.status, answer.ok, answer.json()) == (201, True, {"b": [1], "a": None})
    assert (answer.headers["x-twice"], answer.url) == ("a", f"{server.url}/a?x=1&y=%C3%BC")


@pytest.mark.parametrize("status", [200, 204, 304, 400, 401, 404, 409, 422])
async def test_other_statuses_are_answers(status: int) -> None:
    async with web.serving(web.always(Reply(status))) as server:
        answer = await http_client.HttpClient(LOCAL).request("GET", server.url, key="k")
    assert answer.status == status


@pytest.mark.parametrize(
    ("reply", "code", "after"),
    [
        (Reply(500, body=b"out  of\nluck"), "http_500", 0),
        (Reply(503, {"retry-after": "7"}), "http_503", 7),
        (Reply(429, {"retry-after": "999999"}), "http_429", 3600),
        (Reply(429, {"retry-after": "soon"}), "http_429", 0),
        (Reply(503, {"retry-after": "-5"}), "http_503", 0),
        (
            Reply(503, {"date": TODAY, "retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}),
            "http_503",
            30,
        ),
        (Reply(503, {"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}), "http_503", 0),
        (Reply(503, {"date": TODAY, "retry-after": "Mon, 01 Jan 99999999999999 00:00:00 GMT"}), "http_503", 0),
        (Reply(503, {"retry-after": "9" * 5_000}), "http_503", 3600),
        (
            Reply(503, {"date": "Mon, 01 Jan 0001 00:00:00 +2400", "retry-after": "1 Jan 9999 00:00 -2400"}),
            "http_503",
            0,
        ),
    ],
)
async def test_what_may_pass_is_tried_again(reply: Reply, code: str, after: float) -> None:
    async with web.serving(web.always(reply)) as server:
        with pytest.raises(failures.TryAgain) as caught:
            await http_client.HttpClient(LOCAL).request("GET", f"{server.url}/x?token=secret", key="k")
    assert (caught.value.code, caught.value.after) == (code, after)
    assert "secret" not in str(caught.value)
    if reply.body:
        assert str(caught.value) == f"{server.url}/x answered 500: out of luck"


async def test_a_connection_that_fails_or_breaks_is_tried_again() -> None:
    async with web.serving(web.always(Reply(200, body=b"half", cut=True))) as server:
        with pytest.raises(failures.TryAgain) as caught:
            await http_client.HttpClient(LOCAL).request("GET", server.url, key="k")
        assert caught.value.code == "connection_failed"
    with pytest.raises(failures.TryAgain) as caught:  # nobody listens there any more
        await http_client.HttpClient(LOCAL).request("GET", server.url, key="k")
    assert caught.value.code == "connection_failed"
    policy = wl.ops.Egress(allow=["gone.test"])
    with pytest.raises(failures.TryAgain) as caught:
        await http_client.HttpClient(policy, resolve=Names()).request("GET", "http://gone.test/", key="k")
    assert caught.value.code == "resolve_failed"


def test_answers_as_text_and_json() -> None:
    latin = Response(200, {"content-type": "text/plain; charset=ISO-8859-1"}, b"\xfc")
    assert latin.text == "ü"
    assert Response(200, {"content-type": "text/plain; charset=nonsense"}, "ü".encode()).text == "ü"
    assert Response(200, {}, b"\xff").text == "\ufffd"
    for charset in (
        "undefined",
        "idna",
        "punycode",
        "unicode_escape",
        "utf-7",
        "zlib",
        "hex",
        "charmap",
        "rot13",
        "os.path",
    ):
        odd = Response(200, {"content-type": f"text/plain; charset={charset}"}, b"\xff\\xZZ+AGE-abc")
        assert odd.text == "\ufffd\\xZZ+AGE-abc", charset
    for charset in ("utf8", "windows-1252", "Shift_JIS", "gb18030", "euc-kr", "utf-16", "koi8-r", "ascii", "latin1"):
        assert Response(200, {"content-type": f"text/plain;charset={charset}"}, "ab".encode(charset)).text == "ab"
    for body in (b"{", b"\xff", b'"\\ud800x"'):
        with pytest.raises(errors.BadInput, match="not JSON"):
            Response(200, {}, body).json()
    with pytest.raises(errors.BadInput, match="nested deeper"):
        Response(200, {}, b"[" * 100_000).json()


def test_a_connection_that_is_given_up_while_the_server_closes_is_closed() -> None:
    """Else its socket is found by whichever test collects garbage later, and that one fails."""

    async def give_up(turns: int) -> None:
        async with web.serving(web.always(Reply(200))) as server:
            with socket.create_connection(("127.0.0.1", server.port)):
                pass
            for _ in range(turns):
                await asyncio.sleep(0)

    for turns in range(6):
        aio.run(give_up(turns))
    gc.collect()


# --- Caps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, body=b"x" * 1001),
        Reply(200, pieces=(b"x" * 600, b"x" * 600)),  # no length announced
        Reply(200, {"content-length": "9999999999"}),
    ],
)
async def test_an_answer_that_is_too_large_is_cut(reply: Reply) -> None:
    async with web.serving(web.always(reply)) as server:
        client = http_client.HttpClient(wl.ops.Egress(allow=["127.0.0.1"], response_bytes_max=1000))
        assert "larger than 1000 bytes" in await refused(client.request("GET", server.url, key="k"))


async def test_an_answer_of_just_the_size_passes() -> None:
    async with web.serving(web.always(Reply(200, body=b"x" * 1000))) as server:
        client = http_client.HttpClient(wl.ops.Egress(allow=["127.0.0.1"], response_bytes_max=1000))
        assert len((await client.request("GET", server.url, key="k")).body) == 1000


async def test_whatever_a_server_sends_is_an_answer_or_a_typed_failure() -> None:
    chance = random.Random(11)
    ends: dict[str, int] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(hostile_answer(chance))
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/a?s3cret"
    client = http_client.HttpClient(LOCAL)
    for _ in range(FUZZ_CASES):
        end, said = "answer", ""
        try:
            answer = await client.request("GET", url, key="k")
            assert isinstance(answer.text, str)
            answer.json()
        except errors.BadInput as error:
            said = str(error)
        except (failures.Fatal, failures.TryAgain) as error:
            end, said = error.code, str(error)
        assert PLANTED not in said
        ends[end] = ends.get(end, 0) + 1
    listening.close()
    assert {"answer", "connection_failed", "http_503"} <= set(ends), ends


def hostile_answer(chance: random.Random) -> bytes:
    body = chance.choice([b"", b"[" * 5_000, b'"\\ud800"', b"\xff\xfe", b"5", b"x" * 3_000])
    raw = bytearray(
        b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nContent-Type: text/plain; charset=%b\r\n%b\r\n%b"
        % (
            chance.choice([200, 204, 302, 307, 404, 429, 503, 101, 100, 999]),
            len(body),
            chance.choice([b"utf-8", b"undefined", b"idna", b"utf-16", b"\xff", b"hz"]),
            chance.choice(ODD_HEADERS),
            body,
        )
    )
    for _ in range(chance.choice([0, 0, 1, 3])):
        place = chance.randrange(len(raw) + 1)
        raw[place : place + chance.randrange(3)] = chance.randbytes(chance.randrange(4))
    return bytes(raw)


ODD_HEADERS = [
    b"",
    b"Retry-After: Mon, 01 Jan 99999999999999 00:00:00 GMT\r\nDate: x\r\n",
    b"Retry-After: \xb2\r\n",
    b"Location: http://[\r\n",
    b"Location: http://\xff/\r\n",
    b"Location: //u:p@h:1/\r\n",
    b"Location: http://h:-1\r\n",
    b"Location: \xed\xa0\x80\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Location: javascript:alert(1)\r\n",
    b"Location: http://127.0.0.1:1/\r\n",
    b"X: " + b"y" * 200_000 + b"\r\n",
]


async def test_a_packed_answer_is_not_unpacked() -> None:
    async with web.serving(web.always(Reply(200, {"content-encoding": "gzip"}, b"not even gzip"))) as server:
        answer = await http_client.HttpClient(LOCAL).request("GET", server.url, key="k")
    assert answer.body == b"not even gzip"


async def test_a_slow_answer_is_given_up() -> None:
    slow = Reply(200, pieces=(b"x",) * 200, pause_seconds=0.05)
    async with web.serving(web.always(slow)) as server:
        client = http_client.HttpClient(wl.ops.Egress(allow=["127.0.0.1"], seconds_max=0.2))
        with pytest.raises(TimeoutError, match=r"took longer than 0\.2 s"):
            await client.request("GET", server.url, key="k")


# --- In a workflow -------------------------------------------------------------------------------------------------


def program() -> wl.Program:
    app = wl.Program("caller")

    @app.workflow
    async def fetch(url: str, key: str) -> list[Any]:
        call = wl.http.request.options(key=key or None, retry=wl.Retry(attempts=3, initial_delay=0.01))
        answer = await call("POST", url, json={"n": 1})
        return [answer.status, answer.text, wl.now().year > 2000]

    @app.workflow
    async def refuse(url: str) -> str:
        try:
            await wl.http.request("GET", url)
        except wl.EffectFailed as error:
            return f"{error.code} after {error.attempts}"
        return "it passed"

    return app


async def test_a_workflow_makes_requests_with_one_key_for_all_attempts(tmp_path: Path) -> None:
    app = program()
    statuses = [503, 429, 200]

    async def answer(seen: Seen) -> Reply:
        return Reply(statuses.pop(0) if statuses else 200, {"retry-after": "0"}, b"done")

    async with web.serving(answer) as server, wl.open(str(tmp_path), host=app, egress=LOCAL) as universe:
        world = await universe.ensure("w", app)
        fetch, refuse = app.workflows["fetch"], app.workflows["refuse"]
        assert await world.run(fetch(server.url, "")) == [200, "done", True]
        keys = [seen.key for seen in server.seen]
        assert (len(keys), len(dict.fromkeys(keys)), len(keys[0])) == (3, 1, 32)
        await world.run(fetch(server.url, ""))
        assert server.seen[-1].key != keys[0], "another intent has another key"
        await world.run(fetch(server.url, "order-7"))
        assert server.seen[-1].key == "order-7"
        assert await world.run(refuse("http://169.254.169.254/")) == "egress_refused after 1"
        intents = [each for each in await world.journal() if each.kind.name == "EFFECT_REQUESTED"]
        assert len(intents) == 4
        assert all(b"http.request" in each.payload for each in intents)


async def test_retry_after_holds_the_next_attempt_back(tmp_path: Path) -> None:
    app = program()
    times: list[float] = []
    loop = asyncio.get_running_loop()

    async def answer(seen: Seen) -> Reply:
        times.append(loop.time())
        return Reply(429, {"retry-after": "1"}) if len(times) == 1 else Reply(200)

    async with web.serving(answer) as server, wl.open(str(tmp_path), host=app, egress=LOCAL) as universe:
        world = await universe.ensure("w", app)
        await world.run(app.workflows["fetch"](server.url, ""))
    assert times[1] - times[0] >= 0.99


async def test_a_host_without_a_policy_reaches_nothing(tmp_path: Path) -> None:
    app = program()
    async with web.serving(echo) as server, wl.open(str(tmp_path), host=app) as universe:
        world = await universe.ensure("w", app)
        assert await world.run(app.workflows["refuse"](server.url)) == "egress_refused after 1"
    assert server.seen == []


async def test_outside_a_workflow_it_says_so() -> None:
    with pytest.raises(failures.OutsideWorkflow, match="use an HTTP client"):
        await wl.http.request("GET", "http://example.com/")


def test_a_script_answers_it() -> None:
    app = program()
    answers = wl.TryAgain("busy", after=100, code="http_503"), wl.http.Response(200, body=b"scripted")
    with testing.world(app, wl.Script().on(wl.http.request, *answers)) as world:
        before = world.now
        assert world.run(app.workflows["fetch"]("https://example.com/", "")) == [200, "scripted", True]
        assert (world.now - before).total_seconds() == 100
        world.prove()
