"""The Host contract's compliance suite, on every kind of host: fulfilment, handlers and reinjection of effects."""

from __future__ import annotations

from typing import Any

import pytest

from tests.flow.conftest import Desks
from tests.flow.contract_kit import CHAIN, FETCH, FIELDS, gives, idle_data, made, pending, raising
from tests.flow.hosts import said, types
from tests.flow_core.documents import document, effect, field, get, lit, once, op, put, seq, when
from worldline import flow
from worldline.flow_core import faults, flow_records, jobs

# --- 3. fulfilment ---------------------------------------------------------------------------------------


def stale(intent_id: str = "gone") -> flow_records.Requirement:
    return flow_records.Requirement("r-old", intent_id, "old", {}, "other", flow_records.FlowPosition("p", 0), 0)


async def seeded(desk: Any, *requirements: flow_records.Requirement) -> None:
    snapshot = await desk.snapshot()
    system = flow_records.System(pending_requirements=requirements)
    await desk.seed(flow_records.Snapshot(snapshot.data, snapshot.computed, system, snapshot.meta))


async def test_fulfill_001_a_requirement_of_another_action_is_never_performed(open_alone: Desks) -> None:
    called: list[str] = []

    def old(call: flow.EffectCall) -> list[flow.Patch]:
        called.append("old")
        return []

    desk = open_alone(made(go=put("checked", lit(True))), {"old": old})
    await seeded(desk, stale())
    await desk.act("go")
    assert (called, (await idle_data(desk))["checked"]) == ([], True)


async def test_fulfill_002_a_handler_that_raises_is_recorded_and_its_requirement_cleared(open_desk: Desks) -> None:
    guarded = when(op("isNull", get("$host.lastError")), effect("http"))
    desk = open_desk(made(go=guarded), {"http": raising("Effect handler failed!")})
    assert (await desk.act("go")).status == "complete"
    (error,) = (await idle_data(desk))["$host"]["errors"]
    assert error["code"] == "EFFECT_EXECUTION_FAILED"
    assert error["message"].endswith("Effect handler failed!")
    assert error["context"]["effectType"] == "http"
    assert types(desk).count("effect:fulfill:apply") == 0


async def test_fulfill_002b_no_handler_is_an_error_of_the_host(open_alone: Desks) -> None:
    desk = open_alone(made(go=when(op("isNull", get("$host.lastError")), effect("nothing"))))
    await desk.act("go")
    assert (await idle_data(desk))["$host"]["errors"][0]["code"] == faults.UNKNOWN_EFFECT


async def test_fulfill_twice_the_first_counts(open_alone: Desks) -> None:
    desk = open_alone(made(go=once("response", "http")), perform=False)
    await desk.submit("go")
    await desk.idle()
    (id_,) = await pending(desk)
    await desk.inject(id_, [flow.set("response", {"v": 1})])
    await desk.inject(id_, [flow.set("response", {"v": 2})])
    await desk.idle()
    snapshot = await desk.snapshot()
    assert (snapshot.data["response"], snapshot.meta.version) == ({"v": 1}, 5)
    assert types(desk).count("effect:fulfill:apply") == 1
    assert said(desk, "effect:fulfill:drop", "reason") == ["dropped:stale"]


async def test_fulfill_stale_is_dropped_logged_and_nothing_goes_on(
    open_alone: Desks, caplog: pytest.LogCaptureFixture
) -> None:
    desk = open_alone(made())
    before = await desk.snapshot()
    await desk.inject("r-unknown", [flow.set("count", 9)])
    await desk.idle()
    assert await desk.snapshot() == before
    assert types(desk) == ["job:start", "context:frozen", "effect:fulfill:drop", "job:end"]
    assert any("r-unknown" in each.getMessage() and "dropped:stale" in each.getMessage() for each in caplog.records)


async def test_fulfill_in_one_job_apply_clear_continue(open_desk: Desks) -> None:
    desk = open_desk(made(go=FETCH), {"http": gives("response", {})})
    await desk.act("go")
    names = types(desk)
    start = names.index("effect:fulfill:apply")
    assert names[start - 3 : start + 5] == [
        "job:start",
        "context:frozen",
        "core:apply",
        "effect:fulfill:apply",
        "core:apply",
        "requirement:clear",
        "continue:enqueue",
        "job:end",
    ]
    assert said(desk, "job:start", "jobType")[1:] == ["FulfillEffect", "ContinueCompute"]


async def test_fulfill_failed_in_one_job_clear_then_error_then_continue(open_desk: Desks) -> None:
    """The error patch comes behind the clear: whatever becomes of it, the requirement is not pending any more."""
    desk = open_desk(made(go=when(op("isNull", get("$host.lastError")), effect("http"))), {"http": raising("no")})
    await desk.act("go")
    told = [(each.type, each.fields.get("source", "")) for each in desk.events()]
    at = told.index(("requirement:clear", ""))
    assert told[at - 3 : at + 4] == [
        ("job:start", ""),
        ("context:frozen", ""),
        ("core:apply", "clear-requirement"),
        ("requirement:clear", ""),
        ("core:apply", "error-patch"),
        ("continue:enqueue", ""),
        ("job:end", ""),
    ]
    assert [each for each in told if each[1] == "error-patch"] == [("core:apply", "error-patch")]


async def test_fulfill_a_result_that_does_not_fit_is_an_error_though_core_raises_nothing(open_desk: Desks) -> None:
    """The reference looks for exceptions alone, and dispatches the same id until its iterations are used up."""
    desk = open_desk(made(go=once("response", "http")), {"http": gives("count", "not a number")})
    result = await desk.act("go")
    assert result.error is not None
    assert (result.error.code, types(desk).count("effect:dispatch")) == (jobs.EFFECT_REPEATED, 1)
    assert (await desk.snapshot()).data["$host"]["errors"][0]["code"] == jobs.EFFECT_APPLY_FAILED
    assert said(desk, "effect:fulfill:error", "phase") == ["apply"]
    assert types(desk).count("effect:fulfill:apply") == 0


@pytest.mark.probe("flow.effect-repeated")
async def test_err_fe_4_a_failed_id_is_never_performed_again(open_desk: Desks) -> None:
    """The reference performs it again and again: its guard reads state that the failure left as it was."""
    called: list[str] = []

    async def failing(call: flow.EffectCall) -> list[flow.Patch]:
        called.append(call.requirement["id"])
        raise RuntimeError("down")

    desk = open_desk(made(go=once("response", "http")), {"http": failing})
    result = await desk.act("go")
    assert result.error is not None
    assert (len(called), result.status, result.error.code) == (1, "error", jobs.EFFECT_REPEATED)
    assert result.error.context == {"requirementId": called[0], "effectType": "http"}
    snapshot = await desk.snapshot()
    assert (snapshot.system.current_action, snapshot.system.pending_requirements) == (None, ())
    assert snapshot.data["$host"]["intentSlots"] == {}


# --- 4. handlers -----------------------------------------------------------------------------------------


async def test_handler_001_its_patches_land(open_desk: Desks) -> None:
    desk = open_desk(
        made(go=once("response", "http")), {"http": lambda call: [flow.set("response", {"ok": 1}), flow.set("a", 1)]}
    )
    await desk.act("go")
    data = await idle_data(desk)
    assert (data["response"], data["a"]) == ({"ok": 1}, 1)


async def test_handler_005_failures_as_data_are_patches_like_others(open_desk: Desks) -> None:
    guarded = when(op("and", op("isNull", get("response")), op("isNull", get("error"))), effect("http"))
    desk = open_desk(made(go=guarded), {"http": gives("error", "404")})
    assert (await desk.act("go")).status == "complete"
    assert (await idle_data(desk))["error"] == "404"


async def test_handler_007_parameters_are_received(open_desk: Desks) -> None:
    async def echo(call: flow.EffectCall) -> list[flow.Patch]:
        return [flow.set("response", {"echo": dict(call.params)})]

    desk = open_desk(made(go=once("response", "echo", input=lit("test-input"))), {"echo": echo})
    await desk.act("go")
    assert (await idle_data(desk))["response"] == {"echo": {"input": "test-input"}}


@pytest.mark.parametrize(
    "change",
    [
        lambda call: call.snapshot["data"].__setitem__("count", 5),
        lambda call: call.snapshot["data"]["list"].append(1),
        lambda call: call.params.update(x=1),
        lambda call: call.requirement.pop("id"),
        lambda call: setattr(call, "params", {}),
    ],
    ids=["data", "list", "params", "requirement", "call"],
)
async def test_handler_cannot_change_what_it_is_given(open_desk: Desks, change: Any) -> None:
    made_ = document(
        {"go": when(op("isNull", get("$host.lastError")), effect("http"))}, {**FIELDS, "list": field("array", [1])}
    )
    desk = open_desk(made_, {"http": lambda call: [change(call)]})
    await desk.act("go")
    data = await idle_data(desk)
    assert data["$host"]["lastError"]["code"] == jobs.EFFECT_EXECUTION_FAILED
    assert (data["count"], data["list"]) == (0, [1])


@pytest.mark.parametrize(
    "given",
    [
        [flow.set("system.status", "idle")],
        [flow.set("system.pendingRequirements", [])],
        [flow.set("meta.version", 9)],
        [flow.set("computed.doubled", 9)],
        [flow.set("input.x", 1)],
        [flow.set("$host.intentSlots", {})],
        [{"op": "replace", "path": "count", "value": 1}],
        [flow.set("count", float("nan"))],
        [flow.set("note", b"x")],
        [flow.set("response", {"__proto__": {}})],
        None,
        "patches",
        [None],
        [flow.set("count", object())],
    ],
)
async def test_handler_patches_that_are_not_the_domains_change_nothing(open_alone: Desks, given: Any) -> None:
    """The reference takes patches of `system`, `meta` and `computed`, unknown ops, and values that are no JSON."""
    desk = open_alone(made(go=when(op("isNull", get("$host.lastError")), effect("http"))), {"http": lambda call: given})
    result = await desk.act("go")
    assert result.status == "complete"
    data = await idle_data(desk)
    assert data["$host"]["lastError"]["code"] == jobs.EFFECT_APPLY_FAILED
    assert (data["count"], data["note"], (await desk.snapshot()).meta.version) == (0, None, 5)


# --- 11. reinjection -------------------------------------------------------------------------------------


async def test_reinj_001_results_come_back_as_jobs(open_desk: Desks) -> None:
    desk = open_desk(
        made(go=seq(CHAIN, once("step3", "three"))),
        {f"{name}": gives(f"step{at}", True) for at, name in ((1, "one"), (2, "two"), (3, "three"))},
    )
    await desk.act("go")
    await idle_data(desk)
    counts = {
        name: types(desk).count(name)
        for name in ("effect:dispatch", "effect:fulfill:apply", "requirement:clear", "continue:enqueue")
    }
    assert counts == dict.fromkeys(counts, 3)
    assert said(desk, "job:start", "jobType").count("FulfillEffect") == 3


async def test_reinj_005_so_do_failures(open_desk: Desks) -> None:
    desk = open_desk(made(go=when(op("isNull", get("$host.lastError")), effect("http"))), {"http": raising("no")})
    await desk.act("go")
    await idle_data(desk)
    assert said(desk, "job:start", "jobType") == ["StartIntent", "FulfillEffect", "ContinueCompute"]
    assert (types(desk).count("requirement:clear"), types(desk).count("continue:enqueue")) == (1, 1)
