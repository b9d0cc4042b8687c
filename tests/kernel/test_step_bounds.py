"""What a step may derive is bounded, and what has no room goes on in the next: no input is too much for a world."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

import worldline as wl
from worldline import testing
from worldline.base import limits
from worldline.codec import structs
from worldline.kernel import control_commands, state_rows, user_values
from worldline.model import ids, inbox, payload
from worldline.model.journal import JournalEntry, Kind
from worldline.testing.life import Life

HOME = ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(b"w" * 16))
app = wl.Program("limits")


@dataclass(frozen=True)
class Go:
    text: str = ""


@app.effect
async def fetch(text: str) -> int:
    return len(text)


@app.workflow
async def child(text: str) -> int:
    return len(text)


@app.workflow
async def eager_child(text: str) -> int:
    return await fetch(text)


@app.workflow
async def fans_out(count: int, size: int) -> int:
    return sum(await wl.gather(*[child("x" * size) for _ in range(count)]))


@app.workflow
async def fans_out_eagerly(count: int) -> int:
    return sum(await wl.gather(*[eager_child(f"{number:04}") for number in range(count)]))


@app.workflow
async def asks(count: int, size: int) -> int:
    return sum(await wl.gather(*[fetch("x" * size) for _ in range(count)]))


@app.workflow
async def one_by_one(count: int) -> int:
    total = 0
    for _ in range(count):
        total += await child("x")
    return total


@app.workflow
async def waits(text: str) -> str:
    await wl.wait(Go)
    return text


@app.workflow
async def naps_and_fetches() -> int:
    for _ in range(70):
        _ = wl.start(sleeps_long())
    return await fetch("behind seventy timers")


@app.workflow
async def sleeps_long() -> None:
    await wl.sleep(365 * 86_400)


@app.workflow
async def sets_off(count: int) -> None:
    for number in range(count):
        wl.after(60, Go(str(number)))


@app.workflow
async def emits(count: int, size: int) -> str:
    for _ in range(count):
        wl.emit(Go("x" * size))
    return "done"


@app.workflow
async def starts_and_leaves(count: int) -> None:
    for number in range(count):
        _ = wl.start(child("x"), id=f"started-{number}")


@app.workflow
async def continues(left: int) -> str:
    for number in range(100):
        wl.after(60, Go(f"{left} {number}"))
        _ = wl.start(child("x"))
    if left:
        wl.continue_as_new(continues(left - 1))
    return "done"


@app.workflow
async def gives_up(count: int, stay: bool) -> str:
    try:
        await wl.gather(fetch("boom"), *[fetch("x") for _ in range(count)])
    except wl.EffectFailed as error:
        if stay:
            await wl.sleep(1)
        return error.code
    return "fine"


@app.workflow
async def leaves_behind(count: int) -> str:
    for number in range(count):
        wl.after(60, Go(str(number)))
    wl.continue_as_new(waits("as another"))


@app.workflow
async def late_riser(text: str) -> list[str]:
    first = wl.now()
    await wl.sleep(1)
    return [text, first.isoformat()]


@app.workflow
async def wakes_many(count: int) -> int:
    return len(await wl.gather(*[late_riser("x" * 15_000) for _ in range(count)]))


@app.reducer()
@dataclass
class Heard:
    count: int = 0
    texts: list[str] = field(default_factory=list)

    @wl.on
    def go(self, event: Go) -> None:
        self.count += 1


def script() -> wl.Script:
    return wl.Script().on(fetch, lambda text: len(text))


def steps(world: testing.TestWorld) -> list[list[JournalEntry]]:
    found: dict[int, list[JournalEntry]] = {}
    for entry in world.journal():
        found.setdefault(entry.step, []).append(entry)
    return list(found.values())


def check(world: testing.TestWorld) -> None:
    """Every step is within the bounds: sealing it would have refused more bytes."""
    for entries in steps(world):
        assert (
            sum(entry.kind in (Kind.EFFECT_REQUESTED, Kind.TIMER_SET) for entry in entries) <= limits.STEP_EFFECTS_MAX
        )
        assert len(entries) <= limits.STEP_ENTRIES_MAX + 100
    assert not world.machine.unfinished
    saved = state_rows.save(world.machine)
    world.crash()
    assert state_rows.save(world.machine) == saved


def test_many_children_start_in_as_many_steps_as_it_takes() -> None:
    with testing.world(app, twice=False) as world:
        assert world.run(fans_out(1_500, 1)) == 1_500
        assert len(steps(world)) > 1
        check(world)


def test_many_children_with_much_to_carry() -> None:
    with testing.world(app, twice=False) as world:
        assert world.run(fans_out(200, 15_000)) == 3_000_000
        check(world)


def test_children_that_ask_for_effects() -> None:
    with testing.world(app, script(), shuffle=True, twice=False) as world:
        assert world.run(fans_out_eagerly(300)) == 1_200
        check(world)


def test_effects_with_much_to_carry() -> None:
    with testing.world(app, script(), twice=False) as world:
        assert world.run(asks(200, 15_000)) == 3_000_000
        check(world)


def test_a_run_may_go_on_for_long_without_waiting() -> None:
    with testing.world(app, twice=False) as world:
        assert world.run(one_by_one(1_500)) == 1_500
        check(world)


def test_an_event_for_more_runs_than_a_step_has_room_for() -> None:
    with testing.world(app, twice=False) as world:
        runs = [world.start(waits("x" * 10_000), id=f"w{number}") for number in range(150)]
        before = len(steps(world))
        world.send(Go())
        assert len(steps(world)) > before + 1
        assert all(run.done for run in runs)
        check(world)


def test_crashes_among_steps_that_leave_something_for_the_next() -> None:
    with testing.world(app, script()) as twin:
        twin.run(fans_out_eagerly(80), id="f")
        height = twin.head.height
    for at in (1, height // 4, height // 2, height - 1):
        with testing.world(app, script(), twice=False) as world:
            world.crash(at=at)
            world.run(fans_out_eagerly(80), id="f")
            assert world.head == twin.head


def test_an_effect_does_not_wait_for_the_timers_before_it() -> None:
    with testing.world(app, script()) as world:
        started = world.now
        assert world.run(naps_and_fetches()) == len("behind seventy timers")
        assert world.now == started


def test_events_set_off_by_a_run_outlive_it_also_while_held_back() -> None:
    with testing.world(app, twice=False) as world:
        world.run(sets_off(300))
        assert len(world.machine.work.open) == 300
        world.advance(100)
        assert world.state(Heard).count == 300
        check(world)


def test_what_was_held_back_outlives_continuing_as_new() -> None:
    with testing.world(app, twice=False) as world:
        assert world.run(continues(2), id="c") == "done"
        world.advance(100)
        assert world.state(Heard).count == 300
        assert len([run for run in world.machine.runs if run.startswith("c/")]) == 300
        check(world)


def test_starts_held_back_happen_although_the_starter_has_ended() -> None:
    with testing.world(app, twice=False) as world:
        world.run(starts_and_leaves(2_500))
        world.advance(1)
        assert all(world.attach(f"started-{number}").done for number in (0, 1_249, 2_499))
        check(world)


@pytest.mark.parametrize("stay", [True, False])
def test_giving_up_what_was_held_back(stay: bool) -> None:
    script = wl.Script().on(fetch, lambda text: len(text) if text == "x" else failing())
    with testing.world(app, script, twice=False) as world:
        assert world.run(gives_up(1_000, stay)) == "boom"
        world.advance(1)
        assert not world.machine.work.open
        assert sum(entry.kind is Kind.EFFECT_REQUESTED for entry in world.journal()) < 500
        check(world)


def test_what_was_held_back_for_a_run_is_not_mixed_up_with_what_it_does_as_another() -> None:
    with testing.world(app, twice=False) as world:
        run = world.start(leaves_behind(200), id="l")
        world.advance(100)
        assert world.state(Heard).count == 200
        assert run.result() == "as another"
        check(world)


def test_a_run_that_begins_in_a_later_step_begins_then() -> None:
    """Its first moves are made at the time of that step, also when it is brought back."""
    life = Life(app, HOME, drops=Random(0))
    data = structs.encode(control_commands.StartRun("w", "wakes_many", wakes_many(70).pack(), b"s" * 16, named=True))
    due = life.step(inbox.Control(control_commands.RUN, payload.inline(data), "c"), data, time_us=1_000_000).wanted
    time_us = 1_000_000
    while life.machine.unfinished:
        time_us += 5_000_000
        due += life.step(inbox.Control(control_commands.CONTINUE, payload.EMPTY), b"", time_us=time_us).wanted
    assert len({each.opened_us for each in due}) > 1
    for each in due:
        life.step(inbox.TimerFired(each.intent, each.due_us), b"", time_us=time_us)
    assert life.machine.runs["w"].record.data == user_values.dump(70)
    life.prove()
    life.machine.close()


def failing() -> int:
    raise wl.Fatal("boom", code="boom")


@pytest.mark.parametrize(("count", "size", "heard"), [(256, 10, 256), (300, 10, 256), (100, 15_000, 53)])
def test_events_beyond_what_a_step_may_raise_are_named_and_not_raised(count: int, size: int, heard: int) -> None:
    with testing.world(app) as world:
        assert world.run(emits(count, size)) == "done"
        kinds = [entry.kind for entry in world.journal()]
        assert abs(world.state(Heard).count - heard) < 5
        assert kinds.count(Kind.HANDLER_FAILED) == (1 if world.state(Heard).count < count else 0)
        check(world)


def test_a_run_may_ask_for_so_much_before_it_has_to_continue_as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RUN_OPERATIONS_MAX", 50)
    with testing.world(app) as world:
        assert world.run(one_by_one(50)) == 50
        with pytest.raises(wl.RunFailed, match="continue_as_new") as caught:
            world.run(one_by_one(51))
        assert caught.value.code == "limit_exceeded"


def test_values_have_a_limit_that_leaves_room_for_records_around_them() -> None:
    odd = wl.Program("odd")

    @odd.workflow
    async def makes(size: int) -> str:
        return "x" * size

    with testing.world(odd, twice=False) as world:
        fits = limits.USER_VALUE_BYTES_MAX - 10
        assert len(world.run(makes(fits))) == fits
        with pytest.raises(wl.RunFailed, match="the limit is"):
            world.run(makes(limits.USER_VALUE_BYTES_MAX))
        world.crash()
        world.prove()
