"""Many seeds: in this process or on all cores, with the same outcome.

A campaign runs seeds in order and adds up what they hit. It ends at the first seed that fails, unless it is to go on;
what other processes have run beyond that seed does not count, so the outcome never depends on how many there are.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import resource_tracker

import msgspec

from worldline.base import errors
from worldline.kernel.authoring.scripts import Script
from worldline.sim import seed_run
from worldline.sim import suite as suites
from worldline.sim.faults import boundaries, profiles
from worldline.sim.faults.guards import Guards
from worldline.sim.load import scenarios
from worldline.sim.suite import Suite
from worldline.terminal import program_files

SEEDS_AT_ONCE_MIN = 4  # fewer for each process are not worth starting it
SEEDS_AHEAD = 8  # for each process: given to it before they are needed
NOTHING = (
    "nothing to simulate; name a Python file with a program and `async def scenario(universe)`, "
    "or a suite: --suite MODULE"
)


class CampaignJob(msgspec.Struct, frozen=True):
    """What is run for every seed. `target`: a user's FILE or FILE:SCENARIO. `suite`: MODULE or MODULE:NAME of one, with
    its guards; its programs and hosts are run where there is no target.
    """

    target: str = ""
    suite: str = ""
    without: str = ""
    profile: str = ""

    def profile_of(self, seed: int, guards: Guards) -> profiles.Profile:
        """Return what is drawn, turned to where a missing guard would be missed, with what was asked for."""
        drawn = profiles.draw(seed)
        # The seed is turned to where the missing guard matters, or thousands of seeds would not need it.
        if self.without:
            drawn = profiles.changed(drawn, guards.named[self.without].look)
        return profiles.changed(drawn, self.profile)


ORDINARY = CampaignJob()


class SeedFailure(msgspec.Struct, frozen=True):
    seed: int
    invariant: str
    what: str


class Campaign(msgspec.Struct, frozen=True):
    """What came of many seeds. `trace`: a hash over all of theirs."""

    seeds: int
    failures: list[SeedFailure]
    hit: int
    of: int
    missed: list[boundaries.Cell]
    trace: str


def load(job: CampaignJob) -> Suite:
    """Load the suite that a job names."""
    named = suites.load(job.suite) if job.suite else None
    if job.target:
        return suites.of(_scenario(job.target), named.guards if named else None)
    if named is None:
        raise errors.BadInput(NOTHING)
    return named


def _scenario(target: str) -> scenarios.Scenario:
    """The scenario that a target names: a function of the file, `scenario` unless named."""
    path, name = program_files.split(target)
    loaded = program_files.load(str(path))
    wanted = name or scenarios.SCENARIO
    drive, script = program_files.member(loaded, wanted), program_files.member(loaded, "script")
    if not callable(drive):
        raise errors.BadInput(f"{path.name} has no {wanted!r}; write `async def {wanted}(universe): ...` in it")
    return scenarios.Scenario(loaded.programs, drive, script if isinstance(script, Script) else None)


def campaign(
    seeds: Sequence[int],
    suite: Suite,
    *,
    job: CampaignJob = ORDINARY,
    jobs: int = 1,
    keep_going: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Campaign:
    """Run seeds. `job`: how; in several processes it has the suite's name, by which each of them loads it."""
    cells: Counter[boundaries.Cell] = Counter()
    failures: list[SeedFailure] = []
    trace = hashlib.sha256()
    count = 0
    with _results(seeds, suite, job, jobs) as results:
        for result in results:
            count += 1
            cells.update(result.cells)
            trace.update(result.trace.encode())
            # The first of a seed: what follows is often its consequence.
            failures += [SeedFailure(result.seed, each.invariant, each.what) for each in result.failures[:1]]
            if progress is not None:
                progress(count, len(seeds))
            if failures and not keep_going:
                break
    wanted = boundaries.reachable()
    missed = [cell for cell in wanted if cell not in cells]
    return Campaign(count, failures, len(wanted) - len(missed), len(wanted), missed, trace.hexdigest())


@contextlib.contextmanager
def _results(
    seeds: Sequence[int], suite: Suite, job: CampaignJob, jobs: int
) -> Iterator[Iterator[seed_run.SeedResult]]:
    """The results of all seeds, in order. On leaving, no process runs one any more."""
    processes = min(jobs, len(seeds) // SEEDS_AT_ONCE_MIN)
    if processes <= 1:
        yield (one(seed, suite, job) for seed in seeds)
        return
    # Spawned, not forked: a fork copies this process's threads and caches half-way, and one seed must be one trace.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin, (job,))
    try:
        yield _in_order(pool, seeds, ahead=processes * SEEDS_AHEAD)
    finally:
        for process in multiprocessing.active_children():
            process.terminate()  # what it still runs is not needed
        pool.shutdown(wait=True, cancel_futures=True)


def _in_order(pool: ProcessPoolExecutor, seeds: Sequence[int], *, ahead: int) -> Iterator[seed_run.SeedResult]:
    """The results of all seeds. A few are given away at a time: all of many would keep a signal waiting for seconds."""
    running: deque[Future[seed_run.SeedResult]] = deque()
    for seed in seeds:
        if len(running) == ahead:
            yield running.popleft().result()
        with _held_back(signal.SIGINT):  # a process begins with it, and ignores the signal before it takes it
            running.append(pool.submit(_one, seed))
    for each in running:
        yield each.result()


@contextlib.contextmanager
def _held_back(number: signal.Signals) -> Iterator[None]:
    """Deliver a signal that comes meanwhile at the end of the block."""
    resource_tracker.ensure_running()  # starting it takes signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (number,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def one(seed: int, suite: Suite, job: CampaignJob = ORDINARY) -> seed_run.SeedResult:
    """One of them. It ends at the first violation."""
    return seed_run.run(seed, suite, without=job.without, profile=job.profile_of(seed, suite.guards), halt=True)


class _Process:
    """What a process of a campaign keeps from seed to seed."""

    job: CampaignJob
    suite: Suite


def _begin(job: CampaignJob) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
    _Process.job = job
    _Process.suite = load(job)


def _one(seed: int) -> seed_run.SeedResult:
    return one(seed, _Process.suite, _Process.job)
