"""Claims and receipts: renewed, lost, taken back, late, double and forged."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.kits.pausing import Pausing
from worldline.client import send_door, world_answers
from worldline.effects import claimed_effect as perform
from worldline.kernel import runs, user_values
from worldline.model import ids, inbox, payload
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.model.settings import Settings
from worldline.model.work import WorkState
from worldline.observe import sinks
from worldline.runtime import facts
from worldline.sim.runtime import keyspaces
from worldline.store import kv


class Outside:
    """An effect that waits for a word from the test, and remembers who called."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str]] = []
        self.gates: dict[int, asyncio.Event] = {}
        self.ended: list[int] = []

    def program(self, retry: wl.Retry | None = None) -> wl.Program:
        app = wl.Program("p")

        @app.effect(retry=retry or wl.Retry(initial_delay=0))
        async def touch() -> str:
            number = wl.attempt().number
            self.calls.append((number, wl.attempt().key))
            try:
                await self.gates.setdefault(number, asyncio.Event()).wait()
            finally:
                self.ended.append(number)
            return f"by attempt {number}"

        @app.workflow
        async def go() -> str:
            return await touch()

        return app

    def let(self, number: int) -> None:
        self.gates.setdefault(number, asyncio.Event()).set()

    async def called(self, times: int) -> None:
        async def enough() -> bool:
            return len(self.calls) >= times

        await aio.until(enough)


class Told:
    """What a process tells of its attempts."""

    def __init__(self) -> None:
        self._facts: list[facts.Fact] = []
        self.observed = sinks.Observed(facts.Telling([("told", self._facts.append)]))

    @property
    def outcomes(self) -> list[str]:
        return [each.outcome for each in self._facts if isinstance(each, facts.AttemptEnded)]

    @property
    def answers(self) -> int:
        return sum(isinstance(each, facts.EffectAnswered) for each in self._facts)


async def receipts(world: wl.World) -> tuple[int, int]:
    """How many receipts were taken, and how many ignored."""
    found = await kits.kinds(world)
    ignored = sum(1 for one, two in itertools.pairwise(found) if (one, two) == (Kind.EFFECT_RESULT, Kind.LATE_ANSWER))
    return found.count(Kind.EFFECT_RESULT) - ignored, ignored


# Moving the clock on is about claims here; the leases outlast it.
LEASED = {"lease_ttl_ms": 3_600_000}


async def test_an_effect_longer_than_its_claim_completes_once(kit: Kit) -> None:
    outside = Outside()
    app = outside.program()
    ttl_ms, rounds = 30_000, 4  # the clock is moved: nothing is waited for, and a busy machine is late with nothing
    settings = kits.settings(adapter={"claim_ttl_ms": ttl_ms, "renew_ms": 50, "scan_ms": 50}, worker=LEASED)
    first = await kit.process(app, settings=settings)
    await kit.process(app, settings=settings)  # would gladly take it
    world = await first.universe.ensure("w", app)
    run = await world.start(app.workflows["go"](), id="r")
    await outside.called(1)
    at = await world._handle.address()
    seen = 0
    for _ in range(rounds):

        async def renewed(since: int = seen) -> bool:
            return (await kits.opened(first.engine, at))[0].work.due_us > since

        await aio.until(renewed)
        seen = (await kits.opened(first.engine, at))[0].work.due_us
        await kit.jump(ttl_ms / 1000 * 0.6)
    assert len(outside.calls) == 1
    outside.let(1)
    assert await run.result(20) == "by attempt 1"
    assert len(outside.calls) == 1
    assert await receipts(world) == (1, 0)


async def test_a_claim_lost_while_running_changes_nothing(kit: Kit) -> None:
    """The first host stands still until another has taken over world and effect; then its own answer comes."""
    outside = Outside()
    app = outside.program()
    pausing: list[Pausing] = []

    def wrap(engine: Any) -> Pausing:
        pausing.append(Pausing(engine))
        return pausing[-1]

    first = await kit.process(app, wrap=wrap)
    world = await first.universe.ensure("w", app)
    await kits.begin(world, app.workflows["go"](), id="r")
    await outside.called(1)
    pausing[0].pause()
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.2)
    second = await kit.process(app)
    await outside.called(2)
    outside.let(1)
    await asyncio.sleep(0.05)
    pausing[0].resume()  # its answer goes out now, under a claim that is not its own any more
    await asyncio.sleep(0.3)
    there = second.universe.world("w")
    assert await receipts(there) == (0, 0)
    outside.let(2)
    assert await kits.run(there, app.workflows["go"](), id="r") == "by attempt 2"
    assert await receipts(there) == (1, 0)
    assert len(dict.fromkeys(key for _, key in outside.calls)) == 1, "the same key both times"
    await kits.prove(there, app)


class Slow(kits.Around):
    """An engine whose commits take a while."""

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        outcomes = await self._engine.commit(*batches)
        await asyncio.sleep(0.05)
        return outcomes


async def test_an_effect_may_end_while_its_claim_is_renewed(memory_kit: Kit) -> None:
    """The renewal is written and its answer is on the way when the work is done: the answer goes out under it."""
    app = wl.Program("p")
    numbers: list[int] = []

    @app.effect
    async def touch(seconds: float) -> float:
        numbers.append(wl.attempt().number)
        await asyncio.sleep(seconds)
        return seconds

    @app.workflow
    async def go() -> int:
        return len(await wl.gather(*(touch(0.01 * number) for number in range(20))))

    settings = kits.settings(adapter={"claim_ttl_ms": 10**8, "renew_ms": 20})
    process = await memory_kit.process(app, settings=settings, wrap=Slow)
    world = await process.universe.ensure("w", app)
    assert await world.run(go(), timeout=20) == 20
    assert numbers == [1] * 20
    await process.close()


class SetBack(kits.Around):
    """An engine whose clock is set back between finding due work and looking at it, once."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self.set_back = False

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        read = await self._engine.read(*requests)
        looking = any(isinstance(each, kv.Get) and keyspaces.place(each.key).what == "open" for each in requests)
        if not looking or self.set_back:
            return read
        self.set_back = True
        return kv.ReadResult(read.answers, read.time_us - 60_000_000, read.seen)


async def test_work_that_is_not_due_after_all_takes_nobodys_place(memory_kit: Kit) -> None:
    """Found due, and then the store's clock is set back: it is left, and so is the place it would have had."""
    app = wl.Program("p")

    @app.effect(retry=wl.Retry(initial_delay=0.01))
    async def second_time() -> int:
        if wl.attempt().number == 1:
            raise ValueError("not yet")
        return wl.attempt().number

    @app.workflow
    async def go() -> int:
        return await second_time()

    made: list[SetBack] = []

    def wrap(engine: Any) -> SetBack:
        made.append(SetBack(engine))
        return made[-1]

    process = await memory_kit.process(app, settings=kits.settings(adapter={"concurrency": 1}), wrap=wrap)
    world = await process.universe.ensure("w", app)
    assert await world.run(go(), timeout=20) == 2
    assert made[0].set_back
    assert process.host.failed is None
    assert all(each.last_error is None for each in process.host._loops), "it is nothing to complain about"
    assert not process.host.effects._promised
    await process.close()


async def test_a_claim_that_is_let_be_is_not_renewed_any_more() -> None:
    """Whoever answers under it must know how it stands, so nothing may begin while the last renewal comes back."""
    gate, begun = asyncio.Event(), 0

    class Renewing:
        async def renew(self, claim: object, *, beside: bool) -> object:
            nonlocal begun
            begun += 1
            await gate.wait()
            return claim

    performer: Any = Renewing()
    claim: Any = object()
    held = perform.ClaimedEffect(claim, 0.0)
    held.renew(performer)
    stopping = asyncio.create_task(held.stop())
    await asyncio.sleep(0)
    gate.set()
    while not stopping.done():
        held.renew(performer)
        await asyncio.sleep(0)
    assert begun == 1


async def test_an_answer_that_is_on_its_way_is_given_before_the_end(memory_kit: Kit) -> None:
    """The host closes when an effect has just been performed: nobody has to do it again."""
    app = wl.Program("p")
    numbers: list[int] = []

    @app.effect
    async def touch() -> str:
        numbers.append(wl.attempt().number)
        return "done"

    @app.workflow
    async def go() -> str:
        return await touch()

    process = await memory_kit.process(app, wrap=Slow)
    world = await process.universe.ensure("w", app)
    await kits.begin(world, go(), id="r")

    async def called() -> bool:
        return bool(numbers)

    await aio.until(called)
    await process.close()
    async with memory_kit.hosting(app) as universe:
        assert await kits.run(universe.world("w"), go(), id="r") == "done"
    assert numbers == [1]


async def test_an_answer_under_a_claim_that_another_has_is_dropped(memory_kit: Kit) -> None:
    """Handed over in the process that holds the world, it would spoil a commit; the world is brought back, the one who
    has the claim answers, and the loser does not wait for ever.
    """
    outside = Outside()
    app = outside.program()
    slow = kits.settings(adapter={"claim_ttl_ms": 30_000, "renew_ms": 15_000}, worker={"lease_ttl_ms": 10**7})
    told = Told()
    first = await memory_kit.process(app, settings=slow, observed=told.observed)
    world = await first.universe.ensure("w", app)
    run = await world.start(app.workflows["go"](), id="r")
    await outside.called(1)
    await memory_kit.jump(31)
    second = await memory_kit.process(app, settings=kits.settings(worker={"lease_ttl_ms": 10**7}))
    await outside.called(2)
    at = await world._handle.address()
    assert (first.host.worlds.holds(at), second.host.worlds.holds(at)) == (True, False)
    outside.let(1)

    async def over() -> bool:
        return not first.host.effects._tasks

    await aio.until(over)
    assert (told.outcomes, told.answers) == (["lost"], 0), "nothing of it is in the world"
    assert await receipts(world) == (0, 0)
    outside.let(2)
    assert await run.result(20) == "by attempt 2"
    assert await receipts(world) == (1, 0)
    await kits.prove(world, app)


@pytest.mark.parametrize("fails", ["", "once more", "for good"])
async def test_what_nobody_wants_any_more_is_told_as_lost(memory_kit: Kit, fails: str) -> None:
    """The claim has moved on while the effect was performed, away from its world: nothing that it ends with is stored,
    so nothing is told as answered, retried or failed.
    """
    app, gate, calls = wl.Program("p"), asyncio.Event(), list[int]()

    @app.effect(retry=wl.Retry(initial_delay=0))
    async def touch() -> str:
        calls.append(wl.attempt().number)
        if len(calls) > 1:
            return "by another"
        await gate.wait()
        if fails == "for good":
            raise wl.Fatal(fails)
        if fails:
            raise ValueError(fails)
        return "late"

    @app.workflow
    async def go() -> str:
        return await touch()

    told, of_another = Told(), Told()
    lasting = {"lease_ttl_ms": 10**7}
    holding = await memory_kit.process(app, settings=kits.settings(worker=lasting))
    holding.host.effects._kinds.clear()
    slow = kits.settings(adapter={"claim_ttl_ms": 30_000, "renew_ms": 15_000}, worker=lasting)
    first = await memory_kit.process(app, settings=slow, observed=told.observed)
    world = await holding.universe.ensure("w", app)
    run = await world.start(go(), id="r")

    async def called() -> bool:
        return bool(calls)

    await aio.until(called)
    assert not first.host.worlds.holds(await world._handle.address())
    await memory_kit.jump(31)
    await memory_kit.process(app, settings=kits.settings(worker=lasting), observed=of_another.observed)
    assert await run.result(20) == "by another"
    gate.set()

    async def ended() -> bool:
        return bool(told.outcomes)

    await aio.until(ended)
    assert (told.outcomes, told.answers) == (["lost"], 0)
    assert (of_another.outcomes, of_another.answers) == (["ok"], 1)


async def test_whoever_loses_a_claim_stops_working(memory_kit: Kit) -> None:
    """The world gave the effect up in another process: the one that performs it learns so at the next renewal."""
    outside = Outside()
    app = outside.program()
    settings = kits.settings(adapter={"renew_ms": 20})
    hosting = await memory_kit.process(app)
    hosting.host.effects._kinds.clear()
    perform = await memory_kit.process(app, settings=settings)
    world = await hosting.universe.ensure("w", app)
    run = await world.start(app.workflows["go"](), id="r")
    await outside.called(1)
    assert not perform.host.worlds.holds(await world._handle.address())
    await run.cancel("not wanted any more")

    async def stopped() -> bool:
        return outside.ended == [1]

    await aio.until(stopped)
    with pytest.raises(wl.RunCancelled):
        await run.result(60)


async def test_work_of_a_killed_process_is_tried_again(kit: Kit) -> None:
    outside = Outside()
    app = outside.program()
    first = await kit.process(app)
    world = await first.universe.ensure("w", app)
    await kits.begin(world, app.workflows["go"](), id="r")
    await outside.called(1)
    await first.kill()
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    async with kit.hosting(app) as universe:
        await outside.called(2)
        outside.let(2)
        assert await kits.run(universe.world("w"), app.workflows["go"](), id="r") == "by attempt 2"
        assert [number for number, _ in outside.calls] == [1, 2]
        assert len(dict.fromkeys(key for _, key in outside.calls)) == 1


async def test_with_proof_of_death_nobody_waits(lmdb_kit: Kit) -> None:
    """On one machine a released lock is proof: neither lease nor claim has to run out, and nobody has to ask."""
    outside = Outside()
    app = outside.program()
    first = await lmdb_kit.process(app, settings=Settings())
    world = await first.universe.ensure("w", app)
    await kits.begin(world, app.workflows["go"](), id="r")
    await outside.called(1)
    await first.kill()
    outside.let(2)
    started = time.monotonic()
    async with lmdb_kit.hosting(app, settings=Settings()) as universe:
        await outside.called(2)
        run = await universe.world("w").attach("r")
        assert await run.result(20) == "by attempt 2"
    assert time.monotonic() - started < 5 < Settings().adapter.claim_ttl_ms / 1000


async def test_a_process_that_closes_gives_its_claims_back(kit: Kit) -> None:
    outside = Outside()
    app = outside.program()
    first = await kit.process(app, settings=Settings())
    world = await first.universe.ensure("w", app)
    await kits.begin(world, app.workflows["go"](), id="r")
    await outside.called(1)
    at = await world._handle.address()
    await first.close()
    [work] = await kits.opened(await kit.engine(), at)
    assert work.work.state is WorkState.WAITING
    outside.let(2)
    started = time.monotonic()
    async with kit.hosting(app, settings=Settings()) as universe:
        assert await kits.run(universe.world("w"), app.workflows["go"](), id="r") == "by attempt 2"
    assert time.monotonic() - started < 5


async def test_work_that_kills_its_processes_ends(memory_kit: Kit) -> None:
    """An attempt whose process died was an attempt."""
    outside = Outside()
    app = outside.program(wl.Retry(attempts=2, initial_delay=0))
    for times in (1, 2):
        process = await memory_kit.process(app)
        world = await process.universe.ensure("w", app)
        _ = await kits.start(world, app.workflows["go"](), id="r")
        await outside.called(times)
        await process.kill()
        await memory_kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    async with memory_kit.hosting(app) as universe:
        with pytest.raises(wl.RunFailed) as failed:
            await kits.run(universe.world("w"), app.workflows["go"](), id="r")
        assert failed.value.code == "abandoned"
    assert len(outside.calls) == 2


async def test_receipts_nobody_waits_for_are_ignored(kit: Kit) -> None:
    """Late, double, forged, of the wrong kind: journaled as ignored, and the state is what it was."""
    outside = Outside()
    app = outside.program()

    @app.workflow
    async def wait() -> None:
        await wl.sleep(1_000)

    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        at, engine = await world._handle.address(), universe._connection.store.engine
        run = await world.start(app.workflows["go"](), id="r")
        await outside.called(1)
        [effect] = await kits.opened(engine, at)
        outside.let(1)
        assert await run.result(20) == "by attempt 1"
        await kits.begin(world, wait(), id="s")
        [timer] = await kits.opened(engine, at)
        before = await world.head()
        answer = payload.inline(user_values.dump("forged"))
        failure = payload.inline(runs.failure("forged", "forged"))
        items: list[inbox.Item] = [
            inbox.EffectReceipt(effect.intent, ReceiptStatus.OK, answer, 1, "r"),
            inbox.EffectReceipt(effect.intent, ReceiptStatus.OK, answer, 1, "r"),
            inbox.EffectReceipt(effect.intent, ReceiptStatus.ERROR, failure, 7),
            inbox.EffectReceipt(ids.IntentId(bytes(16)), ReceiptStatus.OK, answer, 1),
            inbox.EffectReceipt(timer.intent, ReceiptStatus.OK, answer, 1),
            inbox.EffectReceipt(timer.intent, ReceiptStatus.CANCELLED, failure, 1),
            inbox.TimerFired(effect.intent, 0),
            inbox.TimerFired(ids.IntentId(bytes(16)), 2**60),
            inbox.TimerFired(timer.intent, timer.work.due_us - 1),
        ]
        for item in items:
            sending = await send_door.enqueue(universe._connection, at, item)
            await world_answers.taken(universe._connection, sending)
        after = await world.head()
        assert (after.state, after.step) == (before.state, before.step + len(items))
        found = await world.journal(above=before.height)
        assert [each.kind for each in found].count(Kind.LATE_ANSWER) == len(items)
        assert [each.intent for each in await kits.opened(engine, at)] == [timer.intent]
        await kits.prove(world, app)


async def test_an_answer_that_comes_twice_is_taken_once(kit: Kit) -> None:
    """A forged receipt in the inbox is in time: then the effect's own is the late one."""
    outside = Outside()
    app = outside.program()
    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        run = await world.start(app.workflows["go"](), id="r")
        await outside.called(1)
        at, engine = await world._handle.address(), universe._connection.store.engine
        [effect] = await kits.opened(engine, at)
        answer = payload.inline(user_values.dump("in time"))
        await send_door.enqueue(
            universe._connection, at, inbox.EffectReceipt(effect.intent, ReceiptStatus.OK, answer, 1)
        )
        assert await run.result(20) == "in time"
        state = (await world.head()).state
        outside.let(1)

        async def over() -> bool:
            return not universe._connection.host.effects._tasks  # type: ignore[union-attr]

        await aio.until(over)
        assert (await receipts(world))[0] == 1
        assert (await world.head()).state == state
        await kits.prove(world, app)
