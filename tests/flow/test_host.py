"""The standalone host: runners and kicks, timeouts and retries, what breaks and what does not, and replays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.flow.conftest import Desks
from tests.flow.contract_kit import CHAIN, FETCH, INCREMENT, gives, idle_data, made, pending, raising
from tests.flow.hosts import KEY, VirtualEnv, said, settled, types
from tests.flow_core.documents import COUNTER, HALT, document, effect, field, get, lit, once, op, put, seq, when
from worldline import flow
from worldline.base import errors, limits
from worldline.flow_core import core, flow_records, jobs, patches
from worldline.flow_core import document_schema as schema

GUARDED = when(op("isNull", get("$host.lastError")), effect("http"))


def runners(desk: Any, key: str = KEY) -> list[str]:
    return [each.type for each in desk.events(key) if each.type in ("runner:start", "runner:end")]


# --- runners and kicks -----------------------------------------------------------------------------------


async def test_run_001_there_is_one_runner_at_a_time(open_alone: Desks) -> None:
    desk = open_alone(made(go=CHAIN, inc=INCREMENT), {"one": gives("step1", True), "two": gives("step2", True)})
    await desk.act("go")  # alone: what its jobs enqueue finds an empty mailbox, and kicks while the runner is at work
    await asyncio.gather(desk.act("go"), *(desk.act("inc") for _ in range(5)))
    await desk.idle()
    found = runners(desk)
    assert found == ["runner:start", "runner:end"] * (len(found) // 2)


async def test_live_001_nothing_runs_before_an_intent(open_alone: Desks) -> None:
    desk = open_alone(made(go=INCREMENT))
    await desk.idle()
    assert desk.events() == []
    await desk.act("go")
    assert runners(desk)[0] == "runner:start"


async def test_run_003_the_guard_is_held_while_the_runner_yields(open_alone: Desks) -> None:
    desk = open_alone(made(go=INCREMENT))
    for _ in range(3):
        await desk.submit("go")
    await asyncio.sleep(0)  # the first job is done, and the runner yields
    assert types(desk).count("job:end") == 1
    desk.host._kick(KEY)
    await desk.idle()
    assert runners(desk) == ["runner:start", "runner:end"]
    assert (await idle_data(desk))["count"] == 3


async def test_run_004_a_job_that_comes_as_the_runner_ends_is_run_by_it(open_alone: Desks) -> None:
    """Between the last look into the queue and the release of the guard."""
    desk = open_alone(made(go=INCREMENT))
    await _submit_at(desk, "runner:recheck")
    assert (await idle_data(desk))["count"] == 2
    assert runners(desk) == ["runner:start", "runner:end"]


@pytest.mark.probe("flow.kick-remembered")
async def test_live_004_a_kick_that_a_runner_blocks_is_remembered(open_alone: Desks) -> None:
    """Behind the last look, the guard not yet released: the lost wake-up."""
    desk = open_alone(made(go=INCREMENT))
    await _submit_at(desk, "runner:end")
    assert (await idle_data(desk))["count"] == 2
    assert runners(desk) == ["runner:start", "runner:end", "runner:start", "runner:end"]


async def _submit_at(desk: Any, moment: str) -> None:
    """One intent, and another one at the first event of a type."""
    later = ["second"]

    def on_event(event: flow.Event) -> None:
        if event.type == moment and later:
            desk.host.submit("go", key=KEY, id=later.pop())

    desk.on_event = on_event
    await desk.submit("go", id="first")
    await desk.idle()


@pytest.mark.probe("flow.kick-failed")
async def test_live_003_a_kick_that_fails_is_logged_and_tried_again(
    open_alone: Desks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = open_alone(made(go=INCREMENT))
    schedule, fails = desk.host._schedule, [1, 1]

    def failing(key: str) -> None:
        if fails:
            raise RuntimeError(f"no runner {fails.pop()}")
        schedule(key)

    monkeypatch.setattr(desk.host, "_schedule", failing)
    await desk.act("go")
    assert (await idle_data(desk))["count"] == 1
    assert [each.type for each in desk.events()].count("runner:kick:failed") == 2
    assert sum("runner:kick:failed" in each.getMessage() for each in caplog.records) == 2


async def test_run_002_an_effect_that_comes_back_kicks_the_runner(open_alone: Desks) -> None:
    desk = open_alone(made(go=FETCH), perform=False)
    await desk.submit("go")
    await desk.idle()
    assert len(runners(desk)) == 2
    await desk.inject((await pending(desk))[0], [flow.set("response", {})])
    await desk.idle()
    assert (await idle_data(desk))["done"] is True
    assert len(runners(desk)) == 4


async def test_the_whole_trace_of_one_effect(open_alone: Desks) -> None:
    desk = open_alone(made(go=once("response", "http")), {"http": gives("response", {})})
    await desk.act("go")
    await desk.idle()
    told = [each.type for each in desk.events() if each.type != "runner:kick"]
    assert told == [
        "runner:start",
        "job:start",
        "context:frozen",
        "core:apply",
        "core:compute",
        "core:apply",
        "effect:dispatch",
        "job:end",
        "runner:recheck",
        "runner:end",
        "runner:start",
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
        "runner:recheck",
        "runner:end",
    ]


async def test_a_sink_that_fails_changes_nothing() -> None:
    def sink(event: flow.Event) -> None:
        raise RuntimeError("full")

    host = flow.Host(schema.sealed(COUNTER), env=VirtualEnv(), trace=sink)
    assert (await host.dispatch("increment")).snapshot.data["count"] == 1


# --- effects ---------------------------------------------------------------------------------------------


async def test_a_timeout_is_an_outcome_and_a_late_success_is_dropped(
    open_alone: Desks, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()

    async def slow(call: flow.EffectCall) -> list[flow.Patch]:
        await gate.wait()
        return [flow.set("response", {"late": True})]

    desk = open_alone(made(go=GUARDED), {"http": slow}, handling={"timeout_ms": 50, "retries": 3})
    await desk.submit("go", id="i")
    await desk.idle()
    await desk.advance(49)
    assert len(await pending(desk)) == 1
    await desk.advance(1)
    data = await idle_data(desk)
    assert (data["$host"]["lastError"]["code"], data["response"]) == ("EFFECT_TIMEOUT", None)
    before = await desk.snapshot()
    gate.set()
    await desk.idle()
    assert await desk.snapshot() == before
    assert said(desk, "effect:fulfill:drop", "reason") == ["dropped:stale"]
    assert any("dropped:stale" in each.getMessage() for each in caplog.records)


async def test_the_default_timeout_is_30_seconds(open_alone: Desks) -> None:
    async def hangs(call: flow.EffectCall) -> list[flow.Patch]:
        await asyncio.Event().wait()
        return []

    desk = open_alone(made(go=GUARDED), {"http": hangs})
    await desk.submit("go")
    await desk.idle()
    await desk.advance(29_999)
    assert len(await pending(desk)) == 1
    await desk.advance(1)
    assert (await idle_data(desk))["$host"]["lastError"]["code"] == "EFFECT_TIMEOUT"


@pytest.mark.parametrize(
    ("retries", "succeeds_at", "attempts", "ok"),
    [(3, 3, 3, True), (2, 99, 3, False), (0, 99, 1, False), (5, 1, 1, True)],
)
async def test_retries(open_alone: Desks, retries: int, succeeds_at: int, attempts: int, ok: bool) -> None:
    called: list[int] = []

    async def flaky(call: flow.EffectCall) -> list[flow.Patch]:
        called.append(desk.env.wall_us())
        if len(called) < succeeds_at:
            raise RuntimeError("not yet")
        return [flow.set("response", {"ok": True})]

    action = FETCH if ok else GUARDED
    desk = open_alone(made(go=action), {"http": flaky}, handling={"retries": retries, "retry_delay_ms": 10})
    await desk.submit("go")
    await desk.idle()
    await desk.advance(1_000)
    assert called == [10_000 * at for at in range(attempts)]
    assert ((await idle_data(desk))["response"] == {"ok": True}) is ok


async def test_a_result_that_is_no_patches_is_not_tried_again(open_alone: Desks) -> None:
    called: list[int] = []

    def wrong(call: flow.EffectCall) -> Any:
        called.append(1)
        return {"not": "patches"}

    desk = open_alone(made(go=GUARDED), {"http": wrong}, handling={"retries": 3})
    await desk.submit("go")
    await desk.idle()
    await desk.advance(10_000)
    assert (len(called), (await idle_data(desk))["$host"]["lastError"]["code"]) == (1, jobs.EFFECT_APPLY_FAILED)


def test_another_handler_for_the_same_effect_is_refused() -> None:
    host = flow.Host(schema.sealed(COUNTER), env=VirtualEnv())
    host.register("io", lambda call: [])
    with pytest.raises(errors.Exists, match="'io' has a handler"):
        host.register("io", lambda call: [])
    with pytest.raises(errors.BadInput):
        host.register("system.get", lambda call: [])
    with pytest.raises(errors.BadInput):
        host.register("other", lambda call: [], timeout_ms=0)


async def test_cancelled_is_an_outcome(open_alone: Desks) -> None:
    async def hangs(call: flow.EffectCall) -> list[flow.Patch]:
        await asyncio.Event().wait()
        return []

    desk = open_alone(made(go=GUARDED), {"http": hangs})
    await desk.submit("go")
    await desk.idle()
    desk.host.cancel((await pending(desk))[0], key=KEY)
    await desk.idle()
    assert (await idle_data(desk))["$host"]["lastError"]["code"] == jobs.EFFECT_CANCELLED


async def test_effects_of_one_intent_run_together_if_asked_for(open_alone: Desks) -> None:
    begun: list[str] = []
    gate = asyncio.Event()

    def waits(name: str) -> flow.Handler:
        async def handler(call: flow.EffectCall) -> list[flow.Patch]:
            begun.append(name)
            await gate.wait()
            return [flow.set(name, 1)]

        return handler

    flow_ = seq(once("a", "ea"), once("b", "eb"))
    desk = open_alone(made(go=flow_), {"ea": waits("a"), "eb": waits("b")}, effects="parallel")
    await desk.submit("go")
    await desk.idle()
    assert begun == ["a", "b"]
    gate.set()
    await desk.idle()
    data = await idle_data(desk)
    assert (data["a"], data["b"]) == (1, 1)


async def test_a_timeout_of_the_first_releases_the_second(open_alone: Desks) -> None:
    async def hangs(call: flow.EffectCall) -> list[flow.Patch]:
        await asyncio.Event().wait()
        return []

    flow_ = seq(when(op("isNull", get("$host.lastError")), effect("ea")), once("b", "eb"))
    desk = open_alone(made(go=flow_), {"ea": hangs, "eb": gives("b", 2)}, effects="parallel")
    await desk.submit("go")
    await desk.idle()
    assert types(desk).count("effect:fulfill:wait") == 1
    await desk.advance(30_000)
    data = await idle_data(desk)
    assert (data["b"], data["$host"]["lastError"]["code"]) == (2, "EFFECT_TIMEOUT")


# --- what breaks -----------------------------------------------------------------------------------------


class Breaking(core.Core):
    """A Core that raises when it applies patches of some paths, or computes some action."""

    def __init__(self, *broken: str) -> None:
        super().__init__()
        self.broken = broken

    def apply(self, schema: Any, snapshot: Any, given: Sequence[patches.Patch], context: Any) -> flow_records.Snapshot:
        if any(each.path.startswith(self.broken) for each in given):
            raise RuntimeError("broken apply")
        return super().apply(schema, snapshot, given, context)

    def compute(
        self, schema: Any, snapshot: Any, intent: flow_records.Intent, context: Any, **options: Any
    ) -> core.Computed:
        if intent.type in self.broken:
            raise RuntimeError("broken compute")
        return super().compute(schema, snapshot, intent, context, **options)


async def test_a_job_that_raises_does_not_stop_the_next(open_alone: Desks, caplog: pytest.LogCaptureFixture) -> None:
    """The reference's drain is rejected, and its caller never hears of the intents behind."""
    desk = open_alone(made(go=INCREMENT, bad=INCREMENT), core=Breaking("bad"))
    results = await asyncio.gather(desk.act("bad"), desk.act("go"), desk.act("go"))
    assert [each.status for each in results] == ["error", "complete", "complete"]
    assert results[0].error is not None
    assert (results[0].error.code, results[0].error.message) == ("INTERNAL_ERROR", "RuntimeError: broken compute")
    data = await idle_data(desk)
    assert (data["count"], types(desk).count("job:error")) == (2, 1)
    assert any("job:error" in each.getMessage() for each in caplog.records)


async def test_an_apply_that_raises_is_cleared_recorded_and_gone_on_with(open_alone: Desks) -> None:
    desk = open_alone(made(go=GUARDED), {"http": gives("response", {})}, core=Breaking("response"))
    assert (await desk.act("go")).status == "complete"
    data = await idle_data(desk)
    assert (data["response"], data["$host"]["lastError"]["code"]) == (None, jobs.EFFECT_APPLY_FAILED)
    assert said(desk, "effect:fulfill:error", "phase") == ["apply"]


@pytest.mark.probe("flow.clear-failed")
async def test_a_clear_that_fails_is_fatal_for_its_key_alone(open_alone: Desks) -> None:
    handlers = {"http": gives("response", {})}
    broken = Breaking("system.pendingRequirements")
    desk = open_alone(made(go=FETCH, inc=INCREMENT), handlers, core=broken)
    with pytest.raises(flow.KeyFatal, match="cannot be cleared"):
        await desk.act("go")
    assert "broken apply" in await desk.fatal()
    assert said(desk, "fatal:escalate", "reason") == ["requirement_clear_failed"]
    assert "ContinueCompute" not in said(desk, "job:start", "jobType")
    with pytest.raises(flow.KeyFatal):
        await desk.act("inc")
    assert (await desk.act("inc", key="other")).status == "complete"
    assert await desk.fatal("other") == ""


@pytest.mark.probe("flow.error-patch-failed")
async def test_an_error_patch_that_fails_does_not_keep_the_intent_from_going_on(open_alone: Desks) -> None:
    flow_ = seq(when(op("lt", get("count"), lit(1)), seq(INCREMENT, effect("http"))), put("done", lit(True)))
    desk = open_alone(made(go=flow_), {"http": raising("no")}, core=Breaking("$host.lastError"))
    assert (await desk.act("go")).status == "complete"
    data = await idle_data(desk)
    assert (data["done"], "lastError" in data["$host"]) == (True, False)
    assert said(desk, "effect:fulfill:error", "phase") == ["error-patch"]


@pytest.mark.probe("flow.abandon-failed")
async def test_an_intent_that_can_neither_go_on_nor_end_is_fatal_for_its_key(open_alone: Desks) -> None:
    class Hopeless(Breaking):
        def abandon(self, *given: Any, **named: Any) -> flow_records.Snapshot:
            raise RuntimeError("broken abandon")

    desk = open_alone(made(bad=INCREMENT, go=INCREMENT), core=Hopeless("bad"))
    with pytest.raises(flow.KeyFatal, match="neither go on nor end"):
        await desk.act("bad")
    assert said(desk, "fatal:escalate", "reason") == ["abandon_failed"]
    assert (await desk.act("go", key="other")).status == "complete"


@pytest.mark.probe("flow.handler-cancelled")
async def test_a_handler_that_cancels_itself_has_an_outcome(open_alone: Desks) -> None:
    async def cancels(call: flow.EffectCall) -> list[flow.Patch]:
        raise asyncio.CancelledError

    desk = open_alone(made(go=GUARDED), {"http": cancels})
    assert (await desk.act("go")).status == "complete"
    assert (await idle_data(desk))["$host"]["lastError"]["code"] == jobs.EFFECT_CANCELLED


async def test_an_environment_that_cannot_be_read_ends_the_intent_alone(open_alone: Desks) -> None:
    broken: list[int] = []

    def environment() -> dict[str, Any]:
        if broken:
            raise RuntimeError("no environment")
        return {}

    desk = open_alone(made(go=INCREMENT), environment=environment)
    await desk.snapshot()
    broken.append(1)
    assert (await desk.act("go")).status == "error"
    broken.clear()
    assert (await desk.act("go")).status == "complete"


async def test_a_snapshot_in_the_middle_of_system_get_goes_on(open_alone: Desks) -> None:
    desk = open_alone(made(go=once("note", "system.get", key=lit("uuid"), into=lit("note"))))
    heads: list[flow_records.Snapshot] = []
    desk.on_event = lambda event: (
        heads.append(desk.host.snapshot(KEY)) if event.fields.get("jobType") == "FulfillEffect" else None
    )
    await desk.act("go", id="i")
    expected = (await idle_data(desk))["note"]
    other = open_alone(made(go=once("note", "system.get", key=lit("uuid"), into=lit("note"))))
    await other.seed(heads[0])
    await other.idle()
    assert (await idle_data(other))["note"] == expected


async def test_an_outcome_that_waits_in_a_snapshot_is_not_performed_again(open_alone: Desks) -> None:
    flow_ = seq(once("a", "ea"), once("b", "eb"))
    desk = open_alone(made(go=flow_), perform=False, effects="parallel")
    await desk.submit("go", id="i")
    await desk.idle()
    await desk.inject((await pending(desk))[1], [flow.set("b", 7)])
    await desk.idle()
    other = open_alone(made(go=flow_), {"ea": gives("a", 1), "eb": gives("b", 2)}, effects="parallel")
    await other.seed(await desk.snapshot())
    await other.idle()
    data = await idle_data(other)
    assert (data["a"], data["b"], types(other).count("effect:fulfill:drop")) == (1, 7, 0)


async def test_an_intent_whose_slot_is_not_kept_ends_with_an_error(open_alone: Desks) -> None:
    class Forgetful(core.Core):
        def apply(
            self, schema: Any, snapshot: Any, given: Sequence[patches.Patch], context: Any
        ) -> flow_records.Snapshot:
            return super().apply(schema, snapshot, [each for each in given if "intentSlots" not in each.path], context)

    desk = open_alone(made(go=INCREMENT), core=Forgetful())
    result = await desk.act("go")
    assert result.error is not None
    assert (result.error.message, (await desk.snapshot()).data["count"]) == (
        "RuntimeError: Core did not apply the slot of the intent",
        0,
    )


async def test_results_of_the_last_intents_are_kept(open_alone: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLOW_RESULTS_KEPT_MAX", 2)
    desk = open_alone(made(go=INCREMENT))
    for id_ in ("1", "2", "3", "4"):
        await desk.act("go", id=id_)
    assert (await desk.host.result("3", key=KEY)).status == "complete"
    with pytest.raises(errors.NotFound):
        await desk.host.result("1", key=KEY)


async def test_an_id_is_reused_only_with_the_same_input(open_alone: Desks) -> None:
    desk = open_alone(made(go=INCREMENT))
    await desk.act("go", {"n": 1}, id="i")
    with pytest.raises(errors.IdReused):
        await desk.act("go", {"n": True}, id="i")
    with pytest.raises(errors.IdReused):
        await desk.act("go", id="i")
    with pytest.raises(errors.NotFound):
        await desk.host.result("unknown", key=KEY)


async def test_ids_and_inputs_that_no_snapshot_can_keep_are_refused() -> None:
    host = flow.Host(schema.sealed(COUNTER), env=VirtualEnv())
    for id_ in ("__proto__", "x" * 2_000, "\ud800"):
        with pytest.raises(errors.BadInput):
            host.submit("increment", id=id_)
    with pytest.raises(flow.NotJson):
        host.submit("increment", {"n": float("nan")})
    assert host.snapshot().meta.version == 0


# --- replay, and the contract's own numbers --------------------------------------------------------------


async def test_a_trace_is_enough_to_do_everything_again(open_alone: Desks) -> None:
    handlers = {"http": gives("response", {"v": 1}), "one": raising("no"), "two": gives("step2", True)}
    actions = made(inc=INCREMENT, fetch=FETCH, chain=CHAIN, stamp=put("t1", get("meta.timestamp")))
    desk = open_alone(actions, handlers, environment=lambda: {"region": "north"})
    first = await desk.snapshot()
    for action in ("inc", "fetch", "inc", "chain", "stamp"):
        await desk.advance(17)
        await desk.act(action)
    await desk.patch([flow.set("note", "by hand")])
    await desk.inject("r-unknown", [])
    await desk.act("inc")  # the last word is a compute's
    again = flow.replay(desk.host.domain, first, desk.events(), KEY)
    assert flow_records.encoded(again) == flow_records.encoded(await desk.snapshot())
    assert (again.data["count"], again.data["t1"]) == (3, 85)


async def test_a_trace_without_its_jobs_is_refused(open_alone: Desks) -> None:
    desk = open_alone(made(go=INCREMENT))
    first = await desk.snapshot()
    await desk.act("go")
    cut = [each for each in desk.events() if each.type != "job:start"]
    with pytest.raises(errors.BadInput, match="without its job"):
        flow.replay(desk.host.domain, first, cut, KEY)


async def test_totals_and_sequences_of_the_contract() -> None:
    total = {
        "computed.total": {
            "deps": ["items", "shipping"],
            "expr": op("add", {"kind": "sumArray", "array": get("items")}, get("shipping")),
        }
    }
    host = flow.Host(
        document({"noop": HALT}, {"items": field("array", []), "shipping": field("number", 0)}, total),
        data={"items": [100, 50], "shipping": 10},
        env=VirtualEnv(),
    )
    assert host.snapshot().computed["computed.total"] == 160
    down = put("count", op("sub", get("count"), lit(1)))
    host = flow.Host(document({"up": INCREMENT, "down": down}), data={"count": 5}, env=VirtualEnv())
    for action in ("up", "up", "down", "up", "down", "down"):
        await host.dispatch(action)
    assert host.snapshot().data["count"] == 5


async def test_a_condition_decides_whether_anything_is_fetched() -> None:
    flow_ = when(op("eq", get("count"), lit(0)), put("error", lit("No fetches yet")), once("response", "http"))
    host = flow.Host(made(go=flow_), env=VirtualEnv())
    result = await host.dispatch("go")
    assert (result.snapshot.data["error"], result.snapshot.data["response"]) == ("No fetches yet", None)


async def test_virtual_time_wakes_sleepers_in_order_of_their_time() -> None:
    env, woken = VirtualEnv(), []

    async def sleeper(name: int, ms: int) -> None:
        await env.sleep(ms / 1_000)
        woken.append((name, env.wall_us() // 1_000))

    tasks = [asyncio.ensure_future(sleeper(name, ms)) for name, ms in ((1, 100), (2, 50), (3, 75))]
    await settled()
    assert env.wall_us() == 0
    await env.advance(150)
    await asyncio.gather(*tasks)
    assert (woken, env.wall_us()) == ([(2, 50), (3, 75), (1, 100)], 150_000)


async def test_drain_waits_for_effects_too() -> None:
    host = flow.Host(made(go=FETCH), env=VirtualEnv())
    host.register("http", gives("response", {}))
    host.submit("go")
    assert (await host.drain()).data["done"] is True
    await settled()


def test_reset_is_version_0() -> None:
    host = flow.Host(schema.sealed(COUNTER), env=VirtualEnv())
    assert host.snapshot().meta.version == 0
