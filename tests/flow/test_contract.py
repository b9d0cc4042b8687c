"""The Host contract's compliance suite, on every kind of host: contexts, requirements, intents, the interlock, jobs and
snapshots. Effects and order have files of their own.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.flow.conftest import Desks
from tests.flow.contract_kit import CHAIN, FETCH, INCREMENT, gives, idle_data, made, raising
from tests.flow.hosts import said, types
from tests.flow_core.documents import DOUBLED, HALT, document, effect, get, lit, once, op, put, seq, when
from worldline import flow
from worldline.flow_core import faults, flow_records, jobs, patches

# --- 1. context ------------------------------------------------------------------------------------------


async def test_ctx_001_now_is_the_same_for_all_of_a_job(open_timed: Desks) -> None:
    desk = open_timed(made(go=seq(put("t1", get("meta.timestamp")), put("t2", get("meta.timestamp")))))
    await desk.advance(700)
    await desk.act("go")
    data = await idle_data(desk)
    assert data["t1"] == data["t2"] == (await desk.snapshot()).meta.timestamp == 700


async def test_ctx_002_the_seed_is_the_intents_id_in_every_job(open_desk: Desks) -> None:
    flow_ = seq(
        when(op("isNull", get("seed1")), put("seed1", get("meta.randomSeed"))),
        once("response", "http"),
        put("seed2", get("meta.randomSeed")),
    )
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
    flow_ = seq(
        once("note", "system.get", key=lit("uuid"), into=lit("note")),
        once("t1", "system.get", key=lit("now"), into=lit("t1")),
        once("error", "system.get", key=lit("env.REGION"), into=lit("error")),
    )
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
        (each.type, each.fields.get("source"))
        for each in desk.events()
        if each.type in ("core:compute", "effect:dispatch") or each.fields.get("source") == "compute"
    ]
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
        "job:start",
        "context:frozen",
        "core:apply",
        "core:compute",
        "core:apply",
        "effect:dispatch",
        "job:end",
        "job:start",
        "context:frozen",
        "core:apply",
        "effect:fulfill:apply",
        "core:apply",
        "requirement:clear",
        "continue:enqueue",
        "job:end",
        "job:start",
        "context:frozen",
        "core:compute",
        "core:apply",
        "job:end",
    ]
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


# --- 12. snapshots and namespaces ------------------------------------------------------------------------


async def test_snap_001_the_snapshot_is_cores_and_complete(open_desk: Desks) -> None:
    desk = open_desk(made(go=FETCH), {"http": raising("no")})
    await desk.act("go")
    snapshot = await desk.snapshot()
    assert type(snapshot) is flow_records.Snapshot
    plain = flow_records.plain(snapshot)
    assert sorted(plain) == ["computed", "data", "meta", "system"]
    assert sorted(plain["system"]) == ["currentAction", "errors", "lastError", "pendingRequirements", "status"]
    assert sorted(plain["meta"]) == ["randomSeed", "schemaHash", "timestamp", "version"]


async def test_snap_002_what_is_not_patched_is_kept(open_desk: Desks) -> None:
    """Of the data, and of all that is Core's: also the input of the last intent, when patches come from outside."""
    desk = open_desk(made(go=FETCH), {"http": gives("response", {})})
    await desk.patch([flow.set("other", {"kept": [1, {"a": 2}]})])
    await desk.idle()
    before = await desk.snapshot()
    await desk.act("go", {"n": 1})
    after = await desk.snapshot()
    assert (after.data["other"], after.meta.schema_hash) == (before.data["other"], before.meta.schema_hash)
    assert after.meta.version == before.meta.version + 5
    await desk.patch([flow.set("a", 1)])
    await desk.idle()
    last = await desk.snapshot()
    assert (last.input, last.system, last.computed) == ({"n": 1}, after.system, after.computed)
    assert {**last.data, "a": None} == after.data


async def test_ns_001_errors_of_the_host_are_in_its_namespace_alone(open_desk: Desks) -> None:
    desk = open_desk(made(go=when(op("isNull", get("$host.lastError")), effect("http"))), {"http": raising("no")})
    await desk.act("go")
    snapshot = await desk.snapshot()
    assert (snapshot.system.errors, snapshot.system.last_error, snapshot.system.status) == ((), None, "idle")
    assert sorted(snapshot.data["$host"]) == ["errors", "intentSlots", "lastError"]
    assert [name for name in snapshot.data if name.startswith("$")] == ["$host"]


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
