"""Places in workflows: before and after awaits, around them, in children, in conditions, and what is handed on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import worldline as wl
from tests.hostile.making import Act, Cancel, Door, Making, Places, Run, send

places = Places()


@places.add()
def before_any_await(making: Making) -> list[Act]:
    do = making.do

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        return do()

    return [Run(flow(), making.name("r"), judged=True)]


@places.add()
def after_an_await(making: Making) -> list[Act]:
    do = making.do

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        await wl.sleep(0.01)
        return do()

    return [Run(flow(), making.name("r"), judged=True)]


@places.add(shows=False, stores=False)
def between_awaits_swallowed(making: Making) -> list[Act]:
    do = making.do

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> int:
        for _ in range(3):
            try:
                await wl.sleep(0.01)
                do()
            except:  # noqa: E722 - hostile on purpose
                pass
        return 1

    return [Run(flow(), making.name("r"), judged=True)]


@places.add(stores=False)
def in_finally(making: Making) -> list[Act]:
    do = making.do

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        try:
            await wl.sleep(0.01)
        finally:
            do()
            await wl.sleep(0.01)

    return [Run(flow(), making.name("r"), judged=True)]


@places.add(shows=False, stores=False)
def when_cancelled(making: Making) -> list[Act]:
    """It waits for what never comes, is cancelled, and misbehaves then."""
    do = making.do

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        try:
            await wl.sleep(1_000_000)
        except:
            await wl.sleep(0.01)
            do()
            raise
        finally:
            do()

    return [Run(flow(), making.name("r"), begun=True), Cancel(making.name("r"), judged=True)]


@places.add(shows=False, stores=False)
def when_dropped(making: Making) -> list[Act]:
    """It waits for ever, so that it is only ever dropped, in the middle of everything."""
    do = making.do

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        while True:
            try:
                await wl.sleep(1_000_000)
            except:  # noqa: E722 - hostile on purpose
                pass
            finally:
                do()

    return [Run(flow(), making.name("r"), begun=True), Cancel(making.name("r"), ends=False)]


@places.add(shows=False, stores=False)
def condition(making: Making) -> list[Act]:
    do = making.do

    @dataclass(frozen=True)
    class Poke:
        __schema__ = making.name("Poke")

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        await wl.wait(Poke, where=lambda _: do(), timeout=0.3)
        return 1

    run = making.name("r")
    return [Run(flow(), run, begun=True), send(Poke()), send(Poke(), to=run), Cancel(run)]


@places.add()
def child(making: Making) -> list[Act]:
    do = making.do

    @making.app.workflow(name=making.name("inner"))
    async def inner() -> Any:
        await wl.sleep(0.01)
        return do()

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        return await inner()

    return [Run(flow(), making.name("r"), judged=True)]


@places.add()
def one_of_several(making: Making) -> list[Act]:
    do = making.do

    @making.app.workflow(name=making.name("inner"))
    async def inner(bad: bool) -> Any:
        await wl.sleep(0.01)
        return do() if bad else 1

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        return await wl.gather(inner(False), inner(True), inner(False))

    return [Run(flow(), making.name("r"), judged=True)]


@places.add()
def in_a_scope(making: Making) -> list[Act]:
    do = making.do

    @making.app.workflow(name=making.name("inner"))
    async def inner() -> Any:
        await wl.sleep(100)

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        async with wl.scope(timeout=50, shield=True) as scope:
            _ = scope.start(inner())
            await wl.sleep(0.01)
            value = do()
            scope.cancel("enough")
        return value

    return [Run(flow(), making.name("r"), judged=True)]


@places.add()
def argument_of_a_child(making: Making) -> list[Act]:
    do = making.do

    @making.app.workflow(name=making.name("inner"))
    async def inner(value: Any) -> Any:
        return value

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        return await inner(do())

    return [Run(flow(), making.name("r"), judged=True)]


@places.add(shows=False, stores=False, blocks=True)
def typed_argument(making: Making) -> list[Act]:
    """The argument's class runs code when a run is made of its record, and again at each rebuild."""
    do = making.do

    @dataclass
    class Order:
        name: str

        def __post_init__(self) -> None:
            do()

    @making.app.workflow(name=making.name("inner"))
    async def inner(order: Order) -> str:
        await wl.sleep(0.01)
        return order.name

    @making.app.workflow(name=making.name("flow"))
    async def flow(order: Any) -> Any:
        return await wl.gather(inner(order), inner(order))

    return [Run(flow({"name": "a"}), making.name("r")), Run(inner(Order("b")), making.name("s"))]


@places.add(shows=False, stores=False, blocks=True)
def typed_result(making: Making) -> list[Act]:
    do = making.do

    @dataclass
    class Order:
        name: str

        def __post_init__(self) -> None:
            do()

    @making.app.workflow(name=making.name("inner"))
    async def inner() -> Order:
        return {"name": "a"}  # type: ignore[return-value]

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        await inner()
        return 1

    return [Run(flow(), making.name("r"))]


@places.add()
def continued_with(making: Making) -> list[Act]:
    do = making.do

    @making.app.workflow(name=making.name("flow"))
    async def flow(first: bool, value: Any) -> Any:
        if first:
            await wl.sleep(0.01)
            wl.continue_as_new(flow(False, do()))
        return value

    return [Run(flow(True, 0), making.name("r"), judged=True)]


@places.add(stores=False)
def sent_to_another_world(making: Making) -> list[Act]:
    do = making.do

    @dataclass(frozen=True)
    class Strange(wl.Request[Any]):
        value: Any
        __schema__ = making.name("Strange")

    @making.app.workflow(name=making.name("flow"))
    async def flow(how: int) -> Any:
        if how == 0:
            await wl.send("innocent-0", Strange(do()))
        elif how == 1:
            await wl.ask("innocent-0", Strange(do()), timeout=5)
        elif how == 2:
            await wl.send(do(), Strange(1))
        else:
            await wl.send("innocent-0", Strange(1), to=do())
        return 1

    return [Run(flow(how), making.name(f"r{how}"), judged=True) for how in range(4)]


@places.add(shows=False, stores=False)
def scheduled_run(making: Making) -> list[Act]:
    do = making.do

    @making.app.workflow(name=making.name("often"))
    async def often() -> Any:
        wl.unschedule(making.name("s"))
        await wl.sleep(0.01)
        return do()

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        wl.schedule(making.name("s"), often(), every=0.02)
        await wl.sleep(0.1)
        return 1

    return [Run(flow(), making.name("r"), judged=True)]


@places.add(stores=False)
def api_of_workflows(making: Making) -> list[Act]:
    """Everything that a workflow may call, with the behaviour's value for an argument."""
    do = making.do

    @dataclass(frozen=True)
    class Poke:
        __schema__ = making.name("Poke")

    @making.app.workflow(name=making.name("inner"))
    async def inner() -> int:
        return 1

    @making.app.workflow(name=making.name("flow"))
    async def flow(which: int) -> Any:
        value = do()
        uses: tuple[Any, ...] = (
            wl.sleep,
            wl.sleep_until,
            wl.gather,
            lambda given: wl.gather(inner(), given),
            lambda given: wl.wait(given, timeout=0.01),
            lambda given: wl.wait(Poke, timeout=0.01 if given is None else given),
            lambda given: wl.wait(Poke, where=given, timeout=0.01),
            lambda given: wl.start(inner(), id=given),
            wl.start,
            wl.emit,
            wl.after,
            lambda given: wl.after(0.01, given),
            wl.patched,
            wl.random,
            wl.uuid,
            wl.state,
            wl.unschedule,
            lambda given: wl.schedule("s", given, every=9),
            wl.continue_as_new,
            lambda given: wl.scope(timeout=given).__aenter__(),
            lambda given: wl.scope(shield=given).__aenter__(),
            lambda given: wl.start(inner()).cancel(given),
            lambda given: wl.log.warning("%s %s", given, given),
            lambda given: given,
        )
        made = uses[which](value)
        if hasattr(type(made), "__await__"):
            await made
        return 1

    return [Run(flow(which), making.name(f"r{which}"), judged=True) for which in range(24)]


@places.add(shows=False)
def at_the_door(making: Making) -> list[Act]:
    """The client itself hands the value over."""
    do = making.do

    @dataclass(frozen=True)
    class Poke:
        value: Any
        __schema__ = making.name("Poke")

    @making.app.workflow(name=making.name("flow"))
    async def flow(value: Any) -> Any:
        await wl.sleep(0.01)
        return value

    return [Door(lambda: flow(do())), Door(lambda: Poke(do()))]
