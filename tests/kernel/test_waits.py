"""Waiting for events: buffered, by condition, with a timeout; addressed to a run and not."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

import worldline as wl
from tests.kernel import shop
from worldline import testing
from worldline.kernel import event_dispatch, user_values
from worldline.model import inbox, payload
from worldline.model.journal import Kind

app = wl.Program("waits")


@dataclass(frozen=True)
class Ping:
    number: int


@app.effect
async def slow(text: str) -> str:
    return text


@app.workflow
async def late(order: str) -> str:
    """Does something else before it waits."""
    await slow(order)
    event = await wl.wait(shop.Approved, where=lambda each: each.order == order)
    return event.by


@app.workflow
async def patient(order: str) -> str:
    try:
        event = await wl.wait(shop.Approved, where=lambda each: each.order == order, timeout=60)
    except TimeoutError as error:
        return str(error)
    return event.by


@app.workflow
async def pings(count: int) -> list[int]:
    return [(await wl.wait(Ping)).number for _ in range(count)]


@app.workflow
async def one_ping(count: int) -> list[int]:
    return [(await wl.wait(Ping)).number][:count]


@app.workflow
async def picky() -> list[int]:
    even = await wl.wait(Ping, where=lambda each: each.number % 2 == 0)
    odd = await wl.wait(Ping, where=lambda each: each.number % 2 == 1)
    return [even.number, odd.number]


@app.workflow
async def broken() -> str:
    try:
        await wl.wait(Ping, where=lambda each: 1 // each.number > 0, timeout=60)
    except wl.errors.Failed as error:
        return str(error)
    return "found"


@pytest.mark.parametrize("to", ["o1", None], ids=["addressed", "unaddressed"])
def test_an_event_sent_before_the_wait_is_not_lost(to: str | None) -> None:
    with testing.world(app, wl.Script().on(slow, wl.Script.later(10, "x"))) as world:
        run = world.start(late("o1"), id="o1")
        world.send(shop.Approved("other"), to=to)
        world.send(shop.Approved("o1", by="Grace"), to=to)
        world.crash()
        assert not run.done
        assert run.result() == "Grace"
        world.prove()


def test_events_are_taken_in_the_order_they_came() -> None:
    with testing.world(app) as world:
        run = world.start(pings(5))
        for number in range(5):
            world.send(Ping(number))
        assert run.result() == [0, 1, 2, 3, 4]


def test_what_does_not_fit_stays_for_a_later_wait() -> None:
    with testing.world(app) as world:
        run = world.start(picky(), id="p")
        for number in (1, 3, 2):
            world.send(Ping(number))
        assert run.result() == [2, 1]


def test_every_run_that_waits_gets_the_event_in_the_order_of_their_start() -> None:
    with testing.world(app) as world:
        runs = [world.start((pings if number % 2 else one_ping)(1)) for number in range(6)]
        world.start(picky())
        world.send(Ping(7))
        assert [run.result() for run in runs] == [[7]] * 6
        finished = [entry.correlation for entry in world.journal() if entry.kind is Kind.RUN_FINISHED]
        assert finished == [run.id for run in runs]


@pytest.mark.parametrize(("send_after", "result"), [(59, "Ada"), (61, "no Approved within 60 s")])
def test_a_wait_ends_by_the_event_or_by_its_timeout(send_after: int, result: str) -> None:
    with testing.world(app) as world:
        run = world.start(patient("o1"), id="o1")
        world.advance(send_after)
        if not run.done:
            world.send(shop.Approved("o1"))
        assert run.result() == result
        assert not world.machine.work.open
        world.prove()


def test_an_event_and_the_timeout_race_by_the_journal() -> None:
    with testing.world(app) as world:
        run = world.start(patient("o1"), id="o1")
        (intent,) = world.machine.work.open
        due_us = next(iter(world.machine.work.open.values())).due_us
        world.send(shop.Approved("o1"))
        assert run.result() == "Ada"
        late_one = world.step(inbox.TimerFired(intent, due_us), b"")
        assert [draft.kind for draft in late_one.drafts] == [Kind.TIMER_FIRED, Kind.LATE_ANSWER]


def test_a_condition_that_raises_fails_the_wait_and_not_the_world() -> None:
    with testing.world(app) as world:
        run = world.start(broken())
        world.send(Ping(0))
        assert run.result().startswith("wl.wait(Ping): where= raised ZeroDivisionError: ")  # the rest is Python's
        world.prove()


@pytest.mark.parametrize("to", ["o1", None], ids=["addressed", "unaddressed"])
def test_what_is_not_such_an_event_is_rejected(to: str | None) -> None:
    with testing.world(app) as world:
        run = world.start(patient("o1"), id="o1")
        before = world.head.state
        data = user_values.dump({"order": 5})
        stepped = world.step(inbox.InboxEvent("Approved", payload.inline(data), to or ""), data)
        assert [draft.kind for draft in stepped.drafts] == [Kind.EVENT, Kind.UNDECODABLE_INPUT]
        assert "Approved" in stepped.dead
        assert world.head.state == before
        assert not run.done


@pytest.mark.parametrize(("to", "reason"), [("nobody", "no run 'nobody'"), (None, "nothing here takes a Rejected")])
def test_what_nobody_takes_is_rejected(to: str | None, reason: str) -> None:
    with testing.world(app) as world:
        world.start(patient("o1"), id="o1")
        with pytest.raises(testing.NotTaken, match=reason):
            world.send(shop.Rejected("o1"), to=to)


def test_a_run_that_has_ended_takes_nothing() -> None:
    with testing.world(app) as world:
        world.start(patient("o1"), id="o1")
        world.send(shop.Approved("o1"))
        with pytest.raises(testing.NotTaken, match="no run 'o1'"):
            world.send(shop.Approved("o1"), to="o1")
        with pytest.raises(testing.NotTaken, match="nothing here takes"):
            world.send(shop.Approved("o1"))


def test_a_buffer_is_bounded() -> None:
    with testing.world(app, wl.Script().on(slow, wl.Script.never()), twice=False) as world:
        world.start(late("o1"), id="o1")
        for _ in range(event_dispatch.BUFFER_MAX):
            world.send(shop.Approved("x"), to="o1")
        with pytest.raises(testing.NotTaken, match="has not waited for"):
            world.send(shop.Approved("x"), to="o1")


def test_a_workflow_of_unknown_interests_is_given_everything() -> None:
    unknown = wl.Program("unknown")

    @unknown.workflow
    async def waits_for(name: str) -> str:
        kind = {"Ping": Ping, "Approved": shop.Approved}[name]
        return str(dataclasses.asdict(await wl.wait(kind)))

    assert unknown.routes.any_flows == ["waits_for"]
    with testing.world(unknown) as world:
        run = world.start(waits_for("Ping"))
        world.send(shop.Approved("o1"))
        world.send(Ping(3))
        assert run.result() == "{'number': 3}"


def test_an_emitted_event_reaches_waiting_runs_also_the_emitter() -> None:
    emits = wl.Program("emits")

    @emits.workflow
    async def talks_to_itself() -> int:
        wl.emit(Ping(4))
        return (await wl.wait(Ping)).number

    with testing.world(emits) as world:
        assert world.run(talks_to_itself()) == 4
        assert [entry.kind.name for entry in world.journal()][2:] == ["ANSWERED", "EVENT_RAISED", "RUN_FINISHED"]
        world.prove()
