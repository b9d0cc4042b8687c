"""Limits of a kind: never exceeded, never leaked, whoever is cancelled when."""

from __future__ import annotations

import asyncio

import hypothesis
from hypothesis import strategies

from worldline.base import env as envs
from worldline.effects.rate_limit import AHEAD_US, Limit, Slot


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_no_more_run_at_once_than_declared() -> None:
    limit = Limit(envs.FixedEnv(), 2, None)
    slots = [limit.take() for _ in range(5)]
    assert limit.room() == 0
    tasks = [asyncio.ensure_future(slot.start()) for slot in slots]
    await settle()
    assert [task.done() for task in tasks] == [True, True, False, False, False]
    slots[0].close()
    await settle()
    assert [task.done() for task in tasks] == [True, True, True, False, False], "in order of arrival"
    tasks[3].cancel()
    await settle()
    slots[3].close()
    slots[1].close()
    slots[2].close()
    await settle()
    assert tasks[4].done()
    slots[4].close()
    assert limit.room() == 2


async def test_closing_twice_is_closing_once() -> None:
    limit = Limit(envs.FixedEnv(), 1, None)
    slot = limit.take()
    await slot.start()
    slot.close()
    slot.close()
    assert limit.room() == 1


async def test_a_permit_given_to_one_who_was_just_cancelled_is_passed_on() -> None:
    limit = Limit(envs.FixedEnv(), 1, None)
    first, second, third = limit.take(), limit.take(), limit.take()
    await first.start()
    waiting = [asyncio.ensure_future(slot.start()) for slot in (second, third)]
    await settle()
    first.close()  # the permit is on its way to the second
    waiting[0].cancel()
    await settle()
    second.close()
    await settle()
    assert waiting[1].done()
    assert not waiting[1].cancelled()
    third.close()
    assert limit.room() == 1


async def test_a_rate_gives_each_start_the_next_free_instant() -> None:
    env = envs.FixedEnv()
    limit = Limit(env, None, 10)
    starts: list[int] = []
    for _ in range(5):
        slot = limit.take()
        await slot.start()  # this environment's sleep moves its clock
        starts.append(env.monotonic_us())
        slot.close()
    assert starts == [0, 100_000, 200_000, 300_000, 400_000]
    env.advance_us(10_000_000)
    slot = limit.take()
    await slot.start()
    assert env.monotonic_us() == 10_400_000, "what was not used is not saved up"
    slot.close()


async def test_a_rate_lets_no_more_be_claimed_than_can_start_soon() -> None:
    env = envs.FixedEnv()
    limit = Limit(env, None, 50)
    taken: list[Slot] = []
    while limit.room():
        taken.append(limit.take())
    assert len(taken) == AHEAD_US // 20_000 + 1
    wait_us = limit.wait_us()
    assert wait_us is not None
    assert wait_us > 0
    for slot in taken:
        slot.close()
    assert limit.room() == len(taken)


@hypothesis.given(strategies.lists(strategies.sampled_from(["take", "start", "cancel", "close"]), max_size=60))
def test_whatever_is_done_the_bound_holds_and_nothing_leaks(moves: list[str]) -> None:
    asyncio.run(play(moves))


async def play(moves: list[str]) -> None:
    limit = Limit(envs.FixedEnv(), 2, None)
    slots: list[Slot] = []
    tasks: dict[int, asyncio.Future[None]] = {}
    closed: list[int] = []

    def running() -> int:
        done = [number for number, task in tasks.items() if task.done() and not task.cancelled()]
        return len([number for number in done if number not in closed])

    for number, move in enumerate(moves):
        open_slots = [index for index in range(len(slots)) if index not in closed]
        if move == "take":
            slots.append(limit.take())
        elif open_slots:
            chosen = open_slots[number % len(open_slots)]
            if move == "start" and chosen not in tasks:
                tasks[chosen] = asyncio.ensure_future(slots[chosen].start())
            elif move == "cancel" and chosen in tasks:
                tasks[chosen].cancel()
            elif move == "close" and (chosen not in tasks or tasks[chosen].done()):
                slots[chosen].close()
                closed.append(chosen)
        await settle()
        assert running() <= 2
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    for slot in slots:
        slot.close()
    assert limit.room() == 2
