"""worldline relay: lines of JSON, and webhooks, into an inbox; nothing is taken that is not right."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.cli.cli_kit import COMMAND, run
from worldline.base import env_os, limits
from worldline.cli.relay import inlet, webhook
from worldline.kernel import values
from worldline.layers import inbox as inboxes
from worldline.model import inbox

app = wl.Program("post")
SECRET = b"0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    async def make() -> None:
        async with wl.open(str(tmp_path / "store"), create=True) as universe:
            await universe.create("post", app)

    aio.run(make())
    return tmp_path / "store"


def unread(folder: Path) -> list[Any]:
    """What is in the inbox, read as values."""

    async def look() -> list[Any]:
        async with wl.open(str(folder)) as universe:
            at = await universe.world("post")._handle.address()
            engine = universe._connection.store.engine
            page = (await engine.read(inboxes.read_range(at, count_max=10_000))).page(0)
            return [value_of(each.item) for each in inboxes.decode(page.items)]

    return aio.run(look())


def value_of(item: inbox.Item | None) -> Any:
    assert isinstance(item, inbox.Event)
    if item.schema != "Envelope":
        return item.schema, values.load(Any, item.payload.inline or b"")
    envelope = values.load(wl.Envelope, item.payload.inline or b"")
    return envelope.inbox, values.load(Any, envelope.payload)


# --- Lines -------------------------------------------------------------------------------------------------------


def test_lines_go_into_an_inbox_in_order_and_once(folder: Path) -> None:
    lines = '{"sku": "pen"}\n\n[1, 2]\n"text"\n'
    words = ["relay", "post", "--inbox", "orders", "--ids", "import", "--store", folder, "--json"]
    said = run(*words, stdin=lines)
    assert (said.code, said.json["lines"], said.json["sent"], said.json["repeated"]) == (0, 4, 3, 0)
    again = run(*words, stdin=lines + "4\n")
    assert (again.code, again.json["sent"], again.json["repeated"]) == (0, 4, 3)
    assert unread(folder) == [("orders", {"sku": "pen"}), ("orders", [1, 2]), ("orders", "text"), ("orders", 4)]


def test_a_bad_line_is_named_and_the_others_go_on(folder: Path) -> None:
    long = json.dumps("x" * limits.RELAY_BYTES_MAX)
    lines = f'{{"id": "a"}}\nno json\n{{"other": 1}}\n{long}\n{{"id": "a", "x": 2}}\n{{"id": 7}}\n'
    said = run("relay", "post", "--inbox", "in", "--id", "id", "--store", folder, stdin=lines)
    assert said.code == 1
    assert [line.split(": ")[1] for line in said.err.splitlines()] == ["line 2", "line 3", "line 4", "line 5"]
    assert "2 of 6 lines are in the inbox" in said.out
    assert unread(folder) == [("in", {"id": "a"}), ("in", {"id": 7})]


def test_lines_as_an_event(folder: Path) -> None:
    said = run("relay", "post", "--event", "Paid", "--store", folder, stdin='{"cents": 5}\n[]\n')
    assert said.code == 1
    assert unread(folder) == [("Paid", {"cents": 5})]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["post"], 2),
        (["post", "--inbox", "a", "--event", "b"], 2),
        (["post", "--inbox", "a", "--id", "x", "--ids", "y"], 2),
        (["nobody", "--inbox", "a"], 3),
        (["post", "--inbox", "a", "--listen", "127.0.0.1:0"], 2),
        (["post", "--inbox", "a", "--listen", "nowhere", "--secret-file", "SECRET"], 2),
        (["post", "--inbox", "a", "--listen", "127.0.0.1:0", "--secret-file", "SHORT"], 2),
        (["post", "--inbox", "a", "--listen", "127.0.0.1:0", "--secret-file", "missing"], 2),
        (["post", "--inbox", "a", "--listen", "127.0.0.1:0", "--ids", "x", "--secret-file", "SECRET"], 2),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], code: int, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "SECRET").write_bytes(SECRET)
    (tmp_path / "SHORT").write_bytes(b"short")
    said = run("relay", *words, "--store", folder, "--json", cwd=tmp_path, stdin="1\n")
    assert said.code == code
    assert said.error["message"]
    assert unread(folder) == []


def test_ctrl_c_leaves_what_was_sent_and_nothing_else(folder: Path) -> None:
    words = [*COMMAND, "relay", "post", "--inbox", "in", "--ids", "i", "--store", str(folder), "--json"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"1\n2\n")
        process.stdin.flush()
        for _ in range(1_000):
            if len(unread(folder)) == 2:
                break
        process.send_signal(signal.SIGINT)  # while it waits for the next line
        assert process.stdout is not None
        said = json.loads(process.stdout.read())
        assert process.wait(30) == 130
    assert (said["sent"], said["interrupted"]) == (2, True)
    assert unread(folder) == [("in", 1), ("in", 2)]


# --- Webhooks ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(folder: Path, **changes: Any) -> AsyncIterator[int]:
    async with wl.open(str(folder)) as universe:
        goes = inlet.Inlet(universe.world("post")._handle, "hooks", None, None)
        server = webhook.Webhook(goes, webhook.Settings(SECRET, **changes), env_os.OsEnv())
        port = await server.start("127.0.0.1", 0)
        try:
            yield port
        finally:
            await server.close()


async def post(port: int, raw: bytes) -> tuple[int, dict[str, Any], str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        writer.write(raw)
        await writer.drain()
    answer = await reader.read()
    writer.close()
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]), json.loads(body), head.lower()


def request(
    body: bytes, *, id: str | None = "one", signed: str | None = None, path: str = "/", method: str = "POST",
    more: str = "",
) -> bytes:  # fmt: skip
    lines = [f"{method} {path} HTTP/1.1", "Host: here", f"Content-Length: {len(body)}"]
    if id is not None:
        lines.append(f"Idempotency-Key: {id}")
    lines.append(f"X-Signature-256: {webhook.signature(SECRET, id or '', body) if signed is None else signed}")
    return "\r\n".join(lines).encode() + more.encode() + b"\r\n\r\n" + body


def test_a_signed_post_is_taken_once(folder: Path) -> None:
    async def story() -> None:
        async with serving(folder) as port:
            status, first, _ = await post(port, request(b'{"a": 1}'))
            assert (status, first["id"], first["already_enqueued"]) == (202, "one", False)
            assert await post(port, request(b'{"a": 1}')) != (202, first, "")
            status, again, _ = await post(port, request(b'{"a": 1}'))
            assert (status, again["stamp"], again["already_enqueued"]) == (202, first["stamp"], True)
            assert (await post(port, request(b'{"a": 2}')))[0] == 409

    aio.run(story())
    assert unread(folder) == [("hooks", {"a": 1})]


BODY = b'{"a": 1}'
OTHER = webhook.signature(b"another secret!!", "one", BODY)
BAD: list[tuple[str, bytes, int]] = [
    ("no signature", request(BODY, signed=""), 401),
    ("another secret", request(BODY, signed=OTHER), 401),
    ("another body", request(b"{}", signed=webhook.signature(SECRET, "one", BODY)), 401),
    ("another id", request(BODY, id="two", signed=webhook.signature(SECRET, "one", BODY)), 401),
    ("the body alone is signed", request(BODY, signed=webhook.signature(SECRET, "one", BODY, signs_id=False)), 401),
    ("no id", request(BODY, id=None), 400),
    ("an id that is none", request(BODY, id="message:x"), 400),
    ("no json", request(b"nothing"), 400),
    ("another path", request(BODY, path="/other"), 404),
    ("another method", request(BODY, method="PUT"), 405),
    ("too large", request(b"1" * 2_000), 413),
    ("no length", b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("a length that is none", b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
    ("chunked", request(BODY, more="\r\nTransfer-Encoding: chunked"), 400),
    ("a header twice", request(BODY, more="\r\nIdempotency-Key: one"), 400),
    ("no http", b"hello\r\n\r\n", 400),
    ("a large head", b"POST / HTTP/1.1\r\nX: " + b"y" * (limits.WEBHOOK_HEAD_BYTES_MAX + 10) + b"\r\n\r\n", 431),
]


def test_what_is_not_right_is_refused_and_changes_nothing(folder: Path) -> None:
    async def story() -> dict[str, int]:
        async with serving(folder, bytes_max=1_000) as port:
            answers = {}
            for what, raw, _ in BAD:
                status, body, _ = await post(port, raw)
                assert list(body) == ["error"], what
                answers[what] = status
            return answers

    assert aio.run(story()) == {what: status for what, _, status in BAD}
    assert unread(folder) == []


def test_a_sender_that_signs_the_body_alone(folder: Path) -> None:
    async def story() -> int:
        async with serving(folder, signs_id=False) as port:
            signed = webhook.signature(SECRET, "", BODY, signs_id=False)
            return (await post(port, request(BODY, signed=signed)))[0]

    assert aio.run(story()) == 202


def test_more_than_the_rate_is_turned_away(folder: Path) -> None:
    async def story() -> list[int]:
        async with serving(folder, rate=3.0) as port:
            return [(await post(port, request(BODY, id=f"i{number}")))[0] for number in range(8)]

    found = aio.run(story())
    assert found[:3] == [202, 202, 202]
    assert 429 in found
    assert len(unread(folder)) == found.count(202)


def test_a_world_that_takes_no_input_and_a_store_that_is_gone(folder: Path) -> None:
    async def story() -> list[int]:
        async with wl.open(str(folder)) as universe, serving(folder) as port:
            await universe.world("post").archive()
            closed = (await post(port, request(BODY)))[0]
            await universe.world("post").resume()

            async def down(*_: Any, **__: Any) -> Any:
                raise wl.StoreError("gone")

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(inlet.Inlet, "put", down)
                return [closed, (await post(port, request(BODY)))[0]]

    assert aio.run(story()) == [409, 503]
    assert unread(folder) == []
