"""Typical mistakes, each made once. `docs/guide/mistakes.md` shows what is said of each.

    python -m tests.docs.mistakes   # writes the table of that page anew

A function makes one mistake, on the line that ends with `# here`, and raises what users see, or lets the host's log say
it. Its docstring is what the page shows as the mistake.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import re
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio

import worldline as wl
from tests import aio
from tests.docs import pages
from worldline import errors, testing

PAGE = pages.GUIDE / "mistakes.md"
HERE = "# here"
Make = Callable[[wl.World], Awaitable[object]]
MISTAKES: dict[str, Make] = {}

shop, bank = wl.Program("shop"), wl.Program("bank")


def mistake(make: Make) -> Make:
    MISTAKES[make.__name__] = make
    return make


@dataclass
class Placed:
    amount: float
    at: datetime | None = None


@dataclass
class Canceled:
    """Of which no handler knows."""


@dataclass
class Total(wl.Request[float]):
    pass


@shop.reducer
@dataclass
class Orders:
    total: float = 0

    @wl.on
    def placed(self, event: Placed) -> None:
        self.total += event.amount

    @wl.on
    def total_of(self, asked: Total) -> float:
        return self.total


@shop.effect(retry=wl.Retry(attempts=1))
async def charge(amount: int) -> str:
    return f"ch_{amount}"


@shop.workflow
async def pay(amount: int) -> str:
    return await charge(amount)


@shop.workflow
async def waits() -> None:
    await wl.wait(Placed)


@bank.workflow
async def transfer(amount: int) -> int:
    return amount


def used(value: Any) -> Any:
    """To a type checker, anything: it would find most of these mistakes."""
    return value


# --- Calling a world -----------------------------------------------------------------------------------------------


@mistake
async def workflow_itself(world: wl.World) -> None:
    """`await world.run(pay)`"""
    await world.run(used(pay))  # here


@mistake
async def name_of_workflow(world: wl.World) -> None:
    """`await world.run("pay")`"""
    await world.run(used("pay"))  # here


@mistake
async def coroutine(world: wl.World) -> None:
    """`await world.run(main())`, a plain `async def`"""

    async def main() -> None: ...

    await world.run(used(main()))  # here


@mistake
async def other_program(world: wl.World) -> None:
    """`await world.run(transfer(5))`, of another program"""
    await world.run(transfer(5))  # here


@mistake
async def effect_as_run(world: wl.World) -> None:
    """`await world.run(charge(5))`, an effect"""
    await world.run(charge(5))  # here


@mistake
async def argument_type(world: wl.World) -> None:
    """`await world.run(pay("5"))`, where `amount: int`"""
    await world.run(pay(used("5")))  # here


@mistake
async def argument_missing(world: wl.World) -> None:
    """`await world.run(pay())`"""
    await world.run(used(pay)())  # here


@mistake
async def large_number(world: wl.World) -> None:
    """`await world.run(pay(2**80))`"""
    await world.run(pay(2**80))  # here


@mistake
async def same_id(world: wl.World) -> None:
    """`run(pay(5), id="o1")`, then `run(pay(6), id="o1")`"""
    await world.run(pay(5), id="o1")
    await world.run(pay(6), id="o1")  # here


@mistake
async def timed_out(world: wl.World) -> None:
    """`await world.run(waits(), id="r1", timeout=0.01)`"""
    await world.run(waits(), id="r1", timeout=0.01)  # here


@mistake
async def awaited_outside(_: wl.World) -> None:
    """`await pay(5)`, outside of a workflow"""
    await pay(5)  # here


@mistake
async def slept_outside(_: wl.World) -> None:
    """`await wl.sleep(1)`, outside of a workflow"""
    await wl.sleep(1)  # here


@mistake
async def not_a_number(world: wl.World) -> None:
    """`await world.send(Placed(math.nan))`"""
    await world.send(Placed(math.nan))  # here


@mistake
async def no_zone(world: wl.World) -> None:
    """`await world.send(Placed(5, datetime(2024, 1, 1)))`"""
    await world.send(Placed(5, datetime(2024, 1, 1)))  # noqa: DTZ001  # here


@mistake
async def class_sent(world: wl.World) -> None:
    """`await world.send(Placed)`"""
    await world.send(Placed)  # here


@mistake
async def huge(world: wl.World) -> None:
    """`await world.send(Placed("x" * 20_000_000))`"""
    await world.send(Placed(used("x" * 20_000_000)))  # here


@mistake
async def not_a_request(world: wl.World) -> None:
    """`await world.ask(Placed(5))`"""
    await world.ask(used(Placed(5)))  # here


@mistake
async def scheduled_itself(world: wl.World) -> None:
    """`await world.schedule("nightly", pay, every=60)`"""
    await world.schedule("nightly", pay, every=60)  # here


@mistake
async def no_block(_: wl.World) -> None:
    """`universe = wl.open("shop")`, then `await universe.ensure("w", app)`"""
    universe: Any = wl.open("memory://", host=shop)
    await universe.ensure("w", shop)  # here


@mistake
async def swapped(world: wl.World) -> None:
    """`await universe.ensure(shop, "w")`"""
    universe = wl.open("memory://", host=shop)
    async with universe as opened:
        await used(opened).ensure(shop, world.name)  # here


@mistake
async def taken_by_nothing(world: wl.World) -> None:
    """`await (await world.send(Canceled())).applied()`, where nothing takes a `Canceled`"""
    await (await world.send(Canceled())).applied(20)  # here


# --- Declaring a program ---------------------------------------------------------------------------------------------


@mistake
async def plain_workflow(_: wl.World) -> None:
    """`@app.workflow` above a plain `def`"""

    def go() -> None: ...

    wl.Program("p").workflow(used(go))  # here


@mistake
async def async_handler(_: wl.World) -> None:
    """`@wl.on` above an `async def`"""

    class Cell:
        @wl.on  # here
        async def placed(self, event: Placed) -> None: ...


@mistake
async def no_default(_: wl.World) -> None:
    """a reducer whose field has no default"""

    @dataclass
    class Cell:
        total: int

        @wl.on
        def placed(self, event: Placed) -> None: ...

    wl.Program("p").reducer(Cell)  # here


@mistake
async def no_annotation(_: wl.World) -> None:
    """`def placed(self, event)`, without its type"""

    @dataclass
    class Cell:
        total: int = 0

        @wl.on
        def placed(self, event): ...  # type: ignore[no-untyped-def]

    wl.Program("p").reducer(Cell)  # here


@mistake
async def unknown_name(_: wl.World) -> None:
    """`async def go(order: Ordre)`, where no `Ordre` is defined"""
    app = wl.Program("p")

    @app.workflow  # here
    async def go(order: Ordre) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    async with wl.open("memory://", host=app):
        pass


@mistake
async def not_stored(_: wl.World) -> None:
    """`async def go(thread: threading.Thread)`"""

    async def go(thread: threading.Thread) -> None: ...

    wl.Program("p").workflow(go)  # here


class Client:
    """Of no kind that is stored."""


@mistake
async def untold_apart(_: wl.World) -> None:
    """`async def go(what: Placed | Total)`, two dataclasses"""

    async def go(what: Placed | Total) -> None: ...

    wl.Program("p").workflow(go)  # here


@mistake
async def same_name(_: wl.World) -> None:
    """two effects named `charge` in one program"""

    async def charge() -> None: ...

    app = wl.Program("p")
    app.effect(charge)
    app.effect(charge)  # here


# --- Inside a workflow -----------------------------------------------------------------------------------------------


def flow(function: Callable[..., Any]) -> Callable[[wl.World], Awaitable[Any]]:
    """A mistake in a workflow of the shop."""
    declared = shop.workflow(function)

    async def make(world: wl.World) -> object:
        return await world.run(declared(), id="r1", timeout=100)

    make.__name__, make.__doc__, make.__wrapped__ = function.__name__, function.__doc__, function  # type: ignore[attr-defined]
    return mistake(make)


@flow
async def effect_argument() -> None:
    """`await charge("5")`, where `amount: int`"""
    await charge(used("5"))  # here


@flow
async def effect_argument_missing() -> None:
    """`await charge()`"""
    await used(charge)()  # here


@flow
async def contains_itself() -> None:
    """`await charge(cyclic)`, a list that contains itself"""
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    await charge(used(cyclic))  # here


@flow
async def uses_asyncio() -> None:
    """`await asyncio.sleep(1)` in a workflow"""
    await asyncio.sleep(1)  # here


@flow
async def uses_anyio() -> None:
    """`anyio.run(main)` in a workflow"""
    anyio.run(main)  # here


async def main() -> None: ...


@flow
async def other_child() -> None:
    """`await transfer(5)` in a workflow, of another program"""
    await transfer(5)  # here


@flow
async def started_itself() -> None:
    """`wl.start(pay)` in a workflow"""
    wl.start(used(pay))  # here


@flow
async def gathered_list() -> None:
    """`await wl.gather([charge(1), charge(2)])`"""
    await wl.gather(used([charge(1), charge(2)]))  # here


@flow
async def object_waited_for() -> None:
    """`await wl.wait(Placed(5))`"""
    await wl.wait(used(Placed(5)))  # here


@flow
async def no_end() -> None:
    """a function that calls itself without end"""

    def again(number: int) -> int:
        return again(number + 1)  # here

    again(0)


@flow
async def too_many_at_once() -> None:
    """`await wl.gather(*[waits() for _ in range(20_000)])`"""
    await wl.gather(*[waits() for _ in range(20_000)])  # here


@flow  # here
async def wrong_result() -> int:
    """`async def go() -> int` that returns text"""
    return "five"  # type: ignore[return-value]


@mistake
async def never_awaited(_: wl.World) -> None:
    """`charge(5)` without `await`, in a test"""
    app = wl.Program("p")
    asked = app.effect(charge.function)

    @app.workflow
    async def go() -> None:
        _ = asked(5)

    with testing.world(app) as kit:
        kit.run(go())  # here


def shipping(*, edited: bool) -> wl.Program:
    """A program, before and after its workflow is edited."""
    app = wl.Program("shipping")

    @app.effect
    async def reserve(order: str) -> str:
        return order

    @app.effect
    async def inform(order: str) -> str:
        return order

    @app.workflow
    async def ship(order: str) -> None:
        if edited:
            await inform(order)  # here
        await reserve(order)
        await wl.wait(Placed)

    return app


@mistake
async def edited_under_a_run(_: wl.World) -> None:
    """`await inform(order)` written above `await reserve(order)` while a run waits behind it, and then
    `await run.result(on_blocked="raise")`
    """
    with tempfile.TemporaryDirectory() as folder:
        before, after = shipping(edited=False), shipping(edited=True)
        async with wl.open(folder, host=before) as universe:
            world = await universe.ensure("w", before)
            run = await world.start(before.workflows["ship"]("o7"), id="r1")

            async def is_reserved() -> bool:
                return any(each.kind is wl.Kind.EFFECT_RESULT for each in await world.journal())

            await aio.until(is_reserved)
        async with wl.open(folder, host=after) as universe:
            world = universe.world("w")
            await world.send(Placed(5))
            await (await world.attach(run.id)).result(20, on_blocked="raise")


# --- Effects ---------------------------------------------------------------------------------------------------------


@shop.effect
async def misspelt() -> None:
    chrage(5)  # type: ignore[name-defined]  # noqa: F821  # here


@shop.effect
async def connects() -> Any:
    return Client()


@shop.workflow
async def calls_misspelt() -> None:
    await misspelt()


@mistake
async def name_error(world: wl.World) -> None:
    """`chrage(5)` in an effect: the log, and then the run"""
    await world.run(calls_misspelt(), id="r1", timeout=20)


@flow
async def answer_not_stored() -> None:
    """an effect that returns an object of `class Client`"""
    await connects()  # here


@mistake
async def not_scripted(_: wl.World) -> None:
    """a test whose script has no answer for `charge`"""
    with testing.world(shop) as kit:
        kit.run(pay(5))  # here


# --- What is said ----------------------------------------------------------------------------------------------------


@dataclass
class Said:
    """What users get of a mistake: the error, and what the host's log says; and the lines of this file it names."""

    text: str
    lines: list[int] = field(default_factory=list)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@contextmanager
def _log() -> Iterator[list[str]]:
    lines, log = _Lines(), logging.getLogger("worldline.adapter")
    log.addHandler(lines)
    propagates, log.propagate = log.propagate, False
    try:
        yield lines.said
    finally:
        log.propagate = propagates
        log.removeHandler(lines)


async def told(name: str) -> Said:
    """Make a mistake in a world of its own."""
    with _log() as log:
        try:
            async with wl.open("memory://", host=shop) as universe:
                await MISTAKES[name](await universe.ensure("w", shop))
        except Exception as error:  # noqa: BLE001 - it is what users get
            return _said(error, log)
    raise AssertionError(f"{name}: nothing is said")


def _said(error: Exception, log: list[str]) -> Said:
    kind = next((each.__name__ for each in type(error).__mro__ if hasattr(errors, each.__name__)), type(error).__name__)
    texts = [f"{kind}: {error}", *log]
    file = Path(__file__).name
    everything = "\n".join([*texts, *getattr(error, "__notes__", []), getattr(error, "report", "")])
    found = [int(number) for number in re.findall(rf'{file}(?:", line |:)(\d+)', everything)]
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == __file__:
            found.append(trace.tb_lineno)
        trace = trace.tb_next
    text = re.sub(rf"{file}:\d+", "FILE:LINE", " // ".join(texts))
    text = re.sub(r"--store /[^\s`]+", "--store STORE", text)
    return Said(re.sub(r"\b(?:[0-9a-f]{12}|[0-9a-f]{24})\b", "ID", text), found)


def place(name: str) -> int:
    """The line on which the mistake is made."""
    elsewhere = {"name_error": misspelt.function, "edited_under_a_run": shipping}
    first = elsewhere.get(name, inspect.unwrap(MISTAKES[name]))
    lines, start = inspect.getsourcelines(first)
    return start + next(number for number, line in enumerate(lines) if line.rstrip().endswith(HERE))


def shown(name: str) -> str:
    """The mistake, as the page shows it."""
    return " ".join((MISTAKES[name].__doc__ or "").split()).replace("|", r"\|")


def row(name: str, said: Said) -> str:
    return f"| {shown(name)} | {said.text.replace('|', chr(92) + '|')} |"


def table(rows: dict[str, str]) -> str:
    head = "| mistake | message |\n| --- | --- |\n"
    return head + "\n".join(rows.values()) + "\n"


async def rows() -> dict[str, str]:
    return {name: row(name, await told(name)) for name in MISTAKES}


def write() -> None:
    before, _, after = PAGE.read_text().partition("| mistake |")
    behind = after[after.index("\n\n") :] if "\n\n" in after else "\n"
    PAGE.write_text(before + table(asyncio.run(rows())).rstrip("\n") + behind)


if __name__ == "__main__":
    write()
