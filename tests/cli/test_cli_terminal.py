"""At a terminal: progress bars on what takes long, tables cut to its width, and questions that are really asked."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

from tests.cli import cli_kit
from tests.cli.cli_kit import SHOP


def at_terminal(*words: object, cwd: Path, typed: str = "") -> tuple[int, str]:
    """Run a command with a terminal at all its ends. Returns its exit code and everything that was shown."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*cli_kit.COMMAND, *map(str, words)],
        cwd=cwd,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=cli_kit.environment({"TERM": "xterm", "COLUMNS": "80"}),
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break  # the other end is closed: the process has ended
        if not part:
            break
        shown += part
    os.close(ours)
    return process.wait(cli_kit.SECONDS), shown.decode()


def test_long_work_shows_how_far_it_is(stocked: Path, tmp_path: Path) -> None:
    for words in (
        ["replay", "alice", "--prove", "--app", SHOP],
        ["verify", "--all"],
        ["doctor", "--app", SHOP],
        ["journal", "alice", "--export", tmp_path / "journal.jsonl"],
    ):
        code, shown = at_terminal(*words, "--store", stocked, cwd=tmp_path)
        assert code == 0, shown
        assert "━" in shown, "a bar"
    code, shown = at_terminal("verify", "--all", "--json", "--store", stocked, cwd=tmp_path)
    assert (code, "━" in shown) == (0, False)


def test_tables_fit(stocked: Path, tmp_path: Path) -> None:
    code, shown = at_terminal("dead", "list", "--store", stocked, cwd=tmp_path)
    assert code == 0
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in shown.splitlines()) <= 80


def test_a_person_is_asked(store: Path, tmp_path: Path) -> None:
    code, shown = at_terminal("delete", "bob", "--store", store, cwd=tmp_path, typed="n\n")
    assert (code, "Delete world 'bob'" in shown) == (4, True)
    assert cli_kit.run("show", "bob", "--store", store).code == 0
    code, shown = at_terminal("delete", "bob", "--store", store, cwd=tmp_path, typed="y\n")
    assert code == 0, shown
    assert cli_kit.run("show", "bob", "--store", store).code == 3
