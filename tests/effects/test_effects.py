"""Effects: retries, timeouts, limits, streams, threads and cancellation, on every engine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.effects.retry_policy import policy_of
from worldline.kernel.authoring.calls import PLAIN, Options
from worldline.model.journal import Kind
from worldline.runtime.live_hub import Chunk


class Ledger:
    """What the outside has seen: each call with its attempt, key and time; and how many ran at once."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, str]] = []
        self.times: list[float] = []
        self.running = 0
        self.most = 0
        self.gate = asyncio.Event()

    def note(self, name: str) -> None:
        attempt = wl.attempt()
        self.calls.append((name, attempt.number, attempt.key))
        self.times.append(time.monotonic())

    async def hold(self, seconds: float) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running -= 1

    @property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(key for _, _, key in self.calls))


async def call(kit: Kit, program: wl.Program, workflow: wl.Call[Any], **options: Any) -> Any:
    """Run a workflow in a fresh world, prove what it did, and check that nothing is left over."""
    async with kit.hosting(program, **options) as universe:
        world = await universe.ensure("w", program)
        try:
            return await world.run(workflow, timeout=30)
        finally:
            assert await kits.opened(universe._connection.store.engine, await world._handle.address()) == []
            await kits.prove(world, program)


@pytest.mark.parametrize(
    ("retry", "delays_ms"),
    [
        (wl.Retry(), [1_000, 2_000, 4_000, 8_000]),
        (wl.Retry(initial_delay=0.5, max_delay=4), [500, 1_000, 2_000, 4_000]),
        (wl.Retry(initial_delay=1, max_delay=1), [1_000, 1_000, 1_000, 1_000]),
        (wl.Retry(initial_delay=0), [0, 0, 0, 0]),
        (wl.Retry(attempts=None, initial_delay=1, max_delay=10**9), [1_000, 2_000, 4_000, 8_000]),
    ],
)
def test_backoff_is_what_was_declared(retry: wl.Retry, delays_ms: list[int]) -> None:
    app = wl.Program("p")

    @app.effect(retry=retry)
    async def touch() -> None: ...

    policy = policy_of(touch, PLAIN)
    assert [policy.delay_us(attempt, b"i") for attempt in (1, 2, 3, 4)] == [each * 1_000 for each in delays_ms]
    assert policy.delay_us(10_000, b"i") == (retry.max_delay_us if retry.initial_delay else 0)
    assert policy_of(touch, Options.of(key=None, timeout=None, retry=retry)) == policy  # as one call's own


async def test_an_effect_is_tried_until_it_works(kit: Kit) -> None:
    app, seen = wl.Program("p"), Ledger()

    @app.effect(retry=wl.Retry(attempts=4, initial_delay=0.02))
    async def touch() -> int:
        seen.note("touch")
        if wl.attempt().number < 4:
            raise ConnectionError("not yet")
        return wl.attempt().number

    @app.workflow
    async def go() -> int:
        return await touch()

    assert await call(kit, app, go()) == 4
    assert [number for _, number, _ in seen.calls] == [1, 2, 3, 4]
    assert len(seen.keys) == 1
    gaps = [after - before for before, after in itertools.pairwise(seen.times)]
    assert all(gap >= delay for gap, delay in zip(gaps, [0.02, 0.04, 0.08], strict=True)), gaps


async def test_out_of_attempts_is_an_error_in_the_workflow(kit: Kit) -> None:
    app, seen = wl.Program("p"), Ledger()

    @app.effect(retry=wl.Retry(attempts=5, initial_delay=0.01))
    async def touch() -> None:
        seen.note("touch")
        raise KeyError("no such thing")

    @app.workflow
    async def go() -> list[Any]:
        try:
            await touch.options(retry=wl.Retry(attempts=2, initial_delay=0.01))()
        except wl.EffectFailed as error:
            return [error.code, error.attempts, str(error)]
        return []

    code, attempts, message = await call(kit, app, go())
    assert (code, attempts, len(seen.calls)) == ("KeyError", 2, 2)
    assert "no such thing" in message


async def test_a_fatal_failure_is_not_tried_again(kit: Kit) -> None:
    app, seen = wl.Program("p"), Ledger()

    @app.effect
    def charge() -> None:
        seen.note("charge")
        raise wl.Fatal("card declined", code="declined")

    @app.effect
    async def strange() -> Any:
        seen.note("strange")
        return object()  # has no canonical form

    @app.workflow
    async def go() -> list[str]:
        codes = []
        for each in (charge, strange):
            try:
                await each()
            except wl.EffectFailed as error:
                codes.append(error.code)
        return codes

    assert await call(kit, app, go()) == ["declined", "encode_error"]
    assert [name for name, _, _ in seen.calls] == ["charge", "strange"]


async def test_an_effect_may_say_when_to_try_again(memory_kit: Kit) -> None:
    app, seen = wl.Program("p"), Ledger()

    @app.effect(retry=wl.Retry(initial_delay=0))
    async def touch() -> str:
        seen.note("touch")
        if wl.attempt().number == 1:
            raise wl.TryAgain("busy", after=0.2)
        return "done"

    @app.workflow
    async def go() -> str:
        return await touch()

    assert await call(memory_kit, app, go()) == "done"
    assert seen.times[1] - seen.times[0] >= 0.2


async def test_each_attempt_has_its_timeout(kit: Kit) -> None:
    app, seen = wl.Program("p"), Ledger()
    cancelled: list[str] = []

    @app.effect(timeout=0.05, retry=wl.Retry(attempts=2, initial_delay=0.01))
    async def hang() -> None:
        seen.note("hang")
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append("hang")
            raise

    @app.workflow
    async def go() -> list[Any]:
        try:
            await hang()
        except wl.EffectTimeout as error:
            return [error.code, error.attempts]
        return []

    assert await call(kit, app, go()) == ["timeout", 2]
    assert cancelled == ["hang", "hang"]


async def test_all_attempts_together_have_a_timeout(kit: Kit) -> None:
    """One attempt that hangs, and many that fail: both end in time."""
    app, seen = wl.Program("p"), Ledger()

    @app.effect(total_timeout=0.6)
    async def hang() -> None:
        seen.note("hang")
        await asyncio.sleep(30)

    @app.effect(total_timeout=1, retry=wl.Retry(attempts=None, initial_delay=0.1, max_delay=0.1))
    async def fail() -> None:
        seen.note("fail")
        raise ConnectionError("again")

    @app.workflow
    async def go() -> list[str]:
        codes = []
        for each in (hang, fail):
            try:
                await each()
            except wl.EffectTimeout as error:
                codes.append(error.code)
        return codes

    started = time.monotonic()
    hung, failed = await call(kit, app, go())
    assert hung == "timeout"
    assert failed in ("ConnectionError", "timeout"), "out of time after an attempt, or before the next"
    assert time.monotonic() - started < 10
    names = [name for name, _, _ in seen.calls]
    assert names.count("hang") == 1
    assert 2 <= names.count("fail") <= 11


async def test_time_in_the_queue_counts(memory_kit: Kit) -> None:
    """An effect that never got its turn times out too, without having been tried."""
    app, seen = wl.Program("p"), Ledger()

    @app.effect(concurrency=1, total_timeout=0.2)
    async def touch(name: str) -> str:
        seen.note(name)
        await asyncio.sleep(0.5 if name == "slow" else 0)
        return name

    @app.workflow
    async def one(name: str) -> str:
        try:
            return await touch(name)
        except wl.EffectTimeout:
            return f"{name} timed out"

    @app.workflow
    async def go() -> list[str]:
        return list(await wl.gather(one("slow"), one("next")))

    assert await call(memory_kit, app, go()) == ["slow timed out", "next timed out"]
    assert [name for name, _, _ in seen.calls] == ["slow"]


async def test_concurrency_of_a_kind_is_bounded(kit: Kit) -> None:
    app, seen, free = wl.Program("p"), Ledger(), Ledger()

    @app.effect(concurrency=3)
    async def narrow(number: int) -> int:
        await seen.hold(0.01)
        return number

    @app.effect
    async def wide(number: int) -> int:
        await free.hold(0.2)
        return number

    @app.workflow
    async def go() -> list[int]:
        found = await wl.gather(*(narrow(number) for number in range(20)))
        return [*found, *(await wl.gather(*(wide(number) for number in range(10))))]

    assert await call(kit, app, go()) == [*range(20), *range(10)]
    assert seen.most == 3
    assert free.most == 10


async def test_a_process_does_not_take_more_than_it_can(memory_kit: Kit) -> None:
    """The bound of a process holds for effects that come already claimed, too."""
    app, seen = wl.Program("p"), Ledger()

    @app.effect
    async def touch(number: int) -> int:
        await seen.hold(0.01)
        return number

    @app.workflow
    async def go() -> int:
        return len(await wl.gather(*(touch(number) for number in range(100))))

    settings = kits.settings(adapter={"concurrency": 5})
    assert await call(memory_kit, app, go(), settings=settings) == 100
    assert seen.most == 5


async def test_a_kind_without_room_is_in_nobodys_way(kit: Kit) -> None:
    """A hundred that may not start yet, all due first, do not hide another kind's retry behind them."""
    app, seen = wl.Program("p"), Ledger()

    @app.effect(concurrency=1)
    async def blocked(number: int) -> int:
        await seen.gate.wait()
        return number

    @app.effect(retry=wl.Retry(initial_delay=0.01))
    async def other() -> str:
        seen.note("other")
        if wl.attempt().number < 3:
            raise ConnectionError("again")
        return "done"

    @app.workflow
    async def many() -> int:
        return len(await wl.gather(*(blocked(number) for number in range(100))))

    @app.workflow
    async def one() -> str:
        return await other()

    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        run = await world.start(many(), id="many")
        assert await world.run(one(), timeout=10) == "done"
        seen.gate.set()
        assert await run.result(20) == 100


async def test_waiting_for_room_costs_nothing(memory_kit: Kit) -> None:
    """A queue that nothing can be taken from is not asked again and again."""
    app, seen = wl.Program("p"), Ledger()

    @app.effect(concurrency=1)
    async def blocked(number: int) -> int:
        await seen.gate.wait()
        return number

    @app.workflow
    async def many() -> int:
        return len(await wl.gather(*(blocked(number) for number in range(10))))

    process = await memory_kit.process(app)
    world = await process.universe.ensure("w", app)
    run = await world.start(many(), id="many")
    await asyncio.sleep(0.2)
    before = process.host._loops[1].ticks
    await asyncio.sleep(1)
    assert process.host._loops[1].ticks - before < 40
    seen.gate.set()
    assert await run.result(20) == 10
    await process.close()


async def test_the_rate_of_a_kind_is_bounded(kit: Kit) -> None:
    app, seen = wl.Program("p"), Ledger()

    @app.effect(rate=50)
    async def touch(number: int) -> int:
        seen.note("touch")
        return number

    @app.workflow
    async def go() -> int:
        return len(await wl.gather(*(touch(number) for number in range(25))))

    assert await call(kit, app, go()) == 25
    times = sorted(seen.times)  # of calls: each may be a little later than its start was due
    assert times[-1] - times[0] >= 24 / 50 - 0.1
    assert all(times[index + 10] - times[index] >= 10 / 50 - 0.1 for index in range(15)), "no burst in between"


async def test_chunks_reach_followers_in_order(kit: Kit) -> None:
    app = wl.Program("p")

    @app.effect
    async def talk() -> str:
        for word in ("one", "two", "three"):
            wl.attempt().emit(word)
            await asyncio.sleep(0)
        return "said"

    @app.effect
    def shout() -> str:
        for word in ("ONE", "TWO", "THREE"):
            wl.attempt().emit(word)
        return "shouted"

    @app.workflow
    async def go() -> list[str]:
        return [await talk(), await shout()]

    heard: list[Any] = []

    async def listen(world: wl.World) -> None:
        async for each in world.follow():
            if isinstance(each, Chunk):
                assert (each.run, each.attempt) == ("r", 1)
                heard.append(each.value)
            elif each.kind in (Kind.EFFECT_RESULT, Kind.RUN_FINISHED):
                heard.append(each.kind)
            if heard and heard[-1] is Kind.RUN_FINISHED:
                return

    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        listening = asyncio.ensure_future(listen(world))
        await asyncio.sleep(0.05)
        assert await kits.run(world, go(), id="r") == ["said", "shouted"]
        async with asyncio.timeout(10):
            await listening
    assert heard == [
        "one",
        "two",
        "three",
        Kind.EFFECT_RESULT,
        "ONE",
        "TWO",
        "THREE",
        Kind.EFFECT_RESULT,
        Kind.RUN_FINISHED,
    ]


async def test_what_an_effect_streams_ends_with_an_entry_that_says_how(memory_kit: Kit) -> None:
    """Also if no answer comes: a follower is never left with pieces that just stop."""
    app = wl.Program("p")

    @app.effect(retry=wl.Retry(attempts=1), timeout=0.05)
    async def late() -> None:
        wl.attempt().emit("late")
        await asyncio.Event().wait()

    @app.effect
    async def hang() -> None:
        wl.attempt().emit("hang")
        await asyncio.Event().wait()

    @app.effect(retry=wl.Retry(attempts=1))
    async def fails() -> None:
        wl.attempt().emit("fails")
        raise ValueError("no")

    @app.workflow
    async def go() -> None:
        for each in (late, fails):
            with contextlib.suppress(TimeoutError, wl.EffectFailed):
                await each()
        async with wl.scope(timeout=0.1):
            await hang()

    heard: list[Any] = []

    async def listen(world: wl.World) -> None:
        async for each in world.follow(above=0):
            if isinstance(each, Chunk):
                heard.append(each.value)
            elif each.kind is Kind.EFFECT_RESULT:
                heard.append(each.data["status"])
            elif each.kind is Kind.EFFECT_CANCELLED:
                heard.append(("cancelled", each.data["name"]))
            elif each.kind is Kind.RUN_FINISHED:
                return

    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        listening = asyncio.ensure_future(listen(world))
        host = universe._connection.host
        assert host is not None

        async def follows() -> bool:
            return bool(host.live._followers)

        await aio.until(follows)
        await world.run(go(), id="r", timeout=20)
        await asyncio.wait_for(listening, 20)
    assert heard == ["late", "timeout", "fails", "error", "hang", ("cancelled", "hang")]


async def test_plain_functions_run_in_threads(kit: Kit) -> None:
    app = wl.Program("p")
    threads: list[int] = []
    together = threading.Barrier(2, timeout=20)

    @app.effect
    def block(number: int) -> str:
        together.wait()  # both at once, or never
        threads.append(threading.get_ident())
        return wl.attempt().key

    @app.workflow
    async def go() -> int:
        return len(dict.fromkeys(await wl.gather(block(1), block(2))))

    assert await call(kit, app, go()) == 2
    assert len(dict.fromkeys(threads)) == 2
    assert threading.get_ident() not in threads


async def test_an_effect_is_cancelled_with_its_scope(kit: Kit) -> None:
    app = wl.Program("p")
    ends: list[str] = []
    thread_ended = threading.Event()

    @app.effect
    async def hang() -> str:
        try:
            await asyncio.sleep(30)
        finally:
            ends.append("hang")
        return "never"

    @app.effect
    def spin() -> str:
        this = wl.attempt()
        while not this.cancelled and not thread_ended.wait(0.005):
            pass
        ends.append("spin")
        return "too late"

    @app.workflow
    async def go() -> list[bool]:
        timed_out = []
        for each in (hang, spin):
            async with wl.scope(timeout=0.1) as scope:
                await each()
            timed_out.append(scope.timed_out)
        return timed_out

    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        assert await world.run(go(), timeout=20) == [True, True]

        async def stopped() -> bool:
            return ends == ["hang", "spin"]

        await aio.until(stopped)
        assert await kits.opened(universe._connection.store.engine, await world._handle.address()) == []
        assert Kind.EFFECT_RESULT not in await kits.kinds(world)
        assert (await kits.kinds(world)).count(Kind.EFFECT_CANCELLED) == 2
        await kits.prove(world, app)
    thread_ended.set()


async def test_an_effect_that_cancels_itself_has_failed(memory_kit: Kit) -> None:
    app = wl.Program("p")

    @app.effect(retry=wl.Retry(attempts=2, initial_delay=0))
    async def odd() -> None:
        raise asyncio.CancelledError

    @app.workflow
    async def go() -> list[Any]:
        try:
            await odd()
        except wl.EffectFailed as error:
            return [error.code, error.attempts]
        return []

    assert await call(memory_kit, app, go()) == ["cancelled", 2]


@pytest.mark.parametrize("how", ["and waits", "and answers", "and fails", "twice", "within a deadline"])
async def test_an_effect_that_cancels_its_own_task_has_failed(memory_kit: Kit, how: str) -> None:
    """At once: nobody waits for its claim to run out. The answer that it gives all the same counts."""
    app = wl.Program("p")
    retry, limit = wl.Retry(attempts=2, initial_delay=0), 60 if how == "within a deadline" else None

    @app.effect(retry=retry, timeout=limit, total_timeout=limit)
    async def odd() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if how == "and answers":
            return "answer"
        if how == "and fails":
            raise ValueError("odd")
        try:
            await asyncio.sleep(0)
        finally:
            if how == "twice":
                task.cancel()
        return "not reached"

    @app.workflow
    async def go() -> list[Any]:
        try:
            return [await odd()]
        except wl.EffectFailed as error:
            return [error.code, error.attempts]

    known = {"and answers": ["answer"], "and fails": ["ValueError", 2]}
    settings = kits.settings(adapter={"claim_ttl_ms": 3_600_000, "renew_ms": 1_000_000})
    assert await call(memory_kit, app, go(), settings=settings) == known.get(how, ["cancelled", 2])


async def test_large_values_go_both_ways(kit: Kit) -> None:
    app = wl.Program("p")

    @app.effect
    async def double(data: bytes) -> bytes:
        return data + data

    @app.workflow
    async def go(data: bytes) -> bytes:
        return await double(data)

    data = bytes(range(256)) * 1_000
    assert await call(kit, app, go(data)) == data + data


async def test_an_effect_unknown_to_this_process_is_left_for_others(kit: Kit) -> None:
    """One process runs the world, another the effect, a third nothing of either."""
    here, there, nowhere = wl.Program("p"), wl.Program("p"), wl.Program("q")
    performed: list[str] = []

    @there.effect(queue="special")
    async def touch() -> str:
        performed.append("there")
        return "done"

    @there.workflow
    async def go() -> str:
        return await touch()

    here.workflows.update(there.workflows)
    here.effects.update(there.effects)
    hosting = await kit.process(here)
    hosting.host.effects._kinds.clear()  # a host that performs nothing itself
    await kit.process(nowhere)
    world = await hosting.universe.ensure("w", here)
    run = await world.start(go(), id="r")
    with pytest.raises(TimeoutError):
        await run.result(0.5)
    assert performed == []
    await kit.process(there)
    assert await run.result(20) == "done"
    assert performed == ["there"]
