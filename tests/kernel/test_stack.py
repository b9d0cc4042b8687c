"""How deep user code may recurse: the same from whatever depth a step is made, in any thread, live or rebuilt."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import worldline as wl
from worldline import testing
from worldline.host.feature_list import PARTS
from worldline.kernel import step as kernel_step
from worldline.kernel import user_values
from worldline.kernel.execution import coroutines
from worldline.kernel.machine import Machine
from worldline.model import ids, inbox, payload, step_records

HOME = ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(b"w" * 16))
app = wl.Program("deep")
depths: list[int] = []


def depth(n: int = 0) -> int:
    """How deep it goes."""
    try:
        return depth(n + 1)
    except RecursionError:
        return n


def endless() -> int:
    return endless() + 1


@dataclasses.dataclass(frozen=True)
class Deep:
    n: int


@dataclasses.dataclass(frozen=True)
class Raise:
    n: int


@dataclasses.dataclass(frozen=True)
class Endless:
    n: int


@app.reducer()
@dataclasses.dataclass
class Depths:
    n: int = 0

    @wl.on
    def deep(self, event: Deep) -> None:
        self.n = depth()

    @wl.on
    def again(self, event: Raise) -> None:
        wl.emit(Deep(1))

    @wl.on
    def endless(self, event: Endless) -> None:
        endless()


def fits(event: Deep) -> bool:
    depths.append(depth())
    return event.n < 0


@app.workflow
async def flow() -> None:
    depths.append(depth())
    await wl.sleep(1)
    depths.append(depth())
    await wl.wait(Deep, where=fits)


def measure() -> int:
    machine = Machine(app)
    data = user_values.dump(Deep(1))
    kernel_step.step(
        machine,
        step_records.Input(inbox.InboxEvent("Deep", payload.inline(data)), data),
        step_records.StepContext(HOME, 1, 1),
        PARTS,
    )
    found: int = machine.cells["Depths", ""].value.n
    return found


def nested(frames: int, do: Callable[[], Any]) -> Any:
    return do() if frames == 0 else nested(frames - 1, do)


def test_a_handler_has_the_same_room_everywhere() -> None:
    limit = sys.getrecursionlimit()
    with ThreadPoolExecutor(1) as thread:
        room = thread.submit(measure).result()
        assert room > limit - 100
        for frames in (1, 5, 10, 30):
            assert thread.submit(nested, frames, measure).result() == room
    here = measure()  # some frames of C code, which a test's own thread has, may be counted by Python
    for frames in (1, 20, 200):
        assert nested(frames, measure) == here
    with testing.world(app) as world:
        for event in (Deep(1), Raise(1)):
            world.send(event)
            assert world.state(Depths).n == here
        world.prove()
    assert sys.getrecursionlimit() == limit


def test_a_run_has_the_same_room_when_it_is_rebuilt() -> None:
    depths.clear()
    with testing.world(app, drops=False, twice=False) as world:
        world.start(flow(), id="r")
        world.advance(2)
        run = world.machine.runs["r"]
        live = list(depths)
        nested(17, lambda: coroutines.rebuild(world.machine, run))
        assert depths == live * 2
        for _ in range(2):
            world.send(Deep(1))
        run.cool()
        world.send(Deep(1))
    assert depths[:4] == depths[:1] * 4
    assert depths[4:6] == depths[4:5] * 2


def test_code_that_recurses_for_ever_fails() -> None:
    with testing.world(app) as world:
        for _ in range(2):
            try:
                world.send(Endless(1))
            except testing.NotTaken as error:
                assert str(error).endswith("RecursionError: maximum recursion depth exceeded")  # noqa: PT017
        world.send(Deep(1))
        world.prove()
