"""diff: what people read, what programs read, and one line for what cannot be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.cli import shop
from tests.cli.cli_kit import Said, run
from worldline.codec import differences
from worldline.features.diff import commands as diff_commands
from worldline.features.diff.records import (
    CellDiff,
    Diff,
    EffectDiff,
    EffectSide,
    Entries,
    Field,
    RunDiff,
    RunSide,
    Sides,
)
from worldline.inspect import entry_text


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world `alice` with a deposit (height 1) and, behind it, another, a run and an approval that is open."""
    folder = tmp_path_factory.mktemp("diff") / "s"

    async def make() -> None:
        async with wl.open(str(folder), host=shop.app) as universe:
            world = await universe.ensure("alice", shop.app)
            for cents in (5, 7):
                await (await world.send(shop.Deposited("bob", cents))).applied(20)
            await world.run(shop.greet("Ann"), id="hello")
            _ = await world.start(shop.approval("o1"), id="o")
            await universe.ensure("bob@2", shop.app)
            fork = await world.fork("fork", script=[{"effect": "shout", "answer": "HEY"}])
            await (await fork.send(shop.Deposited("bob", 1))).applied(20)
            await fork.run(shop.greet("Bob"), id="bye")

    aio.run(make())
    return folder


def diff(store: Path, *words: object) -> Said:
    return run("diff", *words, "--store", store)


def test_people_read_what_changed(store: Path) -> None:
    said = diff(store, "alice@1", "alice")
    assert said.code == 0, said
    lines = said.out.splitlines()
    assert lines[:2] == ["since alice@1 (step 1)", "- alice@1: nothing since then"]
    assert lines[2].startswith("+ alice@")
    assert "heights 2 to " in lines[2]
    assert lines[3:] == [
        "cells: 1 changed",
        "  ~ Account['bob']",
        "    cents: 5 -> 12",
        "runs: 2 added",
        '  + hello (greet) finished "HELLO ANN"',
        "  + o (approval) running, 0 of 2 operations done, waits for event Approved, timer wait",
        "effects: 1 added",
        '  + shout of run hello, operation 2: {"text":"hello Ann"} ok "HELLO ANN"',
    ]
    back = diff(store, "alice", "alice@1").out.splitlines()
    assert "    cents: 12 -> 5" in back
    assert '  - hello (greet) finished "HELLO ANN"' in back


def test_a_world_and_its_fork(store: Path) -> None:
    lines = diff(store, "alice", "fork").out.splitlines()
    height = run("show", "alice", "--store", store, "--json").json["height"]
    assert lines[0].startswith(f"since alice@{height} (step ")
    assert lines[1] == f"- alice@{height}: nothing since then"
    assert lines[2].startswith("+ fork@")
    assert lines[3:] == [
        "cells: 1 changed",
        "  ~ Account['bob']",
        "    cents: 12 -> 13",
        "runs: 1 added",
        '  + bye (greet) finished "HEY"',
        "effects: 1 added",
        '  + shout of run bye, operation 2: {"text":"hello Bob"} ok "HEY"',
    ]
    [scripted] = [
        each for each in run("journal", "fork", "--store", store, "--json").lines if each["kind"] == "scripted"
    ]
    said = {name: scripted[name] for name in ("effect", "args", "run", "status", "data")}
    assert said == {"effect": "shout", "args": {"text": "hello Bob"}, "run": "bye", "status": "ok", "data": "HEY"}


def test_json_has_these_fields_and_no_others(store: Path) -> None:
    said = diff(store, "alice@1", "alice@2", "--json").json
    assert list(said) == ["ancestor", "step", "height", "cells", "runs", "entries", "effects"]
    assert (said["ancestor"], said["step"], said["height"]) == ("alice", 1, 1)
    change = {"path": ["cents"], "change": "changed", "left": 5, "right": 12}
    assert said["cells"] == [
        {"reducer": "Account", "key": "bob", "change": "changed", "left": None, "right": None, "fields": [change]}
    ]
    assert (said["runs"], said["effects"]) == ([], [])
    assert said["entries"]["left"]["count"] == 0
    assert said["entries"]["right"] == {
        "world": "alice",
        "step": 2,
        "height": 2,
        "first": 2,
        "count": 1,
        "kinds": {"event": 1},
    }
    assert diff(store, "alice", "alice").out.splitlines()[-1] == "no cell, run or effect differs"


REFUSED: list[tuple[list[str], int, str]] = [
    (["alcie@1", "alice"], 3, "no world 'alcie' in universe 'default'; did you mean 'alice'?"),
    (["alice@9999", "alice"], 2, "world 'alice' has no height 9999: its head is at height "),
    (["alice@x", "alice"], 3, "no world 'alice@x'"),
    (["alice", "bob@2"], 2, "worlds 'alice' and 'bob@2' have no common ancestor"),
    (["alice@1"], 2, "Missing argument"),
]


@pytest.mark.parametrize(("words", "code", "message"), REFUSED, ids=[" ".join(row[0]) for row in REFUSED])
def test_one_line_for_what_cannot_be_compared(store: Path, words: list[str], code: int, message: str) -> None:
    said = diff(store, *words)
    assert (said.code, said.out) == (code, "")
    assert said.err.startswith(f"error: {message}")
    assert len(said.err.splitlines()) == 1
    assert diff(store, *words, "--json").error["message"].startswith(message[:20])


def test_a_name_that_looks_like_a_height_is_a_name(store: Path) -> None:
    assert diff(store, "bob@2", "bob@2@0").code == 0


def large() -> Diff:
    side = RunSide("flow", "running", None, None, 9, 3, ["event X"], 0)
    fields = tuple(Field(("lines", number, "a b"), "changed", number, "x" * 100) for number in range(30))
    return Diff(
        "w",
        3,
        9,
        [CellDiff("Cart", str(number), "changed", fields=fields) for number in range(50)],
        [RunDiff(str(number), "removed", side, None) for number in range(50)],
        Sides(*[Entries("w", 3, 9, None, 0, {})] * 2),
        [
            EffectDiff("r", each, "changed", EffectSide("a", 1, "ok", 2), EffectSide("b", 1, "open"))
            for each in range(50)
        ],
    )


def test_much_is_cut_to_about_forty_lines() -> None:
    lines = [line.text for line in diff_commands.lines(large(), every=False)]
    assert len(lines) <= 40
    assert all(len(line) < 200 for line in lines)
    assert [line for line in lines if "... and" in line] == [
        "    ... and 26 more fields",
        "  ... and 49 more cells",
        "  ... and 41 more runs",
        "  ... and 47 more effects",
    ]
    assert "    lines[0]['a b']: 0 -> \"" + "x" * 56 + "..." in lines
    assert lines[-3:-1] == ["    - a 1 ok 2", "    + b 1 open"]
    every = diff_commands.lines(large(), every=True)
    assert len(every) == 3 + 3 + 50 * 31 + 50 + 50 * 3
    assert not any("..." in line.text for line in every)


@pytest.mark.parametrize(
    ("path", "text"),
    [((), ""), (("a",), "a"), (("a", 0, "b"), "a[0].b"), ((1, 2), "[1][2]"), (("x y", "z"), "['x y'].z")],
)
def test_paths(path: tuple[Any, ...], text: str) -> None:
    assert differences.path_text(path) == text


def test_bytes_are_hexadecimal_text() -> None:
    cell = CellDiff("A", "", "added", None, {"raw": b"\x01"})
    assert entry_text.plain(cell)["right"] == {"raw": "01"}
