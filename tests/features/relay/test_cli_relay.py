"""worldline relay: lines of JSON, and webhooks, into an inbox; nothing is taken that is not right."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import worldline as wl
from tests import aio
from tests.cli.cli_kit import COMMAND, run
from worldline.base import limits
from worldline.features.relay import webhook_signature
from worldline.kernel import user_values
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
    assert isinstance(item, inbox.InboxEvent)
    if item.schema != "Envelope":
        return item.schema, user_values.load(Any, item.payload.inline or b"")
    envelope = user_values.load(wl.Envelope, item.payload.inline or b"")
    return envelope.inbox, user_values.load(Any, envelope.payload)


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
    assert ": 2 of 6 lines" in said.out
    assert unread(folder) == [("in", {"id": "a"}), ("in", {"id": 7})]


def test_hostile_lines_end_nothing(folder: Path) -> None:
    """Deep beyond any parser's stack, no text, no number: each is refused by itself."""
    hostile = [
        "[" * 100_000,
        '{"a":' * 20_000 + "1" + "}" * 20_000,
        r'"\ud800x"',
        "9" * 5_000,
        "1" * 30,
        "[" * 100 + "]" * 100,
    ]
    said = run("relay", "post", "--inbox", "in", "--store", folder, "--json", stdin="\n".join([*hostile, "7"]))
    assert (said.code, said.json["refused"], said.json["sent"]) == (1, len(hostile), 1)
    assert unread(folder) == [("in", 7)]


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
    for name, secret in (("SECRET", SECRET), ("SHORT", b"short")):
        (tmp_path / name).write_bytes(secret)
        (tmp_path / name).chmod(0o600)
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


def test_a_relay_of_webhooks_as_a_process(folder: Path, tmp_path: Path) -> None:
    for name, secret in (("old", b"0123456789abcdef"), ("new", b"whsec_" + base64.b64encode(b"k" * 24))):
        (tmp_path / name).write_bytes(secret)
        (tmp_path / name).chmod(0o600)
    words = [*COMMAND, "relay", "post", "--inbox", "in", "--listen", "127.0.0.1:0", "--store", str(folder), "--json"]
    words += ["--secret-file", str(tmp_path / "old"), "--secret-file", str(tmp_path / "new"), "--tolerance", "60"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        now, body = int(time.time()), b'{"a": 1}'

        def post(at: int) -> int:
            headers = {
                "webhook-id": "msg_1",
                "webhook-timestamp": str(at),
                "webhook-signature": webhook_signature.standard_signature(
                    b"k" * 24, id="msg_1", timestamp=at, body=body
                ),
            }
            return httpx.post(url, content=body, headers=headers, trust_env=False).status_code

        assert [post(now), post(now + 1), post(now - 300)] == [202, 200, 401]
        process.send_signal(signal.SIGINT)
        said = json.loads(process.stdout.read())
        assert process.wait(30) == 0
    assert said == {"stopped": "relay", "taken": 1, "repeated": 1, "refused": 1}
    assert unread(folder) == [("in", {"a": 1})]
