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

from worldline.base import errors
from worldline.kernel.execution import tracebacks
from worldline.layers import blobs as blob_layer
from worldline.layers import chunks
from worldline.sim.check import (
    checkers,
    deletion_checks,
    fork_checks,
    garbage_checks,
    message_checks,
    question_checks,
    segment_checks,
    trial_checks,
)
from worldline.sim.check.audit import Audit, Violation
from worldline.sim.check.promises import Promises
from worldline.sim.faults import profiles, segment_bodies
from worldline.sim.faults.faulty_store import Struck
from worldline.sim.hosts.cluster import LOOK_SECONDS, Cluster
from worldline.sim.runtime.sim_loop import Deadlock, SimLoop, SimulationHalted, SimulationStuck
from worldline.sim.suite import Suite

SECONDS_MAX = 3_000.0
CHUNK_BYTES = 4_096


class SeedResult(msgspec.Struct, frozen=True):
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
    suite: Suite,
    *,
    without: str = "",
    profile: profiles.Profile | None = None,
    keep: int = 0,
    halt: bool = False,
) -> SeedResult:
    """Run one seed. `without`: with one guard switched off. `keep`: so many lines of the trace in words. `halt`: end at
    the first violation.
    """
    guards = suite.guards.without(without)
    drawn = profiles.changed(profile or profiles.draw(seed), suite.profile)
    with contextlib.closing(SimLoop(str(seed), shuffle=drawn.shuffle)) as loop:
        window_us = 1000 * (drawn.window_ms or drawn.settings.dedupe_window_ms)
        on_broken = loop.halt if halt else lambda: None
        audit = Audit(in_stamp_order=not drawn.held, on_broken=on_broken, window_us=window_us)
        programs = suite.programs(drawn)
        cluster = Cluster(loop, seed, drawn, programs, suite.hosts, guards=guards, broken=audit.broken, keep=keep)
        promises = suite.promises(cluster, audit)
        damaged = segment_bodies.damaged(cluster.faults)
        switched_off, its_own = guards.patched(), cluster.company.patched()
        # Around the whole life, and only here: patches change modules that are shared by all seeds of this process.
        with _calm(), _placeless(), switched_off, _verified(audit), _small(), its_own, damaged:
            _live(loop, cluster, audit, promises)
        return SeedResult(
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


def _live(loop: SimLoop, cluster: Cluster, audit: Audit, promises: Promises) -> None:
    """All phases, until they are through or something ends the run."""
    try:
        loop.run(_phases(cluster, audit, promises), seconds=SECONDS_MAX)
    except SimulationHalted:  # the violation that has halted it is noted already
        pass
    except (Deadlock, SimulationStuck) as error:  # a run that does not end is work that is not done: liveness
        audit.broken("V1", str(error)[:500])
    except (errors.Error, AssertionError) as error:
        audit.broken("BUG", f"{type(error).__name__}: {error}"[:500])
    finally:
        loop.finish()


async def _phases(cluster: Cluster, audit: Audit, promises: Promises) -> None:
    company = cluster.company
    company.on_call(audit.called)
    audit.on_entry.append(cluster.history.look)
    born = fork_checks.Forks(audit.broken, audit.asked_by, lambda: cluster.truth.copy)
    company.on_call(born.called)
    tried = trial_checks.TrialAudit(
        company.crash_budget(cluster.settings),
        audit.broken,
        is_dead=audit.is_dead,
        was_removed=audit.was_removed,
        kills=company.kills,
        performs=lambda label: [(each.key, each.attempt) for each in company.performs(label)],
    )
    compacted = segment_checks.Segments(audit.broken, lambda: cluster.truth.copy)
    other = Audit(
        in_stamp_order=not cluster.profile.held,
        on_broken=audit.on_broken,
        violations=audit.violations,
        window_us=cluster.settings.dedupe_window_ms * 1000,
    )
    sent = message_checks.Messages([audit, other], window_us=cluster.settings.dedupe_window_ms * 1000)
    elsewhere = segment_checks.Segments(audit.broken, lambda: cluster.truths()[-1].copy)
    gone = deletion_checks.Deletions(audit.broken, lambda: cluster.truth.copy)
    swept = garbage_checks.Sweeps(audit.broken, lambda: cluster.truth.copy)
    put = question_checks.QuestionAudit(audit.broken)
    audit.on_step.append(put.step)
    await cluster.boot(
        # In this order: checks behind the auditor's ask it what a batch has meant, so it must have seen the batch.
        [sent.look, put.look, audit.look, tried.look, born.look, compacted.look, gone.look]
        + ([swept.look] if cluster.profile.collects else [])
        + promises.looks(),
        [sent.look, other.look, elsewhere.look],
    )
    sent.know(cluster.truths())
    company.booted(audit.find)
    await cluster.chaos()
    # Before anything heals: queues must be right in the middle of faults, too.
    await checkers.in_between(cluster, audit)
    cluster.heal()
    left = await _rest(cluster, born)
    if not left:
        has_begun = await promises.at_rest(checkers.reader(cluster, cluster.calm()))
        # Asked before the clock catches up, as after it nothing is excused any more.
        behind = cluster.left(excused=False)
        left = await cluster.catch_up()
        if not left and (behind or has_begun):
            left = await _rest(cluster, born)
    if not left:
        left = await promises.mend(checkers.reader(cluster, cluster.calm()))
    if not left:
        await company.finish()
    cluster.check_roles()
    cluster.stop()  # the checks read a store in which nothing moves
    await checkers.at_end(cluster, audit, left, born, promises)
    await promises.at_end(checkers.stranger(cluster), sent, left)
    await gone.at_end(checkers.reader(cluster, cluster.calm()))


async def _rest(cluster: Cluster, born: fork_checks.Forks) -> list[str]:
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
def _placeless() -> Iterator[None]:
    """Tracebacks are stored. A seed is the same run wherever the files of its programs stand."""
    with mock.patch.object(tracebacks, "shown", lambda file: file.rpartition("/")[2]):
        yield


@contextlib.contextmanager
def _small() -> Iterator[None]:
    """Blobs that are kept in the store take many batches, between which hosts are stopped."""
    with mock.patch.object(chunks, "CHUNK", CHUNK_BYTES), mock.patch.object(chunks, "PART", 2 * CHUNK_BYTES):
        yield


@contextlib.contextmanager
def _calm() -> Iterator[None]:
    """Without log lines, and without the collector, whose hour depends on everything."""
    log = logging.getLogger("worldline")
    level, collecting = log.level, gc.isenabled()
    log.setLevel(logging.CRITICAL + 1)
    gc.disable()  # when it runs depends on everything in the process, and it runs `__del__` of what it finds
    try:
        yield
    finally:
        log.setLevel(level)
        if collecting:
            gc.enable()
