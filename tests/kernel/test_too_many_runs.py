"""How deep runs may be inside one another, and how many a run may have started, is bounded, and the error says so."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import worldline as wl
from worldline import testing
from worldline.base import limits
from worldline.model.journal import Kind

app = wl.Program("families")


@dataclass(frozen=True)
class Go:
    pass


@app.workflow
async def deeper(level: int) -> int:
    return await deeper(level + 1)


@app.workflow
async def down_to(levels: int) -> int:
    return 1 + (await down_to(levels - 1) if levels > 1 else 0)


@app.workflow
async def careful(level: int) -> int:
    """Goes on where it is refused, and waits then: it is rebuilt with the refusal in its record."""
    try:
        return await careful(level + 1)
    except wl.errors.TooManyRuns:
        await wl.wait(Go)
        return level


@app.workflow
async def waits() -> str:
    await wl.wait(Go)
    return "went"


@app.workflow
async def fans_out(count: int) -> int:
    return len(await wl.gather(*[waits() for _ in range(count)]))


@app.workflow
async def halves(level: int) -> int:
    return sum(await wl.gather(halves(level + 1), halves(level + 1)))


@app.workflow
async def starts(count: int) -> str:
    for number in range(count):
        _ = wl.start(waits(), id=f"started-{number}")
    await wl.wait(Go)
    return "left"


@app.workflow
async def dispatches(left: int) -> str:
    for number in range(5):
        _ = wl.start(waits(), id=f"order-{left}-{number}")
    if left:
        wl.continue_as_new(dispatches(left - 1))
    return "dispatched"


def counts(world: testing.TestWorld) -> list[int]:
    children = world.machine.children
    return [children.count, *(children.of(each) for each in world.machine.runs)]


def check(world: testing.TestWorld) -> None:
    """A restored world counts the same, and every step comes out the same again."""
    counted = counts(world)
    world.crash()
    assert counts(world) == counted
    world.prove()


def test_a_recursion_ends_with_an_error_that_says_what_to_do() -> None:
    with testing.world(app) as world:
        with pytest.raises(wl.RunFailed, match=r"last of 100 runs .* wl\.continue_as_new\(\)") as caught:
            world.run(deeper(1), id="r")
        assert caught.value.code == "too_many_runs"
        assert str(caught.value).count("TooManyRuns") == 0, "said once, however many runs it has gone through"
        started = [entry for entry in world.journal() if entry.kind is Kind.RUN_STARTED]
        assert len(started) == limits.RUN_DEPTH_MAX
        check(world)
        assert world.run(down_to(limits.RUN_DEPTH_MAX)) == limits.RUN_DEPTH_MAX


def test_the_refusal_is_an_outcome_that_a_rebuilt_run_gets_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RUN_DEPTH_MAX", 5)
    with testing.world(app) as world:
        world.start(careful(1), id="r")
        check(world)
        world.crash()
        monkeypatch.setattr(limits, "RUN_DEPTH_MAX", 50)  # it is recorded: nothing is decided again
        world.send(Go())
        assert world.run(careful(1), id="r") == 5


@pytest.mark.parametrize(
    ("limit", "call", "said"),
    [
        ("RUN_CHILDREN_MAX", fans_out(21), "it has started 20 runs .* wl.scope"),
        ("WORLD_CHILDREN_MAX", fans_out(21), "20 runs of this world .* a world of their own"),
        ("WORLD_CHILDREN_MAX", halves(1), "20 runs of this world .* start fewer"),
    ],
)
def test_too_many_at_a_time(monkeypatch: pytest.MonkeyPatch, limit: str, call: wl.Call[int], said: str) -> None:
    monkeypatch.setattr(limits, limit, 20)
    with testing.world(app) as world:
        with pytest.raises(wl.RunFailed, match=said) as caught:
            world.run(call)
        assert caught.value.code == "too_many_runs"
        check(world)
        world.start(fans_out(19), id="fits")
        world.send(Go())
        assert world.run(fans_out(19), id="fits") == 19


def test_runs_that_are_started_and_left_count_until_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RUN_CHILDREN_MAX", 10)
    with testing.world(app) as world:
        world.start(starts(12), id="r")
        assert [run.record.id for run in world.machine.runs.values() if run.record.id.startswith("started-1")] == [
            "started-1"
        ], "no tenth"
        check(world)
        world.send(Go())
        assert world.run(starts(12), id="r") == "left"
        assert world.machine.children.count == 0
        check(world)


def test_a_dispatcher_that_continues_as_new_has_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RUN_CHILDREN_MAX", 6)
    with testing.world(app) as world:
        assert world.run(dispatches(3)) == "dispatched"
        check(world)
        assert len([run for run in world.machine.runs if run.startswith("order-")]) == 20
