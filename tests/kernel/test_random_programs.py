"""Random workflows under random disturbance end as their undisturbed twins do, byte for byte.

A plan is data: a small language of everything a workflow can do, which one workflow interprets. A life is a list of
things done to a world: runs started and cancelled, events sent, time passed, effects answered in an order drawn from a
seed. The twin lives it undisturbed; the other is thrown away and restored at random entries, its coroutines are dropped
at random, and every step of it is done twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import hypothesis
from hypothesis import strategies as st

import worldline as wl
from tests import options
from worldline import testing
from worldline.kernel import state_rows

EXAMPLES = options.number("examples")
Plan = list[Any]

app = wl.Program("random")


@dataclass(frozen=True)
class Ping:
    number: int


@dataclass(frozen=True)
class Count(wl.Request[int]):
    by: int


@app.reducer()
@dataclass
class Heard:
    total: int = 0

    @wl.on
    def ping(self, event: Ping) -> None:
        self.total += event.number
        if event.number % 5 == 4:
            wl.emit(Ping(event.number + 1))
        if event.number % 7 == 6:
            wl.after(3, Ping(1))
            _ = wl.start(interpret([["sleep", 1], ["state"]], 0))

    @wl.on
    def count(self, event: Count) -> int:
        if event.by == 0:
            raise wl.Refused("by nothing")
        self.total += event.by
        return self.total


@app.effect(timeout=20, retry=wl.Retry(attempts=3, initial_delay=1))
async def outside(number: int) -> int:
    return number


def answer(number: int) -> int:
    """Fails for good, fails at first, or answers: by its argument and attempt alone."""
    if number % 5 == 4:
        raise wl.Fatal("never", code="fatal")
    if wl.attempt().number <= number % 3:
        raise ConnectionError("not yet")
    return number * 10


@app.workflow
async def interpret(plan: Plan, depth: int) -> list[Any]:
    said: list[Any] = []
    await follow(plan, depth, said, [])
    return said


async def follow(plan: Plan, depth: int, said: list[Any], started: list[Any]) -> None:
    for index, (what, *rest) in enumerate(plan):
        try:
            await do(what, rest, depth, said, started)
        except (wl.EffectFailed, wl.RunFailed, TimeoutError, wl.Refused, KeyError) as error:
            said.append(f"{type(error).__name__}")
            if what == "again" and depth < 2:
                wl.continue_as_new(interpret(plan[index + 1 :], depth + 1))


async def do(what: str, rest: list[Any], depth: int, said: list[Any], started: list[Any]) -> None:
    match what, rest:
        case "effect", [number]:
            said.append(await outside(number))
        case "sleep", [seconds]:
            await wl.sleep(seconds)
            said.append(wl.now().timestamp())
        case "wait", [timeout, odd]:
            event = await wl.wait(Ping, where=lambda each: each.number % 2 == odd, timeout=timeout)
            said.append(event.number)
        case "gather", [numbers]:
            said += await wl.gather(*[outside(number) for number in numbers])
        case "children", [plans] if depth < 3:
            said += await wl.gather(*[interpret(plan, depth + 1) for plan in plans], grace=4)
        case "start", [plan] if depth < 3:
            started.append(wl.start(interpret(plan, depth + 1)))
        case "start effect", [number]:
            started.append(wl.start(outside(number)))
        case "await", []:
            if started:
                said.append(await started[-1])
        case "give up", []:
            if started:
                started.pop().cancel("not wanted")
        case "scope", [timeout, shield, inner, grace]:
            await in_scope(timeout, shield, grace, inner, depth, said)
        case "tidy", [seconds]:
            try:
                await wl.sleep(9)
            except wl.Cancelled as cancelled:
                await wl.sleep(seconds)
                said.append(cancelled.kind.name)
                wl.emit(Ping(seconds))
                raise
        case "try", [inner, last]:
            try:
                await follow(inner, depth, said, started)
            finally:
                await follow(last, depth, said, started)
        case "raise", []:
            raise KeyError("planned")
        case "again", []:
            raise KeyError("again")
        case _:
            at_once(what, rest, said)


async def in_scope(
    timeout: int | None, shield: bool, grace: int | None, inner: Plan, depth: int, said: list[Any]
) -> None:
    async with wl.scope(timeout=timeout, shield=shield, grace=grace) as scope:
        started: list[Any] = []
        if inner and depth < 3:
            started = [scope.start(interpret(inner[:1], depth + 1)), scope.start(outside(len(inner)))]
        await follow(inner, depth, said, started)
        if len(inner) > 2:
            scope.cancel("long enough")
            await wl.sleep(1)
    said.append(f"left {scope.timed_out}")


def at_once(what: str, rest: list[Any], said: list[Any]) -> None:
    match what, rest:
        case "emit", [number]:
            wl.emit(Ping(number))
        case "after", [seconds]:
            wl.after(seconds, Ping(seconds))
        case "state", []:
            said.append(wl.state(Heard).total)
        case "draw", []:
            said += [wl.random().randint(0, 99), str(wl.uuid())[:4], wl.patched("x")]


NUMBERS = st.integers(0, 9)
SECONDS = st.integers(0, 12)
LEAVES = st.one_of(
    st.tuples(st.just("effect"), NUMBERS),
    st.tuples(st.just("sleep"), SECONDS),
    st.tuples(st.just("tidy"), SECONDS),
    st.tuples(st.just("wait"), st.none() | SECONDS, st.integers(0, 1)),
    st.tuples(st.just("gather"), st.lists(NUMBERS, max_size=4)),
    st.tuples(st.just("start effect"), NUMBERS),
    st.tuples(st.just("emit"), NUMBERS),
    st.tuples(st.just("after"), SECONDS),
    st.sampled_from([("await",), ("give up",), ("raise",), ("again",), ("state",), ("draw",)]),
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    plans = st.lists(inner, max_size=3)
    return st.one_of(
        st.tuples(st.just("scope"), st.none() | SECONDS, st.booleans(), plans, st.none() | SECONDS),
        st.tuples(st.just("children"), st.lists(plans, max_size=3)),
        st.tuples(st.just("start"), plans),
        st.tuples(st.just("try"), plans, plans),
    )


PLANS = st.lists(st.recursive(LEAVES, nested, max_leaves=8), min_size=1, max_size=5)
ACTS = st.one_of(
    st.tuples(st.just("run"), PLANS),
    st.tuples(st.just("run"), PLANS),
    st.tuples(st.just("send"), NUMBERS, st.none() | st.integers(0, 3)),
    st.tuples(st.just("cancel"), st.integers(0, 3)),
    st.tuples(st.just("advance"), SECONDS),
    st.tuples(st.just("ask"), st.integers(0, 2)),
)


def live(world: testing.TestWorld, acts: list[Any], *, until: int = 300, prefix: str = "run") -> list[Any]:
    runs: list[testing.TestRun[Any]] = []
    said: list[Any] = []
    for what, *rest in acts:
        try:
            match what, rest:
                case "run", [plan]:
                    runs.append(world.start(interpret(plan, 0), id=f"{prefix}{len(runs)}"))
                case "send", [number, to]:
                    world.send(Ping(number), to=runs[to].id if to is not None and to < len(runs) else None)
                case "cancel", [number] if number < len(runs):
                    runs[number].cancel("by hand")
                case "advance", [seconds]:
                    world.advance(seconds)
                case "ask", [by]:
                    said.append(world.ask(Count(by)))
        except (testing.NotTaken, wl.Refused) as error:
            said.append(str(error))
    world.advance(until)
    return [*said, *(run.status.name for run in runs)]


@hypothesis.settings(max_examples=EXAMPLES)
@hypothesis.given(
    acts=st.lists(ACTS, min_size=2, max_size=9),
    seed=st.integers(0, 1000),
    crashes=st.lists(st.integers(1, 120), max_size=4, unique=True),
)
def test_a_disturbed_life_ends_as_an_undisturbed_one(acts: list[Any], seed: int, crashes: list[int]) -> None:
    script = wl.Script().on(outside, answer)
    with testing.world(app, script, seed=seed, shuffle=True, drops=False, twice=False) as twin:
        said = live(twin, acts)
        twin.prove()
    with testing.world(app, script, seed=seed, shuffle=True) as world:
        for height in crashes:
            world.crash(at=height)
        assert live(world, acts) == said
        assert world.head == twin.head
        assert state_rows.save(world.machine) == state_rows.save(twin.machine)
