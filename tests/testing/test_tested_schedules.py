"""Schedules of a world in a test: made, fired as time passes, listed, ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

import worldline as wl
from worldline import testing

app = wl.Program("drum")


@dataclass(frozen=True)
class Beat:
    name: str


@app.reducer()
@dataclass
class Drum:
    beats: list[str] = field(default_factory=list)

    @wl.on
    def beat(self, event: Beat) -> None:
        self.beats.append(f"{event.name} {wl.now():%H:%M:%S}")


@app.workflow
async def solo(name: str) -> None:
    wl.emit(Beat(f"solo {name}"))


def test_a_schedule_from_outside() -> None:
    with testing.world(app, now=datetime(2030, 1, 1, 8, tzinfo=UTC)) as world:
        assert world.schedule("b", Beat("b"), every=20)
        assert not world.schedule("b", Beat("b"), every=20)
        assert world.schedule("s", solo("s"), cron="1 9 * * *", tz="Europe/Berlin")
        world.advance(60)
        assert world.state(Drum).beats == ["b 08:00:20", "b 08:00:40", "solo s 08:01:00", "b 08:01:00"]
        listed = world.schedules()
        assert [(each.id, each.what, each.fired) for each in listed] == [("b", "Beat", 3), ("s", "solo", 1)]
        assert listed[0].next == world.now + timedelta(seconds=20)
        assert world.unschedule("b")
        assert not world.unschedule("b")
        world.crash()
        world.advance(3600)
        assert len(world.state(Drum).beats) == 4
        assert [each.id for each in world.schedules()] == ["s"]
        world.prove()


def test_one_is_triggered_by_hand_and_its_times_stay() -> None:
    with testing.world(app, now=datetime(2030, 1, 1, 8, tzinfo=UTC)) as world:
        world.schedule("b", Beat("b"), every=20)
        world.schedule("s", solo("s"), cron="0 9 * * *")
        world.advance(5)
        before = world.schedules()
        assert world.trigger("b") is None
        assert world.trigger("s") == "s@1"
        assert world.state(Drum).beats == ["b 08:00:05", "solo s 08:00:05"]
        after = world.schedules()
        assert [(each.id, each.next) for each in after] == [(each.id, each.next) for each in before]
        assert [each.fired for each in after] == [1, 1]
        world.crash()
        world.advance(20)
        assert world.state(Drum).beats[2:] == ["b 08:00:20"]
        assert world.trigger("s") == "s@2"
        with pytest.raises(wl.NotFound, match="no schedule 'x'; it has: b, s"):
            world.trigger("x")
        world.prove()


def test_the_id_stays_when_it_is_replaced() -> None:
    with testing.world(app) as world:
        world.schedule("s", solo("s"), every=10)
        world.advance(10)
        assert world.schedule("s", solo("other"), every=30)
        world.advance(30)
        assert [(each.id, each.fired) for each in world.schedules()] == [("s", 1)]
        assert sorted(world.machine.runs) == ["s@1", "s@2"]
        fork = world.fork("f")
        assert [each.id for each in fork.schedules()] == ["s"]


def test_one_that_can_never_fire_is_refused() -> None:
    with testing.world(app) as world:
        with pytest.raises(wl.BadInput, match="bad hour"):
            world.schedule("x", Beat("x"), cron="0 99 * * *")
        assert world.schedules() == []
