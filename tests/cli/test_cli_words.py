"""Words: commands in groups and by two names, and what a word that is not found was meant to be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.cli.cli_kit import SHOP, run, with_universe
from worldline import Universe, cli
from worldline.host.feature_list import FEATURES
from worldline.terminal import suggest

MEANT = [
    (["show", "alcie"], 3, "no world 'alcie' in universe 'default'; did you mean 'alice'?"),
    (["why", "Alice"], 3, "did you mean 'alice'?"),
    (["pause", "alicee"], 3, "did you mean 'alice'?"),
    (["effect", "list", "alic"], 3, "did you mean 'alice'?"),
    (["follow", "alic"], 3, "did you mean 'alice'?"),
    (["dead", "list", "alic"], 3, "did you mean 'alice'?"),
    (["send", "bob", "Depsited", "account=x", "--app", SHOP], 3, "did you mean 'Deposited'?"),
    (["send", "bob", "Deposited", "acount=x", "--app", SHOP], 2, "did you mean 'account'?"),
    (["ask", "bob", "withdraw", "--app", SHOP], 3, "did you mean 'Withdraw'?"),
    (["run", "bob", "gret", "--app", SHOP], 3, "did you mean 'greet'?"),
    (["run", "bob", "greet", "nam=x", "--app", SHOP], 2, "did you mean 'name'?"),
    (["state", "alice", "Acount"], 3, "did you mean 'Account'?"),
    (["state", "alice", "Account", "bbo"], 3, "did you mean 'bob'?"),
    (["runs", "show", "alice", "helo"], 3, "did you mean 'hello'?"),
    (
        ["create", "dora", "--program", "shp", "--app", SHOP],
        2,
        "no program 'shp'; there are shop; did you mean 'shop'?",
    ),
    (["journl", "alice"], 2, "Did you mean 'journal'? see `worldline --help`"),
    (["lgo", "alice"], 2, "Did you mean 'log'?"),
    (["simulate", "--suite", "tests.campaign.suite", "--without", "hash-verfy"], 2, "did you mean 'hash-verify'?"),
]


@pytest.mark.parametrize(("words", "code", "message"), MEANT, ids=[" ".join(words[:4]) for words, _, _ in MEANT])
def test_the_word_that_was_meant(stocked: Path, words: list[str], code: int, message: str) -> None:
    said = run(*words, *([] if words[0] in ("journl", "lgo") else ["--store", stocked]))
    assert (said.code, said.out) == (code, "")
    assert message in said.err
    assert said.err.count("\n") == 1


def test_a_word_like_nothing_gets_no_suggestion(stocked: Path) -> None:
    assert run("show", "zzz", "--store", stocked).err == "error: no world 'zzz' in universe 'default'\n"
    assert run("list", "--program", "zzz", "--store", stocked).err == "no worlds match\n"
    assert run("list", "--program", "shpo", "--store", stocked).err == "no worlds match; did you mean 'shop'?\n"


@pytest.mark.parametrize("noun", ["effect", "timer"])
def test_ids_of_open_work(store: Path, noun: str) -> None:
    row = run(noun, "list", "alice", "--store", store, "--json").lines[0]
    wrong = row["id"][:10] + ("0" if row["id"][10] != "0" else "1")
    verb = ["show"] if noun == "effect" else ["cancel", "--yes"]
    for text in (wrong, row["name"]):
        said = run(noun, *verb, text, "--store", store)
        assert said.code == 3
        assert f"{row['id']} ({row['name']})" in said.err, "by a wrong character, and by its name"


def test_ids_of_dead_letters(store: Path) -> None:
    [row] = run("dead", "list", "alice", "--store", store, "--json").lines
    wrong = row["id"][:10] + ("0" if row["id"][10] != "0" else "1")
    assert f"did you mean {row['id']}?" in run("dead", "retry", "alice", wrong, "--store", store).err


def test_a_large_universe_is_not_read_through(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most three pages of names are read, and names beside the wanted one in order are found all the same."""

    async def main(universe: Universe) -> tuple[str, int]:
        for number in range(40):
            await universe.create(f"order-{number:03}", universe._connection.programs["shop"])
        engine, read, asked = universe._connection.store.engine, universe._connection.store.engine.read, 0

        async def counted(*requests: object) -> object:
            nonlocal asked
            found = await read(*requests)  # type: ignore[arg-type]
            asked += sum(len(found.page(index).items) for index in range(len(requests)))
            return found

        monkeypatch.setattr(engine, "read", counted)
        return await suggest.worlds(universe._connection, "order-0300"), asked

    monkeypatch.setattr(suggest, "NAMES_NEAR_MAX", 5)
    meant, asked = with_universe(store, main)
    assert "'order-030'" in meant
    assert asked <= 15


def test_help_is_in_groups() -> None:
    shown = run("--help").out
    titles = re.findall(r"^([A-Z][a-z ]+):$", shown, re.MULTILINE)
    assert titles == ["Options", *cli.SECTIONS]
    assert [len(commands) > 1 for commands in cli.SECTIONS.values()] == [True] * len(cli.SECTIONS)
    assert "..." not in shown.partition("Look at worlds:")[2], "no sentence is cut"
    listed = re.findall(r"^  ([a-z][a-z-]*)(?:, [a-z]+)?  ", shown, re.MULTILINE)
    assert sorted(listed) == sorted(name for name in cli.COMMANDS if name not in cli.ALIASES)


def test_commands_of_features_are_called_as_they_are_listed() -> None:
    brought = [(words, place) for feature in FEATURES for words, place in feature.commands.items()]
    assert len({words for words, _ in brought}) == len(brought), "two features have one word"
    for words, _ in brought:
        command: click.Command = cli.group
        for word in words.split():
            assert isinstance(command, click.Group)
            assert word in command.commands
            command = command.commands[word]
            assert command.name == word
    assert "universe delete" in dict(brought)


def test_a_command_of_a_feature_is_imported_when_it_is_asked_for() -> None:
    code = (
        "import sys; from worldline import cli\n"
        "for use in (lambda: 'relay' in cli.COMMANDS and len(cli.COMMANDS), lambda: cli.COMMANDS['relay']):\n"
        "    assert use(); print('worldline.features.relay.commands' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "True"]


def test_commands_start_without_what_they_do_not_need() -> None:
    code = "import sys, worldline.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    slow = ("rich", "difflib", "worldline.sim", "worldline.bench", "worldline.cli.dev.dev_output")
    assert [name for name in done.stdout.split() if name.startswith(slow)] == []


def test_log_is_the_journal(stocked: Path) -> None:
    assert run("log", "alice", "--store", stocked) == run("journal", "alice", "--store", stocked)
    assert "journal, log  " in run("--help").out
