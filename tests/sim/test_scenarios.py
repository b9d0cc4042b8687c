"""Users' own programs: scenarios from files and at hand, and what is said of those that fail."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import worldline as wl
from examples import lost_update
from worldline import testing
from worldline.sim import campaign, seed_run, shrinker, suite
from worldline.sim.faults import profiles
from worldline.sim.load import scenarios

app = wl.Program("pair")


@dataclass(frozen=True)
class Came:
    name: str


@app.reducer()
@dataclass
class Guests:
    count: int = 0

    @wl.on
    def came(self, event: Came) -> None:
        self.count += 1


@app.effect(timeout=1)
async def weather(town: str) -> str:
    with socket.socket():
        return town


@app.workflow
async def ask_weather(town: str) -> str:
    return await weather(town)


async def one_guest(universe: wl.Universe) -> AsyncIterator[None]:
    world = await universe.ensure("door", app)
    await world.send(Came("ada"), id="ada")
    yield
    assert (await world.state(Guests)).count == 1


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are made a little smaller only: `test_ablations.py` makes them as small as can be."""
    monkeypatch.setattr(shrinker, "shrink", functools.partial(shrinker.shrink, runs_max=4))


def test_a_scenario_that_holds_says_nothing() -> None:
    testing.simulate(one_guest, program=app, seeds=5)


def test_a_scenario_may_change_what_its_universe_may_have() -> None:
    """What is appended to a log of a universe is no input of a world (J1)."""

    async def bounded(universe: wl.Universe) -> None:
        assert await universe.set_quota(worlds=100)
        assert [each.quota.worlds for each in await universe.quota_changes()] == [100]

    testing.simulate(bounded, program=app, seeds=1, profile="calm")


@pytest.mark.usefixtures("few_runs")
def test_a_race_is_found_and_its_correction_holds() -> None:
    with pytest.raises(testing.Broken, match="in the till") as found:
        testing.simulate(lost_update.scenario, program=lost_update.app, seeds=1_000)
    assert found.value.invariant == "scenario"
    assert f"seed={found.value.seed}, seeds=1" in str(found.value)
    testing.simulate(lost_update.fixed, program=lost_update.app, seeds=3, seed=found.value.seed)
    testing.simulate(lost_update.scenario, program=lost_update.app, seeds=2, profile="calm")


def test_what_a_scenario_raises_is_its_verdict_with_the_line() -> None:
    async def impatient(universe: wl.Universe) -> None:
        await universe.world("nobody").send(Came("ada"))

    with pytest.raises(testing.Broken, match=r"breaks scenario: line \d+: NotFound: no world 'nobody'"):
        testing.simulate(impatient, program=app, seeds=1)


@pytest.mark.usefixtures("few_runs")
def test_a_scenario_that_never_ends_breaks_liveness() -> None:
    async def endless(universe: wl.Universe) -> None:
        del universe
        await asyncio.get_running_loop().create_future()

    with pytest.raises(testing.Broken, match=r"breaks V[13]: .*'scenario'"):
        testing.simulate(endless, program=app, seeds=1, profile="calm")


def test_a_script_answers_for_the_outside() -> None:
    async def sunny(universe: wl.Universe) -> None:
        world = await universe.ensure("door", app)
        assert await world.run(ask_weather("Lisbon"), id="weather") == "sun"

    script = wl.Script().on(weather, ConnectionError, "sun")
    testing.simulate(sunny, program=app, seeds=5, script=script)


def test_the_real_outside_is_refused_and_named() -> None:
    async def outside(universe: wl.Universe) -> None:
        world = await universe.ensure("door", app)
        _ = await world.start(ask_weather("Lisbon"), id="weather")

    with pytest.raises(testing.Broken, match=r"breaks BUG: socket\.socket is not part of the simulation"):
        testing.simulate(outside, program=app, seeds=1, profile="calm")


def test_a_scenario_is_an_async_function_with_one_yield() -> None:
    def plain(universe: wl.Universe) -> None:
        del universe

    async def twice(universe: wl.Universe) -> AsyncIterator[None]:
        del universe
        yield
        yield

    with pytest.raises(wl.BadInput, match="async def scenario"):
        testing.simulate(plain, program=app, seeds=1)  # type: ignore[arg-type]
    with pytest.raises(testing.Broken, match="one `yield`"):
        testing.simulate(twice, program=app, seeds=1)


def test_a_scenario_at_hand_and_from_its_file_is_the_same_run() -> None:
    loaded = campaign.load(campaign.CampaignJob(f"{lost_update.__file__}:fixed"))
    at_hand = suite.of(scenarios.Scenario([lost_update.app], lost_update.fixed))
    assert seed_run.run(5, loaded).trace == seed_run.run(5, at_hand).trace


RAISING = """
import worldline as wl

app = wl.Program("raising")


@app.workflow
async def fails() -> None:
    raise ValueError("as it must")


async def scenario(universe: wl.Universe) -> None:
    world = await universe.ensure("w", app)
    run = await world.start(fails(), id="r")
    try:
        await run.result()
    except wl.RunFailed:
        return
"""


def test_a_seed_is_the_same_run_wherever_the_users_file_stands(tmp_path: Path) -> None:
    """Tracebacks are stored, with the file that raised."""
    traces = []
    for folder in ("here", "somewhere_else"):
        file = tmp_path / folder / "app.py"
        file.parent.mkdir()
        file.write_text(RAISING)
        result = seed_run.run(0, campaign.load(campaign.CampaignJob(str(file))))
        assert result.failures == []
        traces.append(result.trace)
    assert traces[0] == traces[1]


def test_nothing_of_another_suite_is_in_a_users_run() -> None:
    """Seeds that draw forgers, flow domains and programs that change ran their hosts beside the user's program: some of
    them ended with a `KeyError`, and cells of a user's flow domains were as small as those of the project's own.
    """
    drawn = {each: profiles.draw(each) for each in range(100)}
    made = suite.of(scenarios.Scenario([app], one_guest))
    for field in ("forgers", "flows", "fragile", "abroad"):
        seed = next(each for each, profile in drawn.items() if getattr(profile, field))
        result = seed_run.run(seed, made)
        assert result.failures == []
        assert result.trace == seed_run.run(seed, made, profile=profiles.changed(drawn[seed], f"{field}=0")).trace
