"""How processes are watched from outside: metrics over HTTP, logs as JSON; and what overload looks like."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest

from tests.cli import cli_kit
from tests.cli.cli_kit import run
from tests.cli.role_kit import running

APP = """
import worldline as wl

app = wl.Program("talker")


@app.effect
async def echo(text: str) -> str:
    return text


@app.workflow
async def talk(text: str) -> str:
    wl.log.warning("about to echo")
    return await echo(text)
"""


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    path = tmp_path / "talker_app.py"
    path.write_text(APP)
    return path


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def test_roles_offer_metrics_and_write_logs_as_json(tmp_path: Path, app_file: Path) -> None:
    store = tmp_path / "store"
    watched = ["--metrics", "127.0.0.1:0", "--log", "json", "--log-level", "info", "--store", store]
    commands: list[list[object]] = [
        ["worker", app_file, *watched],
        ["adapter", app_file, *watched],
        ["timer", *watched],
        ["janitor", "--turn", "0.05", *watched],
    ]
    with running(*commands, cwd=tmp_path) as (worker, adapter, timer, janitor):
        assert run("create", "w", "--app", app_file, "--store", store, cwd=tmp_path).code == 0
        said = run("run", "w", "talk", "text=hello", "--app", app_file, "--store", store, "--json", cwd=tmp_path)
        assert said.code == 0, said
        ports = [role.said["metrics_port"] for role in (worker, adapter, timer, janitor)]

        def all_told() -> bool:
            told = {
                'worldline_inputs_total{kind="effect_result"} 1.0': ports[0],
                'worldline_effects_answered_total{effect="echo",status="ok"} 1.0': ports[1],
            }
            return all(line in scrape(port) for line, port in told.items())

        cli_kit.until(all_told, "the metrics of one run")
        assert "worldline_worlds_held 1.0" in scrape(ports[0])
        assert "worldline_timers_fired_total 0.0" in scrape(ports[2])
        counted = 'worldline_backlog_worlds{status="active",universe="default"}'
        cli_kit.until(lambda: counted in scrape(ports[3]), "the backlog")
        assert "worldline_backlog_worlds{" not in scrape(ports[0]), "a scrape counts nothing"
        assert [role.end() for role in (worker, adapter, timer, janitor)] == [0, 0, 0, 0]
        lines = [json.loads(line) for line in worker.seen.splitlines() if line.startswith("{")]
    logged = [line for line in lines if "logger" in line]
    assert {line["worker"] for line in logged} == {worker.said["worker"]}
    [talked] = [line for line in logged if line["logger"] == "worldline.user"]
    assert talked["message"].endswith("about to echo")
    assert talked["level"] == "warning"
    assert (len(talked["world"]), talked["step"]) == (32, 1)
    assert {line["world"] for line in logged if line.get("world_name") == "w"} == {talked["world"]}


def dumps(seen: str) -> list[str]:
    """The dumps that were written to their ends."""
    return [line for line in seen.splitlines(keepends=True) if line.startswith('{"dump":') and line.endswith("\n")]


def test_a_signal_lets_a_process_say_what_it_is_doing(tmp_path: Path, app_file: Path) -> None:
    with running(["up", app_file, "--store", tmp_path / "store"], cwd=tmp_path) as (up,):
        os.kill(up.said["pid"], signal.SIGUSR1)
        cli_kit.until(lambda: bool(dumps(up.seen)), "a dump")
        [line] = dumps(up.seen)
        assert up.end() == 0
    found = json.loads(line)["dump"]
    assert found["worker"] == up.said["worker"]
    assert [role["name"] for role in found["roles"]][:3] == ["world worker", "effect worker", "timer worker"]
    assert [role["name"] for role in found["roles"]][-1] == "watchdog"
    assert "Thread" in found["stacks"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metrics", "nowhere"], "HOST:PORT"),
        (["--log", "xml"], "--log"),
        (["--log-level", "loud"], "--log-level"),
    ],
)
def test_bad_options_are_said_in_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    said = run("timer", *words, cwd=tmp_path)
    assert said.code == 2
    assert message in said.err
    assert said.err.count("\n") == 1


def test_overload_is_one_line_and_a_code(tmp_path: Path, app_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDLINE_SET_PRESSURE_INBOX_ITEMS_MAX", "2")
    monkeypatch.setenv("WORLDLINE_SET_PRESSURE_SAMPLE_MS", "0")
    assert run("create", "w", "--app", app_file, "--store", "s", cwd=tmp_path).code == 0
    send = ["send", "w", "Anything", "--data", "{}", "--store", "s"]
    for _ in range(2):
        assert run(*send, cwd=tmp_path).code == 0
    said = run(*send, cwd=tmp_path)
    assert said.code == 4
    assert said.err.count("\n") == 1
    assert "is full" in said.err
    assert "try again in" in said.err
    assert run(*send, "--json", cwd=tmp_path).error["code"] == "overloaded"
