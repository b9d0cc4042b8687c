"""The declared name is the identity: functions are renamed while runs of them are under way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.kernel.test_fingerprint import load
from worldline import testing

BEFORE = """
import worldline as wl

app = wl.Program("shop")

@app.effect
async def charge(cents: int) -> str:
    return "ch"

@app.workflow
async def helper(n: int) -> int:
    await wl.sleep(1)
    return n

@app.workflow
async def checkout(cents: int, rounds: int) -> str:
    first = wl.random().randrange(1_000_000)
    ids = [str(wl.uuid()) for _ in range(2)]
    paid = await charge(cents)
    n = await helper(3)
    await wl.sleep(60)
    if rounds:
        wl.continue_as_new(checkout(cents, rounds - 1))
    second = wl.random().randrange(1_000_000)
    return f"{paid} {n} {first} {second} {ids}"
"""


def renamed(text: str) -> str:
    """Every function under another name, declared under its old one."""
    for kind, old, new in (
        ("effect", "charge", "take_money"),
        ("workflow", "helper", "count"),
        ("workflow", "checkout", "buy"),
    ):
        declared = f"@app.{kind}\nasync def {old}("
        assert declared in text
        text = text.replace(declared, f'@app.{kind}(name="{old}")\nasync def {new}(').replace(
            f"{old}(cents", f"{new}(cents"
        )
        text = text.replace(f"await {old}(", f"await {new}(")
    return text


@pytest.fixture
def programs(tmp_path: Path) -> tuple[Any, Any]:
    after = renamed(BEFORE)
    assert "await take_money(cents)" in after
    assert "continue_as_new(buy(" in after
    return load(tmp_path, BEFORE, "before"), load(tmp_path, after, "after")


def test_the_hash_is_the_same(programs: tuple[Any, Any]) -> None:
    before, after = programs
    assert before.app.hash == after.app.hash
    assert list(after.app.effects) == ["charge"]
    assert list(after.app.workflows) == ["helper", "checkout"]
    assert repr(after.buy(5, rounds=0)) == "checkout(5, rounds=0)"


def test_another_name_is_another_program(tmp_path: Path) -> None:
    text = renamed(BEFORE)
    hashes = [
        load(tmp_path, each, f"m{number}").app.hash
        for number, each in enumerate(
            [text, text.replace('name="charge"', 'name="debit"'), text.replace('name="helper"', 'name="assistant"')]
        )
    ]
    assert len(dict.fromkeys(hashes)) == 3


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_run_goes_on_across_the_rename(programs: tuple[Any, Any], rounds: int) -> None:
    """And draws the same numbers as one that nothing happened to."""
    before, after = programs
    with testing.world(before.app, wl.Script().on(before.charge, "ch_1"), drops=False) as twin:
        expected = twin.run(before.checkout(5, rounds), id="r")
    with testing.world(before.app, wl.Script().on(before.charge, "ch_1")) as world:
        run = world.start(before.checkout(5, rounds), id="r")
        world.advance(30)
        assert world.adopt(after.app) == {}
        assert run.result() == expected
        world.prove()


async def test_on_a_store(programs: tuple[Any, Any], tmp_path: Path) -> None:
    before, after = programs
    url = str(tmp_path / "store")
    async with wl.open(url, host=before.app) as universe:
        world = await universe.ensure("alice", before.app)
        _ = await world.start(before.checkout(5, 0), id="r")
        await (await world.start(before.helper(1))).result(10)
    async with wl.open(url, host=after.app) as universe:
        world = await universe.ensure("alice", after.app)
        assert await world.run(after.count(2), timeout=10) == 2
        assert (await world.start(after.buy(5, 0), id="r")).id == "r"  # the same call, so the same run
        kinds = [each.kind.name for each in await world.journal()]
        assert "PROGRAM_CHANGED" not in kinds


def test_names_are_checked() -> None:
    app = wl.Program("p")
    with pytest.raises(wl.BadInput, match="an effect's name must be printable"):

        @app.effect(name=" x")
        async def one() -> None: ...

    with pytest.raises(wl.BadInput, match="a workflow's name must be printable"):

        @app.workflow(name="x/")
        async def two() -> None: ...

    @app.effect(name="same")
    async def three() -> None: ...

    with pytest.raises(wl.BadInput, match="already has an effect named 'same'"):

        @app.effect(name="same")
        async def four() -> None: ...
