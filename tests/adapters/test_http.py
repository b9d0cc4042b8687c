"""`http.request` against a real server: the gates, the redirects, the caps, and what becomes of each failure."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import httpx
import pytest

import worldline as wl
from tests.servers import tls, web
from tests.servers.web import Reply, Seen
from worldline import testing
from worldline.adapters import http
from worldline.base import errors, failures
from worldline.model.http import Response

LOCAL = wl.Egress(allow=["127.0.0.1"])


class Names:
    """A resolver that answers from a table, and counts how often it was asked. The last answer of a list stays."""

    def __init__(self, **table: list[list[str]]) -> None:
        self._table = table
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answers = self._table.get(host.split(".", maxsplit=1)[0])
        if answers is None:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]


async def refused(request: Awaitable[Response]) -> str:
    with pytest.raises(failures.Fatal) as caught:
        await request
    return f"{caught.value.code}: {caught.value}"


async def echo(seen: Seen) -> Reply:
    return Reply(201, {"x-twice": "a"}, seen.body or seen.target.encode())


# --- What is sent and what comes back ------------------------------------------------------------------------------


async def test_a_request_and_its_answer() -> None:
    async with web.serving(echo) as server:
        client = http.Client(LOCAL)
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
        answer = await http.Client(LOCAL).request("GET", server.url, key="k")
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
            Reply(503, {"date": "Wed, 21 Oct 2015 07:28:00 GMT", "retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}),
            "http_503",
            30,
        ),
        (Reply(503, {"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}), "http_503", 0),
    ],
)
async def test_what_may_pass_is_tried_again(reply: Reply, code: str, after: float) -> None:
    async with web.serving(web.always(reply)) as server:
        with pytest.raises(failures.TryAgain) as caught:
            await http.Client(LOCAL).request("GET", f"{server.url}/x?token=secret", key="k")
    assert (caught.value.code, caught.value.after) == (code, after)
    assert "secret" not in str(caught.value)
    if reply.body:
        assert str(caught.value) == f"{server.url}/x answered 500: out of luck"


async def test_a_connection_that_fails_or_breaks_is_tried_again() -> None:
    async with web.serving(web.always(Reply(200, body=b"half", cut=True))) as server:
        with pytest.raises(failures.TryAgain) as caught:
            await http.Client(LOCAL).request("GET", server.url, key="k")
        assert caught.value.code == "connection_failed"
    with pytest.raises(failures.TryAgain) as caught:  # nobody listens there any more
        await http.Client(LOCAL).request("GET", server.url, key="k")
    assert caught.value.code == "connection_failed"
    policy = wl.Egress(allow=["gone.test"])
    with pytest.raises(failures.TryAgain) as caught:
        await http.Client(policy, resolve=Names()).request("GET", "http://gone.test/", key="k")
    assert caught.value.code == "resolve_failed"


def test_answers_as_text_and_json() -> None:
    latin = Response(200, {"content-type": "text/plain; charset=ISO-8859-1"}, b"\xfc")
    assert latin.text == "ü"
    assert Response(200, {"content-type": "text/plain; charset=nonsense"}, "ü".encode()).text == "ü"
    assert Response(200, {}, b"\xff").text == "\ufffd"
    with pytest.raises(errors.BadInput, match="not JSON"):
        Response(200, {}, b"{").json()


# --- The gates -----------------------------------------------------------------------------------------------------


async def test_nothing_is_allowed_by_default() -> None:
    async with web.serving(echo) as server:
        client = http.Client(wl.Egress())
        assert (await refused(client.request("GET", server.url, key="k"))).startswith("egress_refused")
        assert "may reach (nothing)" in await refused(client.request("GET", "https://example.com/", key="k"))
    assert server.seen == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::ffff:127.0.0.1]"])
async def test_a_loopback_address_in_any_form_is_refused(host: str) -> None:
    async with web.serving(echo) as server:
        client = http.Client(wl.Egress(allow=["*"]))
        why = await refused(client.request("GET", f"http://{host}:{server.port}/", key="k"))
        assert "loopback" in why or "Invalid IPv4 address" in why  # the URL parser has its own doubts about some
    assert server.seen == []


async def test_names_that_lead_inwards_are_refused() -> None:
    resolve = Names(
        inner=[["127.0.0.1"]],
        mapped=[["::ffff:127.0.0.1"]],
        cloud=[["169.254.169.254"]],
        mixed=[["8.8.8.8", "10.0.0.1"]],
    )
    client = http.Client(wl.Egress(allow=["*.test"]), resolve=resolve)
    for name in ("inner", "mapped", "cloud", "mixed"):
        assert (await refused(client.request("GET", f"http://{name}.test/", key="k"))).startswith("egress_refused")


async def test_a_name_that_changes_its_answer_is_asked_once() -> None:
    """Rebinding: the second answer would lead elsewhere, and is never asked for."""
    async with web.serving(echo) as server:
        resolve = Names(rebind=[["127.0.0.1"], ["127.0.0.2"]])
        client = http.Client(wl.Egress(allow=["rebind.test"], private=True), resolve=resolve)
        answer = await client.request("GET", f"http://rebind.test:{server.port}/x", key="k")
    assert (answer.body, resolve.asked) == (b"/x", ["rebind.test"])
    assert server.seen[0].headers["host"] == f"rebind.test:{server.port}"


async def test_a_name_that_turns_inwards_is_refused_at_the_next_hop() -> None:
    async def answer(seen: Seen) -> Reply:
        return Reply(302, {"location": f"http://rebind.test:{server.port}/inner"})

    async with web.serving(answer) as server:
        resolve = Names(rebind=[["127.0.0.1"], ["10.0.0.1"]])
        policy = wl.Egress(allow=["rebind.test", "127.0.0.1"])
        client = http.Client(policy, resolve=resolve)
        assert "10.0.0.1, a private address" in await refused(
            client.request("GET", f"http://rebind.test:{server.port}/", key="k")
        )
    assert [seen.target for seen in server.seen] == ["/"]


@pytest.mark.probe("http.address-unreachable")
async def test_another_address_is_tried_if_the_first_does_not_answer() -> None:
    async with web.serving(echo) as server:
        resolve = Names(two=[["127.0.0.2", "127.0.0.1"]])
        client = http.Client(wl.Egress(allow=["two.test"], private=True), resolve=resolve)
        answer = await client.request("GET", f"http://two.test:{server.port}/x", key="k")
    assert answer.body == b"/x"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://127.0.0.1/", "only http and https"),
        ("file:///etc/passwd", "bad_input"),
        ("gopher://127.0.0.1/", "only http and https"),
        ("//127.0.0.1/", "bad_input"),
        ("/only/a/path", "bad_input"),
        ("http://", "bad_input"),
        ("http://user:pw@127.0.0.1/", "use a header"),
        ("http://127.0.0.1:notaport/", "bad_input"),
    ],
)
async def test_urls_that_are_not_followed(url: str, says: str) -> None:
    assert says in await refused(http.Client(LOCAL).request("GET", url, key="k"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"method": "CONNECT"}, "CONNECT"),
        ({"method": "GET /x HTTP/1.1\r\nA: b"}, "is not a method"),
        ({"headers": {"Host": "elsewhere"}}, "Host"),
        ({"headers": {"idempotency-key": "mine"}}, "options(key=...)"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "Transfer-Encoding"),
        ({"headers": {"X-A": "b\r\nX-C: d"}}, "characters"),
        ({"headers": {"X A": "b"}}, "characters"),
        ({"key": "a\nb"}, "idempotency key"),
        ({"json": {}, "body": b"x"}, "two bodies"),
    ],
)
async def test_requests_that_cannot_be_sent(given: dict[str, Any], says: str) -> None:
    async with web.serving(echo) as server:
        wanted: dict[str, Any] = {"method": "GET", "key": "k", **given}
        assert says in await refused(http.Client(LOCAL).request(url=server.url, **wanted))
    assert server.seen == []


async def test_the_environments_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web.serving(echo) as proxy, web.serving(echo) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        await http.Client(LOCAL).request("GET", server.url, key="k")
        assert (len(proxy.seen), len(server.seen)) == (0, 1)


async def test_cookies_are_not_kept() -> None:
    async with web.serving(web.always(Reply(200, {"set-cookie": "who=alice"}))) as server:
        client = http.Client(LOCAL)
        for _ in range(2):
            await client.request("GET", server.url, key="k")
    assert ["cookie" in seen.headers for seen in server.seen] == [False, False]


async def test_the_name_is_kept_for_tls(tmp_path: Path) -> None:
    async with web.serving(echo, tls=tls.server_context(tmp_path)) as server:
        resolve = Names(api=[["127.0.0.1"]], other=[["127.0.0.1"]])
        client = http.Client(
            wl.Egress(allow=["*.worldline.test"], private=True), resolve=resolve, tls=tls.client_context()
        )
        answer = await client.request("GET", f"https://{tls.HOST}:{server.port}/x", key="k")
        assert (answer.body, server.names) == (b"/x", [tls.HOST])
        assert server.seen[0].headers["host"] == f"{tls.HOST}:{server.port}"
        with pytest.raises(failures.TryAgain, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
            await client.request("GET", f"https://other.worldline.test:{server.port}/x", key="k")
    assert len(server.seen) == 1


# --- Redirects -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "method", "becomes", "body"),
    [
        (301, "GET", "GET", b""),
        (302, "POST", "GET", b""),
        (303, "PUT", "GET", b""),
        (303, "HEAD", "HEAD", b""),
        (302, "PUT", "PUT", b"data"),
        (307, "POST", "POST", b"data"),
        (308, "POST", "POST", b"data"),
    ],
)
async def test_redirects_are_followed(status: int, method: str, becomes: str, body: bytes) -> None:
    async def answer(seen: Seen) -> Reply:
        return Reply(status, {"location": "/b"}) if seen.target == "/a" else Reply(200)

    async with web.serving(answer) as server:
        got = await http.Client(LOCAL).request(method, f"{server.url}/a", key="k", body=b"data" if body else b"")
    assert got.url == f"{server.url}/b"
    assert [(seen.method, seen.key) for seen in server.seen] == [(method, "k"), (becomes, "k")]
    assert server.seen[1].body == body


async def test_redirects_inwards_are_refused() -> None:
    places = [
        "http://127.0.0.1:9/",
        "http://169.254.169.254/latest/",
        "//127.1/",
        "http://[::1]/",
        "file:///etc/passwd",
    ]

    async def answer(seen: Seen) -> Reply:
        return Reply(302, {"location": places[int(seen.target[1:])]})

    async with web.serving(answer) as server:
        resolve = Names(outer=[["127.0.0.1"]])
        policy = wl.Egress(allow=["outer.test", f"127.0.0.1:{server.port}"])
        client = http.Client(policy, resolve=resolve)
        for index in range(len(places)):
            url = f"http://outer.test:{server.port}/{index}"
            assert (await refused(client.request("GET", url, key="k"))).startswith(("egress_refused", "bad_input"))
    assert len(server.seen) == len(places)


async def test_redirects_are_bounded() -> None:
    async with web.serving(web.always(Reply(302, {"location": "/again"}))) as server:
        client = http.Client(wl.Egress(allow=["127.0.0.1"], redirects_max=3))
        assert "too_many_redirects" in await refused(client.request("GET", server.url, key="k"))
    assert len(server.seen) == 4


async def test_what_is_secret_stays_with_its_origin() -> None:
    async with web.serving(echo) as other:

        async def answer(seen: Seen) -> Reply:
            return Reply(307, {"location": "/near" if seen.target == "/" else f"{other.url}/far"})

        async with web.serving(answer) as server:
            headers = {"Authorization": "Bearer x", "Cookie": "a=b", "X-Kept": "1"}
            await http.Client(LOCAL).request("GET", f"{server.url}/", key="k", headers=headers)
    assert [seen.headers.get("authorization") for seen in server.seen] == ["Bearer x", "Bearer x"]
    [far] = other.seen
    assert ("authorization" in far.headers, "cookie" in far.headers, far.headers["x-kept"]) == (False, False, "1")


def test_https_does_not_become_http() -> None:
    hop = http.Hop("GET", httpx.URL("https://a.test/"), {}, b"")
    with pytest.raises(failures.Fatal, match="from https to http"):
        http.redirected(hop, Response(302, {"location": "http://a.test/"}))


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
        client = http.Client(wl.Egress(allow=["127.0.0.1"], response_bytes_max=1000))
        assert "larger than 1000 bytes" in await refused(client.request("GET", server.url, key="k"))


async def test_an_answer_of_just_the_size_passes() -> None:
    async with web.serving(web.always(Reply(200, body=b"x" * 1000))) as server:
        client = http.Client(wl.Egress(allow=["127.0.0.1"], response_bytes_max=1000))
        assert len((await client.request("GET", server.url, key="k")).body) == 1000


async def test_a_packed_answer_is_not_unpacked() -> None:
    async with web.serving(web.always(Reply(200, {"content-encoding": "gzip"}, b"not even gzip"))) as server:
        answer = await http.Client(LOCAL).request("GET", server.url, key="k")
    assert answer.body == b"not even gzip"


async def test_a_slow_answer_is_given_up() -> None:
    slow = Reply(200, pieces=(b"x",) * 200, pause_seconds=0.05)
    async with web.serving(web.always(slow)) as server:
        client = http.Client(wl.Egress(allow=["127.0.0.1"], seconds_max=0.2))
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
