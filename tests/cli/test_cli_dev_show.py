"""What dev shows: a block for each run, with durations, failures and where they were raised, and streamed chunks."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import threading
from pathlib import Path

import msgspec
import pytest

from tests.cli import cli_kit
from tests.cli.cli_kit import run
from worldline.cli.dev import dev_output as dev_show
from worldline.cli.dev import run_blocks
from worldline.codec import structs
from worldline.kernel import control_commands, user_values
from worldline.kernel.runs import failure
from worldline.model import ids, inbox, journal, payload
from worldline.model.journal import Kind
from worldline.observe import sinks
from worldline.runtime import live_hub

APP = """
import itertools
from dataclasses import dataclass

import worldline as wl

app = wl.Program("show")
TRIES = itertools.count()


@dataclass(frozen=True)
class Deposited:
    cents: int


@app.reducer()
@dataclass
class Account:
    cents: int = 0

    @wl.on
    def deposited(self, event: Deposited) -> None:
        if event.cents < 0:
            raise ValueError("below zero")  # line 24
        self.cents += event.cents


@app.effect(retry=wl.Retry(attempts=3, initial_delay=0.01))
def flaky() -> str:
    if next(TRIES) == 0:
        raise OSError("no route")  # line 31
    return "there"


@app.effect
async def write(text: str) -> str:
    for word in text.split():
        wl.attempt().emit(f"{word} ")
    wl.attempt().emit({"done": True})
    return text.upper()


@app.workflow
async def letter(name: str) -> str:
    await wl.sleep(0.01)
    await write(f"dear {name}")
    return await flaky()


@app.workflow
async def broken() -> None:
    raise RuntimeError("out of paper")  # line 52
"""

AT = ids.Address(ids.UniverseId(bytes(16)), ids.WorldId(b"\1" * 16))


def talk_to(store: Path, app: Path) -> None:
    common = ["--store", store, "--app", app]
    assert run("run", "w", "letter", "name=Ada", "--id", "l1", *common).out == "there\n"
    assert run("run", "w", "broken", "--id", "b1", *common).code == 1
    assert run("send", "w", "Deposited", "cents=-1", "--wait", *common).code == 1


EXPECTED = [
    r"  w/l1 letter\(name=\"Ada\"\)",
    r"    sleep 0.01 s  \d+ ms",
    r"    write streams \"dear Ada \"",
    r"    write streams {\"done\":true}",
    r"    write\(text=\"dear Ada\"\) = \"DEAR ADA\"  \d+ ms",
    r"    flaky\(\) attempt 1 failed: OSError: no route \(app.py:31\); it is tried again",
    r"        Traceback \(most recent call last\):",
    r"          File \"[^\"]*app.py\", line 31, in flaky",
    r"            raise OSError\(\"no route\"\)  # line 31",
    r"        OSError: no route",
    r"    flaky\(\) = \"there\" \(attempt 2\)  \d+ ms",
    r"    finished \"there\"  in \d+ ms",
    r"  w/b1 broken\(\)",
    r"    failed RuntimeError: out of paper \(app.py:52\)  in \d+ ms",
    r"          File \"[^\"]*app.py\", line 52, in broken",
    r"        RuntimeError: out of paper",
    r"  w Deposited {\"cents\":-1}",
    r"    handler failed: ValueError: below zero \(app.py:24\)",
    r"          File \"[^\"]*app.py\", line 24, in deposited",
    r"        ValueError: below zero",
]


def check_order(shown: str) -> None:
    position = 0
    for pattern in EXPECTED:
        found = re.compile(pattern).search(shown, position)
        assert found is not None, f"{pattern} after:\n{shown[position:]}"
        position = found.end()


def test_runs_on_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with cli_kit.dev("app.py", "--store", "s", "--world", "w", cwd=tmp_path) as host:
        talk_to(tmp_path / "s", tmp_path / "app.py")
        host.wait_for("        ValueError: below zero")
        assert host.end() == 130
    check_order(host.seen)
    assert "\x1b" not in host.seen, "no colours and no cursor on a pipe"
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  w/l1 ", host.seen, re.MULTILINE), "a date beside the time"
    assert "effect_requested" not in host.seen


def test_entries_on_request(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with cli_kit.dev("app.py", "--store", "s", "--world", "w", "--entries", cwd=tmp_path) as host:
        talk_to(tmp_path / "s", tmp_path / "app.py")
        host.wait_for("handler_failed")
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} w +\d+ run_started +run=l1", host.seen, re.MULTILINE)
    assert re.search(r"effect_result +of=write intent=[0-9a-f]{32} status=ok", host.seen), "a name beside the id"
    assert "w/l1 letter" not in host.seen


def test_json_has_tracebacks_as_fields(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with cli_kit.dev("app.py", "--store", "s", "--world", "w", "--json", cwd=tmp_path) as host:
        talk_to(tmp_path / "s", tmp_path / "app.py")
        failed = run(
            "run", "w", "broken", "--id", "b1", "--json", "--store", tmp_path / "s", "--app", tmp_path / "app.py"
        )
        assert failed.error["trace"].splitlines()[-1] == "RuntimeError: out of paper"
        host.wait_for("handler_failed")
        assert host.end() == 130
    rows = [json.loads(line) for line in host.seen.splitlines() if line.startswith("{")]
    traced = {row["kind"]: row["trace"].splitlines()[-1] for row in rows if row.get("trace")}
    assert traced == {"run_finished": "RuntimeError: out of paper", "handler_failed": "ValueError: below zero"}


class Terminal:
    """A `dev` at a terminal. What it writes is read in a thread, so that it never waits for a reader."""

    def __init__(self, *words: object, cwd: Path) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [*cli_kit.COMMAND, "dev", *map(str, words)],
            cwd=cwd,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=cli_kit.environment({"TERM": "xterm", "COLUMNS": "150"}),
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._ours, 65536)
            except OSError:
                return  # the other end is closed: the process has ended
            if not part:
                return
            self.seen += part.decode()

    def wait_for(self, text: str) -> None:
        cli_kit.until(lambda: text in self.seen or self.process.poll() is not None, text)
        assert text in self.seen, self.seen

    def close(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(cli_kit.SECONDS)
        self._reader.join()
        os.close(self._ours)
        return code


def test_runs_at_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    terminal = Terminal("app.py", "--store", "s", "--world", "w", cwd=tmp_path)
    try:
        terminal.wait_for("[hosting]")
        talk_to(tmp_path / "s", tmp_path / "app.py")
        terminal.wait_for("handler failed: ")
    finally:
        assert terminal.close() == 130
    red, green = "\x1b[31m", "\x1b[32m"
    for bad in ("    failed RuntimeError", "    handler failed", "    flaky() attempt 1 failed"):
        assert f"{red}{bad}" in terminal.seen
    assert f'{green}    finished "there"' in terminal.seen
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.seen)
    check_order(plain.replace("\r", ""))
    assert "\x1b" not in plain, "colours are all: no cursor is moved"


# --- Blocks, without a process ---------------------------------------------------------------------------------------


class Journal:
    """Steps of a world, made by hand."""

    def __init__(self) -> None:
        self.blocks = run_blocks.Blocks(lambda message: "app.py:7" if "burns" in message else "")
        self._height = self._step = 0

    def step(self, *drafts: tuple[Kind, bytes], time_ms: int) -> list[str]:
        self._step += 1
        entries = []
        for kind, data in drafts:
            self._height += 1
            entries.append(journal.JournalEntry(self._height, self._step, kind, time_ms * 1000, data))
        return texts(self.blocks.step(AT, "w", entries))

    def ask(self, name: str, *, ordinal: int = 0, run: str = "r") -> tuple[tuple[Kind, bytes], ids.IntentId]:
        """A request for an effect in the next step, and its id."""
        params = user_values.pack([user_values.dump({"x": 1}), b""])
        intent = ids.intent_id(AT, step=self._step + 1, ordinal=ordinal, kind=name, params=params)
        return (Kind.EFFECT_REQUESTED, user_values.pack([ordinal, name, run, 0, params, 0])), intent


def texts(lines: list[run_blocks.BlockLine]) -> list[str]:
    return [f"{line.block} | {line.text}" for line in lines]


def control(command: str, data: msgspec.Struct) -> tuple[Kind, bytes]:
    return Kind.CONTROL, structs.encode(inbox.Control(command, payload.inline(structs.encode(data))))


def started(run_id: str = "r") -> list[tuple[Kind, bytes]]:
    wanted = control_commands.StartRun(run_id, "flow", user_values.dump({}), bytes(16), named=True)
    return [
        control(control_commands.RUN, wanted),
        (Kind.RUN_STARTED, user_values.pack([run_id, "flow", user_values.dump({})])),
    ]


def result(intent: ids.IntentId, *, error: str = "") -> tuple[Kind, bytes]:
    data = failure("E", error) if error else user_values.dump(3)
    status = inbox.ReceiptStatus.ERROR if error else inbox.ReceiptStatus.OK
    return Kind.EFFECT_RESULT, structs.encode(inbox.EffectReceipt(intent, status, payload.inline(data), 1))


def test_what_lasts_is_named_once() -> None:
    lived = Journal()
    asked, intent = lived.ask("slow")
    assert lived.step(*started(), asked, time_ms=0) == ["w/r flow() | "]
    assert texts(lived.blocks.idle(1)) == ["w/r flow() | slow(x=1) ..."]
    assert lived.blocks.idle(2) == []
    assert lived.step(result(intent), time_ms=65_000) == ["w/r flow() | slow(x=1) = 3  1 min 5 s"]
    assert lived.blocks.idle(3) == []


def test_a_failed_effect_and_its_place() -> None:
    lived = Journal()
    asked, intent = lived.ask("hot")
    lived.step(*started(), asked, time_ms=0)
    assert lived.step(result(intent, error="it burns"), time_ms=1500) == [
        "w/r flow() | hot(x=1) failed: it burns (app.py:7)  1.50 s"
    ]


def test_an_effect_from_before_is_shown_without_its_name() -> None:
    lived = Journal()
    assert lived.step(result(ids.IntentId(bytes(16))), time_ms=1) == ["w | effect = 3"]


def test_a_parked_effect() -> None:
    lived = Journal()
    asked, intent = lived.ask("hot")
    lived.step(*started(), asked, time_ms=0)
    parked = control(control_commands.PARK, control_commands.ParkEffect(intent, 3, "it burns"))
    assert lived.step(parked, time_ms=1) == ["w/r flow() | hot(x=1) is parked after 3 attempts: it burns (app.py:7)"]


def test_chunks_become_lines() -> None:
    lived = Journal()
    asked, intent = lived.ask("write")
    lived.step(*started(), asked, time_ms=0)

    def given(value: object) -> list[str]:
        return texts(lived.blocks.chunk(live_hub.Chunk(intent, "write", "r", 1, value), 1))

    assert given("one ") == []
    assert given("two\nthree") == ['w/r flow() | write streams "one two"']
    assert given({"n": 1}) == ['w/r flow() | write streams "three"', 'w/r flow() | write streams {"n":1}']
    assert given("four") == []
    assert lived.step(result(intent), time_ms=1)[0] == 'w/r flow() | write streams "four"'
    assert given("late") == []


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_blocks, "KEPT_MAX", 2)
    lived = Journal()
    intents = []
    for _ in range(3):
        asked, intent = lived.ask("slow")
        intents.append(intent)
        lived.step(*started(), asked, time_ms=0)
    assert lived.step(result(intents[0]), time_ms=1) == ["w | effect = 3"]
    assert lived.step(result(intents[2]), time_ms=1) == ["w/r flow() | slow(x=1) = 3  1 ms"]


def test_durations() -> None:
    said = {0: "0 ms", 999_400: "999 ms", 1_500_000: "1.50 s", 61_000_000: "1 min 1 s", 90_000_000_000: "1 d 1 h"}
    assert {us: run_blocks.duration(us) for us in said} == said


def test_places_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev_show, "PLACES_MAX", 2)
    places = dev_show.FailurePlaces()
    for number in range(3):
        places.learn(f"E: {number}", f"app.py:{number}")
    assert [places.of(f"E: {number}") for number in range(3)] == ["", "app.py:1", "app.py:2"]


def test_a_notice_about_work_that_is_not_known() -> None:
    assert run_blocks.Blocks().notice(sinks.Notice("effect_retried", "a: b", "00", 1), 1) == []
