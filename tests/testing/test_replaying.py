"""Exported journals: what a file holds, that it replays, and that every damage to it is noticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.kernel import shop
from worldline import testing
from worldline.base import errors
from worldline.layers.history import journal_file


def lived(path: Path, *, large: bool = False) -> None:
    with testing.world(shop.app, shop.script(), name="alice") as world:
        world.send(shop.Deposited("a", 5))
        world.run(shop.greet("Ada" * (10_000 if large else 1)), id="hello")
        world.export(path)


@pytest.mark.parametrize("large", [False, True])
def test_an_exported_journal_replays(tmp_path: Path, large: bool) -> None:
    lived(tmp_path / "j", large=large)
    assert testing.replay(tmp_path / "j", shop.app) == 4
    lines = (tmp_path / "j").read_text().splitlines()
    header = json.loads(lines[0])
    assert (header["worldline"], header["version"], header["name"], header["program"]) == (
        "journal",
        4,
        "alice",
        "shop",
    )
    assert json.loads(lines[1])["kind"] == "event"
    assert any('"blob"' in line for line in lines) is large
    read = journal_file.read(lines)
    assert list(journal_file.lines(read)) == [line + "\n" for line in lines]


def test_a_journal_above_a_change_of_program_starts_with_a_snapshot(tmp_path: Path) -> None:
    with testing.world(shop.app, shop.script()) as world:
        run = world.start(shop.greet("Ada"), id="hello")
        world.send(shop.Deposited("a", 5))
        assert world.adopt(shop.app) == {}
        assert run.result() == "HELLO ADA"
        world.send(shop.Deposited("a", 2))
        world.export(tmp_path / "j")
    assert testing.replay(tmp_path / "j", shop.app) == 3
    assert journal_file.read((tmp_path / "j").read_text().splitlines()).start.height > 0


def test_other_code_is_found_out(tmp_path: Path) -> None:
    lived(tmp_path / "j")
    edited = wl.Program("shop")
    edited.reducers.update(shop.app.reducers)
    edited.effects.update(shop.app.effects)

    @edited.workflow
    async def greet(name: str) -> str:
        return await shop.shout(f"hello {name}")

    with pytest.raises(wl.errors.Diverged) as caught:
        testing.replay(tmp_path / "j", edited)
    assert "at height 5 (step 2)" in caught.value.report
    assert "journal: timer_set" in caught.value.report
    assert "code:    effect_requested" in caught.value.report


def test_another_program_is_refused(tmp_path: Path) -> None:
    lived(tmp_path / "j")
    with pytest.raises(wl.BadInput, match="journal of a world of 'shop'"):
        testing.replay(tmp_path / "j", wl.Program("bank"))


def change(number: int, edit: Callable[[dict[str, Any]], object]) -> Callable[[list[str]], list[str]]:
    def damage(lines: list[str]) -> list[str]:
        record = json.loads(lines[number])
        edit(record)
        return (
            [*lines[:number], json.dumps(record), *lines[number + 1 :]]
            if number >= 0
            else [*lines[:-1], json.dumps(record)]
        )

    return damage


def blob_of(lines: list[str]) -> int:
    return next(index for index, line in enumerate(lines) if line.startswith('{"blob"'))


def swapped(lines: list[str]) -> list[str]:
    """The last two entries, each in the other's place."""
    first, second = [index for index, line in enumerate(lines) if line.startswith('{"height"')][-2:]
    lines[first], lines[second] = lines[second], lines[first]
    return lines


DAMAGE: dict[str, Callable[[list[str]], list[str]]] = {
    "cut short": lambda lines: lines[:-1],
    "empty": lambda lines: [],
    "header only": lambda lines: lines[:1],
    "no header": lambda lines: lines[1:],
    "entry missing": lambda lines: [*lines[:2], *lines[3:]],
    "entry twice": lambda lines: [*lines[:2], lines[1], *lines[2:]],
    "entries swapped": lambda lines: swapped(lines),
    "something after the end": lambda lines: [*lines, lines[1]],
    "not JSON": lambda lines: [lines[0], "{", *lines[2:]],
    "not an object": lambda lines: [lines[0], "[1]", *lines[2:]],
    "newer": change(0, lambda record: record.update(version=5)),
    "older": change(0, lambda record: record.update(version=3)),
    "of something else": change(0, lambda record: record.update(worldline="photo")),
    "an id cut": change(0, lambda record: record.update(world=record["world"][2:])),
    "a flipped byte": change(1, lambda record: record.update(payload="A" + record["payload"][1:])),
    "not base64": change(1, lambda record: record.update(payload="***")),
    "unknown kind": change(1, lambda record: record.update(kind="party")),
    "time changed": change(1, lambda record: record.update(time_us=record["time_us"] + 1)),
    "height as text": change(1, lambda record: record.update(height="1")),
    "state changed": change(1, lambda record: record.update(state="00" * 32)),
    "end changed": change(-1, lambda record: record["end"].update(height=1)),
    "end without height": change(-1, lambda record: record["end"].pop("height")),
    "blob changed": lambda lines: change(blob_of(lines), lambda record: record.update(data="AAAA"))(lines),
    "blob missing": lambda lines: [line for line in lines if not line.startswith('{"blob"')],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_every_damage_is_noticed(tmp_path: Path, damage: Callable[[list[str]], list[str]]) -> None:
    lived(tmp_path / "j", large=True)
    lines = (tmp_path / "j").read_text().splitlines()
    (tmp_path / "j").write_text("\n".join(damage(lines)))
    with pytest.raises(errors.Corrupt):
        testing.replay(tmp_path / "j", shop.app)
