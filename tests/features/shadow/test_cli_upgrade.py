"""upgrade --shadow: what would differ, for people and as data, for one world and for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.cli import cli_kit, shop
from tests.cli.cli_kit import SHOP, Said, run
from worldline.features.shadow import calls as shadow_calls
from worldline.features.shadow import report_text as shown
from worldline.features.shadow.pure import shadow_report


def edited(folder: Path, *words: str) -> Path:
    text = Path(SHOP).read_text()
    for old, new in zip(words[::2], words[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    file = folder / "new.py"
    file.write_text(text)
    return file


def tried(store: Path, file: object, *words: object) -> Said:
    return run("upgrade", *(words or ("alice",)), "--shadow", "--app", file, "--store", store)


def test_nothing_would_differ(stocked: Path, tmp_path: Path) -> None:
    steps = run("show", "alice", "--store", stocked, "--json").json["step"]
    for file in (SHOP, edited(tmp_path, '"slept"', '"SLEPT"')):
        said = tried(stocked, file)
        assert said.code == 0
        assert said.out.startswith(f"alice: nothing would differ: its last {steps} steps come out the same under code ")
        found = tried(stocked, file, "alice", "--json").json
        assert (found["world"], found["differs"], found["steps"], found["effects"]) == ("alice", False, steps, [])
        assert set(found["counts"].values()) == {0}
        assert tried(stocked, file, "alice", "--json", "--last", 3).json["steps"] == 3


def test_every_difference_is_said(stocked: Path, tmp_path: Path) -> None:
    file = edited(
        tmp_path,
        'shout(f"hello {name}")',
        'shout(f"hullo {name}")',
        "self.cents += event.cents",
        "self.cents += 2 * event.cents",
        "wl.wait(Approved, timeout=7200)",
        "wl.wait(Deposited, timeout=7200)",
        "found.by",
        "found.cents",
        "it broke",
        "it fell",
        "cents below zero",
        "below zero",
        "await wl.sleep(seconds)\n    except",
        "await wl.sleep(seconds + 1)\n    except",
    )
    said = tried(stocked, file)
    assert said.code == 1
    for text in (
        "come out otherwise",
        "  runs that would block: 1\n    run 'order' (approval), if the world went on under it now\n",
        "journal: wait 'Approved'",
        "worldline runs reset alice order --to 1",
        "  effects that would be asked otherwise: 1\n    run 'hello', operation 2, step 3, height ",
        "      journal: effect 'shout' (text='hello Alice')\n      code:    effect 'shout' (text='hullo",
        "(text='hullo Alice') (no recorded answer, so its run waits)\n",
        "  timers that would be set otherwise: 1\n    run 'nap', operation 1, ",
        "      journal: timer 'sleep' 3600 s\n      code:    timer 'sleep' 3601 s\n",
        "  cells that would end different: 1\n    Account['bob']\n      cents: 5 -> 10\n",
        "  runs that would end otherwise: 2\n    run 'bad' (broken)\n      journal: failed: ValueError: it broke\n",
        "      code:    running, waits for effect 'shout' (text='hullo Alice')\n",
        "  inputs that would be taken otherwise: 1\n    event Deposited(cents=-1, account='bob') (step ",
        "      code:    fails: ValueError: below zero (ValueError)\n",
        "  skipped recorded answers and timers, which the code had not asked for: 1",
    ):
        assert text in said.out, said.out
    found: dict[str, Any] = tried(stocked, file, "alice", "--json").json
    assert found["counts"] == {
        "blocked": 1,
        "effects": 1,
        "timers": 1,
        "messages": 0,
        "cells": 1,
        "runs": 2,
        "inputs": 1,
    }
    assert found["effects"][0]["new"]["arguments"] == {"text": "hullo Alice"}
    assert found["cells"][0]["fields"] == [{"field": "cents", "change": "changed", "old": 5, "new": 10}]
    assert found["runs"][0]["new"]["value"] == {"code": "ValueError", "message": "ValueError: it fell"}


def test_all_worlds_of_which_one_differs(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("import worldline as wl\napp = wl.Program('other')\n")
    assert run("create", "apart", "--app", other, "--store", store).code == 0
    file = edited(tmp_path, "self.cents += event.cents", "self.cents += 2 * event.cents")
    found = run("upgrade", "--all", "--shadow", "--app", file, "--store", store, "--json")
    assert found.code == 1
    assert [(each["world"], each["differs"]) for each in found.lines] == [
        ("alice", True),
        ("bob", False),
        ("carol", False),
    ]
    people = run("upgrade", "--all", "--shadow", "--app", file, "--store", store).out
    assert "bob: nothing would differ" in people
    assert run("upgrade", "--all", "--shadow", "--app", SHOP, "--store", store).code == 0
    one = run("upgrade", "--all", "--shadow", "--last", 1, "--app", SHOP, "--store", store, "--json")
    assert [(each["steps"], each["differs"]) for each in one.lines] == [(1, False), (0, False), (0, False)]


def test_nothing_is_written(store: Path, tmp_path: Path) -> None:
    before = (store / "data.mdb").read_bytes()
    file = edited(tmp_path, 'shout(f"hello {name}")', 'shout(f"hullo {name}")')
    assert tried(store, file).code == 1
    assert tried(store, file, "--all").code == 1
    assert (store / "data.mdb").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "name worlds, or all with --all"),
        (["alice", "--all", "--shadow", "--app", SHOP], 2, "name worlds, or all with --all"),
        (["alice", "--shadow"], 2, "which code should be tried? Name its file with --app FILE"),
        (["alice", "--last", "3"], 2, "--last says how many steps --shadow tries"),
        (["alice", "--shadow", "--app", SHOP, "--last", "0"], 2, "--last"),
        (["alice", "--shadow", "--app", SHOP, "--last", "999"], 2, "steps can be tried, not 999: its state is kept"),
        (["alice", "--shadow", "--app", SHOP, "--to", "ab"], 2, "--to names code that a worker has"),
        (["alice", "--shadow", "--app", "absent.py"], 2, "there is no file absent.py"),
        (["alice", "--shadow", "--app", "raises.py"], 2, "raises.py cannot be loaded: line 1: KeyError: 'x'"),
        (["alice", "--shadow", "--app", "none.py"], 2, "none.py declares no program"),
        (["alice", "--shadow", "--app", "other.py"], 2, "is of program 'shop', which other.py does not declare"),
        (["--all", "--shadow", "--app", "other.py"], 3, "no world here is of 'other'"),
        (["nobody", "--shadow", "--app", SHOP], 3, "no world 'nobody'"),
        (["alice", "--app", SHOP], 3, "no worker that may run world 'alice' has code"),
    ],
    ids=lambda value: " ".join(map(str, value))[-40:] if isinstance(value, list) else "",
)
def test_what_cannot_be_tried(stocked: Path, tmp_path: Path, words: list[str], code: int, message: str) -> None:
    (tmp_path / "raises.py").write_text("raise KeyError('x')\n")
    (tmp_path / "none.py").write_text("x = 1\n")
    (tmp_path / "other.py").write_text("import worldline as wl\napp = wl.Program('other')\n")
    said = run("upgrade", *words, "--store", stocked, cwd=tmp_path)
    assert (said.code, said.out) == (code, ""), said
    assert message in said.err
    assert said.err.count("\n") == 1


def test_code_that_hangs_does_not_hang_the_command(
    stocked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_calls, "STEP_US", 300_000)
    file = edited(tmp_path, "        self.cents += event.cents", "        while True:\n            pass")
    said = tried(stocked, file)
    assert said.code == 1
    assert "could not be tried to the end" in said.out
    assert "it was in deposited (new.py:" in said.out


def test_a_workflow_that_is_gone(stocked: Path, tmp_path: Path) -> None:
    found = tried(stocked, edited(tmp_path, "async def approval", "async def approved"), "alice", "--json").json
    assert [each["run"] for each in found["blocked"]] == ["order"]
    assert "has no workflow 'approval'" in found["blocked"][0]["report"]


def test_the_project_names_the_code(stocked: Path, tmp_path: Path) -> None:
    """As in its folder: the edited file is what `worldline.toml` names."""
    edited(tmp_path, '"slept"', '"SLEPT"')
    (tmp_path / "worldline.toml").write_text(f'store = "{stocked}"\napp = "new.py"\n')
    assert run("upgrade", "alice", "--shadow", cwd=tmp_path).code == 0


def test_long_values_and_lists_are_cut() -> None:
    asked = shadow_report.RequestDiff("effect", "e", None, "effect 'e'", 1, 2, 3)
    found = shadow_report.ShadowReport(
        "p",
        "00",
        "11",
        5,
        1,
        5,
        9,
        effects=[shadow_report.AskedOtherwise("", None, asked, further=3)],
        cells=[
            shadow_report.CellOtherwise(
                "R", "", [shadow_report.FieldOtherwise("", "added", None, "x" * 900)], further=2
            )
        ],
        unlisted={"effects": 7},
    )
    said = shown.lines("w", found)
    assert "  effects that would be asked otherwise: 8" in said
    assert "    ... and 7 more" in said
    assert "      and 3 more behind it" in said
    assert "      and 2 more fields" in said
    assert max(map(len, said)) < 260


def test_adopting_the_code_of_a_file(tmp_path: Path) -> None:
    """Without --shadow, --app names the code that a world goes on under, as --to does."""
    store = tmp_path / "store"

    async def make() -> None:
        async with wl.open(str(store), host=shop.app) as universe:
            await universe.ensure("alice", shop.app)

    aio.run(make())
    file = edited(tmp_path, '"slept"', '"SLEPT"')
    with cli_kit.dev(file, "--store", store, cwd=tmp_path):
        said = run("upgrade", "alice", "--app", file, "--store", store, "--json")
        assert (said.code, said.json["name"]) == (0, "alice")
        every = run("upgrade", "--all", "--app", file, "--store", store, "--json")
        assert [each["name"] for each in every.lines] == ["alice"]
        assert run("upgrade", "alice", "--app", SHOP, "--store", store).code == 3
