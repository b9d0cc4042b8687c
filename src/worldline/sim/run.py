"""Running seeds: one seed in, one result out, the same every time.

`run(seed)` draws a profile and a workload, runs the phases, checks everything and says what broke. The trace is a hash
over every read, commit and crash with its virtual time, host and task: equal traces mean equal runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import logging
from collections.abc import Iterator
from unittest import mock

import msgspec

from worldline.base import errors, limits
from worldline.layers import blobs as blob_layer
from worldline.layers import chunks
from worldline.model import ids
from worldline.sim.check import (
    abroad,
    aftermath,
    checkers,
    deletions,
    flow_domains,
    forks,
    garbage,
    lateness,
    messages,
    questions,
    segments,
    trials,
)
from worldline.sim.check.audit import Audit, Violation
from worldline.sim.faults import ablations, profiles, segment_bodies
from worldline.sim.faults.faulty_store import Struck
from worldline.sim.hosts.cluster import LOOK_SECONDS, Cluster
from worldline.sim.hosts.forger import Forger
from worldline.sim.hosts.rogue import Rogue
from worldline.sim.load import flow_domains as flows_load
from worldline.sim.load import forgers, fragile, hostile, programs, scenarios, workloads
from worldline.sim.runtime.loop import Deadlock, Halted, SimLoop, Stuck

SECONDS_MAX = 3_000.0
CHUNK_BYTES = 4_096
NOTHING = workloads.Plan(worlds=[], ops=[], pause_ms=0)


class Result(msgspec.Struct, frozen=True):
    """What came of one seed."""

    seed: int
    trace: str
    failures: list[Violation]
    cells: dict[tuple[str, str], int]
    commits: int
    turns: int
    virtual_seconds: float
    crashes: int
    passed: int  # boundaries
    struck: list[Struck]  # faults that happened
    lines: list[str] = []

    @property
    def ok(self) -> bool:
        return not self.failures


def run(
    seed: int,
    *,
    without: str = "",
    profile: profiles.Profile | None = None,
    plan: workloads.Plan | None = None,
    scenario: scenarios.Scenario | None = None,
    keep: int = 0,
    halt: bool = False,
) -> Result:
    """Run one seed. `without`: with one guard switched off. `keep`: so many lines of the trace in words. `halt`: end at
    the first violation.
    """
    assert not without or without in ablations.GUARDS, f"no guard {without!r}"
    drawn = profile or profiles.draw(seed)
    if scenario is not None:  # a user's timers could be hours late after an excursion, without a visible reason
        drawn = msgspec.structs.replace(drawn, excursion=0)
    planned = plan or (
        workloads.draw(seed, drawn.clients, drawn.kinds, _wanted(drawn)) if scenario is None else NOTHING
    )
    loop = SimLoop(str(seed), shuffle=drawn.shuffle)
    window_us = 1000 * (drawn.window_ms or drawn.settings.dedupe_window_ms)
    audit = Audit(in_stamp_order=not drawn.held, on_broken=loop.halt if halt else lambda: None, window_us=window_us)
    cluster = Cluster(loop, seed, drawn, planned, without=without, scenario=scenario, broken=audit.broken, keep=keep)
    script = None if scenario is None else scenario.script
    damaged = segment_bodies.damaged(cluster.faults)
    with _calm(), ablations.patched(without), _verified(audit), _small(drawn), scenarios.scripted(script), damaged:
        try:
            loop.run(_phases(cluster, audit), seconds=SECONDS_MAX)
        except Halted:
            pass
        except (Deadlock, Stuck) as error:
            audit.broken("V1", str(error)[:500])
        except (errors.Error, AssertionError) as error:
            audit.broken("BUG", f"{type(error).__name__}: {error}"[:500])
        finally:
            loop.finish()
    return Result(
        seed=seed,
        trace=cluster.trace.hex(),
        failures=audit.violations,
        cells={cell: count for cell, count in sorted(cluster.faults.cells.items()) if cell[0]},
        commits=cluster.truth.commits,
        turns=loop.turns,
        virtual_seconds=loop.time(),
        crashes=cluster.crashes,
        passed=cluster.faults.passed,
        struck=cluster.faults.struck,
        lines=cluster.trace.lines,
    )


def _wanted(profile: profiles.Profile) -> workloads.Wanted:
    return workloads.Wanted(
        anonymous=profile.anonymous,
        doors=profile.doors,
        backlog=profile.backlog,
        hostile=profile.hostile,
        fragile=profile.fragile,
        forks=profile.forks,
        abroad=profile.abroad,
        sketches=profile.sketches,
        flows=profile.flows,
        forgers=profile.forgers,
        timed=1 if profile.excursion else 0,
        runs=2 if profile.patient else 0,
    )


async def _phases(cluster: Cluster, audit: Audit) -> None:
    programs.OUTSIDE.set(cluster.outside)
    cluster.outside.on_call.append(audit.called)
    audit.on_entry.append(cluster.history.look)
    hostile.ENDLESS.clear()
    fragile.begin()
    born = forks.Forks(audit.broken, audit.asked_by, lambda: cluster.truth.copy)
    cluster.outside.on_call.append(born.called)
    tried = trials.Trials(
        cluster.fragile.budget,
        audit.broken,
        is_dead=audit.is_dead,
        was_removed=audit.was_removed,
        kills=lambda at: at in _fragile(cluster),
        performs=lambda label: [(each.key, each.attempt) for each in cluster.outside.under_way if each.host == label],
    )
    compacted = segments.Segments(audit.broken, lambda: cluster.truth.copy)
    other = Audit(
        in_stamp_order=not cluster.profile.held,
        on_broken=audit.on_broken,
        violations=audit.violations,
        window_us=cluster.settings.dedupe_window_ms * 1000,
    )
    sent = messages.Messages([audit, other], window_us=cluster.settings.dedupe_window_ms * 1000)
    elsewhere = segments.Segments(audit.broken, lambda: cluster.elsewhere.truth.copy if cluster.elsewhere else {})
    gone = deletions.Deletions(audit.broken, lambda: cluster.truth.copy)
    swept = garbage.Sweeps(audit.broken, lambda: cluster.truth.copy)
    flows = flow_domains.FlowDomains(audit.broken)
    put = questions.Questions(audit.broken)
    audit.on_step.append(put.step)
    await cluster.boot(
        [sent.look, put.look, audit.look, tried.look, born.look, compacted.look, gone.look]
        + ([swept.look] if cluster.profile.collects else [])
        + ([flows.look] if cluster.profile.flows else []),
        [sent.look, other.look, elsewhere.look],
    )
    sent.know(cluster.truths())
    rogue = Rogue(cluster.loop, cluster.seed, cluster.truth, cluster.faults, find=audit.find)
    cluster.outside.on_call.append(rogue.called)
    if cluster.profile.forgers:
        others = [cluster.addresses[forgers.FORGER]]
        forger = Forger(cluster.loop, cluster.seed, cluster.truth, cluster.faults, others=others)
        cluster.truth.audit.append(forger.look)
    await cluster.chaos()
    await checkers.in_between(cluster, audit)
    cluster.heal()
    left = await _rest(cluster, born)
    if not left:
        await lateness.on_time(cluster, checkers.reader(cluster, cluster.calm()), audit)
        behind = cluster.left(excused=False)
        left = await cluster.catch_up()
        if not left and (behind or cluster.profile.flows):  # a client may have made a fork just now
            left = await _rest(cluster, born)
    if not left:
        left = await aftermath.mend(cluster, checkers.reader(cluster, cluster.calm()), audit)
    if cluster.driven is not None and not left:
        await cluster.driven.finish()
    cluster.check_roles()
    cluster.stop()
    await checkers.at_end(cluster, audit, left, born)
    if not left:
        await flows.at_end(checkers.stranger(cluster), checkers.planned(cluster), cluster.history.answered)
    await abroad.at_end(cluster, audit, sent, left)
    put.at_end(checkers.planned(cluster), cluster.history.answered)
    await gone.at_end(checkers.reader(cluster, cluster.calm()))


def _fragile(cluster: Cluster) -> list[ids.Address]:
    """The worlds whose inputs may end their processes."""
    return [cluster.addresses[name] for name, program in cluster.plan.worlds if program == fragile.NAME]


async def _rest(cluster: Cluster, born: forks.Forks) -> list[str]:
    """Wait until nothing is left to do, and every fork has begun. Returns what is left, if that takes too long."""
    ends_us = cluster.loop.now_us + int(cluster.quiet_after_seconds() * 1_000_000)
    while True:
        left = await cluster.quiesce()
        beginning = [] if left else await born.unsettled(checkers.reader(cluster, cluster.calm()))
        if not beginning:
            return left
        if cluster.loop.now_us > ends_us:
            return beginning
        await asyncio.sleep(LOOK_SECONDS)


@contextlib.contextmanager
def _verified(audit: Audit) -> Iterator[None]:
    """C1 at every read: whatever the layers believe, blobs that are handed out must be what their address says."""
    read = blob_layer.Blobs.get

    async def get(blobs: blob_layer.Blobs, of: bytes) -> bytes:
        data = await read(blobs, of)
        if hashlib.sha256(data).digest() != of:
            audit.broken("C1", f"blob {of.hex()} was handed out damaged")
        return data

    with mock.patch.object(blob_layer.Blobs, "get", get):
        yield


@contextlib.contextmanager
def _small(profile: profiles.Profile) -> Iterator[None]:
    """Blobs that are kept in the store take many batches, between which hosts are stopped. Cells of flow domains are
    soon full, in seeds that have them.
    """
    cell_bytes_max = flows_load.CELL_BYTES_MAX if profile.flows else limits.FLOW_CELL_BYTES_MAX
    full = mock.patch.object(limits, "FLOW_CELL_BYTES_MAX", cell_bytes_max)
    with mock.patch.object(chunks, "CHUNK", CHUNK_BYTES), mock.patch.object(chunks, "PART", 2 * CHUNK_BYTES), full:
        yield


@contextlib.contextmanager
def _calm() -> Iterator[None]:
    """Without log lines, and without the collector, whose hour depends on everything."""
    log = logging.getLogger("worldline")
    level, collecting = log.level, gc.isenabled()
    log.setLevel(logging.CRITICAL + 1)
    gc.disable()
    try:
        yield
    finally:
        log.setLevel(level)
        if collecting:
            gc.enable()
