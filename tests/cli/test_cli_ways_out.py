"""runs retry, reset, terminate, answer; effect answer; and where they are named."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.cli import cli_kit
from tests.cli.cli_kit import Said, run

CODE = """
import asyncio
from dataclasses import dataclass
import worldline as wl

app = wl.Program("orders")

@dataclass(frozen=True)
class Go:
    number: int = 0

@dataclass(frozen=True)
class Ping(wl.Request[str]):
    pass

@app.effect
async def charge(cents: int) -> str:
    return f"charged {cents}"

@app.effect
async def inform(text: str) -> str:
    return text

@app.effect(retry=wl.Retry(attempts=1, on_exhausted="park"))
def stuck(cents: int) -> int:
    raise ValueError("out of order")

@app.effect
async def dial(number: str) -> str:
    await asyncio.Event().wait()  # it rings and rings
    return number

@app.reducer
@dataclass
class Pings:
    count: int = 0

    @wl.on
    def ping(self, event: Ping) -> str:
        self.count += 1
        return f"pong {self.count}"

@app.workflow
async def order(cents: int) -> str:
    # BEFORE
    paid = await charge(cents)
    go = await wl.wait(Go)
    return f"{paid}, {go.number}"

@app.workflow
async def pay(cents: int) -> int:
    return await stuck(cents)

@app.workflow
async def call(number: str) -> str:
    return await dial(number)
"""
EDITED = CODE.replace("# BEFORE", 'await inform("first")')


class Place:
    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.app = folder / "orders.py"
        self.folder = folder
        self.write(CODE)

    def write(self, code: str) -> None:
        self.app.write_text(code)

    def run(self, *words: object) -> Said:
        needs = words[0] != "why" and words[:2] not in (("effect", "list"), ("runs", "list"), ("runs", "cancel"))
        return run(*words, "--store", self.store, *(["--app", self.app] if needs else []))

    def host(self) -> AbstractContextManager[cli_kit.Dev]:
        return cli_kit.dev(self.app, "--store", self.store, cwd=self.folder)

    def status(self, run_id: str) -> str:
        return str(self.run("runs", "show", "w", run_id, "--json").json["status"])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def blocked(place: Place) -> None:
    """A world with a run that edited code does not fit."""
    with place.host():
        assert place.run("create", "w").code == 0
        assert place.run("run", "w", "order", "cents=5", "--id", "o1", "--detach").code == 0
        # The run is durable before the host has begun it: until then, there is none to show.
        cli_kit.until(lambda: "event Go" in place.run("runs", "show", "w", "o1", "--json").out)
    place.write(EDITED)


def test_a_blocked_run_is_shown_with_its_ways_out_and_reset(place: Place) -> None:
    blocked(place)
    with place.host():
        assert run("send", "w", "Go", "number=7", "--to", "o1", "--wait", "--store", place.store).code == 0
        assert place.status("o1") == "blocked"
        assert place.run("ask", "w", "Ping").out == "pong 1\n"
        shown = place.run("runs", "show", "w", "o1")
        assert "     1  effect 'charge' (cents=5): ok" in shown.out
        why = place.run("why", "w").out
        for way in ("runs retry w o1", "runs reset w o1 --to 1", "runs terminate w o1"):
            assert f"worldline {way}" in shown.out
            assert f"worldline {way}" in why
        assert "orders.py:" in why
        assert 'await inform("first")' in why
        for words in (("journal", "w"), ("runs", "list", "w"), ("runs", "show", "w", "o1"), ("why", "w")):
            said = run(*words, "--json", "--store", place.store).out
            assert "the code asks for something else" in said
            assert "WORLD" not in said, "a command is printed as it can be typed"
        tried = place.run("runs", "retry", "w", "o1", "--json")
        assert (tried.code, tried.json["status"]) == (0, "blocked")
        pending = place.run("runs", "cancel", "w", "o1", "--yes")
        assert "is blocked: it is cancelled when it goes on" in pending.out
        assert "a cancellation waits" in place.run("why", "w").out
        asks = place.run("runs", "reset", "w", "o1", "--to", "1")
        assert asks.code == 2
        assert "This may happen twice:" in asks.err
        assert "1 effect 'charge' (cents=5)" in asks.err


def test_reset_under_the_code_now(place: Place) -> None:
    blocked(place)
    with place.host():
        assert run("send", "w", "Go", "number=7", "--to", "o1", "--wait", "--store", place.store).code == 0
        done = place.run("runs", "reset", "w", "o1", "--to", "1", "--yes", "--json")
        assert (done.code, done.json["status"] in ("running", "finished")) == (0, True), done
        assert done.json["twice"] == [{"op": 1, "what": "effect 'charge' (cents=5)", "done": True}]
        assert place.run("run", "w", "order", "cents=5", "--id", "o1").out == "charged 5, 7\n"


def test_terminate_and_what_is_refused(place: Place) -> None:
    blocked(place)
    with place.host():
        assert run("send", "w", "Go", "--to", "o1", "--wait", "--store", place.store).code == 0
        assert place.run("runs", "terminate", "w", "o1").code == 2, "it asks"
        assert place.run("runs", "terminate", "w", "o1", "--yes", "--reason", "old").code == 0
        assert place.status("o1") == "cancelled"
        assert "runs reset w o1 --to start" in place.run("runs", "show", "w", "o1").out
        for words, code, said in [
            (["runs", "retry", "w", "nobody"], 3, "no run 'nobody'"),
            (["runs", "retry", "w", "o1"], 1, "has ended"),
            (["runs", "reset", "w", "o1", "--to", "2", "--yes"], 1, "can be reset to its start alone"),
            (["runs", "reset", "w", "o1", "--to", "end", "--yes"], 2, 'is reset to "start" or to an operation'),
            (["runs", "answer", "w", "o1", "1", "x"], 1, "has ended"),
            (["runs", "answer", "w", "o1", "1", "x", "--error", "y"], 2, "and not both"),
        ]:
            found = place.run(*words)
            assert said in found.err, (words, found)
            assert found.code != 0, (words, found, code)


def test_answers_by_hand(place: Place) -> None:
    with place.host():
        assert place.run("create", "w").code == 0
        assert place.run("run", "w", "order", "cents=5", "--id", "o1", "--detach").code == 0
        cli_kit.until(lambda: "event Go" in place.run("runs", "show", "w", "o1", "--json").out)
        wrong = place.run("runs", "answer", "w", "o1", "2", "5")
        assert wrong.code == 2
        answered = place.run("runs", "answer", "w", "o1", "2", '{"number": 3}', "--json")
        assert answered.code == 0, answered
        assert place.run("run", "w", "order", "cents=5", "--id", "o1").out == "charged 5, 3\n"

        assert place.run("run", "w", "pay", "cents=5", "--id", "p1", "--detach").code == 0
        cli_kit.until(lambda: bool(place.run("effect", "list", "--state", "parked", "-q").out))
        [effect] = place.run("effect", "list", "--state", "parked", "-q").out.split()
        assert f"worldline effect answer {effect[:12]}" in place.run("why", "w").out
        assert place.run("effect", "answer", effect, "no number").code == 2
        said = place.run("effect", "answer", effect, "41", "--json")
        assert (said.code, said.json) == (0, {"id": effect, "world": "w", "ok": True})
        assert place.run("run", "w", "pay", "cents=5", "--id", "p1").out == "41\n"


def test_an_effect_that_is_being_tried_is_answered_if_it_is_said(place: Place) -> None:
    with place.host():
        assert place.run("create", "w").code == 0
        assert place.run("run", "w", "call", "number=7", "--id", "c1", "--detach").code == 0
        cli_kit.until(lambda: bool(place.run("effect", "list", "--state", "claimed", "-q").out))
        [effect] = place.run("effect", "list", "-q").out.split()
        refused = place.run("effect", "answer", effect, "Ada")
        assert (refused.code, refused.out) == (4, "")
        assert "is not parked" in refused.err
        assert "--running" in refused.err
        assert place.run("effect", "answer", effect, "Ada", "--running").out == "effect dial of w is answered\n"
        assert place.run("run", "w", "call", "number=7", "--id", "c1").out == "Ada\n"


def test_other_arguments_block_no_run_and_are_shown(place: Place) -> None:
    blocked(place)
    place.write(CODE.replace("charge(cents)\n", "charge(cents + 1)\n"))
    shown = place.run("runs", "show", "w", "o1")
    assert "     1  effect 'charge' (cents=5): ok\n        the code passes now: (cents=6)\n" in shown.out
    [first, _] = place.run("runs", "show", "w", "o1", "--json").json["operations"]
    assert first["differs"] == "(cents=6)"
    with place.host():
        assert run("send", "w", "Go", "number=1", "--to", "o1", "--wait", "--store", place.store).code == 0
        assert place.run("run", "w", "order", "cents=5", "--id", "o1").out == "charged 5, 1\n"
