"""Tracebacks of users' exceptions: bounded text for people, beside the journal. Making it calls nothing of theirs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Never

import pytest

import worldline as wl
from worldline import testing
from worldline.base import limits
from worldline.kernel.execution import tracebacks
from worldline.kernel.rows.row_records import Outcome
from worldline.kernel.runs import TRACES_MAX
from worldline.model.inbox import ReceiptStatus
from worldline.model.traces import TracedFailure, TraceSource


def raised(call: Any, *args: Any) -> BaseException:
    try:
        call(*args)
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("nothing was raised")


def text(error: BaseException, message: str = "") -> str:
    return tracebacks.of(error, message or type(error).__name__)


def outer(password: str = "hunter2") -> None:
    secret = password * 2
    inner(secret)


def inner(given: str) -> None:
    raise ValueError(f"{len(given)} characters")


def test_it_reads_as_pythons_own() -> None:
    said = text(raised(outer), "ValueError: 14 characters")
    lines = said.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: 14 characters"
    assert f'  File "{__file__}", line ' in said
    assert "in outer\n    inner(secret)\n" in said
    assert 'in inner\n    raise ValueError(f"{len(given)} characters")\n' in said


def test_values_of_variables_are_never_shown() -> None:
    assert "hunter2" not in text(raised(outer))


def deep(left: int) -> None:
    if left:
        deep(left - 1)
    raise ValueError("deep")


def test_of_many_frames_the_last_are_kept() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(5_000)
    try:
        said = text(raised(deep, 2_000))
    finally:
        sys.setrecursionlimit(before)
    assert len(said.encode()) <= limits.TRACE_BYTES_MAX
    assert said.count("in deep") == tracebacks.FRAMES_LAST + tracebacks.FRAMES_OWN
    assert "calls left out ..." in said
    assert said.rstrip().splitlines()[-3:] == [
        said.rstrip().splitlines()[-3],
        '    raise ValueError("deep")',
        "ValueError",
    ]


def endless() -> None:
    endless()


def test_recursion_without_end() -> None:
    said = text(raised(endless), "RecursionError: maximum recursion depth exceeded")
    assert len(said.encode()) <= limits.TRACE_BYTES_MAX
    assert said.endswith("RecursionError: maximum recursion depth exceeded\n")
    assert "in endless" in said


def test_own_code_is_kept_behind_many_frames_of_a_library() -> None:
    library: dict[str, Any] = {}
    code = "def call(left, then):\n    return call(left - 1, then) if left else then()\n"
    exec(compile(code, "/x/site-packages/library.py", "exec"), library)
    said = text(raised(lambda: library["call"](100, inner)))
    assert "calls left out ..." in said
    assert "in <lambda>" in said
    assert said.count("library.py") == tracebacks.FRAMES_LAST


def test_a_file_that_is_none_is_not_read() -> None:
    names: dict[str, Any] = {}
    exec(compile("def call():\n    raise ValueError\n", "/dev/zero", "exec"), names)
    assert 'File "/dev/zero", line 2, in call\nValueError\n' in text(raised(names["call"]))


class Hostile(Exception):
    asked: list[str] = []  # noqa: RUF012

    def __str__(self) -> Never:
        self.asked.append("str")
        raise SystemExit("no")

    __repr__ = __str__

    def __getattribute__(self, name: str) -> Never:
        Hostile.asked.append(name)
        raise SystemExit("no")


def hostile(link: str) -> None:
    try:
        raise Hostile("plain argument", object())
    except Hostile as error:
        if link == "cause":
            raise KeyError("key") from error
        if link == "context":
            raise KeyError("key")  # noqa: B904
        raise


@pytest.mark.parametrize("link", ["", "cause", "context"])
def test_nothing_of_the_users_is_called(link: str) -> None:
    error = raised(hostile, link)
    Hostile.asked.clear()
    said = text(error, "given")
    assert said.endswith("given\n")
    assert Hostile.asked == []
    if link:
        assert "Hostile: plain argument\n\n" in said
        assert ("direct cause" in said) is (link == "cause")


@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_it_is_bounded(size: int) -> None:
    error = raised(inner, "x")
    error.add_note("n" * size)
    error.__cause__ = ValueError("c" * size)
    error.__cause__.__cause__ = error
    said = text(error, "ü" * size)
    assert len(said.encode()) <= limits.TRACE_BYTES_MAX
    assert "in inner" in said


def test_of_a_long_chain_the_last_are_shown() -> None:
    error = raised(inner, "x")
    last: BaseException = error
    for number in range(1_000):
        last.__cause__ = ValueError(number)
        last = last.__cause__
    assert text(error).count("direct cause") == tracebacks.CHAIN_MAX - 1


def test_a_run_keeps_so_many_of_failures_that_its_code_has_not_seen() -> None:
    app = wl.Program("waits")

    @app.workflow
    async def waits() -> None:
        await wl.wait(Ping)

    with testing.world(app) as world:
        world.start(waits(), id="r")
        run = world.machine.runs["r"]
        for number in range(40):
            run.traces.keep(number, b"", "text")
        outcome = Outcome(ReceiptStatus.ERROR, b"")
        kept = [number for number in range(40) if run.traces.take(number, outcome)]
        assert kept == list(range(40 - TRACES_MAX, 40))


def test_notes_are_shown() -> None:
    error = raised(inner, "x")
    error.add_note("look here")
    assert text(error, "said").endswith("said\nlook here\n")
    error.__notes__ = 7  # type: ignore[assignment]
    assert text(error, "said").endswith("said\n")


# --- In worlds ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ping:
    bad: bool = False


def program() -> tuple[wl.Program, Any, Any, Any]:
    app = wl.Program("fails")

    @app.reducer
    @dataclass
    class Cell:
        count: int = 0

        @wl.on
        def take(self, event: Ping) -> None:
            self.count += 1
            if event.bad:
                outer()

    @app.effect
    def breaks() -> None:
        raise wl.Fatal("broken")

    @app.workflow
    async def fails() -> None:
        await wl.sleep(1)
        outer()

    @app.workflow
    async def waits() -> str:
        try:
            await wl.wait(Ping, where=lambda _: bool(outer()))  # type: ignore[func-returns-value]
        except wl.errors.Failed as error:
            noted = getattr(error, "__notes__", [])
            seen.append(noted)
            return error.code
        return ""

    seen: list[list[str]] = []
    waits.seen = seen  # type: ignore[attr-defined]

    return app, fails, waits, breaks


def kept(world: testing.TestWorld) -> list[TracedFailure]:
    return [trace for each in world.traces for trace in each.traces]


def test_a_step_keeps_where_user_code_failed() -> None:
    app, fails, waits, _ = program()
    with testing.world(app) as world:
        with pytest.raises(wl.RunFailed) as failed:
            world.run(fails(), id="f")
        assert "in outer\n    inner(secret)\n" in failed.value.__notes__[0]
        run = world.start(waits(), id="w")
        with pytest.raises(testing.NotTaken):
            world.send(Ping(bad=True))
        world.send(Ping())
        assert run.result() == "ValueError"
        assert waits.seen[0][0].startswith("traceback of where=:\nTraceback ")
        assert [(each.source, each.subject) for each in kept(world)] == [
            (TraceSource.RUN, "f"),
            (TraceSource.HANDLER, "Cell.take"),
            (TraceSource.WHERE, "w"),
        ]
        assert all("in outer\n    inner(secret)\n" in each.text for each in kept(world))
        before = len(world.traces)
        world.crash()
        world.prove()
        assert len(world.traces) == before, "nothing is collected when steps are made again"


def test_digests_are_the_same_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def played() -> list[Any]:
        app, fails, waits, _ = program()
        with testing.world(app) as world:
            with pytest.raises(wl.RunFailed):
                world.run(fails(), id="f")
            world.start(waits(), id="w")
            with pytest.raises(testing.NotTaken):
                world.send(Ping(bad=True))
            world.send(Ping())
            return [(entry.chain, entry.state, entry.payload) for entry in world.journal()]

    with_traces = played()
    monkeypatch.setattr(tracebacks, "of", lambda *_: "")
    assert played() == with_traces
    monkeypatch.setattr(tracebacks, "of", lambda *_: "another text")
    assert played() == with_traces


def test_a_step_keeps_so_many() -> None:
    app = wl.Program("many")

    @app.workflow
    async def fails() -> None:
        await wl.wait(Ping)
        outer()

    with testing.world(app) as world:
        runs = [world.start(fails(), id=f"r{number}") for number in range(10)]
        world.send(Ping())
        assert all(run.done for run in runs)
        assert len(kept(world)) == limits.STEP_TRACES_MAX


def noted() -> tuple[wl.Program, wl.Script, Any]:
    app = wl.Program("noted")

    @app.effect(retry=wl.Retry(attempts=1))
    def breaks() -> None: ...

    @app.workflow
    async def asks(how: str) -> Any:
        try:
            if how == "gather":
                found: list[Any] = await wl.gather(breaks(), return_exceptions=True)
                raise found[0]
            await (wl.start(breaks()) if how == "start" else breaks())
        except wl.EffectFailed as error:
            seen.append(list(getattr(error, "__notes__", [])))
            if how == "fail":
                raise
            if how == "decide":
                return len(getattr(error, "__notes__", []))
            await wl.sleep(1)
        return None

    seen: list[list[str]] = []
    asks.seen = seen  # type: ignore[attr-defined]
    return app, wl.Script().on(breaks, lambda: outer()), asks


@pytest.mark.parametrize("how", ["await", "start", "gather"])
def test_a_failed_effect_says_where(how: str) -> None:
    app, script, asks = noted()
    with testing.world(app, script, twice=False, drops=False) as world:
        run = world.start(asks(how), id="r")
        world.crash()
        assert run.result() is None
        first, *rebuilt = asks.seen
        assert first[0].startswith("traceback of the effect:\nTraceback (most recent call last):\n")
        assert "in outer\n    inner(secret)\n" in first[0]
        assert rebuilt
        assert all(each == [] for each in rebuilt), "no journal has it"
        assert (TraceSource.EFFECT, "ValueError: 14 characters") in [
            (each.source, each.text.splitlines()[-1]) for each in kept(world)
        ]


def test_a_run_that_fails_with_an_effect_shows_both() -> None:
    app, script, asks = noted()
    with testing.world(app, script) as world:
        with pytest.raises(wl.RunFailed) as failed:
            world.run(asks("fail"))
        [note] = failed.value.__notes__
        assert "in asks\n" in note
        assert "traceback of the effect:" in note
        assert "in outer\n" in note
        world.prove()


def test_code_that_decides_by_notes_is_found() -> None:
    app, script, asks = noted()
    with testing.world(app, script) as world, pytest.raises(wl.Error, match="does not come out the same"):
        world.run(asks("decide"))
