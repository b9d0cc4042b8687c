"""The Host contract's compliance suite: its twelve groups, on every kind of host."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from tests.flow.conftest import Desks
from tests.flow.documents import DOUBLED, HALT, document, effect, field, get, lit, once, op, put, seq, when
from tests.flow.hosts import KEY, failure, said, types
from worldline import flow
from worldline.kernel.flow import faults, jobs, patches, snapshots

FIELDS: dict[str, Any] = {
    **{name: field("object") for name in ("response", "result", "other")},
    **{name: field("boolean") for name in ("done", "step1", "step2", "step3", "complete", "checked")},
    **{name: field("string") for name in ("seed1", "seed2", "intent", "error", "note")},
    **{name: field("number") for name in ("t1", "t2", "a", "b", "c", "saw")},
    "$host": field("object", {}),
}  # fmt: skip

INCREMENT = put("count", op("add", get("count"), lit(1)))
FETCH = seq(once("response", "http", url=lit("/u"), into=lit("response")), put("done", lit(True)))
CHAIN = seq(once("step1", "one"), once("step2", "two"), put("complete", lit(True)))


def made(**actions: Any) -> dict[str, Any]:
    return document({"noop": HALT, **actions}, FIELDS)


def gives(path: str, value: Any) -> flow.Handler:
    """A handler that sets one field."""

    async def handler(call: flow.EffectCall) -> list[flow.Patch]:
        return [flow.set(path, value)]

    return handler


def raising(message: str) -> flow.Handler:
    async def handler(call: flow.EffectCall) -> list[flow.Patch]:
        raise RuntimeError(message)

    return handler


async def idle_data(desk: Any, key: str = KEY) -> dict[str, Any]:
    """The data of a key that has nothing pending any more."""
    snapshot = await desk.snapshot(key)
    assert (snapshot.system.pending_requirements, snapshot.system.status) == ((), "idle")
    assert "intentSlots" not in snapshot.data.get("$host", {}) or snapshot.data["$host"]["intentSlots"] == {}
    data: dict[str, Any] = snapshot.data
    return data


# --- 1. context ------------------------------------------------------------------------------------------


async def test_ctx_001_now_is_the_same_for_all_of_a_job(open_timed: Desks) -> None:
    desk = open_timed(made(go=seq(put("t1", get("meta.timestamp")), put("t2", get("meta.timestamp")))))
    await desk.advance(700)
    await desk.act("go")
    data = await idle_data(desk)
    assert data["t1"] == data["t2"] == 700


async def test_ctx_002_the_seed_is_the_intents_id_in_every_job(open_desk: Desks) -> None:
    flow_ = seq(when(op("isNull", get("seed1")), put("seed1", get("meta.randomSeed"))), once("response", "http"),
                put("seed2", get("meta.randomSeed")))  # fmt: skip
    desk = open_desk(made(go=flow_), {"http": gives("response", {})})
    await desk.act("go", id="i-7")
    data = await idle_data(desk)
    assert data["seed1"] == data["seed2"] == "i-7"
    assert said(desk, "context:frozen", "randomSeed") == ["i-7"] * 3


async def test_ctx_003_time_comes_from_the_hosts_clock(open_timed: Desks) -> None:
    desk = open_timed(made())
    await desk.advance(1_000)
    await desk.act("noop")
    assert (await desk.snapshot()).meta.timestamp == 1_000


async def test_ctx_004_intents_of_two_keys_differ(open_desk: Desks) -> None:
    desk = open_desk(made(go=put("intent", get("meta.intentId"))))
    await asyncio.gather(desk.act("go", key="x"), desk.act("go", key="y"))
    assert (await idle_data(desk, "x"))["intent"] != (await idle_data(desk, "y"))["intent"]


async def test_ctx_005_one_context_is_captured_for_each_job(open_alone: Desks) -> None:
    asked: list[int] = []

    def environment() -> dict[str, Any]:
        asked.append(len(asked))
        return {"asked": len(asked)}

    desk = open_alone(made(go=FETCH), {"http": gives("response", {})}, environment=environment)
    await desk.act("go")
    starts = types(desk).count("job:start")
    assert (starts, types(desk).count("context:frozen"), len(asked)) == (3, 3, 3 + 1)  # and one for the first snapshot
    assert said(desk, "context:frozen", "env") == [{"asked": 2}, {"asked": 3}, {"asked": 4}]


async def test_ctx_seed_of_queued_intents_is_their_own(open_desk: Desks) -> None:
    """The reference runs job A with the seed of B, if B was submitted before A was run."""
    flow_ = put("note", op("concat", get("note"), get("meta.randomSeed"), lit(" ")))
    desk = open_desk(made(go=flow_))
    await desk.submit("go", id="A")
    await desk.submit("go", id="B")
    await desk.idle()
    assert (await idle_data(desk))["note"] == "A B "
    assert said(desk, "context:frozen", "randomSeed") == ["A", "B"]


async def test_system_get_is_answered_from_the_frozen_context(open_timed: Desks) -> None:
    flow_ = seq(once("note", "system.get", key=lit("uuid"), into=lit("note")),
                once("t1", "system.get", key=lit("now"), into=lit("t1")),
                once("error", "system.get", key=lit("env.REGION"), into=lit("error")))  # fmt: skip
    ends = []
    for _ in range(2):
        desk = open_timed(made(go=flow_), environment=lambda: {"REGION": "north"})
        await desk.advance(42)
        assert (await desk.act("go", id="i")).status == "complete"
        ends.append((await desk.snapshot()).data)
    assert (ends[0]["t1"], ends[0]["error"], len(ends[0]["note"])) == (42, "north", 36)
    assert ends[0] == ends[1]
    desk = open_timed(made(go=effect("system.get", key=lit("secret"), into=lit("note"))))
    assert (await desk.act("go")).status == "error"


# --- 2. requirements -------------------------------------------------------------------------------------


async def test_req_001_a_guarded_effect_is_performed_and_cleared(open_desk: Desks) -> None:
    desk = open_desk(made(go=FETCH), {"http": gives("response", {"data": "fetched"})})
    assert (await desk.act("go")).status == "complete"
    data = await idle_data(desk)
    assert (data["response"], data["done"]) == ({"data": "fetched"}, True)


async def test_req_001b_chained_effects_are_performed_one_after_the_other(open_desk: Desks) -> None:
    desk = open_desk(made(go=CHAIN), {"one": gives("step1", True), "two": gives("step2", True)})
    await desk.act("go")
    data = await idle_data(desk)
    assert (data["step1"], data["step2"], data["complete"]) == (True, True, True)
    assert said(desk, "effect:dispatch", "effectType") == ["one", "two"]


async def test_req_002_an_effect_without_a_guard_ends_within_the_iterations(open_desk: Desks) -> None:
    desk = open_desk(made(go=effect("again")), {"again": lambda call: []})
    result = await desk.act("go")
    assert result.error is not None
    assert (result.status, result.error.code) == ("error", jobs.LOOP_MAX_ITERATIONS)
    assert types(desk).count("effect:dispatch") == 99
    assert types(desk).count("core:compute") == 100


async def test_versions_are_2_5_and_8_after_zero_one_and_two_effects(open_desk: Desks) -> None:
    handlers = {"http": gives("response", {}), "one": gives("step1", True), "two": gives("step2", True)}
    for action, version in (("plain", 2), ("fetch", 5), ("chain", 8)):
        desk = open_desk(made(plain=INCREMENT, fetch=FETCH, chain=CHAIN), handlers)
        await desk.act(action)
        assert (await desk.snapshot()).meta.version == version


# --- 3. fulfilment ---------------------------------------------------------------------------------------


def stale(intent_id: str = "gone") -> snapshots.Requirement:
    return snapshots.Requirement("r-old", intent_id, "old", {}, "other", snapshots.FlowPosition("p", 0), 0)


async def seeded(desk: Any, *requirements: snapshots.Requirement) -> None:
    snapshot = await desk.snapshot()
    system = snapshots.System(pending_requirements=requirements)
    await desk.seed(snapshots.Snapshot(snapshot.data, snapshot.computed, system, snapshot.meta))


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


async def pending(desk: Any, key: str = KEY) -> list[str]:
    return [each.id for each in (await desk.snapshot(key)).system.pending_requirements]


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
        "job:start", "context:frozen", "core:apply", "effect:fulfill:apply", "core:apply", "requirement:clear",
        "continue:enqueue", "job:end",
    ]  # fmt: skip


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
        lambda call: call.params.update(x=1), lambda call: call.requirement.pop("id"), lambda call: setattr(call,
        "params", {}),
    ],
    ids=["data", "list", "params", "requirement", "call"],
)  # fmt: skip
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
        [flow.set("system.status", "idle")], [flow.set("system.pendingRequirements", [])], [flow.set("meta.version",
        9)],
        [flow.set("computed.doubled", 9)], [flow.set("input.x", 1)], [flow.set("$host.intentSlots", {})],
        [{"op": "replace", "path": "count", "value": 1}], [flow.set("count", float("nan"))], [flow.set("note", b"x")],
        [flow.set("response", {"__proto__": {}})], None, "patches", [None], [flow.set("count", object())],
    ],
)  # fmt: skip
async def test_handler_patches_that_are_not_the_domains_change_nothing(open_alone: Desks, given: Any) -> None:
    """The reference takes patches of `system`, `meta` and `computed`, unknown ops, and values that are no JSON."""
    desk = open_alone(made(go=when(op("isNull", get("$host.lastError")), effect("http"))), {"http": lambda call: given})
    result = await desk.act("go")
    assert result.status == "complete"
    data = await idle_data(desk)
    assert data["$host"]["lastError"]["code"] == jobs.EFFECT_APPLY_FAILED
    assert (data["count"], data["note"], (await desk.snapshot()).meta.version) == (0, None, 5)


# --- 5. intents ------------------------------------------------------------------------------------------


async def test_intent_002_a_guarded_effect_is_performed_once(open_desk: Desks) -> None:
    desk = open_desk(made(go=FETCH), {"http": gives("response", {})})
    await desk.act("go")
    await desk.act("go")
    assert types(desk).count("effect:dispatch") == 1


async def test_intent_003_a_flow_is_entered_again_under_the_same_id(open_desk: Desks) -> None:
    desk = open_desk(made(go=CHAIN), {"one": gives("step1", True), "two": gives("step2", True)})
    await desk.act("go", id="same")
    assert said(desk, "core:compute", "intentId") == ["same"] * 3
    assert said(desk, "core:compute", "iteration") == [1, 2, 3]


async def test_intent_004_progress_is_in_the_snapshot(open_alone: Desks) -> None:
    """A snapshot taken in the middle goes on elsewhere."""
    desk = open_alone(made(go=FETCH), perform=False)
    await desk.submit("go", {"x": 1}, id="i")
    await desk.idle()
    middle = await desk.snapshot()
    assert middle.data["$host"]["intentSlots"]["i"] == {"type": "go", "input": {"x": 1}, "computes": 1}
    other = open_alone(made(go=FETCH), {"http": gives("response", {"progress": 100})})
    await other.seed(middle)
    await other.idle()
    data = await idle_data(other)
    assert (data["response"], data["done"]) == ({"progress": 100}, True)


async def test_intent_005_ids_are_made_at_submission_and_differ(open_desk: Desks) -> None:
    desk = open_desk(made())
    await desk.submit("noop")
    await desk.submit("noop")
    await desk.idle()
    first, second = said(desk, "core:compute", "intentId")
    assert isinstance(first, str)
    assert first != second


async def test_intent_008_the_same_id_is_one_intent_and_another_input_is_refused(open_desk: Desks) -> None:
    desk = open_desk(made(go=INCREMENT))
    results = [await desk.act("go", {"x": 1}, id="i") for _ in range(2)]
    assert results[0] == results[1]
    assert (await desk.snapshot()).data["count"] == 1
    with pytest.raises(Exception, match="used before"):
        await desk.act("go", {"x": 2}, id="i")


async def test_intent_010_input_is_recovered_from_the_slot(open_desk: Desks) -> None:
    flow_ = seq(once("response", "http"), put("a", get("input.n")))
    desk = open_desk(made(go=flow_), {"http": gives("response", {})})
    await desk.act("go", {"n": 5})
    assert (await idle_data(desk))["a"] == 5


async def test_intent_slots_are_pruned_when_intents_end(open_desk: Desks) -> None:
    """The reference keeps the slot of every intent for ever."""
    desk = open_desk(
        made(go=FETCH, bad=put("nowhere", lit(1)), no={"flow": HALT, "available": lit(False)}),
        {"http": gives("response", {})},
    )
    for action in ("noop", "go", "bad", "no"):
        await desk.act(action)
        assert (await desk.snapshot()).data["$host"]["intentSlots"] == {}


async def test_an_action_that_is_not_there_leaves_no_slot(open_alone: Desks) -> None:
    desk = open_alone(made())
    await desk.act("unknown")
    assert (await desk.snapshot()).data["$host"]["intentSlots"] == {}


# --- 6. interlock ----------------------------------------------------------------------------------------


async def test_interlock_001_a_compute_is_applied_before_its_effects_are_dispatched(open_desk: Desks) -> None:
    desk = open_desk(made(go=CHAIN), {"one": gives("step1", True), "two": gives("step2", True)})
    await desk.act("go")
    told = [
        (each.type, each.fields.get("source")) for each in desk.events()
        if each.type in ("core:compute", "effect:dispatch") or each.fields.get("source") == "compute"
    ]  # fmt: skip
    compute, applied, dispatch = ("core:compute", None), ("core:apply", "compute"), ("effect:dispatch", None)
    assert told == [compute, applied, dispatch, compute, applied, dispatch, compute, applied]


async def test_interlock_001b_a_handler_sees_what_its_compute_patched(open_desk: Desks) -> None:
    seen: list[Any] = []

    async def look(call: flow.EffectCall) -> list[flow.Patch]:
        seen.append(
            (call.snapshot["data"]["count"], call.params["n"], len(call.snapshot["system"]["pendingRequirements"]))
        )
        return [flow.set("saw", call.snapshot["data"]["count"])]

    desk = open_desk(made(go=seq(put("count", lit(42)), once("saw", "look", n=get("count")))), {"look": look})
    await desk.act("go")
    assert (seen, (await idle_data(desk))["saw"]) == ([(42, 42, 1)], 42)


# --- 7. jobs ---------------------------------------------------------------------------------------------


async def test_job_001_jobs_do_not_interleave(open_desk: Desks) -> None:
    desk = open_desk(made(go=CHAIN, other=INCREMENT), {"one": gives("step1", True), "two": gives("step2", True)})
    await asyncio.gather(desk.act("go"), desk.act("other"), desk.act("other"))
    marks = [each for each in types(desk) if each in ("job:start", "job:end")]
    assert marks == ["job:start", "job:end"] * (len(marks) // 2)
    assert (await idle_data(desk))["count"] == 2


async def test_job_002_all_patches_of_a_flow_are_one_job(open_desk: Desks) -> None:
    desk = open_desk(made(go=seq(put("a", lit(1)), put("b", lit(2)), put("c", lit(3)))))
    await desk.act("go")
    data = await idle_data(desk)
    assert ((data["a"], data["b"], data["c"]), (await desk.snapshot()).meta.version) == ((1, 2, 3), 2)
    assert types(desk).count("job:start") == 1


async def test_job_003_an_effect_splits_an_intent_into_jobs(open_desk: Desks) -> None:
    desk = open_desk(made(go=FETCH), {"http": gives("response", {})})
    await desk.act("go", id="i")
    assert said(desk, "job:start", "jobType") == ["StartIntent", "FulfillEffect", "ContinueCompute"]
    assert types(desk).count("continue:enqueue") == 1


async def test_job_ids_are_made_of_what_they_are_about(open_timed: Desks) -> None:
    """The reference makes them of the clock and random numbers."""
    ids = []
    for _ in range(2):
        desk = open_timed(made(go=FETCH), {"http": gives("response", {})})
        await desk.act("go", id="i")
        ids.append(said(desk, "job:start", "jobId"))
        await desk.advance(5)
    assert ids[0] == ids[1]
    assert (ids[0][0], ids[0][2]) == ("i:start", "i:continue:2")


async def test_job_trace_of_one_effect(open_desk: Desks) -> None:
    desk = open_desk(made(go=once("response", "http")), {"http": gives("response", {})})
    await desk.act("go")
    assert types(desk) == [
        "job:start", "context:frozen", "core:apply", "core:compute", "core:apply", "effect:dispatch", "job:end",
        "job:start", "context:frozen", "core:apply", "effect:fulfill:apply", "core:apply", "requirement:clear",
        "continue:enqueue", "job:end", "job:start", "context:frozen", "core:compute", "core:apply", "job:end",
    ]  # fmt: skip
    assert said(desk, "core:apply", "source") == [
        "host-intent-slot",
        "compute",
        "effect",
        "clear-requirement",
        "compute",
    ]


async def test_apply_patches_is_a_job_of_its_own(open_desk: Desks) -> None:
    desk = open_desk(made())
    await desk.act("noop", id="i")
    await desk.patch([flow.set("count", 4), flow.set("nowhere", 1)])
    await desk.idle()
    snapshot = await desk.snapshot()
    assert (snapshot.data["count"], snapshot.computed["computed.doubled"], snapshot.meta.random_seed) == (4, 8, "i")
    assert [each.code for each in snapshot.system.errors] == [faults.PATH_NOT_FOUND]
    for given in ([flow.set("system.status", "x")], [flow.set("$host.x", 1)], [get("count")]):
        with pytest.raises(patches.BadPatch):
            await desk.patch(given)


# --- 8. liveness -----------------------------------------------------------------------------------------


async def test_live_002_every_intent_ends_and_leaves_nothing_pending(open_desk: Desks) -> None:
    handlers = {"http": gives("response", {"success": True}), "one": gives("step1", True), "two": gives("step2", True)}
    desk = open_desk(made(go=FETCH, chain=CHAIN), handlers)
    for action in ("noop", "go", "chain"):
        assert (await desk.act(action)).status == "complete"
    data = await idle_data(desk)
    assert (data["response"], data["complete"]) == ({"success": True}, True)


async def test_live_006_halt_ends_an_intent(open_desk: Desks) -> None:
    desk = open_desk(made(go=seq(put("a", lit(1)), HALT, put("b", lit(1)))))
    assert (await desk.act("go")).status == "complete"
    data = await idle_data(desk)
    assert (data["a"], data["b"]) == (1, None)


# --- 9. mailboxes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["simple-key", "proposal:abc123:branch:main", "🔑-unicode-key", "key/with/slashes", "key.with.dots"]
)
async def test_mail_003_keys_are_opaque(open_desk: Desks, key: str) -> None:
    desk = open_desk(made(go=FETCH), {"http": gives("response", {})})
    await desk.act("go", key=key)
    assert (await idle_data(desk, key))["done"] is True


async def test_mail_001_keys_are_independent(open_desk: Desks) -> None:
    desk = open_desk(made(go=INCREMENT, fetch=FETCH), perform=False)
    await desk.submit("fetch", key="waits")
    await desk.act("go", key="goes")
    assert (await idle_data(desk, "goes"))["count"] == 1
    assert len(await pending(desk, "waits")) == 1


async def test_mail_006_increments_are_taken_in_order(open_desk: Desks) -> None:
    desk = open_desk(made(go=INCREMENT))
    for _ in range(3):
        await desk.submit("go")
    await desk.idle()
    assert (await idle_data(desk))["count"] == 3


async def test_concurrent_increments_are_all_counted(open_desk: Desks) -> None:
    """The reference loses one of two increments that are dispatched at once."""
    desk = open_desk(made(go=INCREMENT))
    results = await asyncio.gather(*(desk.act("go") for _ in range(20)))
    assert sorted(each.snapshot.data["count"] for each in results) == list(range(1, 21))


async def test_a_second_intent_does_not_drop_the_requirement_of_the_first(open_desk: Desks) -> None:
    """The reference replaces what is pending by what the second intent needs."""
    desk = open_desk(made(fetch=FETCH, go=INCREMENT), perform=False)
    await desk.submit("fetch", id="A")
    await desk.submit("go", id="B")
    await desk.idle()
    (id_,) = await pending(desk)
    assert (await desk.snapshot()).data["count"] == 0  # B waits for A
    await desk.inject(id_, [flow.set("response", {"ok": True})])
    await desk.idle()
    data = await idle_data(desk)
    assert (data["response"], data["count"], data["done"]) == ({"ok": True}, 1, True)


async def test_available_is_asked_of_a_second_intent_of_the_same_type(open_desk: Desks) -> None:
    """The reference skips it for every intent whose type is the current action's."""
    gated = {"flow": FETCH, "available": op("isNull", get("response"))}
    desk = open_desk(made(go=gated), {"http": gives("response", {})})
    both = await asyncio.gather(desk.act("go"), desk.act("go"))
    assert [each.status for each in both].count("complete") == 1  # whichever comes first, where that is not said
    [refused] = [each.error for each in both if each.error is not None]
    assert refused.code == faults.ACTION_UNAVAILABLE


async def test_iterations_that_run_out_leave_no_current_action(open_alone: Desks) -> None:
    """The reference leaks it, so the next intent of the type skips `available`."""
    desk = open_alone(made(go=effect("again")), {"again": lambda call: []}, iterations_max=3)
    result = await desk.act("go")
    assert result.error is not None
    assert (result.error.code, types(desk).count("core:compute")) == (jobs.LOOP_MAX_ITERATIONS, 3)
    snapshot = await desk.snapshot()
    assert (snapshot.system.current_action, snapshot.system.pending_requirements) == (None, ())


# --- 10. order -------------------------------------------------------------------------------------------

BOTH = seq(once("a", "first"), once("b", "second"), put("done", lit(True)))


async def test_ord_001_effects_are_performed_one_at_a_time(open_desk: Desks) -> None:
    order: list[str] = []

    def noting(name: str, path: str) -> flow.Handler:
        async def handler(call: flow.EffectCall) -> list[flow.Patch]:
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            order.append(f"{name} ends")
            return [flow.set(path, 1)]

        return handler

    desk = open_desk(made(go=BOTH), {"first": noting("first", "a"), "second": noting("second", "b")})
    await desk.act("go")
    assert order == ["first begins", "first ends", "second begins", "second ends"]


async def test_ord_004_one_effect_may_set_many_values(open_desk: Desks) -> None:
    desk = open_desk(made(go=once("a", "x")), {"x": lambda call: [flow.set("a", 1), flow.set("b", 2)]})
    await desk.act("go")
    data = await idle_data(desk)
    assert (data["a"], data["b"]) == (1, 2)


async def open_both(open_desk: Desks, effects: str) -> tuple[Any, list[str]]:
    """A desk whose intent waits for both effects, and their ids in Core's order."""
    desk = open_desk(made(go=BOTH), perform=False, effects=effects)
    await desk.submit("go", id="i")
    await desk.idle()
    return desk, await pending(desk)


async def test_ord_parallel_results_are_applied_in_cores_order(open_desk: Desks) -> None:
    """R1 adds 10 and R2 doubles: 20, whichever comes first, never 10."""
    desk, (first, second) = await open_both(open_desk, "parallel")
    await desk.inject(second, [flow.set("count", 20), flow.set("b", 1)])
    await desk.idle()
    assert (await desk.snapshot()).data["count"] == 0
    assert types(desk).count("effect:fulfill:wait") == 1
    await desk.inject(first, [flow.set("count", 10), flow.set("a", 1)])
    await desk.idle()
    data = await idle_data(desk)
    assert (data["count"], data["done"], types(desk).count("core:compute")) == (20, True, 2)


THREE = made(go=seq(
    *(when(op("and", op("isNull", get(path)), op("isNull", get("$host.lastError"))), effect(f"e-{path}"))
      for path in "abc"),
    put("done", lit(True)),
))  # fmt: skip
ORDERS = list(itertools.permutations(range(3)))


async def arrived(desk: Any, order: Sequence[int], bad: int | None, code: str, *, key: str = KEY) -> tuple[Any, ...]:
    """What an intent comes to whose three outcomes arrive in this order, one of them a failure: data, computed values,
    the codes of errors.
    """
    await desk.submit("go", id=f"i-{key}", key=key)
    await desk.idle()
    ids = await pending(desk, key)
    assert len(ids) == 3
    for at in order:
        good = [flow.set("abc"[at], at), flow.set("count", at)]
        await desk.inject(ids[at], failure(code) if at == bad else good, key=key)
        await desk.idle()
    snapshot = await desk.snapshot(key)
    assert (types(desk, key).count("core:compute"), snapshot.system.pending_requirements) == (2, ())
    data = {name: value for name, value in snapshot.data.items() if name != "$host"}
    return data, snapshot.computed, [each["code"] for each in snapshot.data["$host"].get("errors", [])]


@pytest.mark.parametrize("bad", [None, 0, 1, 2])
async def test_ord_parallel_in_any_order_gives_what_serial_gives(
    open_timed: Desks, open_alone: Desks, bad: int | None
) -> None:
    """Timeouts are outcomes like others, and hold nothing up; there is one compute afterwards."""
    serial = open_alone(THREE, perform=False, effects="serial", core=flow.Core(effects="parallel"))
    expected = await arrived(serial, (0, 1, 2), bad, jobs.EFFECT_TIMEOUT)
    assert (expected[0]["done"], len(expected[2])) == (True, 0 if bad is None else 1)
    parallel = open_timed(THREE, perform=False, effects="parallel")
    for number, order in enumerate(ORDERS):
        assert await arrived(parallel, order, bad, jobs.EFFECT_TIMEOUT, key=f"k-{number}") == expected, order


async def test_ord_parallel_in_any_order_on_every_host(open_desk: Desks, open_alone: Desks) -> None:
    """The same in stores, where an outcome is answered by hand: one of the three fails."""
    serial = open_alone(THREE, perform=False, effects="serial", core=flow.Core(effects="parallel"))
    parallel = open_desk(THREE, perform=False, effects="parallel")
    for number, order in enumerate(ORDERS):
        bad, code, key = number % 3, jobs.EFFECT_EXECUTION_FAILED, f"k-{number}"
        expected = await arrived(serial, (0, 1, 2), bad, code, key=key)
        assert await arrived(parallel, order, bad, code, key=key) == expected, order


async def test_ord_serial_and_parallel_hosts_end_alike(open_desk: Desks) -> None:
    ends = []
    for effects in ("serial", "parallel"):
        desk = open_desk(made(go=BOTH), {"first": gives("a", 1), "second": gives("b", 2)}, effects=effects)
        assert (await desk.act("go")).status == "complete"
        ends.append(await idle_data(desk))
    assert ends[0] == ends[1]


@pytest.mark.probe("flow.early-twice")
async def test_ord_parallel_a_second_outcome_of_what_waits_is_dropped(open_alone: Desks) -> None:
    desk, (first, second) = await open_both(open_alone, "parallel")
    await desk.inject(second, [flow.set("b", 1)])
    await desk.inject(second, [flow.set("b", 2)])
    await desk.inject(first, [flow.set("a", 1)])
    await desk.idle()
    assert ((await idle_data(desk))["b"], said(desk, "effect:fulfill:drop", "reason")) == (1, ["dropped:stale"])


async def test_ord_007_a_timeout_clears_and_goes_on(open_timed: Desks) -> None:
    desk = open_timed(made(go=when(op("isNull", get("$host.lastError")), effect("slow"))), perform=False)
    await desk.submit("go")
    await desk.idle()
    (id_,) = await pending(desk)
    await desk.inject(id_, failure(jobs.EFFECT_TIMEOUT))
    await desk.idle()
    assert (await idle_data(desk))["$host"]["lastError"]["code"] == "EFFECT_TIMEOUT"
    assert (types(desk).count("requirement:clear"), types(desk).count("continue:enqueue")) == (1, 1)


# --- 11. reinjection -------------------------------------------------------------------------------------


async def test_reinj_001_results_come_back_as_jobs(open_desk: Desks) -> None:
    desk = open_desk(made(go=seq(CHAIN, once("step3", "three"))), {f"{name}": gives(f"step{at}", True) for at,
    name in ((1, "one"), (2, "two"), (3, "three"))})  # fmt: skip
    await desk.act("go")
    await idle_data(desk)
    counts = {name: types(desk).count(name) for name in ("effect:dispatch", "effect:fulfill:apply",
    "requirement:clear", "continue:enqueue")}  # fmt: skip
    assert counts == dict.fromkeys(counts, 3)
    assert said(desk, "job:start", "jobType").count("FulfillEffect") == 3


async def test_reinj_005_so_do_failures(open_desk: Desks) -> None:
    desk = open_desk(made(go=when(op("isNull", get("$host.lastError")), effect("http"))), {"http": raising("no")})
    await desk.act("go")
    await idle_data(desk)
    assert said(desk, "job:start", "jobType") == ["StartIntent", "FulfillEffect", "ContinueCompute"]
    assert (types(desk).count("requirement:clear"), types(desk).count("continue:enqueue")) == (1, 1)


# --- 12. snapshots and namespaces ------------------------------------------------------------------------


async def test_snap_001_the_snapshot_is_cores_and_complete(open_desk: Desks) -> None:
    desk = open_desk(made(go=FETCH), {"http": raising("no")})
    await desk.act("go")
    plain = snapshots.plain(await desk.snapshot())
    assert sorted(plain) == ["computed", "data", "meta", "system"]
    assert sorted(plain["system"]) == ["currentAction", "errors", "lastError", "pendingRequirements", "status"]
    assert sorted(plain["meta"]) == ["randomSeed", "schemaHash", "timestamp", "version"]


async def test_snap_002_what_is_not_patched_is_kept(open_desk: Desks) -> None:
    desk = open_desk(made(go=FETCH), {"http": gives("response", {})})
    await desk.patch([flow.set("other", {"kept": [1, {"a": 2}]})])
    await desk.idle()
    before = await desk.snapshot()
    await desk.act("go")
    after = await desk.snapshot()
    assert (after.data["other"], after.meta.schema_hash) == (before.data["other"], before.meta.schema_hash)
    assert after.meta.version == before.meta.version + 5


async def test_ns_001_errors_of_the_host_are_in_its_namespace_alone(open_desk: Desks) -> None:
    desk = open_desk(made(go=when(op("isNull", get("$host.lastError")), effect("http"))), {"http": raising("no")})
    await desk.act("go")
    snapshot = await desk.snapshot()
    assert (snapshot.system.errors, snapshot.system.last_error, snapshot.system.status) == ((), None, "idle")
    assert sorted(snapshot.data["$host"]) == ["errors", "intentSlots", "lastError"]


async def test_ns_errors_of_the_host_are_bounded(open_desk: Desks) -> None:
    desk = open_desk(made(go=effect("http")), {"http": raising("no")})
    for _ in range(40):
        await desk.act("go")
    assert len((await desk.snapshot()).data["$host"]["errors"]) == 32
    assert len((await desk.snapshot()).system.errors) == 32


async def test_traces_of_an_intents_computes_come_with_its_result(open_alone: Desks) -> None:
    """The reference never returns them."""
    desk = open_alone(made(go=CHAIN), {"one": gives("step1", True), "two": gives("step2", True)})
    result = await desk.act("go")
    assert [each.terminated_by for each in result.traces] == ["effect", "effect", "complete"]


async def test_computed_values_are_there_from_the_beginning(open_alone: Desks) -> None:
    desk = open_alone(document({"noop": HALT}, {}, DOUBLED), data={"count": 4})
    snapshot = await desk.snapshot()
    assert (snapshot.computed, snapshot.meta.version) == ({"computed.doubled": 8}, 0)
