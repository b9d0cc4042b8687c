"""What `http_client.request` may reach: names and addresses in every form, URLs and requests that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.effects.http_kit import LOCAL, NESTED, Names, echo, refused
from tests.servers import tls, web
from tests.servers.web import Reply, Seen
from worldline.base import failures
from worldline.effects import http_client


async def test_nothing_is_allowed_by_default() -> None:
    async with web.serving(echo) as server:
        client = http_client.HttpClient(wl.ops.Egress())
        assert (await refused(client.request("GET", server.url, key="k"))).startswith("egress_refused")
        assert "may reach (nothing)" in await refused(client.request("GET", "https://example.com/", key="k"))
    assert server.seen == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::ffff:127.0.0.1]"])
async def test_a_loopback_address_in_any_form_is_refused(host: str) -> None:
    async with web.serving(echo) as server:
        client = http_client.HttpClient(wl.ops.Egress(allow=["*"]))
        why = await refused(client.request("GET", f"http://{host}:{server.port}/", key="k"))
        assert "loopback" in why or "cannot be read as one" in why  # the URL parser has its own doubts about some
    assert server.seen == []


async def test_names_that_lead_inwards_are_refused() -> None:
    resolve = Names(
        inner=[["127.0.0.1"]],
        mapped=[["::ffff:127.0.0.1"]],
        cloud=[["169.254.169.254"]],
        mixed=[["8.8.8.8", "10.0.0.1"]],
    )
    client = http_client.HttpClient(wl.ops.Egress(allow=["*.test"]), resolve=resolve)
    for name in ("inner", "mapped", "cloud", "mixed"):
        assert (await refused(client.request("GET", f"http://{name}.test/", key="k"))).startswith("egress_refused")


async def test_a_name_that_changes_its_answer_is_asked_once() -> None:
    """Rebinding: the second answer would lead elsewhere, and is never asked for."""
    async with web.serving(echo) as server:
        resolve = Names(rebind=[["127.0.0.1"], ["127.0.0.2"]])
        client = http_client.HttpClient(wl.ops.Egress(allow=["rebind.test"], private=True), resolve=resolve)
        answer = await client.request("GET", f"http://rebind.test:{server.port}/x", key="k")
    assert (answer.body, resolve.asked) == (b"/x", ["rebind.test"])
    assert server.seen[0].headers["host"] == f"rebind.test:{server.port}"


async def test_a_name_that_turns_inwards_is_refused_at_the_next_hop() -> None:
    async def answer(seen: Seen) -> Reply:
        return Reply(302, {"location": f"http://rebind.test:{server.port}/inner"})

    async with web.serving(answer) as server:
        resolve = Names(rebind=[["127.0.0.1"], ["10.0.0.1"]])
        policy = wl.ops.Egress(allow=["rebind.test", "127.0.0.1"])
        client = http_client.HttpClient(policy, resolve=resolve)
        assert "10.0.0.1, a private address" in await refused(
            client.request("GET", f"http://rebind.test:{server.port}/", key="k")
        )
    assert [seen.target for seen in server.seen] == ["/"]


@pytest.mark.probe("http.address-unreachable")
async def test_another_address_is_tried_if_the_first_does_not_answer() -> None:
    async with web.serving(echo) as server:
        resolve = Names(two=[["127.0.0.2", "127.0.0.1"]])
        client = http_client.HttpClient(wl.ops.Egress(allow=["two.test"], private=True), resolve=resolve)
        answer = await client.request("GET", f"http://two.test:{server.port}/x", key="k")
    assert answer.body == b"/x"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://127.0.0.1/", "only http and https"),
        ("file:///etc/passwd", "bad_input"),
        ("file:/etc/passwd", "bad_input"),
        ("gopher://127.0.0.1/", "only http and https"),
        ("//127.0.0.1/", "bad_input"),
        ("/only/a/path", "bad_input"),
        ("http://", "bad_input"),
        ("http://user:pw@127.0.0.1/", "use a header"),
        ("http://127.0.0.1:notaport/", "bad_input"),
    ],
)
async def test_urls_that_are_not_followed(url: str, says: str) -> None:
    assert says in await refused(http_client.HttpClient(LOCAL).request("GET", url, key="k"))


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
        ({"json": "\ud800"}, "as JSON"),
        ({"json": {1, "a"}}, "as JSON"),
        ({"json": object()}, "as JSON"),
        ({"json": NESTED}, "as JSON"),
        ({"params": {"a": "\ud800"}}, "parameter"),
    ],
)
async def test_requests_that_cannot_be_sent(given: dict[str, Any], says: str) -> None:
    async with web.serving(echo) as server:
        wanted: dict[str, Any] = {"method": "GET", "key": "k", **given}
        assert says in await refused(http_client.HttpClient(LOCAL).request(url=server.url, **wanted))
    assert server.seen == []


async def test_the_environments_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web.serving(echo) as proxy, web.serving(echo) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        await http_client.HttpClient(LOCAL).request("GET", server.url, key="k")
        assert (len(proxy.seen), len(server.seen)) == (0, 1)


async def test_cookies_are_not_kept() -> None:
    async with web.serving(web.always(Reply(200, {"set-cookie": "who=alice"}))) as server:
        client = http_client.HttpClient(LOCAL)
        for _ in range(2):
            await client.request("GET", server.url, key="k")
    assert ["cookie" in seen.headers for seen in server.seen] == [False, False]


async def test_the_name_is_kept_for_tls(tmp_path: Path) -> None:
    async with web.serving(echo, tls=tls.server_context(tmp_path)) as server:
        resolve = Names(api=[["127.0.0.1"]], other=[["127.0.0.1"]])
        client = http_client.HttpClient(
            wl.ops.Egress(allow=["*.worldline.test"], private=True), resolve=resolve, tls=tls.client_context()
        )
        answer = await client.request("GET", f"https://{tls.HOST}:{server.port}/x", key="k")
        assert (answer.body, server.names) == (b"/x", [tls.HOST])
        assert server.seen[0].headers["host"] == f"{tls.HOST}:{server.port}"
        with pytest.raises(failures.TryAgain, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
            await client.request("GET", f"https://other.worldline.test:{server.port}/x", key="k")
    assert len(server.seen) == 1
