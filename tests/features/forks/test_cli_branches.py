"""fork, create --seed, tree, revert, and run while a world is reverted: what is said, and how the command ends."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.cli import shop
from tests.cli.cli_kit import COMMAND, SECONDS, SHOP, Said, copy, dev, environment, run, until, with_universe


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world `alice` with two deposits (heights 1 and 2) and a run, a fork of it, and one that was deleted."""
    folder = tmp_path_factory.mktemp("branches") / "s"

    async def make() -> None:
        async with wl.open(str(folder), host=shop.app) as universe:
            world = await universe.ensure("alice", shop.app)
            for cents in (5, 7):
                await (await world.send(shop.Deposited("bob", cents))).applied(20)
            await world.run(shop.greet("Ann"), id="hello")
            await world.fork("taken", at=2)
            await (await universe.ensure("gone", shop.app)).delete()

    aio.run(make())
    return folder


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return copy(made, tmp_path / "store")


def do(store: Path, *words: object) -> Said:
    return run(*words, "--store", store)


def test_fork_seed_and_tree(store: Path) -> None:
    said = do(store, "fork", "alice", "one", "--at", 2)
    assert (said.code, said.out) == (0, "one goes on from alice at height 2\n")
    again = do(store, "fork", "alice", "one", "--at", 2, "--json").json
    assert (again["parent"], again["step"], again["height"], again["live"]) == ("alice", 2, 2, False)
    saved = do(store, "snapshots", "alice", "--json").lines
    assert again["parent_snapshot_hash"] in {each["hash"] for each in saved if each["height"] <= 2}
    by_hash = do(store, "fork", "alice", "by-hash", "--snapshot", saved[-1]["hash"][:16], "--json").json
    assert (by_hash["parent_snapshot_hash"], by_hash["height"]) == (saved[-1]["hash"], saved[-1]["height"])
    do(store, "delete", "by-hash", "--yes")
    inside = do(store, "fork", "alice", "two", "--at", 4, "--effects", "share", "--live")
    assert inside.out == "two goes on from alice at height 2; height 4 is inside a step\n"
    for _ in range(2):
        said = do(store, "create", "three", "--seed", "one", "--app", SHOP, "--json")
        assert (said.code, said.json["name"], said.json["program"]) == (0, "three", "shop")
    lines = do(store, "tree", "two").out.splitlines()
    assert lines[0].startswith("alice  height ")
    assert [line for line in lines[1:] if "taken" not in line] == [
        "├─ one  at height 2 of alice, drop, dry  +0",
        "│  └─ three  at height 2 of one, drop, live  +0",
        "└─ two  at height 2 of alice, share, live  +0",
    ]
    [tree] = do(store, "tree", "--json").lines
    assert [each["name"] for each in tree["branches"]] == ["taken", "one", "two"]


RULES = {
    "list": '{"effect": "shout", "answer": "A"}',
    "cut": '[{"effect": "shout"',
    "rule": "[7]",
    "type": '[{"effect": "shout", "answer": 1}]',
    "effect": '[{"effect": "whisper", "answer": ""}]',
}


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["fork", "nobody", "x"], 3, "no world 'nobody' in universe 'default'"),
        (["fork", "gone", "x"], 3, "no world 'gone' in universe 'default'"),
        (["fork", "alice", "alice"], 4, "there is a world named 'alice' already"),
        (["fork", "alice", "taken", "--live"], 4, "a dry fork of 'alice' at height 2, which was asked for with other"),
        (["create", "taken", "--seed", "alice@2", "--app", SHOP], 4, "which was asked for with other arguments"),
        (["fork", "alice", "x", "--at", "99"], 2, "no height 99: the journal's head is at height "),
        (["fork", "alice", "x", "--at", "-1"], 2, "a number from 0 on; not -1"),
        (["fork", "alice", "x", "--at", "two"], 2, "Invalid value for '--at'"),
        (
            ["fork", "alice", "x", "--at", "1", "--before", "effect shout"],
            2,
            "give one of --at, --before and --snapshot",
        ),
        (["fork", "alice", "x", "--snapshot", "00000000"], 3, "`worldline snapshots alice` lists them"),
        (["fork", "alice", "x", "--before", "shout"], 2, 'say before what: "effect charge" or "event Approved"'),
        (["fork", "alice", "x", "--before", "effect whisper"], 3, "world 'alice' has no effect 'whisper'"),
        (["fork", "alice", "x", "--effects", "keep"], 2, "Invalid value for '--effects'"),
        (["fork", "alice", "x", "--effects", "script"], 2, "--effects script needs the answers: --script FILE"),
        (["fork", "alice", "x", "--script", "none"], 2, "none cannot be read: No such file"),
        (["fork", "alice", "x", "--script", "list"], 2, "list has no list of rules: ["),
        (["fork", "alice", "x", "--script", "cut"], 2, "cut is not JSON: "),
        (["fork", "alice", "x", "--script", "rule"], 2, "rule 1 of the script is no rule: write "),
        (["fork", "alice", "x", "--script", "type", "--app", SHOP], 2, "script of shout(): not a str"),
        (["fork", "alice", "x", "--script", "effect", "--app", SHOP], 2, "which program 'shop' does not have"),
        (["create", "x", "--seed", "alice@99", "--app", SHOP], 2, "no height 99"),
        (["create", "x", "--seed", "gone", "--app", SHOP], 3, "no world 'gone'"),
        (["tree", "nobody"], 3, "no world 'nobody'"),
        (["revert", "nobody", "--to", "1", "--yes"], 3, "no world 'nobody'"),
        (["revert", "alice", "--to", "99", "--yes"], 2, "no height 99"),
        (["revert", "alice", "--to", "-1", "--yes"], 2, "no height -1"),
        (["revert", "alice", "--to", "1", "--effects", "share", "--yes"], 2, "Invalid value for '--effects'"),
        (["revert", "alice", "--to", "1"], 2, "pass --yes"),
        (["diff", "alice", "gone"], 3, "no world 'gone'"),
        (["prove", "alice", "99"], 2, "world 'alice' has no entry 99"),
    ],
)
def test_one_line_says_what_is_wrong(
    made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], code: int, error: str
) -> None:
    for name, text in RULES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    as_json = len(words) % 2 == 0
    said = do(made, *words, *(["--json"] if as_json else []))
    assert (said.code, said.out) == (code, "")
    line = said.err.splitlines()[-1]
    assert error in (msgspec.json.decode(line)["error"]["message"] if as_json else line.removeprefix("error: "))


def test_a_revert_that_no_process_takes_says_so(store: Path) -> None:
    said = do(store, "revert", "alice", "--to", 1, "--yes", "--timeout", "0.2")
    assert said.code == 6
    assert "no process" in said.err.splitlines()[-1] or "nothing hosts" in said.err.splitlines()[-1]


def test_revert_and_a_run_that_is_waited_for(store: Path, tmp_path: Path) -> None:
    with dev(SHOP, "--store", store, cwd=tmp_path):
        waiting = subprocess.Popen(
            [*COMMAND, "run", "alice", "nap", "--id", "n", "--store", str(store), "--json"],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            until(lambda: with_universe(store, _is_started), "the run")
            said = do(store, "revert", "alice", "--to", 2, "--yes", "--json")
            assert (said.code, said.json["height"], said.json["step"]) == (0, 2, 2)
            assert [(each["kind"], each["name"]) for each in said.json["left"]] == [("effect", "shout")]
            out, err = waiting.communicate(timeout=SECONDS)
        finally:
            waiting.kill()
            waiting.communicate()
        found = msgspec.json.decode(err)["error"]
        assert (out, waiting.returncode, found["code"]) == ("", 1, "reverted")
        assert found["message"].startswith("run 'n' is gone: at height ")
        assert "was reverted to height 2 (step 2), where there was no such run; start it again" in found["message"]


async def _is_started(universe: wl.Universe) -> bool:
    return any(run.id == "n" for run in await universe.world("alice").runs())
