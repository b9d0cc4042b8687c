"""What callers of the standalone host give and get: copies, ends, logs, and traces of what raised."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.flow.conftest import Desks
from tests.flow.contract_kit import FETCH, INCREMENT, gives, idle_data, made, pending, raising
from tests.flow.hosts import KEY, VirtualEnv, settled
from tests.flow.test_host import Breaking
from tests.flow_core.documents import document, effect, field, get, lit, once, op, put, seq, when
from worldline import flow
from worldline.base import errors
from worldline.flow_core import flow_records

GUARDED = when(op("isNull", get("$host.lastError")), effect("http"))
ITEMS = {"items": field("array", []), "thing": field("object")}
ADD = put("thing", lit({"list": [1]}))


async def hangs(call: flow.EffectCall) -> list[flow.Patch]:
    await asyncio.Event().wait()
    return []


# --- copies ----------------------------------------------------------------------------------------------


async def test_no_change_of_what_a_caller_is_given_reaches_the_head() -> None:
    """Of snapshots, results, traces and events: all of them are the caller's own."""
    told: list[flow.Event] = []
    host = flow.Host(
        document({"go": ADD, "bad": seq(ADD, put("count", lit("x")))}, ITEMS),
        env=VirtualEnv(),
        environment=lambda: {"list": [1]},
        trace=told.append,
    )
    result = await host.dispatch("go", {"list": [1]}, id="i")
    wrong = await host.dispatch("bad")
    before = flow_records.encoded(host.snapshot())
    drained = await host.drain()
    for each in (result.snapshot, wrong.snapshot, host.snapshot(), drained):
        each.data["count"] = 100
        each.data["thing"]["list"].append(2)
        each.computed["computed.doubled"] = 7
        each.data["$host"]["intentSlots"]["x"] = {}
    for trace in (*result.traces, *wrong.traces):
        for node in trace.nodes.values():
            node.inputs["path"] = "changed"
            if isinstance(node.output, dict):
                node.output["list"].append(3)
    for event in told:
        event.fields.get("env", {"list": []})["list"].append(4)
        event.fields.clear()
    assert flow_records.encoded(host.snapshot()) == before
    again = await host.result("i")
    assert (again.snapshot.data["thing"], again.snapshot.data["count"]) == ({"list": [1]}, 0)
    assert again.traces[0].nodes[again.traces[0].root].output == {"list": [1]}


async def test_an_error_that_a_caller_is_given_is_its_own() -> None:
    host = flow.Host(document({"no": {"kind": "fail", "code": "NO"}}), env=VirtualEnv())
    result = await host.dispatch("no")
    assert result.error is not None
    assert result.error.context == {"code": "NO"}
    result.error.context["code"] = "changed"
    last = host.snapshot().system.last_error
    assert last is not None
    assert last.context == {"code": "NO"}


async def test_an_event_cannot_change_the_job_that_tells_it() -> None:
    def sink(event: flow.Event) -> None:
        event.fields.get("env", {})["REGION"] = "changed"

    kept = once("note", "system.get", key=lit("env.REGION"), into=lit("note"))
    host = flow.Host(made(go=kept), env=VirtualEnv(), environment=lambda: {"REGION": "north"}, trace=sink)
    assert (await host.dispatch("go")).snapshot.data["note"] == "north"


async def test_no_change_of_what_a_host_was_given_reaches_a_key() -> None:
    data = {"response": {"list": [1]}}
    host = flow.Host(made(go=put("result", get("input")), get=FETCH), data=data, env=VirtualEnv())
    answer: dict[str, Any] = {"list": [1]}
    host.register("http", lambda call: [flow.set("other", answer), flow.set("response", answer)])
    asked = {"list": [1]}
    await host.dispatch("go", asked)
    host.patch([flow.set("response", None)], source="test")
    await host.dispatch("get")
    for each in (data["response"], answer, asked):
        each["list"].append(2)
    kept = host.snapshot().data
    assert [kept[name] for name in ("response", "other", "result")] == [{"list": [1]}] * 3
    assert host.snapshot("made later").data["response"] == {"list": [1]}


# --- closing and draining --------------------------------------------------------------------------------


async def test_close_ends_those_that_wait_and_what_was_on_its_way_goes_on_elsewhere(open_alone: Desks) -> None:
    desk = open_alone(made(go=FETCH, inc=INCREMENT), {"http": hangs})
    host = desk.host
    waiting = [asyncio.ensure_future(host.dispatch(each, key=KEY)) for each in ("go", "inc")]
    draining = asyncio.ensure_future(host.drain(KEY))
    await settled()
    await host.close()
    for each in waiting:
        with pytest.raises(errors.Closed, match="closed before the intent ended"):
            await asyncio.wait_for(each, 5)
    assert len((await asyncio.wait_for(draining, 5)).system.pending_requirements) == 1
    other = open_alone(made(go=FETCH, inc=INCREMENT), {"http": gives("response", {})})
    await other.seed(host.snapshot(KEY))
    await other.idle()
    assert (await idle_data(other))["done"] is True


async def test_a_handler_that_closes_its_host_ends_those_that_wait() -> None:
    async def closes(call: flow.EffectCall) -> list[flow.Patch]:
        await host.close()
        return []

    host = flow.Host(made(go=FETCH), env=VirtualEnv())
    host.register("http", closes)
    with pytest.raises(errors.Closed, match="closed before the intent ended"):
        await asyncio.wait_for(host.dispatch("go"), 5)
    await settled()
    assert host._runners == {}


async def test_a_key_with_work_is_not_seeded_over(open_alone: Desks) -> None:
    """Its callers would wait for ever, for a key that is not there any more."""
    desk = open_alone(made(go=GUARDED, inc=INCREMENT), {"http": hangs}, handling={"timeout_ms": 50})
    first = await desk.snapshot()
    waiting = asyncio.ensure_future(desk.act("go"))
    await desk.idle()
    with pytest.raises(errors.Exists, match="has work on its way"):
        await desk.seed(first)
    await desk.advance(50)
    assert (await asyncio.wait_for(waiting, 5)).status == "complete"
    (late,) = desk.host._keys[KEY].overdue
    await desk.seed(first)
    await desk.idle()
    assert late.cancelled()
    assert await desk.snapshot() == first


async def test_a_closed_host_takes_no_work() -> None:
    host = flow.Host(made(go=INCREMENT), env=VirtualEnv())
    done = await host.dispatch("go", id="i")
    await host.close()
    await host.close()
    before = host.snapshot()
    for work in (
        lambda: host.submit("go"),
        lambda: host.patch([flow.set("count", 5)], source="test"),
        lambda: host.inject("r", []),
        lambda: host.cancel("r"),
        lambda: host.seed(before),
    ):
        with pytest.raises(errors.Closed, match="takes no work"):
            work()
    with pytest.raises(errors.Closed):
        await host.dispatch("go")
    await settled()
    assert (host.snapshot(), await host.drain()) == (before, before)
    assert await host.result("i") == done


async def test_a_handler_that_ends_after_the_host_was_closed_changes_nothing() -> None:
    async def stubborn(call: flow.EffectCall) -> list[flow.Patch]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return [flow.set("response", {})]
        return []

    host = flow.Host(made(go=FETCH), env=VirtualEnv())
    host.register("http", stubborn)
    host.submit("go")
    await settled()
    before = host.snapshot()
    await host.close()
    await settled()
    assert host.snapshot() == before


async def test_drain_does_not_wait_for_a_handler_behind_its_timeout(open_alone: Desks) -> None:
    desk = open_alone(made(go=GUARDED, inc=INCREMENT), {"http": hangs}, handling={"timeout_ms": 50})
    await desk.submit("go")
    await desk.idle()
    await desk.advance(50)
    assert (await asyncio.wait_for(desk.host.drain(KEY), 5)).data["$host"]["lastError"]["code"] == "EFFECT_TIMEOUT"
    assert (await desk.act("inc")).status == "complete"
    overdue = list(desk.host._keys[KEY].overdue)
    assert len(overdue) == 1
    await desk.close()
    assert overdue[0].done()  # close ends what is left of it


async def test_a_handler_behind_its_timeout_can_be_cancelled(open_alone: Desks) -> None:
    desk = open_alone(made(go=GUARDED), {"http": hangs}, handling={"timeout_ms": 50})
    await desk.submit("go")
    await desk.idle()
    (id_,) = await pending(desk)
    await desk.advance(50)
    desk.host.cancel(id_, key=KEY)
    await desk.idle()
    assert desk.host._keys[KEY].tasks() == {}


# --- logs and errors -------------------------------------------------------------------------------------


async def test_a_handler_that_raises_is_logged_with_where(open_alone: Desks, caplog: pytest.LogCaptureFixture) -> None:
    desk = open_alone(made(go=GUARDED), {"http": raising("no such host")})
    await desk.act("go", id="i-9")
    (record,) = [each for each in caplog.records if "raised" in each.getMessage()]
    assert (record.levelname, record.name) == ("WARNING", "worldline.flow")
    assert "'http'" in record.getMessage()
    assert "i-9" in record.getMessage()
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "no such host"


async def test_every_attempt_a_timeout_and_a_missing_handler_are_logged(
    open_alone: Desks, caplog: pytest.LogCaptureFixture
) -> None:
    desk = open_alone(made(go=GUARDED), {"http": raising("no")}, handling={"retries": 2, "retry_delay_ms": 0})
    await desk.submit("go")
    for _ in range(3):
        await desk.idle()
        await desk.advance(0)
    assert sum("raised" in each.getMessage() for each in caplog.records) == 3
    slow = open_alone(made(go=GUARDED), {"http": hangs}, handling={"timeout_ms": 7})
    await slow.submit("go")
    await slow.idle()
    await slow.advance(7)
    await open_alone(made(go=GUARDED)).act("go")
    said = " ".join(each.getMessage() for each in caplog.records)
    assert "took longer than 7 ms" in said
    assert "no handler is registered for 'http'" in said


async def test_an_error_of_the_host_says_which_node_asked(open_desk: Desks) -> None:
    desk = open_desk(made(go=seq(put("a", lit(1)), GUARDED)), {"http": raising("no")})
    await desk.act("go", id="i")
    (error,) = (await idle_data(desk))["$host"]["errors"]
    assert error["source"] == {"actionId": "go", "nodePath": "actions.go.flow.steps[1].then"}
    assert error == (await idle_data(desk))["$host"]["lastError"]
    assert (error["context"]["intentId"], error["context"]["effectType"]) == ("i", "http")


def test_equal_bodies_have_equal_intent_keys() -> None:
    key = flow.intent_key(schema_hash="schema-hash", type="todo.clear")
    assert key == "363554eb13569f38bc814a1745692f9520b1b4ec0967832db39abba2e4c4a8d6"
    assert key != flow.intent_key(schema_hash="schema-hash", type="todo.clear", input={})


# --- replays ---------------------------------------------------------------------------------------------


async def replayed(desk: Any, first: flow_records.Snapshot, domain: Any = None) -> None:
    again = flow.replay(domain or desk.host.domain, first, desk.events(), KEY)
    assert flow_records.encoded(again) == flow_records.encoded(await desk.snapshot())


async def test_a_trace_is_enough_after_an_environment_that_raised(open_alone: Desks) -> None:
    broken: list[int] = []

    def environment() -> dict[str, Any]:
        if broken:
            raise RuntimeError("no environment")
        return {}

    desk = open_alone(made(go=INCREMENT, fetch=FETCH), {"http": gives("response", {})}, environment=environment)
    first = await desk.snapshot()
    await desk.act("go")
    broken.append(1)
    assert (await desk.act("go", id="bad")).status == "error"
    broken.clear()
    await desk.submit("fetch", id="cut")
    await asyncio.sleep(0)  # the first job is done; the second one has no environment
    broken.append(1)
    await desk.idle()
    broken.clear()
    assert (await desk.act("go")).status == "complete"
    errors_ = (await desk.snapshot()).system.errors
    assert [each.message for each in errors_] == ["RuntimeError: no environment"] * 2
    await replayed(desk, first)


async def test_a_trace_is_enough_after_a_core_that_raised(open_alone: Desks) -> None:
    """Whether the Core of the replay raises or not: the trace says that it did."""
    desk = open_alone(made(go=INCREMENT, bad=INCREMENT), core=Breaking("bad"))
    first = await desk.snapshot()
    for action in ("go", "bad", "go"):
        await desk.act(action)
    assert (await desk.snapshot()).data["count"] == 2
    await replayed(desk, first)
    await replayed(desk, first, open_alone(made(go=INCREMENT, bad=INCREMENT)).host.domain)
