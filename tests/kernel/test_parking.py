"""Parked effects: the journal knows of them, snapshots keep it, and nothing goes on because of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import worldline as wl
from worldline import testing
from worldline.codec import structs
from worldline.kernel import control_commands, replay, state_rows, user_values
from worldline.kernel.rows.row_records import Parked
from worldline.model import ids, inbox, payload
from worldline.model import row_keys as keys
from worldline.model.journal import Kind

app = wl.Program("parking")


@app.effect(retry=wl.Retry(attempts=2, initial_delay=1, on_exhausted="park"))
async def phone(number: str) -> str:
    return number


@app.workflow
async def call(number: str) -> str:
    return await phone(number)


@app.workflow
async def nap() -> None:
    await wl.sleep(60)


def script() -> wl.Script:
    return wl.Script().on(phone, OSError("busy"), OSError("still busy"), "hello")


def of_kind(world: testing.TestWorld, name: str) -> ids.IntentId:
    machine = world.machine
    return next(intent for intent, pending in machine.work.open.items() if pending.name == name)


def park(intent: bytes) -> inbox.Control:
    said = structs.encode(control_commands.ParkEffect(intent, 9, "forged"))
    return inbox.Control(control_commands.PARK, payload.inline(said))


def retry(intent: bytes) -> inbox.Control:
    return inbox.Control(control_commands.RETRY, payload.inline(structs.encode(control_commands.RetryEffect(intent))))


def give(world: testing.TestWorld, item: inbox.Control) -> list[Kind]:
    assert item.payload.inline is not None
    return [draft.kind for draft in world.step(item, item.payload.inline).drafts]


def test_parking_is_journaled_and_retried_by_hand() -> None:
    with testing.world(app, script()) as world:
        run = world.start(call("1"), id="r")
        world.advance(10)
        pending = world.machine.work.open[of_kind(world, "phone")]
        assert pending.parked == Parked(2, "OSError: still busy")
        assert not run.done
        with pytest.raises(testing.Stuck, match="effect phone is parked: OSError: still busy"):
            run.result()
        saved = state_rows.save(world.machine)
        world.crash()
        assert state_rows.save(world.machine) == saved
        assert world.retry(phone) == 1
        assert run.result() == "hello"
        assert world.retry(phone) == 0
        said = [replay.item_of(each) for each in world.journal() if each.kind is Kind.CONTROL]
        assert [getattr(each, "command", "") for each in said] == [
            control_commands.RUN,
            control_commands.PARK,
            control_commands.RETRY,
        ]
        world.prove()


def unknown(world: testing.TestWorld) -> inbox.Control:
    return park(b"?" * 16)


def parked_timer(world: testing.TestWorld) -> inbox.Control:
    world.start(nap(), id="n")
    return park(of_kind(world, "sleep"))


def parked_twice(world: testing.TestWorld) -> inbox.Control:
    world.advance(10)
    return park(of_kind(world, "phone"))


def parked_late(world: testing.TestWorld) -> inbox.Control:
    intent = of_kind(world, "phone")
    world.attach("r").cancel("enough")
    return park(intent)


def retried_unparked(world: testing.TestWorld) -> inbox.Control:
    return retry(of_kind(world, "phone"))


def retried_late(world: testing.TestWorld) -> inbox.Control:
    world.advance(10)
    intent = of_kind(world, "phone")
    world.attach("r").cancel("enough")
    return retry(intent)


@pytest.mark.parametrize("forge", [unknown, parked_timer, parked_twice, parked_late, retried_unparked, retried_late])
def test_late_and_double_ones_are_ignored(forge: Callable[[testing.TestWorld], inbox.Control]) -> None:
    with testing.world(app, script()) as world:
        world.start(call("1"), id="r")
        item = forge(world)
        before, saved = world.head.state, state_rows.save(world.machine)
        assert give(world, item) == [Kind.CONTROL, Kind.LATE_ANSWER]
        assert (world.head.state, state_rows.save(world.machine)) == (before, saved)
        assert world.dead == []
        world.prove()


def test_parking_is_a_row_of_the_state() -> None:
    with testing.world(app, wl.Script().on(phone, wl.Script.never())) as world:
        world.start(call("1"), id="r")
        before = state_rows.rows_of(world.machine)
        intent = of_kind(world, "phone")
        assert give(world, park(intent)) == [Kind.CONTROL]
        assert [keys.parse(key).part for key, _ in state_rows.rows_of(world.machine)].count(keys.PARKED) == 1
        world.crash()
        assert give(world, retry(intent)) == [Kind.CONTROL]
        assert state_rows.rows_of(world.machine) == before
        world.prove()


def test_an_answer_takes_the_row_with_it() -> None:
    with testing.world(app, wl.Script().on(phone, wl.Script.never())) as world:
        world.start(call("1"), id="r")
        intent = of_kind(world, "phone")
        give(world, park(intent))
        answer = user_values.dump("late")
        world.step(inbox.EffectReceipt(intent, inbox.ReceiptStatus.OK, payload.inline(answer), 1), answer)
        assert world.attach("r").result() == "late"
        assert keys.PARKED not in [keys.parse(key).part for key, _ in state_rows.rows_of(world.machine)]
        world.prove()


@pytest.mark.parametrize("command", [control_commands.PARK, control_commands.RETRY])
def test_what_is_no_such_command_is_rejected(command: str) -> None:
    with testing.world(app) as world:
        assert give(world, inbox.Control(command, payload.inline(b"\xf6"))) == [Kind.CONTROL, Kind.UNDECODABLE_INPUT]
        assert len(world.dead) == 1
