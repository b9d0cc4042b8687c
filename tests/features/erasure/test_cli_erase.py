"""`worldline erase`, and what the commands that show things say afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.cli.cli_kit import Said, run
from tests.kits import people
from tests.kits.people import SECRET


@pytest.fixture(scope="module")
def erased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a world of a person's data, hosted by nobody."""
    store = tmp_path_factory.mktemp("people") / "store"
    app, names = people.program()

    async def stock() -> None:
        async with wl.open(str(store), host=app) as universe:
            world = await universe.create("w", app)
            await world.send(people.ada())
            await (await world.send(people.Shouted("ada"))).applied()
            started = await world.start(names["greet"]("ada", wl.Personal(SECRET, of="ada")), id="r")
            await world.send(people.Go(), to="r")
            await started.result(30)

    aio.run(stock())
    return store


def do(store: Path, *words: object) -> Said:
    return run(*words, "--store", store)


def answer(store: Path, *words: object) -> Any:
    said = do(store, *words, "--json")
    assert said.code == 0, said.err
    return said.json


def test_a_person_is_erased(erased: Path) -> None:
    plan = answer(erased, "erase", "w", "--key", "ada", "--dry-run")
    assert (plan["values"], plan["worlds"], plan["dry_run"]) == (6, ["w"], True)
    assert SECRET in do(erased, "state", "w").out
    before = do(erased, "journal", "w").out
    assert SECRET not in before
    assert "personal" in before
    assert do(erased, "erase", "w", "--key", "ada").code == 2, "no terminal to ask at"
    done = do(erased, "erase", "w", "--key", "ada", "--yes")
    assert done.out.strip() == "erased 6 personal values in w"
    assert do(erased, "erase", "w", "--key", "ada").out.strip() == "nothing is left to erase: it was erased before"
    shown = do(erased, "journal", "w").out
    assert "erased" in shown
    assert "personal" not in shown
    assert do(erased, "state", "w", "Person", "ada").out.strip().count("erased") == 3
    assert answer(erased, "runs", "show", "w", "r")["result"] == "erased"
    assert "6 personal values apart, 6 of them erased" in do(erased, "verify", "w").out
    for words in (
        ("why", "w"),
        ("show", "w"),
        ("diff", "w@1", "w"),
        ("runs", "list", "w"),
        ("dead", "list", "w"),
    ):
        said = do(erased, *words)
        assert said.code in (0, 1), said.err
        assert SECRET not in said.out + said.err, words


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["erase", "nobody", "--key", "ada"], 3, "no world 'nobody'"),
        (["erase", "w", "--key", "eve"], 3, "has no personal value of 'eve'"),
        (["erase", "w", "--payload", "99"], 3, "has no entry at height 99"),
        (["erase", "w"], 2, "say what to erase"),
        (["erase", "w", "--key", "ada", "--payload", "1"], 2, "say what to erase"),
    ],
)
def test_one_line_says_what_is_wrong(erased: Path, words: list[str], code: int, said: str) -> None:
    found = do(erased, *words)
    assert found.code == code
    assert said in found.err
