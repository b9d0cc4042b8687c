"""The Host contract's compliance suite, on every kind of host: liveness, mailboxes, and the order of effects."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from tests.flow.conftest import Desks
from tests.flow.contract_kit import CHAIN, FETCH, INCREMENT, gives, idle_data, made, pending
from tests.flow.hosts import KEY, failure, said, types
from tests.flow_core.documents import HALT, effect, get, lit, once, op, put, seq, when
from worldline import flow
from worldline.flow_core import faults, jobs

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
    for other in (key.swapcase(), key[:-1], f"{key}:"):  # none of them is the same, whatever a key may mean
        assert (await desk.snapshot(other)).data["done"] is None


async def test_mail_001_keys_are_independent(open_desk: Desks) -> None:
    desk = open_desk(made(go=INCREMENT, fetch=FETCH), perform=False)
    await desk.submit("fetch", key="waits")
    await desk.act("go", key="goes")
    assert (await idle_data(desk, "goes"))["count"] == 1
    assert len(await pending(desk, "waits")) == 1


async def test_mail_006_intents_are_taken_in_order(open_desk: Desks) -> None:
    desk = open_desk(made(go=put("note", op("concat", get("note"), get("input.text")))))
    for text in "abc":
        await desk.submit("go", {"text": text})
    await desk.idle()
    assert (await idle_data(desk))["note"] == "abc"


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


async def test_ord_serial_one_at_a_time_though_core_asks_for_all(open_alone: Desks) -> None:
    """The policy is the host's: what is pending is performed one by one, in Core's order."""
    order: list[str] = []

    def noting(name: str) -> flow.Handler:
        async def handler(call: flow.EffectCall) -> list[flow.Patch]:
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            order.append(f"{name} ends")
            return [flow.set(name, 1)]

        return handler

    handlers = {f"e-{name}": noting(name) for name in "abc"}
    desk = open_alone(THREE, handlers, effects="serial", core=flow.Core(effects="parallel"))
    assert (await desk.act("go")).status == "complete"
    assert order == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]
    assert types(desk).count("core:compute") == 2


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


THREE = made(
    go=seq(
        *(
            when(op("and", op("isNull", get(path)), op("isNull", get("$host.lastError"))), effect(f"e-{path}"))
            for path in "abc"
        ),
        put("done", lit(True)),
    )
)
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
