"""Ways out for a run that does not go on: retry, terminate, answer; and answers for parked effects."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import worldline as wl
from tests.kernel.flows import Go, Said, asked, edited, flow, program, two, world
from worldline import testing
from worldline.base import errors, failures, limits
from worldline.kernel import run_repair
from worldline.kernel.rows.row_records import Outcome, RunStatus
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind

# --- Retry -----------------------------------------------------------------------------------------------------------


def test_retry_of_a_blocked_run_tries_the_code_that_there_is() -> None:
    app = program(two)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        w.adopt(program(edited))
        w.send(Go(3), to="r")
        assert run.status is RunStatus.BLOCKED
        run.retry()
        assert run.status is RunStatus.BLOCKED, "the code still does not fit"
        assert [entry.kind for entry in w.journal()].count(Kind.RUN_BLOCKED) == 2
        w.adopt(program(two))
        assert run.result() == ["first", 3, "second"]
        with pytest.raises(errors.Closed, match="has ended"):
            run.retry()
        w.prove()


def test_retry_of_a_run_that_runs_changes_nothing() -> None:
    app = program(two)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        before = w.machine.state
        run.retry()
        assert (run.status, w.machine.state) == (RunStatus.RUNNING, before)
        with pytest.raises(errors.NotFound, match="no run 'nobody'"):
            w.command(run_repair.RETRY, run_repair.RetryRun("nobody"))


# --- Terminate -------------------------------------------------------------------------------------------------------


def test_terminate_ends_a_run_and_the_runs_it_waits_for_without_their_code() -> None:
    async def nap(second: Any = None) -> None:
        try:
            await wl.sleep(100)
        finally:
            wl.emit(Said("child cleans up"))

    async def body(first: Any, child: Any, other: Any) -> Any:
        wl.start(other(), id="outlives")
        async with wl.scope(shield=True):
            try:
                await child()
            finally:
                wl.emit(Said("cleans up"))
                await first("x")

    app = program(body, child=nap, other=nap)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        run.cancel("please")
        assert run.status is RunStatus.RUNNING, "the shield is in the way"
        run.terminate("it must")
        assert (run.status, w.attach("r/1").status) == (RunStatus.CANCELLED, RunStatus.CANCELLED)
        assert w.attach("outlives").status is RunStatus.RUNNING
        with pytest.raises(failures.RunCancelled, match="it must") as caught:
            run.result()
        assert caught.value.code == "terminated"
        assert w.state(app.log).said == []
        assert asked(w, "first") == 0
        run.terminate("again")  # nothing more happens
        w.prove()


def chained(length: int) -> tuple[wl.Program, wl.Call[int]]:
    """Runs that wait for each other, so many of them, the last of which sleeps."""
    app = wl.Program("chain")

    @app.workflow
    async def link(behind: int) -> int:
        if not behind:
            await wl.sleep(3_600)
        return 1 + await link(behind - 1)

    return app, link(length - 1)


def test_a_chain_longer_than_pythons_stack_is_terminated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RUN_DEPTH_MAX", 10_000)
    app, call = chained(sys.getrecursionlimit() + 100)
    with testing.world(app, drops=False) as w:
        run = w.start(call, id="r")
        run.terminate("enough")
        assert run.status is RunStatus.CANCELLED
        assert w.machine.live == {}
        ended = [entry.correlation for entry in w.journal() if entry.kind is Kind.RUN_FINISHED]
        assert ended[-1] == "r", "each before the one that waits for it"
        assert ended[0] != "r/0"


def test_more_runs_than_a_step_can_end_are_not_terminated_but_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STEP_BYTES_MAX", 2_000)
    app, call = chained(20)
    with testing.world(app) as w:
        run = w.start(call, id="r")
        with pytest.raises(errors.BadInput, match="waits for 19 runs"):
            run.terminate("enough")
        assert len(w.machine.live) == 20, "all or nothing"
        run.cancel("enough")
        w.advance(1)
        assert w.machine.live == {}


def test_a_run_that_has_ended_is_reset_while_a_run_that_it_started_goes_on() -> None:
    """It is still its parent by name, and has no operation any more that says so."""
    app = wl.Program("p")

    @app.workflow
    async def other() -> None:
        await wl.sleep(100)

    @app.workflow
    async def starts() -> str:
        await wl.sleep(0)
        wl.start(other(), id="other")
        return "done"

    with testing.world(app) as w:
        run = w.start(starts(), id="r")
        w.advance(1)
        assert run.result() == "done"
        run.reset()
        w.advance(1)
        assert run.result() == "done"
        run.reset()
        run.terminate("enough")
        assert w.machine.live.keys() == {"other"}
        w.prove()


def test_a_blocked_run_is_terminated_and_its_parent_hears_of_it() -> None:
    async def before() -> None:
        await wl.wait(Go)

    async def after() -> None:
        await wl.sleep(1)

    async def body(child: Any) -> str:
        try:
            await child()
        except wl.RunCancelled as error:
            return str(error)
        return "no"

    app = program(body, child=before)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        w.adopt(program(body, child=after))
        w.send(Go(), to="r/0")
        assert w.attach("r/0").status is RunStatus.BLOCKED
        w.attach("r/0").cancel("kindly")
        assert w.attach("r/0").status is RunStatus.BLOCKED, "a cancellation waits until it goes on"
        w.attach("r/0").terminate("too old")
        assert run.result() == "too old"


# --- Answer ----------------------------------------------------------------------------------------------------------


def test_an_open_operation_is_answered_by_hand() -> None:
    async def nap() -> str:
        await wl.sleep(100)
        return "slept"

    async def body(first: Any, child: Any) -> list[Any]:
        said: list[Any] = [await child()]
        await wl.sleep(1_000)
        said.append((await wl.wait(Go)).number)
        try:
            await wl.sleep(1_000)
        except wl.EffectFailed as error:
            said.append(str(error))
        return said

    app = program(body, child=nap)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        with pytest.raises(errors.BadInput, match="the answer does not fit child"):
            run.answer(1, 5)
        run.answer(1, "by hand")
        assert w.attach("r/0").status is RunStatus.CANCELLED
        run.answer(1, "by hand")  # the same again: nothing
        with pytest.raises(errors.Exists, match=r"operation 1 of run 'r' \(child 'child' \(\)\) has an answer"):
            run.answer(1, "another")
        with pytest.raises(errors.BadInput, match="has no value"):
            run.answer(2, 1)
        run.answer(2)
        run.answer(3, {"number": 4})
        run.answer(4, error="no sleep")
        assert run.result() == ["by hand", 4, "sleep: no sleep"]
        assert w.machine.work.open == {}
        with pytest.raises(errors.Closed, match="has ended"):
            run.answer(1, "x")
        w.prove()


def test_answers_of_a_blocked_run_wait_for_it() -> None:
    app = program(two)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        w.adopt(program(edited))
        w.attach("r").retry()
        w.send(Go(1), to="r")
        assert run.status is RunStatus.BLOCKED
        with pytest.raises(errors.NotFound, match="has no operation 3; it has 2"):
            run.answer(3, 1)
        run.answer(2, {"number": 9})
        assert run.status is RunStatus.BLOCKED
        w.adopt(program(two))
        assert run.result() == ["first", 9, "second"]


def test_a_parked_effect_is_answered_with_a_value_or_an_error() -> None:
    async def body(shaky: Any) -> list[Any]:
        said: list[Any] = []
        for text in ("a", "b"):
            try:
                said.append(await shaky(text))
            except wl.EffectFailed as error:
                said.append(str(error))
        return said

    app = program(body)
    with world(app, shaky=ValueError("broken")) as w:
        run = w.start(flow(app), id="r")
        with pytest.raises(errors.BadInput, match="the answer does not fit shaky"):
            w.answer(app.effects["shaky"], "no number")
        assert w.answer(app.effects["shaky"], 5) == 1
        assert w.answer(app.effects["shaky"], error="never mind") == 1
        assert run.result() == [5, "shaky: never mind"]
        assert w.answer(app.effects["shaky"], 5) == 0
        with pytest.raises(errors.NotFound, match="is open"):
            w.command(run_repair.ANSWER_EFFECT, run_repair.AnswerEffect(bytes(16), b"\xf6"))
        w.prove()


def test_an_effect_that_is_not_parked_is_not_answered_by_hand() -> None:
    async def body(first: Any) -> Any:
        await first("x")

    app = program(body)
    with testing.world(app, wl.Script().on(app.effects["first"], wl.Script.never())) as w:
        w.start(flow(app), id="r")
        [intent] = w.machine.work.open
        with pytest.raises(errors.Closed, match="worldline effect park"):
            w.command(run_repair.ANSWER_EFFECT, run_repair.AnswerEffect(intent, b"\xf6"))


def test_the_same_answer_is_the_same_however_it_is_kept() -> None:
    """The receipt of a message stands in the placement of its row; given by hand once more, it changes nothing."""
    kept = Outcome(ReceiptStatus.OK, b"receipt", placed=True)
    assert kept.is_same(Outcome(ReceiptStatus.OK, b"receipt"))
    assert not kept.is_same(Outcome(ReceiptStatus.OK, b"other"))
    assert not kept.is_same(Outcome(ReceiptStatus.ERROR, b"receipt"))
