"""`worldline simulate`: what it says, and how it ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.campaign import suite as own
from tests.cli import cli_kit
from tests.sim import traced
from worldline.sim import campaign
from worldline.sim.faults import boundaries

ROOT = Path(__file__).resolve().parents[2]
RACE = str(ROOT / "examples" / "lost_update.py")
CELLS = len(boundaries.reachable())
OWN = ("simulate", "--suite", own.__name__)  # the project's own workloads


def test_seeds_that_hold_are_counted_and_the_same_on_any_number_of_processes() -> None:
    profile = "chaos_seconds=6,ops_max=4"
    short = ("--seeds", 8, "--profile", profile)
    one = cli_kit.run(*OWN, *short, "--jobs", 1, "--json")
    assert (one.code, one.err) == (0, "")
    assert list(one.json) == ["seeds", "failures", "cells", "trace", "seeds_per_s"]
    assert (one.json["seeds"], one.json["failures"]) == (8, [])
    assert 0 < one.json["cells"]["hit"] < one.json["cells"]["of"] == CELLS
    two = cli_kit.run(*OWN, *short, "--jobs", 2, "--json")
    if two.json["trace"] != one.json["trace"]:  # which seed, and where, or nobody can tell what has leaked into it
        pytest.fail(traced.difference([f"{seed},{profile}" for seed in range(8)]))
    assert (two.code, two.json["cells"]) == (0, one.json["cells"])
    said = cli_kit.run(*OWN, "--seed", 3)
    assert "1 seed, all hold; " in said.out


def test_a_failure_names_seed_invariant_faults_and_commands_that_repeat_it() -> None:
    said = cli_kit.run(*OWN, "--seeds", 200, "--jobs", 1, "--without", "atomic-ack", "--profile", "ops_max=3")
    assert said.code == 1
    lines = said.out.splitlines()
    assert lines[0].startswith("seed ")
    assert " breaks " in lines[0]
    assert "faults are enough" in lines[1] or "faults is needed" in lines[1]
    commands = [line.partition(": ")[2] for line in lines if line.startswith("  again")]
    assert len(commands) == 2
    for command in commands:
        again = cli_kit.run(*shlex.split(command)[1:], "--no-shrink")
        assert again.code == 1
        assert again.out.startswith(lines[0].partition(":")[0])


def test_failures_as_json_go_on_when_asked() -> None:
    said = cli_kit.run(*OWN, "--seeds", 4, "--jobs", 1, "--without", "consume", "--json", "--keep-going")
    assert said.code == 1
    assert said.json["seeds"] == 4
    assert said.json["failures"] == [{"seed": seed, "invariant": "J6"} for seed in range(4)]
    first = cli_kit.run(*OWN, "--seeds", 4, "--jobs", 1, "--without", "consume", "--json", "--shrink")
    assert first.json["failures"] == [{"seed": 0, "invariant": "J6"}]
    [shrunk] = first.json["shrunk"]
    assert (shrunk["seed"], shrunk["invariant"], shrunk["faults"]) == (0, "J6", [])


def test_a_users_file_is_simulated() -> None:
    racy = cli_kit.run("simulate", RACE, "--seeds", 1000, "--jobs", 1, "--json")
    assert racy.code == 1
    assert [failure["invariant"] for failure in racy.json["failures"]] == ["scenario"]
    seed = racy.json["failures"][0]["seed"]
    assert cli_kit.run("simulate", f"{RACE}:fixed", "--seed", seed, "--seeds", 4, "--jobs", 1).code == 0


def test_a_guard_of_a_suite_can_be_missing_in_a_users_run() -> None:
    """The suite brings the guard, the user's file everything else."""
    fixed = ("simulate", f"{RACE}:fixed", "--suite", own.__name__, "--seed", 0, "--no-shrink")
    assert cli_kit.run(*fixed).code == 0
    said = cli_kit.run(*fixed, "--without", "consume")
    assert (said.code, said.out.startswith("seed 0 breaks J6")) == (1, True)
    assert f"{RACE}:fixed --suite {own.__name__} --seed 0 --without consume" in said.out


def test_guards_can_be_listed() -> None:
    said = cli_kit.run(*OWN, "--without", "list", "--json")
    assert said.code == 0
    assert len(said.lines) >= 11
    assert {"guard": "head", "does": "a step expects the head it was made upon", "breaks": ["J3", "J4", "J6"]} in [
        msgspec.json.decode(line) for line in said.out.splitlines()
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to simulate; name a Python file with a program"),
        (["--without", "list"], "guards that can be switched off come with a suite"),
        ([RACE, "--without", "head"], "no guard 'head'; guards that can be switched off come with a suite"),
        (["--suite", "nowhere.at.all"], "nowhere.at.all cannot be imported: ModuleNotFoundError"),
        (["--suite", f"{own.__name__}:SWARM"], f"{own.__name__} has no suite 'SWARM'"),
        ([*OWN[1:], "--profile", "gloom"], "no profile 'gloom'; there are swarm, calm"),
        ([*OWN[1:], "--profile", "calm,colour=red"], "a profile has no 'colour'"),
        ([*OWN[1:], "--profile", "hosts=many"], "hosts=many does not fit a profile"),
        ([*OWN[1:], "--seeds", "1", "--profile", "kinds=naps"], "no operations of kind 'naps'"),
        ([*OWN[1:], "--without", "sense"], "no guard 'sense'"),
        (["nowhere.py"], "there is no file nowhere.py"),
        ([str(ROOT / "examples" / "counter.py")], "counter.py has no 'scenario'"),
        (["--seeds", "0"], "0 is not in the range"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_runs(words: list[str], message: str) -> None:
    said = cli_kit.run("simulate", *words)
    assert said.code == 2
    assert message in said.err


def test_every_cell_must_be_hit_when_asked() -> None:
    said = cli_kit.run(*OWN, "--seeds", 1, "--profile", "calm", "--every-cell")
    assert said.code == 1
    assert "never hit: crash at B1 before acquire" in said.out
    assert f"all hold; 0 of {CELLS} cells hit" in said.out


class Pool:
    """Of processes that are quick."""

    given = 0

    def submit(self, _: object, seed: int) -> Future[int]:
        self.given += 1
        done: Future[int] = Future()
        done.set_result(seed)
        return done


def test_seeds_are_given_away_a_few_at_a_time() -> None:
    """While seeds are given away, Ctrl-C waits."""
    pool = Pool()
    results: Any = campaign._in_order(pool, range(100), ahead=8)  # type: ignore[arg-type]
    assert next(results) == 0
    assert pool.given == 8
    assert list(results) == list(range(1, 100))


def test_an_interrupt_ends_it_and_everybody() -> None:
    """Two processes are at it; Ctrl-C goes to all of them, as from a terminal."""
    process = subprocess.Popen(
        [*cli_kit.COMMAND, *OWN, "--seeds", "100000", "--jobs", "2"],
        cwd=ROOT,
        env=cli_kit.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        cli_kit.until(lambda: len(_session(process.pid)) >= 3, "its processes")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(cli_kit.SECONDS) == 130
        cli_kit.until(lambda: _session(process.pid) == [], "their end")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _session(leader: int) -> list[int]:
    """The processes of a session."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                fields = (each / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(each.name))
    return found
