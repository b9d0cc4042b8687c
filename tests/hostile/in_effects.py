"""Places in effects: what they take, raise, return and stream, and what they leave running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import worldline as wl
from tests.hostile.making import Act, Making, Places, Run

places = Places()

TWICE = wl.Retry(attempts=2, initial_delay=0.01)


def _awaited(making: Making, effect: Callable[[], Any]) -> list[Act]:
    """A workflow that waits for this effect, and its run."""

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        return await effect()

    return [Run(flow(), making.name("r"), judged=True)]


@places.add()
def async_effect(making: Making) -> list[Act]:
    do = making.do

    @making.app.effect(retry=TWICE)
    @making.named
    async def outside() -> Any:
        await asyncio.sleep(0)
        return do()

    return _awaited(making, outside)


@places.add()
def thread_effect(making: Making) -> list[Act]:
    do = making.do

    @making.app.effect(retry=TWICE)
    @making.named
    def outside() -> Any:
        return do()

    return _awaited(making, outside)


@places.add()
def effect_with_a_deadline(making: Making) -> list[Act]:
    do = making.do

    @making.app.effect(retry=TWICE, timeout=5, total_timeout=8)
    @making.named
    async def outside() -> Any:
        try:
            await asyncio.sleep(0)
            return do()
        finally:
            await asyncio.sleep(0)

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        return await wl.gather(outside(), outside())

    return [Run(flow(), making.name("r"), judged=True)]


@places.add()
def argument_of_an_effect(making: Making) -> list[Act]:
    do = making.do

    @making.app.effect(retry=TWICE)
    @making.named
    async def outside(value: Any) -> Any:
        return 1

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        return await outside(do())

    return [Run(flow(), making.name("r"), judged=True)]


@places.add(stores=False, blocks=True)
def typed_argument_of_an_effect(making: Making) -> list[Act]:
    do = making.do

    @dataclass
    class Order:
        name: Any

        def __post_init__(self) -> None:
            self.name = do()

    @making.app.effect(retry=TWICE)
    @making.named
    async def outside(order: Order) -> Any:
        return 1

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        return await outside({"name": "a"})

    return [Run(flow(), making.name("r"), judged=True)]


@places.add(stores=False)
def streamed_piece(making: Making) -> list[Act]:
    do = making.do

    @making.app.effect(retry=TWICE)
    @making.named
    def outside() -> Any:
        wl.attempt().emit(do())
        return 1

    return _awaited(making, outside)


@places.add(shows=False, stores=False)
def task_left_behind(making: Making) -> list[Act]:
    """The effect answers, and a task of its own misbehaves later."""
    do = making.do
    kept: list[Any] = []

    @making.app.effect(retry=TWICE)
    @making.named
    async def outside() -> Any:
        async def later() -> None:
            await asyncio.sleep(0.01)
            do()

        kept.append(asyncio.get_running_loop().create_task(later()))
        return 1

    return _awaited(making, outside)


@places.add(shows=False, stores=False)
def cancels_itself(making: Making) -> list[Act]:
    """The effect cancels the task that it runs in."""
    do = making.do

    @making.app.effect(retry=TWICE)
    @making.named
    async def outside() -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(0)
        finally:
            do()

    return _awaited(making, outside)
