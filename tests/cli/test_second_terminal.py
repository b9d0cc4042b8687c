"""The steps of the README, with real processes: the second terminal survives the death of the first."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.cli import cli_kit
from tests.cli.cli_kit import COMMAND, dev, environment, run, spawn


@contextlib.contextmanager
def second_terminal(project: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`worldline run`, with what it writes in files."""
    words = [*COMMAND, "run", "alice", "greet", "name=Alice", "seconds=1"]
    with (project / "out").open("wb") as out, (project / "err").open("wb") as err:
        started = subprocess.Popen(
            words, cwd=project, env=environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
        try:
            yield started
        finally:
            started.kill()
            started.wait(cli_kit.SECONDS)


def test_a_run_is_waited_for_while_its_host_is_killed_and_comes_back(tmp_path: Path) -> None:
    assert run("init", "hello", cwd=tmp_path).code == 0
    project = tmp_path / "hello"
    out, err = project / "out", project / "err"
    with dev("--world", "alice", cwd=project) as first, second_terminal(project) as waiting:
        cli_kit.wait_for(err, b"of world alice goes on")
        first.end(signal.SIGKILL)
        cli_kit.wait_for(err, b"no process hosts world 'alice'")  # it used to end here
        assert waiting.poll() is None
        with dev("--world", "alice", cwd=project):
            assert waiting.wait(cli_kit.SECONDS) == 0
            [run_id] = re.findall(r"^run (\w+) of world alice goes on", err.read_text(), re.MULTILINE)
            again = spawn("run", "alice", "greet", "name=Alice", "seconds=1", "--id", run_id, cwd=project)
    assert out.read_text() == "HELLO ALICE\n"
    assert again.out == "HELLO ALICE\n", "the same id is the same run"
    assert again.err == "", "what ends at once says nothing else"
