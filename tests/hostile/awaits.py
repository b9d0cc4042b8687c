"""Behaviours of coroutines: awaiting what is foreign, forged or used up, swallowing what ends them, never ending well.

Each takes the tools of the program it is put into and is awaited inside a workflow.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, Never

import msgspec

import worldline as wl
from tests.hostile.behaviours import Kind
from tests.hostile.making import Ping
from worldline.kernel import run_operations


class Tools(msgspec.Struct, frozen=True):
    """What the program around has: a child that returns its argument, and an effect that does."""

    child: Callable[[Any], Any]
    effect: Callable[[Any], Any]


class Await(msgspec.Struct, frozen=True):
    name: str
    do: Callable[[Tools], Awaitable[Any]]
    kind: Kind


found: dict[str, Await] = {}


def add(kind: Kind) -> Callable[[Callable[[Tools], Awaitable[Any]]], Callable[[Tools], Awaitable[Any]]]:
    def take(do: Callable[[Tools], Awaitable[Any]]) -> Callable[[Tools], Awaitable[Any]]:
        name = getattr(do, "__name__", "")
        assert name not in found
        found[name] = Await(name, do, kind)
        return do

    return take


raises = add(Kind.RAISES)
fine = add(Kind.FINE)
any_end = add(Kind.ANY)
sick = add(Kind.SICK)


class Yields:
    """An awaitable of its own that yields whatever it was given."""

    def __init__(self, *things: Any) -> None:
        self._things = things

    def __await__(self) -> Generator[Any, Any, Any]:
        yield from self._things
        return 1


class BadIterator:
    """What an `__await__` may return: an iterator whose every method fails."""

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Never:
        raise ValueError("next")

    def close(self) -> Never:
        raise ValueError("close")


class Endless:
    """Yields again, whatever is thrown at it."""

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return 7

    def send(self, value: Any) -> Any:
        return 7

    def throw(self, *error: Any) -> Any:
        return 7

    def close(self) -> None:
        raise KeyboardInterrupt


class ClosesBadly:
    """Waits as it should, and fails when it is closed."""

    def __init__(self) -> None:
        self._inner = wl.sleep(0.01).__await__()

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return next(self._inner)

    def send(self, value: Any) -> Any:
        return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        return self._inner.throw(*error)

    def close(self) -> None:
        raise SystemExit(9)


class ForgedAll(run_operations.All):
    """One of the kernel's own, with operations of its own making."""

    @property
    def ops(self) -> Any:
        raise ValueError("no operations")

    @ops.setter
    def ops(self, value: Any) -> None:
        pass


class ForgedAwait(run_operations.Await):
    pass


def yielding(make: Callable[[], tuple[Any, ...]]) -> Callable[[Tools], Awaitable[Any]]:
    async def do(tools: Tools) -> Any:
        return await Yields(*make())

    return do


YIELDED: dict[str, Callable[[], tuple[Any, ...]]] = {
    "yields_a_number": lambda: (1,),
    "yields_nothing": lambda: (None,),
    "yields_a_future": lambda: (concurrent.futures.Future(),),
    "yields_an_exception": lambda: (ValueError("x"),),
    "forged_number": lambda: (run_operations.All((99,)),),
    "forged_negative": lambda: (run_operations.All((-7,)),),
    "forged_text": lambda: (run_operations.All(("a",)),),  # type: ignore[arg-type]
    "forged_none": lambda: (run_operations.All(None),),  # type: ignore[arg-type]
    "forged_first": lambda: (run_operations.First((5, 6)),),
    "forged_subclass": lambda: (ForgedAll((0,)),),
    "forged_kind": lambda: (ForgedAwait(),),
}
ENDING: dict[str, Callable[[], tuple[Any, ...]]] = {
    "forged_empty": lambda: (run_operations.All(()), run_operations.First(())),
}
for table, kind in ((YIELDED, Kind.RAISES), (ENDING, Kind.ANY)):
    for name, make in table.items():
        found[name] = Await(name, yielding(make), kind)


@raises
async def yields_on_and_on(tools: Tools) -> Any:
    return await Endless()


@raises
async def bad_iterator(tools: Tools) -> Any:
    return await BadIterator()


@any_end
async def forged_again(tools: Tools) -> Any:
    """An operation that is done already."""
    await wl.sleep(0.01)
    return await Yields(run_operations.All((0, 0)), run_operations.All([0]))  # type: ignore[arg-type]


@any_end
async def closes_badly(tools: Tools) -> Any:
    await ClosesBadly()
    return 1


@any_end
async def same_call_twice(tools: Tools) -> Any:
    call = tools.child(1)
    return [await call, await call]


@raises
async def same_coroutine_twice(tools: Tools) -> Any:
    sleep = wl.sleep(0.01)
    await sleep
    await sleep


@any_end
async def same_started_twice(tools: Tools) -> Any:
    started = wl.start(tools.child(1))
    return [await started, await started]


@any_end
async def call_changed_after(tools: Tools) -> Any:
    call = tools.effect(1)
    started = wl.start(call)
    call.args = (object(),)
    call.kwargs = {"no": "such"}
    return await started


@raises
async def forged_call(tools: Tools) -> Any:
    return await wl.Call(None, (), {})  # type: ignore[arg-type]


@raises
async def arguments_that_do_not_fit(tools: Tools) -> Any:
    return await tools.child(1, 2, 3, x=4)  # type: ignore[call-arg]


@raises
async def asyncio_sleep(tools: Tools) -> Any:
    await asyncio.sleep(0.01)


@any_end
async def asyncio_sleep_nothing(tools: Tools) -> Any:
    await asyncio.sleep(0)
    return 1


@raises
async def asyncio_task(tools: Tools) -> Any:
    made = wl.sleep(0.01)
    try:
        return await asyncio.create_task(made)
    finally:
        made.close()


@raises
async def asyncio_gather(tools: Tools) -> Any:
    made = wl.sleep(0.01)
    try:
        return await asyncio.gather(made)
    finally:
        made.close()


@raises
async def asyncio_timeout(tools: Tools) -> Any:
    async with asyncio.timeout(1):
        await wl.sleep(0.01)


@any_end
async def asyncio_run(tools: Tools) -> Any:
    async def inner() -> int:
        return 1

    made = inner()
    try:
        return asyncio.run(made)
    finally:
        made.close()


@fine
async def swallows_foreign(tools: Tools) -> Any:
    for _ in range(5):
        try:  # noqa: SIM105
            await Yields(1, 2, 3)
        except:  # noqa: E722 - hostile on purpose
            pass
    return 1


@raises
async def swallows_foreign_for_ever(tools: Tools) -> Any:
    while True:
        try:  # noqa: SIM105
            await Yields(1)
        except:  # noqa: E722 - hostile on purpose
            pass


@fine
async def swallows_failures(tools: Tools) -> Any:
    count = 0
    for _ in range(3):
        try:
            await tools.effect(object())
        except:  # noqa: E722 - hostile on purpose
            count += 1
        finally:
            await wl.sleep(0.01)
    return count


@any_end
async def returns_in_finally(tools: Tools) -> Any:
    try:
        await wl.sleep(0.01)
        raise wl.Cancelled("by myself")
    finally:
        return 1  # noqa: B012 - hostile on purpose


@any_end
async def awaits_when_dropped(tools: Tools) -> Any:
    try:
        await wl.sleep(0.05)
    except GeneratorExit:
        await tools.effect(2)
        raise
    finally:
        await tools.child(3)
    return 1


async def _numbers() -> AsyncIterator[int]:
    try:
        for number in range(5):
            await wl.sleep(0.01)
            yield number
    finally:
        await wl.sleep(0.01)


@any_end
async def generator_left_in_the_middle(tools: Tools) -> Any:
    async for number in _numbers():
        if number == 1:
            break
    return 1


@any_end
async def generator_closed(tools: Tools) -> Any:
    numbers = _numbers()
    first = await anext(numbers)
    await numbers.aclose()  # type: ignore[attr-defined]
    return first


@fine
async def context_in_a_generator(tools: Tools) -> Any:
    def draws() -> Generator[float, None, None]:
        while True:
            yield wl.random().random()

    drawn = draws()
    return [next(drawn), next(drawn)]


@any_end
async def from_a_thread(tools: Tools) -> Any:
    said: list[str] = []

    def use() -> None:
        try:
            wl.emit(Ping())
        except BaseException as error:  # noqa: BLE001 - hostile on purpose
            said.append(type(error).__name__)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    return said


@any_end
async def from_a_thread_with_the_context(tools: Tools) -> Any:
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(wl.emit, Ping()))
    thread.start()
    thread.join()
    return 1


@fine
async def coroutine_by_hand(tools: Tools) -> Any:
    """Asks for something without waiting for it."""
    inner = wl.sleep(0.01).__await__()
    next(inner)
    await wl.sleep(0.02)
    return 1


@any_end
async def throws_into_itself(tools: Tools) -> Any:
    inner = tools.effect(1).__await__()
    next(inner)
    try:
        inner.throw(KeyboardInterrupt)
    except KeyboardInterrupt:
        return 1


@sick
async def deep_awaits(tools: Tools) -> Any:
    async def down(level: int) -> int:
        return await down(level + 1)

    return await down(0)


@any_end
async def rather_deep_awaits(tools: Tools) -> Any:
    async def down(level: int) -> int:
        if level == 0:
            await wl.sleep(0.01)
            return 0
        return 1 + await down(level - 1)

    return await down(200)


@any_end
async def many_operations(tools: Tools) -> Any:
    return len(await wl.gather(*(tools.child(number) for number in range(150))))


@any_end
async def scope_entered_twice(tools: Tools) -> Any:
    scope = wl.scope()
    async with scope, scope:
        await wl.sleep(0.01)
    return 1


@raises
async def scope_left_twice(tools: Tools) -> Any:
    scope = wl.scope()
    async with scope:
        await wl.sleep(0.01)
    await scope.__aexit__(None, None, None)


@any_end
async def scope_never_left(tools: Tools) -> Any:
    await wl.scope(timeout=0.01, shield=True).__aenter__()
    await wl.sleep(0.05)
    return 1


@any_end
async def scope_left_out_of_order(tools: Tools) -> Any:
    outer, inner = wl.scope(timeout=10), wl.scope()
    await outer.__aenter__()
    await inner.__aenter__()
    await outer.__aexit__(None, None, None)
    await wl.sleep(0.01)
    await inner.__aexit__(None, None, None)
    return 1


@raises
async def scope_not_entered(tools: Tools) -> Any:
    wl.Scope(None, shield=False).cancel()


@any_end
async def cancels_what_has_ended(tools: Tools) -> Any:
    started = wl.start(tools.child(1))
    await started
    started.cancel("late")
    started.cancel("\ud800" * 10_000)
    timer = wl.after(10, Ping())
    timer.cancel()
    timer.cancel()
    return 1


@any_end
async def continues_for_a_while(tools: Tools) -> Any:
    if wl.random("again").random() < 0.8:
        return await tools.child(1)
    return 0
