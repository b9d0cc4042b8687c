"""Live events inside one process: told after the commit, in order, and told when something was missed."""

from __future__ import annotations

import asyncio

import pytest

from worldline.base import errors
from worldline.model import ids, journal
from worldline.model.journal import Kind
from worldline.runtime import live_hub
from worldline.runtime.live_hub import FOLLOWER_QUEUE_MAX, Hub

HERE = ids.Address(ids.UniverseId(bytes(16)), ids.WorldId(bytes(16)))
THERE = ids.Address(ids.UniverseId(bytes(16)), ids.WorldId(bytes(15) + b"\x01"))


def entry(height: int, kind: Kind = Kind.ANSWERED, correlation: str = "c") -> journal.JournalEntry:
    return journal.JournalEntry(height, height, kind, 0, b"", correlation=correlation)


async def test_one_entry_is_told_to_all_who_expect_it() -> None:
    live = Hub()
    with live.expecting(HERE, Kind.ANSWERED, "c") as one, live.expecting(HERE, Kind.ANSWERED, "c") as two:
        live.publish(THERE, [entry(1)])
        live.publish(HERE, [entry(1, Kind.RUN_FINISHED), entry(2, correlation="d"), entry(3, correlation="")])
        assert not one.done()
        live.publish(HERE, [entry(4), entry(5)])
        assert (one.result().height, two.result().height) == (4, 4)
    assert live._expected == {}


async def test_whoever_stops_waiting_leaves_nothing_behind() -> None:
    live = Hub()
    with live.expecting(HERE, Kind.ANSWERED, "c"), live.expecting(HERE, Kind.ANSWERED, "d"):
        pass
    assert live._expected == {}


async def test_who_waits_for_a_world_that_leaves_is_told() -> None:
    live = Hub()
    with live.expecting(HERE, Kind.ANSWERED, "c") as gone, live.expecting(THERE, Kind.ANSWERED, "c") as stays:
        live.moved(HERE)
        with pytest.raises(errors.Fenced):
            gone.result()
        assert not stays.done()
    with live.expecting(HERE, Kind.ANSWERED, "c") as unheard:
        live.moved(HERE)  # nobody asks for it: that must not become a complaint of the loop
    assert unheard.done()
    assert live._expected == {}


async def test_a_follower_that_is_too_slow_is_told_of_the_gap() -> None:
    live = Hub()
    with live.following(HERE) as queue:
        live.publish(HERE, [entry(height) for height in range(1, FOLLOWER_QUEUE_MAX + 1)])
        assert queue.qsize() == FOLLOWER_QUEUE_MAX
        live.publish(HERE, [entry(FOLLOWER_QUEUE_MAX + 1)])
        assert queue.get_nowait() is None
        last = queue.get_nowait()
        assert isinstance(last, journal.JournalEntry)
        assert last.height == FOLLOWER_QUEUE_MAX + 1
    assert live._followers == {}


async def test_chunks_from_threads_come_in_order() -> None:
    live = Hub()

    def talk() -> None:
        for number in range(100):
            live.stream_from_thread(HERE, live_hub.Chunk(ids.IntentId(bytes(16)), "e", "r", 1, number))

    with live.following(HERE) as queue:
        await asyncio.to_thread(talk)
        heard = [queue.get_nowait() for _ in range(queue.qsize())]
    assert [each.value for each in heard if isinstance(each, live_hub.Chunk)] == list(range(100))
