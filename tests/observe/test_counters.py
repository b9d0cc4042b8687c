"""What a process tells its own sinks: counters that are read and set back, dispositions, the life of the host."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import worldline as wl
from tests.roles.conftest import memory_kit
from tests.roles.kit import Kit
from worldline.observe import sinks

__all__ = ["memory_kit"]


@dataclass(frozen=True)
class Unknown:
    number: int


def program() -> wl.Program:
    app = wl.Program("p")

    @app.effect(retry=wl.Retry(attempts=2, initial_delay=0.01))
    async def fetch(key: str) -> str:
        if wl.attempt().number == 1 or key == "never":
            raise OSError("no line")
        return key

    @app.workflow
    async def go(key: str) -> str:
        await wl.sleep(0.001)
        return await fetch(key)

    @app.workflow
    async def waits() -> str:
        try:
            await wl.wait(Unknown)
        except wl.Cancelled as cancelled:
            return f"{cancelled.kind.name}: {cancelled.reason}"
        return "never"

    return app


async def test_counters_are_read_and_set_back(memory_kit: Kit) -> None:
    app, counters = program(), wl.Counters()
    with sinks.observed(wl.Sinks(metrics=counters)) as observed:
        async with memory_kit.hosting(app, observed=observed) as universe:
            world = await universe.ensure("w", app)
            assert await world.run(app.workflows["go"]("a"), timeout=20) == "a"
            first = counters.snapshot()
            steps = counters.value("worldline_steps_total")
            assert steps >= 3
            assert [each.name for each in first] == sorted(each.name for each in first)
            lasted = [each for each in first if each.kind == "histogram"]
            assert all(each.most <= each.value and each.count >= 1 for each in lasted)
            assert {each.name for each in first} <= {each.name for each in counters.reset()}
            assert counters.value("worldline_steps_total") == 0
            assert await world.run(app.workflows["go"]("b"), timeout=20) == "b"
            assert 0 < counters.value("worldline_steps_total") <= steps
            tried = counters.value("worldline_effect_attempts_total", outcome="retried")
            assert tried == 1


async def test_dispositions_are_told(memory_kit: Kit) -> None:
    app = program()
    disposed: list[wl.Disposed] = []
    with sinks.observed(wl.Sinks(disposed=disposed.append)) as observed:
        async with memory_kit.hosting(app, observed=observed) as universe:
            world = await universe.ensure("w", app)
            assert await world.run(app.workflows["go"]("a"), timeout=20) == "a"
            with pytest.raises(wl.RunFailed):
                await world.run(app.workflows["go"]("never"), timeout=20)
            _ = await world.send(Unknown(1))
            await world.snapshot()
    effects = [(each.name, each.attempt, each.outcome) for each in disposed if each.kind == "effect"]
    assert effects == [("fetch", 1, "retried"), ("fetch", 2, "ok"), ("fetch", 1, "retried"), ("fetch", 2, "error")]
    assert len({each.id for each in disposed if each.kind == "effect"}) == 2
    assert [each.outcome for each in disposed if each.kind == "timer"] == ["fired", "fired"]
    [letter] = [each for each in disposed if each.kind == "input"]
    assert (letter.outcome, "Unknown" in letter.message) == ("dead_letter", True)


async def test_the_life_of_a_host_is_told(memory_kit: Kit) -> None:
    app = program()
    told: list[wl.HostEvent] = []
    with sinks.observed(wl.Sinks(host=told.append)) as observed:
        process = await memory_kit.process(app, observed=observed)
        universe = process.universe
        world = await universe.ensure("w", app)
        assert await world.run(app.workflows["go"]("a"), timeout=20) == "a"
        await process.close()
    assert [each.kind for each in told] == ["started", "closing", "closed"]
    assert len({each.worker for each in told}) == 1
    assert (told[1].worlds, told[2].worlds) == (1, 0)


@pytest.mark.parametrize("kind", [wl.CancelKind.USER, wl.CancelKind.POLICY, wl.CancelKind.HOST])
async def test_a_run_is_told_what_cancels_it(memory_kit: Kit, kind: wl.CancelKind) -> None:
    app = program()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        run = await world.start(app.workflows["waits"](), id="r")
        for wrong in (wl.CancelKind.TIMEOUT, "policy", 1):
            with pytest.raises(wl.BadInput, match=r"CancelKind\.POLICY"):
                await run.cancel("no", kind=wrong)  # type: ignore[arg-type]
        await run.cancel("enough", kind=kind)
        assert await run.result(20) == f"{kind.name}: enough"
