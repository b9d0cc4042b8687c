"""universe allow, deny, allowed."""

from __future__ import annotations

from pathlib import Path

import worldline as wl
from tests import aio
from tests.cli.cli_kit import run


async def make(store: Path, name: str) -> str:
    async with wl.open(str(store), universe=name, create=True) as universe:
        return universe.id


def test_allowing_and_denying(store: Path) -> None:
    made = aio.run(make(store, "city"))
    here = ["--store", store, "--json"]
    assert "no other universe may send here" in run("universe", "allowed", "--store", store).err
    said = run("universe", "allow", "city", "--to", "al*", "--event", "Deposited", *here)
    assert (said.code, said.json["changed"]) == (0, True)
    assert run("universe", "allow", "city", "--to", "al*", "--event", "Deposited", *here).json["changed"] is False
    assert run("universe", "allow", made, *here).code == 0
    [first, second] = run("universe", "allowed", *here).lines
    assert (first["universe"], first["worlds"], first["to"], first["events"]) == ("city", "*", "al*", "Deposited")
    assert (second["universe"], second["universe_id"]) == (made, made)
    assert run("universe", "deny", "city", "--to", "nothing", *here).code == 1
    assert len(run("universe", "deny", "city", *here).json["taken"]) == 2
    assert run("universe", "allowed", *here).lines == []
    log = run("universe", "allowed", "--log", *here).lines
    assert [(each["change"], each["allowed"]) for each in log] == [(3, False), (3, False), (2, True), (1, True)]


def test_what_cannot_be_allowed(store: Path) -> None:
    here = ["--store", store, "--json"]
    assert run("universe", "allow", "nowhere", *here).code == 3
    assert run("universe", "allow", "default", *here).code == 2
    assert run("universe", "allow", "billing:default", *here).code == 3
    assert run("universe", "allow", "f" * 32, "--to", "a*b", *here).code == 2
    assert run("universe", "allowed", *here).lines == []


def test_a_project_names_its_peers(store: Path, tmp_path: Path) -> None:
    far = tmp_path / "far"
    made = aio.run(make(far, "city"))
    (tmp_path / "worldline.toml").write_text(f'store = "{store}"\npeers = {{ far = "far" }}\n')
    assert run("universe", "allow", "far:city", cwd=tmp_path).code == 0
    [found] = run("universe", "allowed", "--json", cwd=tmp_path).lines
    assert (found["universe"], found["universe_id"]) == ("far:city", made)
