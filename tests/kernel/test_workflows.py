"""Workflows: effects, sleeps, gathers, children, starts, ids, continuing as new, and what they may know."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest

import worldline as wl
from tests.kernel import shop
from worldline import testing
from worldline.kernel.rows.row_records import RunStatus
from worldline.model.journal import Kind

START = datetime(2024, 1, 1, tzinfo=UTC)


def kinds(world: testing.TestWorld) -> list[str]:
    return [entry.kind.name for entry in world.journal()]


def test_an_effect_and_a_sleep_are_journaled_and_proved() -> None:
    with testing.world(shop.app, shop.script(), now=START) as world:
        assert world.run(shop.greet("Ada"), id="hello") == "HELLO ADA"
        assert world.now == START + timedelta(seconds=5)
        assert kinds(world) == [
            "CONTROL",
            "RUN_STARTED",
            "ANSWERED",
            "TIMER_SET",
            "TIMER_FIRED",
            "EFFECT_REQUESTED",
            "EFFECT_RESULT",
            "RUN_FINISHED",
        ]
        assert world.prove() == 3


def test_crashes_at_every_entry_change_nothing() -> None:
    def scenario(world: testing.TestWorld) -> object:
        run = world.start(shop.approval("o1"), id="o1")
        world.send(shop.Deposited("a", 5))
        greeting = world.run(shop.greet("Ada"))
        world.send(shop.Approved("o1"))
        return greeting, run.result(), world.state(shop.Account, "a").cents

    assert testing.crash_everywhere(scenario, shop.app, shop.script()) > 10


def test_gather_of_fifty_finishing_in_random_order_replays_identically() -> None:
    app = wl.Program("gather")

    @app.effect
    async def square(number: int) -> int:
        return number * number

    @app.workflow
    async def squares(count: int) -> list[int]:
        return await wl.gather(*[square(number) for number in range(count)])

    orders = []
    for seed in range(3):
        with testing.world(
            app, wl.Script().on(square, lambda number: number * number), seed=seed, shuffle=True
        ) as world:
            assert world.run(squares(50)) == [number * number for number in range(50)]
            world.prove()
            orders.append([entry.payload for entry in world.journal() if entry.kind is Kind.EFFECT_RESULT])
    assert len(orders[0]) == 50
    assert orders[0] != orders[1] != orders[2]


def test_gather_of_two_hundred_is_held_back_to_what_a_step_may_ask_for() -> None:
    app = wl.Program("gather")

    @app.effect
    async def square(number: int) -> int:
        return number * number

    @app.workflow
    async def squares() -> int:
        return sum(await wl.gather(*[square(number) for number in range(200)]))

    with testing.world(app, wl.Script().on(square, lambda number: number * number), shuffle=True, twice=False) as world:
        assert world.run(squares()) == sum(number * number for number in range(200))
        asked: dict[int, int] = {}
        for entry in world.journal():
            if entry.kind is Kind.EFFECT_REQUESTED:
                asked[entry.step] = asked.get(entry.step, 0) + 1
        assert max(asked.values()) == 64
        assert sum(asked.values()) == 200
        head = world.head
        world.crash()
        assert world.head == head


def test_a_failed_part_of_a_gather_cancels_the_others() -> None:
    app = wl.Program("gather")

    @app.effect
    async def slow(number: int) -> int:
        return number

    @app.effect
    async def broken() -> int:
        raise wl.Fatal("no", code="broken")

    @app.workflow
    async def both() -> str:
        try:
            await wl.gather(slow(1), broken(), slow(2))
        except wl.EffectFailed as error:
            return f"{error.code} {error.attempts}"
        return "fine"

    script = wl.Script().on(slow, wl.Script.later(60, 1)).on(broken, wl.Fatal("no", code="broken"))
    with testing.world(app, script) as world:
        assert world.run(both()) == "broken 1"
        assert kinds(world).count("EFFECT_CANCELLED") == 2
        assert not world.machine.work.open


def test_children_return_fail_and_are_cancelled_with_their_parent() -> None:
    app = wl.Program("family")

    @app.workflow
    async def child(number: int) -> int:
        if number < 0:
            raise ValueError("negative")
        await wl.sleep(number)
        return number

    @app.workflow
    async def parent(number: int) -> str:
        try:
            return f"got {await child(number)}"
        except wl.RunFailed as error:
            return f"{error.code}: {error}"

    with testing.world(app) as world:
        assert world.run(parent(3)) == "got 3"
        assert world.run(parent(-1)) == "ValueError: ValueError: negative"
        run = world.start(parent(1000), id="long")
        run.cancel("enough")
        with pytest.raises(wl.RunCancelled, match="enough"):
            run.result()
        assert world.attach("long/0").status is RunStatus.CANCELLED
        world.prove()


def test_what_is_started_outlives_its_starter_and_may_be_awaited_later() -> None:
    app = wl.Program("starts")

    @app.workflow
    async def slow(number: int) -> int:
        await wl.sleep(60)
        return number

    @app.workflow
    async def leaves() -> str:
        return wl.start(slow(1), id="mine").id

    @app.workflow
    async def waits() -> int:
        run = wl.start(slow(2))
        async with wl.scope(timeout=5) as limit:
            await run
        assert limit.timed_out
        return await run  # it goes on, although the waiting was given up

    @app.workflow
    async def gives_up() -> str:
        run = wl.start(slow(3), id="unwanted")
        run.cancel("changed my mind")
        try:
            await run
        except wl.RunCancelled as error:
            return str(error)
        return "finished"

    with testing.world(app) as world:
        assert world.run(leaves()) == "mine"
        assert not world.attach("mine").done
        assert world.attach("mine").result() == 1
        assert world.run(waits()) == 2
        assert world.run(gives_up()) == "changed my mind"
        assert world.attach("unwanted").status is RunStatus.CANCELLED
        world.prove()


def test_a_started_effect_is_awaited_later_and_ends_with_the_run() -> None:
    app = wl.Program("starts")

    @app.effect
    async def slow() -> str:
        return "done"

    @app.workflow
    async def later() -> str:
        started = wl.start(slow())
        await wl.sleep(1)
        return await started

    @app.workflow
    async def leaves() -> None:
        _ = wl.start(slow())

    with testing.world(app, wl.Script().on(slow, wl.Script.later(10, "done"))) as world:
        assert world.run(later()) == "done"
        world.run(leaves())
        assert not world.machine.work.open


def test_same_run_id_attaches_returns_what_was_returned_or_refuses() -> None:
    with testing.world(shop.app, shop.script()) as world:
        first = world.start(shop.greet("Ada"), id="hello")
        again = world.start(shop.greet("Ada"), id="hello")
        assert (first.id, first.done, again.done) == (again.id, False, False)
        assert again.result() == "HELLO ADA"
        height = world.head.height
        assert world.run(shop.greet("Ada"), id="hello") == "HELLO ADA"
        assert [entry.kind.name for entry in world.journal()[height:]] == ["CONTROL", "ANSWERED"]
        with pytest.raises(wl.errors.IdReused, match="hello"):
            world.run(shop.greet("Bob"), id="hello")
        with pytest.raises(wl.errors.IdReused, match="hello"):
            world.run(shop.double(1), id="hello")


@pytest.mark.parametrize("bad", ["", " x", "x/", "a\nb", "x" * 129])
def test_run_ids_are_names(bad: str) -> None:
    app = wl.Program("ids")

    @app.workflow
    async def quick() -> int:
        return 1

    @app.workflow
    async def starts(run_id: str) -> None:
        _ = wl.start(quick(), id=run_id)

    with testing.world(app) as world:
        if bad:
            with pytest.raises(wl.BadInput):
                world.start(quick(), id=bad)
        with pytest.raises(wl.RunFailed, match="run's id"):
            world.run(starts(bad))


def test_continue_as_new_starts_over_with_an_empty_record_under_the_same_id() -> None:
    app = wl.Program("again")

    @app.workflow
    async def child(number: int) -> int:
        return number

    @app.workflow
    async def poll(left: int, total: int) -> int:
        _ = wl.start(child(left))  # outlives this turn, and must not be mistaken for one of the next
        total += await child(left)
        await wl.sleep(1)
        if left > 0:
            wl.continue_as_new(poll(left - 1, total))
        return total

    with testing.world(app) as world:
        run = world.start(poll(3, 0), id="poll")
        assert world.run(poll(3, 0), id="poll") == 6  # attaching goes by what it was first started with
        assert run.result() == 6
        assert world.run(poll(3, 0), id="poll") == 6
        with pytest.raises(wl.errors.IdReused):
            world.run(poll(0, 6), id="poll")  # what it continued with
        assert world.now - START == timedelta(seconds=4)
        started = [entry for entry in world.journal() if entry.kind is Kind.RUN_STARTED and entry.correlation == "poll"]
        assert len(started) == 4
        world.prove()


def test_continue_as_new_may_change_the_workflow_and_keeps_what_came_early() -> None:
    app = wl.Program("again")

    @app.workflow
    async def waits(order: str) -> str:
        return (await wl.wait(shop.Approved)).order + order

    @app.workflow
    async def first(order: str) -> str:
        wl.after(1, shop.Rejected(order))
        await wl.wait(shop.Rejected)
        wl.continue_as_new(waits(order))

    with testing.world(app) as world:
        run = world.start(first("o"), id="o")
        world.send(shop.Approved("early"), to="o")
        assert run.result() == "earlyo"
        assert world.machine.live == {}
        world.prove()


def test_now_is_the_logical_time_of_the_step() -> None:
    app = wl.Program("clock")

    @app.workflow
    async def times() -> list[str]:
        first = wl.now()
        await wl.sleep(90)
        second = wl.now()
        await wl.sleep_until(second + timedelta(days=1))
        await wl.sleep_until(START)  # passed long ago
        return [each.isoformat() for each in (first, second, wl.now())]

    with testing.world(app, now=START) as world:
        assert world.run(times()) == [
            "2024-01-01T00:00:00+00:00",
            "2024-01-01T00:01:30+00:00",
            "2024-01-02T00:01:30+00:00",
        ]


def test_state_read_in_a_workflow_is_recorded() -> None:
    app = wl.Program("reads")
    app.reducers.update(shop.app.reducers)

    @app.workflow
    async def watch() -> list[int]:
        before = wl.state(shop.Account, "a").cents
        await wl.sleep(10)
        return [before, wl.state(shop.Account, "a").cents]

    with testing.world(app) as world:
        world.send(shop.Deposited("a", 5))
        run = world.start(watch())
        world.send(shop.Deposited("a", 2))
        world.crash()
        assert run.result() == [5, 7]
        world.prove()


def test_state_of_what_is_no_reducer_is_refused_and_may_be_caught() -> None:
    app = wl.Program("reads")

    @app.workflow
    async def hopes() -> str:
        try:
            wl.state(shop.Account, "a")
        except wl.BadInput as error:
            await wl.sleep(1)
            return str(error)
        return "found"

    with testing.world(app) as world:
        assert world.run(hopes()) == "Account is not a reducer of program 'reads'"
        world.prove()


def test_events_set_off_by_a_workflow_come_later_unless_cancelled() -> None:
    app = wl.Program("afters")
    app.reducers.update(shop.app.reducers)

    @app.workflow
    async def sets_off() -> str:
        kept, given_up = wl.after(60, shop.Deposited("a", 5)), wl.after(30, shop.Deposited("a", 100))
        await wl.sleep(10)
        given_up.cancel()
        given_up.cancel()
        del kept
        return "gone"

    with testing.world(app) as world:
        assert world.run(sets_off()) == "gone"
        world.advance(49)
        assert world.state(shop.Account, "a").cents == 0
        world.crash()
        world.advance(1)
        assert world.state(shop.Account, "a").cents == 5
        assert kinds(world).count("TIMER_CANCELLED") == 1
        world.prove()


def test_what_a_workflow_gets_is_a_copy() -> None:
    app = wl.Program("reads")
    app.reducers.update(shop.app.reducers)

    @app.workflow
    async def scribbles() -> int:
        wl.state(shop.Account, "a").cents = 1_000_000
        return wl.state(shop.Account, "a").cents

    with testing.world(app) as world:
        world.send(shop.Deposited("a", 5))
        assert world.run(scribbles()) == 5


def test_retries_are_paused_for_in_virtual_time_and_counted() -> None:
    app = wl.Program("retries")
    app.effects["charge"] = shop.charge

    @app.workflow
    async def pay() -> str:
        try:
            return await shop.charge("tok", 5)
        except wl.EffectFailed as error:
            return f"{error.code} after {error.attempts}"

    class Declined(RuntimeError):
        code = "declined"

    for answers, result, seconds in [
        ((RuntimeError, "ok"), "ok", 1),
        ((RuntimeError, RuntimeError, "ok"), "ok", 3),
        ((Declined(),), "declined after 3", 3),
        ((wl.Fatal("no", code="stolen"),), "stolen after 1", 0),
    ]:
        with testing.world(app, wl.Script().on(shop.charge, *answers), now=START) as world:
            assert world.run(pay()) == result
            assert world.now - START == timedelta(seconds=seconds)


def test_options_of_a_call_override_the_declaration() -> None:
    app = wl.Program("options")
    app.effects["charge"] = shop.charge
    keys: list[tuple[str, int]] = []

    @app.workflow
    async def pay() -> str:
        hard = shop.charge.options(key="order-7", timeout=2, retry=wl.Retry(attempts=2, initial_delay=10))
        try:
            return await hard("tok", 5)
        except TimeoutError as error:
            return f"{type(error).__name__} {error.__class__.__mro__[1].__name__}"

    def slow(card: str, cents: int) -> str:
        keys.append((wl.attempt().key, wl.attempt().number))
        return f"{card} {cents}"

    with testing.world(app, wl.Script().on(shop.charge, wl.Script.later(3, slow)), now=START) as world:
        assert world.run(pay()) == "EffectTimeout EffectFailed"
        assert keys == [("order-7", 1), ("order-7", 2)]
        assert world.now - START == timedelta(seconds=2 + 10 + 2)


def test_a_total_timeout_ends_the_attempts() -> None:
    app = wl.Program("timeouts")

    @app.effect(total_timeout=10, retry=wl.Retry(attempts=None, initial_delay=1))
    async def flaky() -> str:
        raise ConnectionError

    @app.workflow
    async def waits() -> str:
        try:
            return await flaky()
        except TimeoutError:
            return "gave up"

    with testing.world(app, wl.Script().on(flaky, ConnectionError), now=START) as world:
        assert world.run(waits()) == "gave up"
        assert world.now - START < timedelta(seconds=10)


def test_log_speaks_once(caplog: pytest.LogCaptureFixture) -> None:
    app = wl.Program("logs")

    @app.workflow
    async def talks() -> None:
        wl.log.info("one")
        await wl.sleep(1)
        wl.log.info("two")
        await wl.sleep(1)

    with caplog.at_level(logging.INFO, logger="worldline.user"), testing.world(app) as world:
        world.start(talks(), id="t")
        world.crash()
        world.advance(10)
        world.crash()
        world.prove()
    assert [record.getMessage() for record in caplog.records] == ["[t] one", "[t] two"]
