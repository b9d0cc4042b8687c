"""export, import, verify --file, backup, restore and resume --all: what is said, and how the command ends."""

from __future__ import annotations

from pathlib import Path

import pytest

import worldline as wl
from tests import aio
from tests.cli import shop
from tests.cli.cli_kit import copy, run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Worlds `alice`, with a deposit, and `bob`, in one universe, and `carol` in another."""
    folder = tmp_path_factory.mktemp("copies") / "s"

    async def make() -> None:
        for universe_name, names in (("default", ("alice", "bob")), ("other", ("carol",))):
            async with wl.open(str(folder), host=shop.app, universe=universe_name) as universe:
                for name in names:
                    world = await universe.ensure(name, shop.app)
                    await (await world.send(shop.Deposited("ann", 5))).applied(20)

    aio.run(make())
    return folder


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return copy(made, tmp_path / "store")


def test_a_world_goes_through_a_file(store: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "alice.world", tmp_path / "other"
    said = run("export", "alice", file, "--store", store)
    assert said.code == 0
    assert said.out.startswith("alice up to height 1: 1 segment, ")
    assert said.out.endswith(f"bytes written to {file}\n")
    assert run("export", "alice", file, "--store", store).code == 4
    assert run("export", "nobody", tmp_path / "x", "--store", store).code == 3
    found = run("verify", "--file", file, "--json").json
    assert (found["holds"], found["name"], found["height"]) == (True, "alice", 1)
    said = run("import", file, "--store", other)
    assert said.out.splitlines()[1] == f"it is archived: `worldline resume alice --store {other}` lets it go on"
    assert "made of the file alice.world" in run("why", "alice", "--store", other).out
    assert run("import", file, "--store", other).code == 0, "the same import again is the same"
    again = run("import", file, "--as", "copy", "--effects", "reissue", "--dry", "--store", other, "--json").json
    assert (again["name"], again["height"], again["chain"]) == ("copy", 1, found["chain"])
    refused = run("import", file, "--as", "alice", "--effects", "reissue", "--store", other)
    assert (refused.code, "--as" in refused.err) == (4, True)
    assert run("verify", "--all", "--store", other).code == 0
    assert run("resume", "alice", "--store", other).out == "alice is active\n"


def test_files_that_are_none(store: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "alice.world", tmp_path / "other"
    run("export", "alice", file, "--store", store)
    file.write_bytes(file.read_bytes()[:-10])
    for words in (("verify", "--file", file), ("import", file, "--store", other)):
        said = run(*words, "--json")
        assert (said.code, said.error["code"]) == (5, "bad_copy")
        assert "cut short" in said.error["message"]
        assert "make it again" in said.error["hint"]
    assert run("verify", "--file", tmp_path / "nowhere").code == 2
    assert run("verify", "alice", "--file", file, "--store", store).code == 2


def test_a_store_goes_through_a_backup(store: Path, tmp_path: Path) -> None:
    folder, other = tmp_path / "backups", tmp_path / "other"
    said = run("backup", store, folder)
    assert said.code == 0
    assert said.out.startswith("backup ")
    assert "2 universes" in said.out
    second = run("backup", folder, "--keep", 1, "--store", store, "--json").json
    assert (second["new_blobs"], second["pruned"]) == (0, 1)
    third = run("backup", "create", store, folder, "--only", "other", "--json").json
    assert third["universes"] == 1
    listed = run("backup", "list", folder, "-q").out.split()
    assert listed == [second["id"], third["id"]]
    assert run("backup", "verify", folder).out.count("all as written") == 2
    said = run("restore", folder, other, "--backup", second["id"])
    assert said.code == 0
    assert f"`worldline resume --all --store {other}` lets them go on" in said.out
    assert run("restore", folder, other).code == 4
    assert run("list", "--store", other, "--status", "archived", "-q").out.split() == ["bob", "alice"]
    assert run("resume", "--all", "--store", other).code == 2, "no terminal to ask at"
    assert run("resume", "--all", "--yes", "--store", other).out == "3 copies go on\n"
    assert run("verify", "--all", "--store", other).code == 0
    assert run("doctor", "--store", other).code == 0
    assert run("resume", "--store", other).code == 2
    assert run("restore", folder, tmp_path / "third", "--live").code == 0
    assert (
        run("list", "--universe", "other", "--store", tmp_path / "third", "--status", "active", "-q").out == "carol\n"
    )


def test_backups_that_are_none(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    assert run("restore", folder, tmp_path / "other").code == 5
    assert run("backup", "a", "b", "c").code == 2
    assert run("backup", tmp_path / "nowhere", folder).code == 5
    run("backup", store, folder)
    [manifest] = (folder / "backups").iterdir()
    data = manifest.read_bytes()
    manifest.unlink()
    manifest.write_bytes(data[:50] + b"?" + data[51:])
    for words in (("backup", "verify", folder), ("restore", folder, tmp_path / "other")):
        said = run(*words, "--json")
        assert (said.code, said.error["code"]) == (5, "bad_copy")
