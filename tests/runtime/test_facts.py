"""What roles tell: facts add up to what the journal has, and whoever listens hurts nobody."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Count
from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.child import Add, Counter
from tests.kits.child import app as counting
from tests.kits.kit import Kit
from tests.kits.pausing import Pausing
from worldline.client import world_answers
from worldline.host.feature_list import PARTS
from worldline.kernel import replay as replays
from worldline.kernel.machine import Machine
from worldline.model.journal import JournalEntry, Kind
from worldline.model.settings import Settings
from worldline.observe import measures as measured
from worldline.observe import metric_list, sinks
from worldline.runtime import facts as telemetry
from worldline.runtime import role_loop
from worldline.testing import loopless

PATIENT = Settings()  # nothing runs out on a machine that is slow for a moment, so everything can be counted


@dataclass(frozen=True)
class Poison:
    why: str


def program() -> wl.Program:
    app = wl.Program("p")

    @app.reducer()
    @dataclass
    class Touchy:
        seen: int = 0

        @wl.on
        def poison(self, event: Poison) -> None:
            if event.why:
                raise ValueError(event.why)
            self.seen += 1

    @app.effect(retry=wl.Retry(attempts=3, initial_delay=0.01))
    async def stubborn() -> int:
        if wl.attempt().number < 3:
            raise ConnectionError("not yet")
        return wl.attempt().number

    @app.effect(retry=wl.Retry(attempts=1))
    async def broken() -> None:
        raise wl.Fatal("never")

    @app.workflow
    async def go() -> int:
        await wl.sleep(0.02)
        try:
            await broken()
        except wl.EffectFailed:
            return await stubborn()
        return 0

    return app


def listening(*listeners: telemetry.Listener) -> sinks.Observed:
    return sinks.Observed(telemetry.Telling([(f"listener {i}", each) for i, each in enumerate(listeners)]))


async def live(universe: wl.Universe, app: wl.Program) -> list[JournalEntry]:
    """A world with something of everything. Returns its journal."""
    world = await universe.ensure("w", app)
    await aio.journaled(await world.send(Poison("")), 10)
    await aio.journaled(await world.send(Poison("it burns")), 10)
    await world_answers.taken(universe._connection, await world._handle.send("Unknown", b"\xa0"))
    [go] = app.workflows.values()
    assert await world.run(go(), timeout=30) == 3
    return await kits.entries(world)


async def test_facts_add_up_to_what_the_journal_has(kit: Kit) -> None:
    app, meter = program(), measured.Meter()
    process = await kit.process(app, settings=PATIENT, observed=listening(meter.tell))
    found = await live(process.universe, app)
    kinds = Count(entry.kind for entry in found)
    inputs = {
        Kind.EVENT: "event",
        Kind.CONTROL: "control",
        Kind.EFFECT_RESULT: "effect_result",
        Kind.TIMER_FIRED: "timer_fired",
    }
    for kind, name in inputs.items():
        assert meter.value("worldline_inputs_total", name) == kinds[kind] > 0, name
    for kind, name in {Kind.HANDLER_FAILED: "handler_failed", Kind.UNDECODABLE_INPUT: "undecodable_input"}.items():
        assert meter.value("worldline_inputs_bad_total", name) == kinds[kind], name
    assert kinds[Kind.HANDLER_FAILED] == 1
    at = await process.universe.world("w")._handle.address()
    letters = await kits.dead(process.engine, at)
    assert meter.value("worldline_dead_letters_total") == len(letters) >= 1
    assert meter.value("worldline_steps_total") == found[-1].step
    assert meter.value("worldline_entries_total") == found[-1].height
    taken = [meter.value("worldline_inputs_taken_total", via) for via in ("inbox", "handover")]
    assert sum(taken) == found[-1].step
    assert meter.value("worldline_input_wait_seconds") == found[-1].step
    assert meter.value("worldline_inputs_entered_total", "handover") == 4
    assert meter.value("worldline_commits_total") == meter.value("worldline_commit_steps") > 0
    assert meter.value("worldline_failovers_total") == 0, "no holder has died"
    assert meter.value("worldline_cycles_total") >= meter.value("worldline_commits_total")

    assert meter.value("worldline_effects_opened_total", "stubborn") == 1
    assert meter.value("worldline_effects_opened_total", "broken") == 1
    claims = [meter.value("worldline_effects_claimed_total", via) for via in ("commit", "queue")]
    assert claims == [2, 2], "both come with their commit; the retries come from the queue"
    for series, expected in {("stubborn", "retried"): 2, ("stubborn", "ok"): 1, ("broken", "error"): 1}.items():
        assert meter.value("worldline_effect_attempts_total", *series) == expected, series
    assert meter.value("worldline_effects_answered_total", "stubborn", "ok") == 1
    assert meter.value("worldline_effects_answered_total", "broken", "error") == 1
    assert meter.value("worldline_effect_seconds", "stubborn") == 1
    assert meter.value("worldline_timers_set_total") == meter.value("worldline_timers_fired_total") == 1
    assert meter.value("worldline_timer_late_seconds") == 1

    assert meter.value("worldline_leases_acquired_total") == meter.value("worldline_restore_seconds") == 1
    assert meter.value("worldline_heartbeat_seconds") >= 1
    assert meter.value("worldline_store_batches_total", "ok") >= meter.value("worldline_commits_total")
    await process.close()
    assert meter.value("worldline_leases_released_total") == 1
    assert meter.value("worldline_snapshots_total") == meter.value("worldline_snapshot_bytes") >= 1


async def test_a_lost_lease_and_a_late_life_sign_are_told(kit: Kit) -> None:
    meter = measured.Meter()
    made: list[Pausing] = []

    def wrap(engine: Any) -> Pausing:
        made.append(Pausing(engine))
        return made[-1]

    first = await kit.process(counting, wrap=wrap, observed=listening(meter.tell))
    world = await first.universe.ensure("w", counting)
    assert await world.ask(Add(1), timeout=10) == 1
    second = await kit.process(counting)
    asked = asyncio.ensure_future(world.ask(Add(10), timeout=30))
    await asyncio.sleep(0)
    made[0].pause()
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.2)
    await second.universe.world("w").ask(Add(100), timeout=10)
    made[0].resume()
    await asked

    async def told() -> bool:
        fenced = meter.value("worldline_worlds_dropped_total", "fenced")
        return fenced + meter.value("worldline_self_fences_total") >= 1

    await aio.until(told)


async def test_a_role_in_trouble_says_so(memory_kit: Kit) -> None:
    facts: list[telemetry.Fact] = []
    turns = 0

    async def tick() -> None:
        nonlocal turns
        turns += 1
        raise wl.errors.Conflicted("again") if turns == 1 else ZeroDivisionError("a bug")

    telling = telemetry.Telling([("all", facts.append)])
    role = role_loop.Loop("role", tick, memory_kit.env, telemetry=telling)
    role.start()
    with pytest.raises(ZeroDivisionError):
        await role.join()
    told = [(fact.code, fact.bug) for fact in facts if isinstance(fact, telemetry.Troubled)]
    assert told == [("conflicted", False), ("ZeroDivisionError", True)]
    assert [notice.kind for fact in facts for notice in sinks.notices(fact)] == ["role_error"] * 2


@pytest.mark.probe("telemetry.listener-failed")
async def test_sinks_that_raise_hurt_no_world(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    def explode(_: Any) -> None:
        raise RuntimeError("the sink is full")

    def cancel(_: Any) -> None:
        raise asyncio.CancelledError

    app = program()
    caplog.set_level(logging.WARNING, logger="worldline.telemetry")
    with sinks.observed(wl.ops.Sinks(metrics=explode, log=explode, replay=cancel), features=()) as observed:
        async with kit.hosting(app, observed=observed) as universe:
            found = await live(universe, app)
            await kits.prove(universe.world("w"), app)
    assert found[-1].step > 5
    assert sorted(observed.telemetry.failures) == ["log", "metrics", "replay"]
    assert min(observed.telemetry.failures.values()) > 1
    said = [record.getMessage() for record in caplog.records if record.name == "worldline.telemetry"]
    assert sorted(line.split()[1] for line in said) == ["log", "metrics", "replay"], "each is said once"


async def test_what_the_replay_hook_gets_can_be_replayed(kit: Kit) -> None:
    captured: list[wl.ops.Journaled] = []
    app = program()
    with sinks.observed(wl.ops.Sinks(replay=captured.append), features=()) as observed:
        async with kit.hosting(app, settings=PATIENT, observed=observed) as universe:
            found = await live(universe, app)
            head = await universe.world("w").head()
            at = await universe.world("w")._handle.address()
    assert [entry for each in captured for entry in each.entries] == found
    assert [each.entries[0].step for each in captured] == list(range(1, head.step + 1)), "once for each step, in order"
    assert {(each.address, each.name) for each in captured} == {(at, "w")}
    machine = Machine(app)
    for each in captured:
        with loopless.loopless():
            replays.check(machine, each.entries, at, lambda carried: carried.inline or b"", PARTS)
    assert machine.state == head.state
    machine.close()


async def test_the_log_sink_gets_what_operators_want_to_know(memory_kit: Kit) -> None:
    notices: list[wl.ops.Notice] = []
    app = program()
    with sinks.observed(wl.ops.Sinks(log=notices.append), features=()) as observed:
        async with memory_kit.hosting(app, settings=PATIENT, observed=observed) as universe:
            await live(universe, app)
            at = await universe.world("w")._handle.address()
    kinds = Count(notice.kind for notice in notices)
    assert kinds["lease_acquired"] == kinds["lease_released"] == 1
    assert kinds["effect_failed"] == 1
    assert kinds["effect_retried"] == 2
    assert kinds["dead_letter"] >= 1
    dead = next(notice for notice in notices if notice.kind == "dead_letter")
    assert dead.world == at.world.hex()
    assert dead.step > 0
    assert "burns" in dead.message


async def test_the_metrics_sink_gets_every_measurement(memory_kit: Kit) -> None:
    measures: list[wl.ops.Measure] = []
    with sinks.observed(wl.ops.Sinks(metrics=measures.append), features=()) as observed:
        async with memory_kit.hosting(counting, settings=PATIENT, observed=observed) as universe:
            world = await universe.ensure("w", counting)
            for _ in range(5):
                await world.ask(Add(1), timeout=10)
            assert (await world.state(Counter)).total == 5
            head = await world.head()
    added: Count[str] = Count()
    for measure in measures:
        assert metric_list.METRICS[measure.name].kind == measure.kind
        assert tuple(measure.labels) == metric_list.METRICS[measure.name].labels
        if measure.kind == "counter":
            added[measure.name] += int(measure.value)
    assert added["worldline_steps_total"] == head.step
    assert added["worldline_entries_total"] == head.height


def test_labels_without_end_are_counted_together() -> None:
    meter = measured.Meter()
    for number in range(measured.SERIES_MAX + 50):
        meter.add("worldline_effects_opened_total", 1, f"effect {number}")
    assert len(meter.counters) == measured.SERIES_MAX + 1
    assert meter.value("worldline_effects_opened_total", measured.OTHER) == 50


def test_nobody_listening_costs_no_facts() -> None:
    assert not telemetry.NOTHING.on
    assert not telemetry.Telling([]).on
    with sinks.observed(features=()) as observed:
        assert not observed.telemetry.on
