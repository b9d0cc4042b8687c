"""Redirects of `http_client.request`: where they may lead, what goes along, and that no error shows a secret."""

from __future__ import annotations

import traceback
from typing import Any

import httpx
import pytest

import worldline as wl
from tests.effects.http_kit import LOCAL, PLANTED, Names, echo, refused
from tests.servers import web
from tests.servers.web import Reply, Seen
from worldline.base import failures
from worldline.effects import http_client
from worldline.model.http_response import Response


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
        got = await http_client.HttpClient(LOCAL).request(
            method, f"{server.url}/a", key="k", body=b"data" if body else b""
        )
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
        policy = wl.ops.Egress(allow=["outer.test", f"127.0.0.1:{server.port}"])
        client = http_client.HttpClient(policy, resolve=resolve)
        for index in range(len(places)):
            url = f"http://outer.test:{server.port}/{index}"
            assert (await refused(client.request("GET", url, key="k"))).startswith(("egress_refused", "bad_input"))
    assert len(server.seen) == len(places)


async def test_redirects_are_bounded() -> None:
    async with web.serving(web.always(Reply(302, {"location": "/again"}))) as server:
        client = http_client.HttpClient(wl.ops.Egress(allow=["127.0.0.1"], redirects_max=3))
        assert "too_many_redirects" in await refused(client.request("GET", server.url, key="k"))
    assert len(server.seen) == 4


SECRET_HEADERS = {
    "Authorization": "s3cret",
    "Cookie": "s3cret",
    "X-Api-Key": "s3cret",
    "Private-Token": "s3cret",
    "X-Whatever": "s3cret",
    "Content-Type": "text/s3cret",
    "Referer": "s3cret",
    "Accept-Language": "de",
}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE"])
async def test_what_is_meant_for_one_origin_stays_with_it(status: int, method: str) -> None:
    async with web.serving(echo) as other:

        async def answer(seen: Seen) -> Reply:
            return Reply(status, {"location": "/near" if seen.target == "/" else f"{other.url}/far?x=y"})

        async with web.serving(answer) as server:
            body = b"s3cret" if method in ("POST", "PUT") else b""
            sending = http_client.HttpClient(LOCAL).request(
                method, f"{server.url}/", key="s3cret", headers=SECRET_HEADERS, body=body
            )
            follows = method in ("GET", "HEAD") or status == 303 or (status in (301, 302) and method == "POST")
            if follows:
                await sending
            else:
                why = await refused(sending)
                assert why.startswith(
                    f"egress_refused: {method} {server.url}/near redirects to {other.url}/far, another"
                )
    # At home nothing is missing, at the second hop either.
    assert [seen.headers["x-api-key"] for seen in server.seen] == ["s3cret", "s3cret"]
    assert len(other.seen) == follows
    for seen in other.seen:
        assert "s3cret" not in str(seen)
        assert set(seen.headers) <= {"host", "user-agent", "accept", "accept-encoding", "accept-language"}
        assert (seen.headers["accept-language"], seen.headers["user-agent"]) == ("de", "worldline")


async def test_a_body_goes_to_another_origin_if_the_policy_says_so_and_no_credential_does() -> None:
    policy = wl.ops.Egress(allow=["127.0.0.1"], redirect_bodies=True)
    async with web.serving(echo) as other, web.serving(web.always(Reply(307, {"location": other.url}))) as server:
        headers = {**SECRET_HEADERS, "Content-Type": "text/plain"}
        await http_client.HttpClient(policy).request("POST", server.url, key="s3cret", headers=headers, body=b"data")
    [seen] = other.seen
    assert (seen.method, seen.body, seen.headers["content-type"]) == ("POST", b"data", "text/plain")
    assert "s3cret" not in str(seen)


async def test_what_was_left_at_home_does_not_come_back() -> None:
    async def there_and_back(seen: Seen) -> Reply:
        return Reply(302, {"location": f"http://b.test:{server.port}/b"}) if seen.target == "/a" else await away(seen)

    async def away(seen: Seen) -> Reply:
        return Reply(302, {"location": f"http://a.test:{server.port}/c"}) if seen.target == "/b" else Reply(200)

    async with web.serving(there_and_back) as server:
        client = http_client.HttpClient(
            wl.ops.Egress(allow=["*.test"], private=True), resolve=Names(a=[["127.0.0.1"]], b=[["127.0.0.1"]])
        )
        await client.request("GET", f"http://a.test:{server.port}/a", key="k", headers={"Authorization": "x"})
    assert [(seen.target, "authorization" in seen.headers) for seen in server.seen] == [
        ("/a", True),
        ("/b", False),
        ("/c", False),
    ]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://user:s3cret@host/x?s3cret#s3cret",
        "http://user:s3cret@127.0.0.1/?s3cret",
        "s3cret.example.com/x?s3cret",
        "http://h:99999/x?s3cret",
        "http://u:s3cret/x@127.0.0.1/",
        "http://127.0.0.1/\r\ns3cret",
        "http://\ud800/s3cret",
        "http://h/?s3cret",
        "http://127.0.0.1:1/x?s3cret#s3cret",
        "//u:s3cret@h/",
        "http://s3cret@",
        "http:///s3cret@h?s3cret",
        f"http://{'a' * 64}.test/?s3cret",
        "https://127.0.0.1:1/x?s3cret",
    ],
)
async def test_no_error_shows_what_is_secret_in_a_url(url: str) -> None:
    client = http_client.HttpClient(wl.ops.Egress(allow=["127.0.0.1", "*.test"]))
    with pytest.raises((failures.Fatal, failures.TryAgain)) as caught:
        await client.request("GET", url, key="k", params={"token": PLANTED})
    assert PLANTED not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "place", ["http://u:s3cret@h/?s3cret#s3cret", "http://h:99999/?s3cret", "ftp://s3cret@h?s3cret"]
)
def test_no_error_shows_what_is_secret_in_a_redirect(place: str) -> None:
    hop = http_client.Hop("PUT", httpx.URL("http://user:s3cret@here/x?s3cret"), {}, b"x")
    with pytest.raises(failures.Fatal) as caught:
        http_client.redirected(hop, Response(307, {"location": place}))
    assert "PUT http://here/x redirects to" in str(caught.value)
    assert PLANTED not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("value", [" s3cret", "s3cret ", "s3cret\0", "s3cret\ud800", 5, None])
async def test_no_error_shows_the_value_of_a_header(value: Any) -> None:
    with pytest.raises(failures.Fatal) as caught:
        await http_client.HttpClient(LOCAL).request("GET", "http://127.0.0.1:1/", key="k", headers={"X-Api-Key": value})
    assert caught.value.code == "bad_input"
    assert PLANTED not in "".join(traceback.format_exception(caught.value))


def test_https_does_not_become_http() -> None:
    hop = http_client.Hop("GET", httpx.URL("https://a.test/"), {}, b"")
    with pytest.raises(failures.Fatal, match="from https to http"):
        http_client.redirected(hop, Response(302, {"location": "http://a.test/"}))
