"""What a bucket of objects promises beyond the conformance suite: lost answers, faults, settings, secrets.

The server is a real one. Where an answer must be lost at a chosen moment, a proxy between the two loses it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.servers import listening, s3
from worldline.base import env_os, errors, limits
from worldline.store.objects import s3_objects as objects_s3

ROOT = Path(__file__).parents[2]
ENV = env_os.OsEnv()
QUICK: dict[str, Any] = {"retries": 2, "timeout_ms": 400}
BODY = b"body" * 5_000

_numbers = itertools.count()


@asynccontextmanager
async def opened(
    *, prefix: str | None = None, bucket: str = s3.BUCKET, **changes: Any
) -> AsyncIterator[objects_s3.S3Objects]:
    prefix = fresh() if prefix is None else prefix
    store = await objects_s3.open(f"s3://{bucket}/{prefix}", s3.shared().settings(**changes), ENV)
    try:
        yield store
    finally:
        await store.close()


def fresh() -> str:
    return f"unit/{next(_numbers)}"


# --- A proxy that loses things ---------------------------------------------------------------------------------


class Fault(NamedTuple):
    """What befalls a request: whether the server gets it, and what the client sees before the connection ends."""

    arrives: bool
    seen: Callable[[bytes], bytes]


def instead(status: str, code: str) -> Fault:
    """Another answer than the server's, which is not asked at all."""
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    whole = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
    return Fault(False, lambda _: whole)


NEVER_ARRIVES = Fault(False, lambda _: b"")
LOST = Fault(True, lambda _: b"")
HALVED = Fault(True, lambda answer: answer[: len(answer) // 2])
BROKEN = instead("500 Internal Server Error", "InternalError")
UNDECIDED = instead("409 Conflict", "ConditionalRequestConflict")
SLOW_DOWN = instead("503 Service Unavailable", "SlowDown")
TOO_MANY = instead("429 Too Many Requests", "SlowDown")

Plan = dict[str, list[Fault]]


class Proxy:
    """One request for each connection. `faults` says what befalls the next requests of a method, in order."""

    def __init__(self, faults: Plan) -> None:
        self.faults = faults
        self.heads: list[str] = []
        self.before: Callable[[], Awaitable[None]] | None = None
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def methods(self) -> list[str]:
        return [head.split(" ", 1)[0] for head in self.heads]

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        await listening.end(self._server)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        try:
            writer.write(await self._exchange(reader))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client gave up
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        body = await reader.readexactly(int(length[1]) if length else 0)
        text = head.decode()
        self.heads.append(text)
        planned = self.faults.get(text.split(" ", 1)[0])
        fault = planned.pop(0) if planned else None
        if self.before is not None:
            await self.before()
        answer = b"" if fault is not None and not fault.arrives else await _ask(head, body)
        return answer if fault is None else fault.seen(answer)


async def _ask(head: bytes, body: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", s3.shared().port)
    try:
        writer.write(head[:-2] + b"Connection: close\r\n\r\n" + body)
        return await reader.read(-1)
    finally:
        writer.close()


@asynccontextmanager
async def proxied(faults: Plan, **changes: Any) -> AsyncIterator[tuple[objects_s3.S3Objects, Proxy]]:
    """A store that reaches the server by a proxy. Opening it lists once, before the faults begin."""
    proxy = Proxy({})
    endpoint = await proxy.start()
    try:
        async with opened(endpoint=endpoint, **changes) as store:
            proxy.heads.clear()
            proxy.faults = faults
            yield store, proxy
    finally:
        await proxy.stop()


# --- Lost answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("planned", "requests"),
    [
        ([], ["PUT", "HEAD"]),
        ([LOST], ["PUT", "PUT", "HEAD"]),
        ([HALVED], ["PUT", "PUT", "HEAD"]),
        ([NEVER_ARRIVES], ["PUT", "PUT", "HEAD"]),
        ([NEVER_ARRIVES, LOST], ["PUT", "PUT", "PUT", "HEAD"]),
        ([BROKEN], ["PUT", "PUT", "HEAD"]),
        ([SLOW_DOWN] * 2, ["PUT", "PUT", "PUT", "HEAD"]),
        ([UNDECIDED], ["PUT", "HEAD", "PUT", "HEAD"]),
        ([TOO_MANY], ["PUT", "PUT", "HEAD"]),
    ],
)
async def test_a_put_whose_answer_is_lost_is_not_taken_for_anothers(planned: list[Fault], requests: list[str]) -> None:
    async with proxied({"PUT": [*planned]}) as (store, proxy):
        await store.put("a/b", BODY)
        assert proxy.methods == requests
        assert await store.get("a/b") == BODY
        with pytest.raises(errors.Exists):
            await store.put("a/b", BODY)


@pytest.mark.probe("s3.own-put-found")
async def test_a_lost_head_is_asked_again() -> None:
    async with proxied({"PUT": [LOST], "HEAD": [LOST]}) as (store, proxy):
        await store.put("a/b", BODY)
        assert proxy.methods == ["PUT", "PUT", "HEAD", "PUT", "HEAD"]


async def test_anothers_object_with_the_same_body_is_not_ours() -> None:
    """The first try never arrives; before the second, somebody else puts the same bytes under the same name."""
    prefix = fresh()
    async with opened(prefix=prefix) as other, proxied({"PUT": [NEVER_ARRIVES]}, prefix=prefix) as (store, proxy):

        async def interfere() -> None:
            if proxy.methods == ["PUT", "PUT"]:
                await other.put("a/b", BODY)

        proxy.before = interfere
        with pytest.raises(errors.Exists):
            await store.put("a/b", BODY)
        assert proxy.methods == ["PUT", "PUT", "HEAD"]
        assert await other.get("a/b") == BODY


@pytest.mark.probe("s3.put-undecided")
async def test_a_conflict_that_never_ends_is_an_error() -> None:
    async with proxied({"PUT": [UNDECIDED] * 100}, **QUICK) as (store, proxy):
        with pytest.raises(errors.StoreUnavailable, match="put a/b"):
            await store.put("a/b", BODY)
        assert proxy.methods == ["PUT", "HEAD"] * 3


@pytest.mark.parametrize("fault", [LOST, HALVED, NEVER_ARRIVES, BROKEN, UNDECIDED, TOO_MANY])
async def test_other_calls_are_tried_again(fault: Fault) -> None:
    async with proxied({}) as (store, proxy):
        await store.put("a/b", BODY)
        proxy.heads.clear()
        proxy.faults = {"GET": [fault]}
        assert await store.get("a/b") == BODY
        assert proxy.methods == ["GET", "GET"]
        proxy.faults = {"GET": [fault]}
        assert [found.name for found in await store.list("a/")] == ["a/b"]
        proxy.heads.clear()
        proxy.faults = {"DELETE": [fault]}
        await store.delete("a/b")
        assert proxy.methods == ["DELETE", "DELETE"]
        assert await store.list("") == []


@pytest.mark.parametrize(
    ("status", "code"),
    [("400 Bad Request", "InvalidDigest"), ("403 Forbidden", "AccessDenied"), ("404 Not Found", "NoSuchThing")],
)
async def test_an_error_that_trying_cannot_mend_is_raised_at_once(status: str, code: str) -> None:
    async with proxied({"PUT": [instead(status, code)]}) as (store, proxy):
        with pytest.raises(errors.StoreUnavailable, match=code):
            await store.put("a/b", BODY)
        assert proxy.methods == ["PUT"]


async def test_a_put_carries_its_condition_its_checksum_and_its_token() -> None:
    async with proxied({}) as (store, proxy):
        await store.put("a/b", b"one")
        await store.put("a/c", b"one")
    heads = [head.lower() for head in proxy.heads if head.startswith("PUT")]
    checksum = base64.b64encode(hashlib.sha256(b"one").digest()).decode()
    for head in heads:
        assert "\r\nif-none-match: *\r\n" in head
        assert f"\r\nx-amz-checksum-sha256: {checksum.lower()}\r\n" in head
    tokens = [re.search(r"\r\nx-amz-meta-upload: ([0-9a-f]{32})\r\n", head) for head in heads]
    assert len({token[1] for token in tokens if token is not None}) == 2, "each call has its own"


async def test_an_answer_of_another_length_than_it_says_is_not_believed() -> None:
    """Half a body is a broken connection, tried again, and never returned; for ever broken is an error."""
    async with proxied({}, **QUICK) as (store, proxy):
        await store.put("a/b", BODY)
        proxy.faults = {"GET": [HALVED] * 100}
        with pytest.raises(errors.StoreUnavailable, match="get a/b"):
            await store.get("a/b")


# --- Faults of the server ------------------------------------------------------------------------------------------


async def calls_fail(store: objects_s3.S3Objects, *, seconds: float) -> None:
    for call in (store.put("a/new", BODY), store.get("a/b"), store.list(""), store.delete("a/b")):
        began = time.monotonic()
        with pytest.raises(errors.StoreUnavailable) as caught:
            await call
        assert time.monotonic() - began < seconds
        assert caught.value.__cause__ is not None


async def test_a_stopped_server_is_said_in_time_and_met_again() -> None:
    server = s3.shared()
    async with opened(**QUICK) as store:
        await store.put("a/b", BODY)
        server.stop()
        try:
            await calls_fail(store, seconds=3)
        finally:
            server.start()
        assert await store.get("a/b") == BODY
        await store.put("a/c", BODY)
        assert [found.name for found in await store.list("")] == ["a/b", "a/c"]


async def test_a_server_that_does_not_answer_is_said_in_time() -> None:
    server = s3.shared()
    async with opened(retries=1, timeout_ms=200) as store:
        await store.put("a/b", BODY)
        server.pause()
        try:
            await calls_fail(store, seconds=3)
        finally:
            server.resume()
    async with opened() as store:
        await store.put("a/c", BODY)


async def test_a_put_outlives_a_pause_of_the_server() -> None:
    server = s3.shared()
    async with opened(retries=50, timeout_ms=200) as store:
        await store.put("warm", b"")
        server.pause()
        asyncio.get_running_loop().call_later(0.7, server.resume)
        began = time.monotonic()
        try:
            await store.put("a/b", BODY)
        finally:
            server.resume()
        assert time.monotonic() - began > 0.6
        assert await store.get("a/b") == BODY


async def test_a_large_body_has_more_time_than_a_small_one() -> None:
    async with opened(timeout_ms=400) as store:
        loop = asyncio.get_running_loop()
        async with store._limit(0) as small, store._limit(100 * limits.OBJECT_BYTES_PER_SECOND_MIN) as large:
            assert small.when() == pytest.approx(loop.time() + 0.4, abs=0.1)
            assert large.when() == pytest.approx(loop.time() + 100.4, abs=0.1)


@pytest.mark.parametrize("changes", [{"secret_key": "wrong-secret"}, {"access_key": "nobody"}])
async def test_wrong_credentials_are_named_but_never_shown(changes: dict[str, str]) -> None:
    server = s3.shared()
    settings = server.settings(**changes)
    with pytest.raises(errors.StoreUnavailable, match="check the access key") as caught:
        await objects_s3.open(server.url("x"), settings, ENV)
    shown = f"{caught.value} {caught.value.__cause__} {settings!r}"
    assert settings.secret_key not in shown
    store = objects_s3.S3Objects(server.url("x"), settings, ENV)
    for call in (store.put("a/b", b"x"), store.get("a/b"), store.delete("a/b")):
        with pytest.raises(errors.StoreUnavailable, match="check the access key"):
            await call


async def test_a_missing_bucket_is_named() -> None:
    with pytest.raises(errors.StoreMissing, match="no bucket absent-one"):
        async with opened(bucket="absent-one"):
            pass
    store = objects_s3.S3Objects("s3://absent-two/x", s3.shared().settings(), ENV)
    for call in (store.put("a/b", b"x"), store.get("a/b"), store.delete("a/b"), store.list("")):
        with pytest.raises(errors.StoreMissing, match="no bucket absent-two"):
            await call


async def test_an_object_larger_than_any_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as store:
        await store.put("a/b", b"x" * 1001)
        monkeypatch.setattr(limits, "BLOB_BYTES_MAX", 1000)
        with pytest.raises(errors.Corrupt, match="more than can be put"):
            await store.get("a/b")


def test_a_killed_run_leaves_no_server_behind() -> None:
    script = "from tests.servers import s3; s = s3.shared(); print(s.pid, s.folder, flush=True); input()"
    run = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    pid, folder = run.stdout.readline().split()
    assert Path(f"/proc/{pid}").exists()
    run.kill()
    run.communicate(timeout=20)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() or Path(folder).exists():
        assert time.monotonic() < deadline, "the server or its folder is still there"
        time.sleep(0.01)


# --- Listings ------------------------------------------------------------------------------------------------------


async def test_a_listing_goes_over_the_servers_pages() -> None:
    names = [f"a/{number:04d}" for number in range(1_015)]
    prefix = fresh()
    async with opened(prefix=prefix) as store, proxied({}, prefix=prefix) as (counted, proxy):
        for at in range(0, len(names), 64):
            await asyncio.gather(*(store.put(name, b"") for name in names[at : at + 64]))
        assert [found.name for found in await store.list("a/", count_max=2_000)] == names
        assert [found.name for found in await store.list("", count_max=1_010)] == names[:1_010]
        assert [found.name for found in await store.list("a/101", count_max=2_000)] == names[1_010:]
        assert [found.name for found in await store.list("", after="a/0999", count_max=2_000)] == names[1_000:]
        assert [found.name for found in await counted.list("a/000", count_max=2_000)] == names[:10]
        assert proxy.methods == ["GET"], "it ends with the names it is asked for"
        assert len(await counted.list("a/", count_max=2_000)) == len(names)
        assert proxy.methods == ["GET"] * 3


async def test_prefixes_are_apart_and_foreign_names_unseen() -> None:
    base = fresh()
    async with opened(prefix=f"{base}/one") as one, opened(prefix=f"{base}/one2") as two, opened(prefix=base) as outer:
        await one.put("a/b", b"1")
        await two.put("a/b", b"2")
        assert (await one.get("a/b"), await two.get("a/b")) == (b"1", b"2")
        assert await outer.get("one/a/b") == b"1"
        assert [found.name for found in await outer.list("one")] == ["one/a/b", "one2/a/b"]
    async with opened(prefix=f"{base}/Upper") as foreign, opened(prefix=base) as outer:
        await foreign.put("x", b"")
        assert [found.name for found in await outer.list("")] == ["one/a/b", "one2/a/b"]


@pytest.mark.parametrize(
    ("name", "prefix", "past"),
    [
        ("a/b", "a/b", False),
        ("a/a", "a/b", False),
        ("a/c", "a/b", True),
        ("a/b/c", "a/b-", False),  # a server that lists folder by folder puts this first
        ("a/c/d", "a/b-", True),
        ("b", "a/b", True),
        ("x", "", False),
    ],
)
def test_a_listing_ends_only_when_no_server_could_go_on(name: str, prefix: str, past: bool) -> None:
    assert objects_s3._is_past(name, prefix) == past


# --- Settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        *("", "s3://", "s3:///x", "s3:bucket", "http://bucket/x", "S3X://bucket", "s3://b", "s3://Bucket", "s3://a_b"),
        *(
            "s3://-ab",
            "s3://ab-",
            "s3://user:pass-word@bucket/x",
            "s3://bucket:80/x",
            "s3://bucket?x=1",
            "s3://bucket#x",
        ),
        *(
            "s3://bucket/..",
            "s3://bucket/a/../b",
            "s3://bucket/a//b",
            "s3://bucket/%2e",
            "s3://bucket/é",
            "s3://bucket/a b",
        ),
        *("s3://bucket/.hidden", "s3://[1", "s3://" + "b" * 64),
    ],
)
def test_a_bad_url_is_refused_without_repeating_secrets(url: str) -> None:
    with pytest.raises(errors.BadUrl) as caught:
        objects_s3.S3Objects(url, objects_s3.S3Settings(), ENV)
    assert "pass-word" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://my.buck-et1/a/B_c/d.e-f/"])
def test_a_good_url_is_taken(url: str) -> None:
    objects_s3.S3Objects(url, objects_s3.S3Settings(access_key="a", secret_key="b"), ENV)


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"endpoint": "http://127.0.0.1:1"}, "AWS_ALLOW_HTTP"),
        ({"endpoint": "ftp://127.0.0.1:1"}, "https://"),
        ({"endpoint": "localhost:9000"}, "https://"),
        ({"endpoint": "http://[1"}, "https://"),
        ({"endpoint": "https://"}, "https://"),
        ({"endpoint": "https://key:pass@host"}, "without keys"),
        ({"access_key": "a"}, "go together"),
        ({"secret_key": "b"}, "go together"),
        ({"retries": -1}, "retries"),
        ({"retries": limits.OBJECT_RETRIES_MAX + 1}, "retries"),
        ({"timeout_ms": 0}, "timeout"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], hint: str) -> None:
    with pytest.raises(errors.BadInput, match=hint):
        objects_s3.S3Objects("s3://bucket", objects_s3.S3Settings(**changes), ENV)


def test_settings_are_read_from_the_usual_variables() -> None:
    assert objects_s3.S3Settings.of({}) == objects_s3.S3Settings()
    named = {
        "AWS_ENDPOINT_URL": "http://one",
        "AWS_DEFAULT_REGION": "mars-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "AWS_SESSION_TOKEN": "session",
        "AWS_ALLOW_HTTP": "True",
    }
    assert objects_s3.S3Settings.of(named) == objects_s3.S3Settings(
        "http://one", "mars-1", "key", "hush", "session", True
    )
    special = named | {"AWS_ENDPOINT_URL_S3": "http://two", "AWS_REGION": "venus-1"}
    found = objects_s3.S3Settings.of(special)
    assert (found.endpoint, found.region) == ("http://two", "venus-1")
    assert "hush" not in f"{found} {found!r}"
    assert "session" not in f"{found} {found!r}"


async def test_the_environment_does_not_reach_past_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    misleading = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
        "AWS_REGION": "mars-1",
        "AWS_ACCESS_KEY_ID": "junk",
        "AWS_SECRET_ACCESS_KEY": "junk",
        "AWS_SESSION_TOKEN": "junk",
        "AWS_BUCKET": "junk",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
        "AWS_CONDITIONAL_PUT": "disabled",
        "AWS_UNSIGNED_PAYLOAD": "true",
        "AWS_S3_EXPRESS": "true",
    }
    for name, value in misleading.items():
        monkeypatch.setenv(name, value)
    async with proxied({}) as (store, proxy):
        await store.put("a/b", b"x")
        assert await store.get("a/b") == b"x"
        with pytest.raises(errors.Exists):
            await store.put("a/b", b"x")
    assert "unsigned" not in "".join(proxy.heads).lower()


async def test_without_keys_the_driver_finds_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.SECRET_KEY)
    async with opened(access_key="", secret_key="") as store:
        await store.put("a/b", b"x")
        assert await store.get("a/b") == b"x"
