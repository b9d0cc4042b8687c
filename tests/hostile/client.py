"""A client that brings hostile programs about on hosts, and asks innocent worlds meanwhile.

Everything it does has a bound, and everything hostile has an end: an answer, a failure that is an error of ours, or a
refusal. What has none is told as a problem of its program.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

import worldline as wl
from tests.hostile import innocent
from tests.hostile.making import Act, Ask, Cancel, Door, Ping, Run, Send
from tests.hostile.programs import Hostile, Part
from worldline.base import errors
from worldline.client import world_answers
from worldline.inspect import why as reasons
from worldline.kernel import control_commands
from worldline.model.journal import Kind

T = TypeVar("T")

ACT_SECONDS = 60.0
SOON_SECONDS = 0.5
AT_ONCE = 12
REFUSED = "cannot make its step"
BLOCKED = "blocked: "
UNFIT = "the arguments do not fit"  # of an effect, which is parked then
BAD = (Kind.HANDLER_FAILED, Kind.UNDECODABLE_INPUT)


class NoEnd(Exception):
    """An act has no end. `why`: what its world says about that."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Problem(msgspec.Struct, frozen=True):
    hostile: Hostile
    what: str

    def __str__(self) -> str:
        return f"{self.hostile}: {self.what}"


def world_name(number: int) -> str:
    return f"hostile-{number}"


class Attack:
    """All programs, several at a time."""

    def __init__(self, universe: wl.Universe) -> None:
        self._universe = universe
        self.problems: list[Problem] = []
        self.acts = 0
        self.refused: list[str] = []

    async def attack(self, programs: list[Hostile]) -> None:
        """Do to each world what its program wants done."""
        await self._several(programs, self._attack)

    async def ping(self, programs: list[Hostile]) -> None:
        """Each world must still answer: once, with what it has counted."""
        await self._several(programs, self._ping)

    async def _several(self, programs: list[Hostile], do: Any) -> None:
        waiting = iter(programs)

        async def worker() -> None:
            for hostile in waiting:
                await do(hostile)

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))

    async def _attack(self, hostile: Hostile) -> None:
        world = await self._universe.create(world_name(hostile.number), hostile.program)
        for part in hostile.parts:
            begun: dict[str, Any] = {}
            for act in part.acts:
                self.acts += 1
                try:
                    fine = await _to_its_end(_do(world, act, begun), world, hopeless=_hopeless(hostile, part))
                except NoEnd as error:
                    if part.place.blocks and (BLOCKED in error.why or UNFIT in error.why):
                        continue
                    if not self._excused(hostile, error.why):
                        self._problem(hostile, f"{part.label}: {type(act).__name__} has no end: {error.why}")
                    return
                self._judge(hostile, part, act, fine)

    def _excused(self, hostile: Hostile, why: str) -> bool:
        """Whether a world is refused, as it may be where it is sick, and `why` shows the reason."""
        excused = hostile.sick and REFUSED in why
        if excused:
            self.refused.append(f"{hostile}: {why}")
        return excused

    def _judge(self, hostile: Hostile, part: Part, act: Act, fine: bool | None) -> None:
        if fine is None or not act.judged:
            return
        if fine and part.must_fail:
            self._problem(hostile, f"{part.label}: {type(act).__name__} came out well")
        if not fine and part.must_hold:
            self._problem(hostile, f"{part.label}: {type(act).__name__} failed")

    async def _ping(self, hostile: Hostile) -> None:
        world = self._universe.world(world_name(hostile.number))
        try:
            answered = await _to_its_end(world.ask(Ping()), world, hopeless=_hopeless(hostile))
        except NoEnd as error:
            if not self._excused(hostile, error.why):
                self._problem(hostile, f"its world does not answer any more: {error.why}")
        else:
            if answered != 1 and "thread" not in str(hostile):
                self._problem(hostile, f"Ping was answered {answered}, not 1")

    def _problem(self, hostile: Hostile, what: str) -> None:
        self.problems.append(Problem(hostile, what))


def _hopeless(hostile: Hostile, part: Part | None = None) -> list[str]:
    """What the world may say of an act that has no end. What another part of the program has come to is no reason."""
    found = [REFUSED] if hostile.sick else []
    return [*found, BLOCKED, UNFIT] if part is not None and part.place.blocks else found


async def _to_its_end(doing: Coroutine[Any, Any, T], world: wl.World, *, hopeless: list[str]) -> T:
    """What comes of an act. `NoEnd` as soon as `why` shows that it may have none, or when time is up."""
    task, why, began = asyncio.create_task(doing), "", time.monotonic()
    try:
        while not task.done() and time.monotonic() - began < ACT_SECONDS and not any(each in why for each in hopeless):
            await asyncio.wait([task], timeout=SOON_SECONDS if hopeless else ACT_SECONDS)
            why = "" if task.done() else await _why(world)
        if task.done():
            return task.result()
        raise NoEnd(why)
    finally:
        task.cancel()


async def _why(world: wl.World) -> str:
    try:
        found = await reasons.why(world._handle)
    except BaseException as error:  # noqa: BLE001 - the world is hostile to those who look, too
        return f"why: {type.__getattribute__(type(error), '__qualname__')}"
    return "; ".join(f"{each.kind}: {each.what} {each.error}"[:300] for each in found.reasons) or found.note


async def _do(world: wl.World, act: Act, begun: dict[str, Any]) -> bool | None:
    """Whether an act came out well. None: it has no end, and may have none."""
    try:
        match act:
            case Send():
                sent = await world._handle.send(act.schema, act.data, to=act.to)
                return await _taken(world, (await world_answers.taken(world._universe, sent)).height)
            case Ask():
                await world._handle.ask(act.schema, act.data)
            case Run():
                begun[act.id] = act.call
                if act.begun:
                    _ = await world.start(act.call, id=act.id)
                    return None
                await world.run(act.call, id=act.id)
            case Cancel():
                await world._handle.command(control_commands.CANCEL, control_commands.CancelRun(act.id, "enough"))
                if not act.ends:
                    return None
                await world.run(begun[act.id], id=act.id)
            case Door():
                made = act.make()
                await (world.run(made) if isinstance(made, wl.Call) else world.send(made))
    except errors.Error:
        return False
    return True


async def _taken(world: wl.World, height: int) -> bool:
    entries = await world.journal(above=height - 1, limit=64)
    return not any(each.kind in BAD for each in entries if each.step == entries[0].step)


class Innocents:
    """Asks the innocent worlds in turn, and keeps how long each answer took."""

    def __init__(self, universe: wl.Universe) -> None:
        self._universe = universe
        self.seconds: list[float] = []
        self.lag_seconds = 0.0  # how late this process itself was, at most
        self.asked = [0] * innocent.WORLDS
        self.wrong: list[str] = []
        self._worlds: list[wl.World] = []

    async def begin(self) -> None:
        """Make the worlds, and let each answer once before anything hostile happens."""
        for number in range(innocent.WORLDS):
            self._worlds.append(await self._universe.create(innocent.name(number), innocent.app))
        await asyncio.gather(*(self._ask(number) for number in range(innocent.WORLDS)))
        self.seconds.clear()

    async def ask_on(self) -> None:
        """Until it is cancelled."""
        for number in itertools.cycle(range(innocent.WORLDS)):
            await self._ask(number)
            began = time.monotonic()
            await asyncio.sleep(0.02)
            self.lag_seconds = max(self.lag_seconds, time.monotonic() - began - 0.02)

    async def _ask(self, number: int) -> None:
        world = self._worlds[number]
        self.asked[number] += 1
        began = time.monotonic()
        try:
            total = await world.ask(innocent.Add(1), timeout=60)
        except TimeoutError:
            self.wrong.append(f"{world.name} did not answer for a minute")
            total = 0
        self.seconds.append(time.monotonic() - began)
        if total != self.asked[number]:
            self.wrong.append(f"{world.name} answered {total}, not {self.asked[number]}")

    def percentile(self, part: float) -> float:
        ordered = sorted(self.seconds)
        return 0.0 if not ordered else ordered[min(len(ordered) - 1, int(part * len(ordered)))]
