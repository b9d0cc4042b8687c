"""A program with something of every kind open, in virtual time, and what becomes of it in forks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import worldline as wl
from worldline import testing
from worldline.kernel import state_rows

ROOM = 8  # of a step, for effects
COUNT = 2 * ROOM + 5
OPEN = "was open when this world was forked from 'test'"
KEYS: list[str] = []  # the idempotency keys that `charge` was called with


@dataclass(frozen=True)
class Added:
    cents: int


@dataclass(frozen=True)
class Balance(wl.Request[int]):
    pass


app = wl.Program("forks")


@app.reducer
@dataclass
class Till:
    cents: int = 0
    drawn: int = 0

    @wl.on
    def added(self, event: Added) -> None:
        self.cents += event.cents
        self.drawn = wl.random().randrange(2**32)

    @wl.on
    def balance(self, request: Balance) -> int:
        return self.cents


@app.effect(retry=wl.Retry(attempts=2, initial_delay=1, on_exhausted="park"))
async def charge(order: str) -> str:
    return order


@app.workflow
async def charges(order: str) -> str:
    return await charge(order)


@app.workflow
async def many(count: int) -> int:
    return len(await wl.gather(*(charge(f"o{n}") for n in range(count))))


@app.workflow
async def patient(count: int) -> list[str]:
    """Says what became of each."""
    started = [wl.start(charge(f"o{n}")) for n in range(count)]
    said = []
    for each in started:
        try:
            said.append(await each)
        except wl.EffectFailed as error:
            said.append(error.code)
    return said


@app.workflow
async def asks() -> int:
    return await wl.ask("bank", Balance())


@app.workflow
async def tells() -> str:
    await wl.send("bank", Added(1))
    return "told"


@app.workflow
async def asks_away() -> int:
    return await wl.ask("city/bank", Balance())


@app.workflow
async def tells_away() -> str:
    await wl.send("city/bank", Added(1))
    return "told"


@app.workflow
async def naps(seconds: int) -> str:
    await wl.sleep(seconds)
    return wl.now().strftime("%M:%S")


@app.workflow
async def parent() -> str:
    return f"child at {await naps(30)}"


@app.workflow
async def hurries() -> str:
    async with wl.scope(timeout=20) as scope:
        await wl.sleep(90)
    return f"timed out: {scope.timed_out}"


@app.workflow
async def waits() -> int:
    return (await wl.wait(Added)).cents


@app.workflow
async def rings() -> None:
    wl.after(40, Added(100))
    await wl.sleep(1)


@app.workflow
async def chooses() -> list[str]:
    said = [wl.uuid().hex]
    await wl.sleep(5)
    said.append(wl.uuid().hex)
    await wl.sleep(5)
    return [*said, wl.uuid().hex]


@app.workflow
async def keyed(order: str) -> str:
    return await charge.options(key=f"key-{order}")(order)


def answer(order: str) -> str:
    KEYS.append(wl.attempt().key)
    return f"paid {order}"


def script(seconds: float = 10) -> wl.Script:
    return wl.Script().on(charge, wl.Script.later(seconds, answer))


RULES: list[dict[str, Any]] = [
    {"effect": "charge", "answer": "scripted"},
    {"ask": "bank", "arguments": {"event": "Balance"}, "answer": 7},
    {"ask": "city/bank", "arguments": {"event": "Balance"}, "answer": 7},
]


def outcome(world: testing.TestWorld, run: str = "r") -> Any:
    """The result of a run, why it failed, or why it waits."""
    try:
        result = world.attach(run).result()
    except wl.RunFailed as error:
        result = str(error)
    except testing.Stuck as stuck:
        result = str(stuck)
    return result


def check(*worlds: testing.TestWorld) -> None:
    """Nothing of a parent's is left unsettled, and everything comes out the same again, also from the rows."""
    for world in worlds:
        before = state_rows.save(world.machine)
        world.crash()
        assert state_rows.save(world.machine) == before, "the rows of its steps are those of the machine"
        world.prove()
        branch = world.machine.branch
        assert branch is None or not branch.unsettled


@app.workflow
async def then_waits() -> int:
    await charge("a")
    return (await wl.wait(Added)).cents


def last_of_first_step(world: testing.TestWorld) -> int:
    return max(each.height for each in world.journal() if each.step == 1)
