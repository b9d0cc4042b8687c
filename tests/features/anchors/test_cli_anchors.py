"""anchor, verify --since and prove --since: what is said of a history, and how the command ends."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import worldline as wl
from tests import aio
from tests.cli import shop
from tests.cli.cli_kit import copy, run

SCRIPT = Path(__file__).parents[3] / "tools" / "check_anchor.py"


def deposit(store: Path, *names: str, cents: int = 5) -> None:
    async def make() -> None:
        async with wl.open(str(store), host=shop.app) as universe:
            for name in names:
                world = await universe.ensure(name, shop.app)
                await (await world.send(shop.Deposited("ann", cents))).applied(20)

    aio.run(make())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("anchors") / "s"
    deposit(folder, "alice", "bob")
    return folder


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return copy(made, tmp_path / "store")


def test_a_history_that_goes_on_and_one_that_does_not(store: Path, tmp_path: Path) -> None:
    older = copy(store, tmp_path / "older")
    first, later = tmp_path / "first", tmp_path / "later"
    said = run("anchor", "--all", "--out", first, "--store", store)
    assert (said.code, said.out) == (0, f"2 anchors written to {first}\n")
    assert run("anchor", "--all", "--out", first, "--store", store).code == 4, "it is there already"
    deposit(store, "alice")
    line = run("anchor", "alice", "--store", store).out
    assert json.loads(line)["name"] == "alice"
    later.write_text(line)
    since = run("verify", "alice", "--since", first, "--store", store)
    assert (since.code, since.out.splitlines()[0]) == (
        0,
        "alice: holds since height 1: the history goes on from height 1",
    )
    back = run("verify", "alice", "--since", later, "--store", older)
    assert back.code == 1
    assert back.out.startswith("alice: rolled back since height")
    deposit(older, "alice", "alice", "alice", cents=6)
    other = run("verify", "alice", "--since", later, "--store", older, "--json")
    assert (other.code, other.lines[0]["verdict"], other.lines[1]["holds"]) == (1, "rewritten", True)
    assert run("verify", "--all", "--since", first, "--store", older).code == 0
    assert run("verify", "--all", "--since", later, "--store", older).code == 1
    both = tmp_path / "both"
    both.write_text(first.read_text() + line)
    assert run("verify", "alice", "--since", both, "--store", store).code == 0
    assert run("verify", "alice", "--since", both, "--store", older).code == 1, "any of them"


def test_a_world_that_is_gone_is_said(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "anchors"
    run("anchor", "--all", "--out", file, "--store", store)
    assert run("delete", "bob", "--yes", "--store", store).code == 0
    said = run("verify", "--all", "--since", file, "--store", store)
    assert (said.code, "bob: missing: the world" in said.out) == (1, True)


def test_signed_anchors(store: Path, tmp_path: Path) -> None:
    key, file = tmp_path / "anchor.key", tmp_path / "anchor"
    public = run("anchor", "--new-key", key, "--json").json["public"]
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert run("anchor", "--new-key", key).code == 4
    run("anchor", "alice", "--sign", key, "--out", file, "--store", store)
    said = run("verify", "alice", "--since", file, "--key", public, "--store", store)
    assert (said.code, f"signed by {public}" in said.out) == (0, True)
    done = subprocess.run([sys.executable, SCRIPT, file, public], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wrong = run("verify", "alice", "--since", file, "--key", "00" * 32, "--store", store)
    assert (wrong.code, "another key" in wrong.err) == (5, True)
    forged = tmp_path / "forged"
    forged.write_text(file.read_text().replace('"step":1', '"step":0'))
    said = run("verify", "alice", "--since", forged, "--store", store)
    assert (said.code, "forged or damaged" in said.err) == (5, True)
    plain = tmp_path / "plain"
    run("anchor", "alice", "--out", plain, "--store", store)
    assert "is not signed" in run("verify", "alice", "--since", plain, "--key", public, "--store", store).err


def test_a_proof_between_two_anchors(store: Path, tmp_path: Path) -> None:
    older, newer, proof = tmp_path / "older", tmp_path / "newer", tmp_path / "proof"
    run("anchor", "alice", "--out", older, "--store", store)
    deposit(store, "alice", "alice")
    run("anchor", "alice", "--out", newer, "--store", store)
    said = run("prove", "alice", "--since", older, "--out", proof, "--store", store)
    assert said.code == 0
    assert said.out.splitlines()[1] == f"chain {json.loads(newer.read_text())['chain']}"
    done = subprocess.run([sys.executable, SCRIPT, older, newer, proof], capture_output=True, text=True, check=False)
    assert (done.returncode, "goes on from height 1 of alice" in done.stdout) == (0, True), done.stderr
    done = subprocess.run([sys.executable, SCRIPT, newer, older, proof], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nothing to prove" in run("prove", "alice", "--since", newer, "--store", store).err


def test_words_that_do_not_go_together(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "anchors"
    run("anchor", "alice", "--out", file, "--store", store)
    for words in (
        ("anchor",),
        ("anchor", "alice", "--all"),
        ("anchor", "alice", "--new-key", tmp_path / "k"),
        ("verify", "alice", "--key", "00" * 32),
        ("verify", "--file", file, "--since", file),
        ("verify", "alice", "--since", tmp_path / "nowhere"),
        ("prove", "alice", "1", "--since", file),
        ("verify", "bob", "--since", file),
    ):
        assert run(*words, "--store", store).code == 2, words
    file.write_text("nothing\n")
    said = run("verify", "alice", "--since", file, "--store", store)
    assert (said.code, "no anchor" in said.err) == (5, True)
