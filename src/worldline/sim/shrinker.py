"""Making a failing seed smaller: the least that was found to break the same invariant.

First the faults, told by their numbers: halves, quarters and single ones are left out as long as the failure stays.
Then what is no event (clocks, hints, the outside's manners), then operations. What is left is a profile of the same
seed, so it can be asked for again.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import msgspec

from worldline.sim import seed_run
from worldline.sim.campaign import ORDINARY, CampaignJob
from worldline.sim.faults import profiles
from worldline.sim.faults.faulty_store import Struck
from worldline.sim.faults.profiles import Profile
from worldline.sim.suite import Suite

RUNS_MAX = 80


class Shrunk(msgspec.Struct, frozen=True):
    """A failure as small as it was made. `drawn`: how many faults it came from."""

    seed: int
    invariant: str
    what: str
    profile: str  # of the same seed, as a text
    faults: list[Struck]
    background: list[str]
    drawn: int
    runs: int


def shrink(seed: int, suite: Suite, *, job: CampaignJob = ORDINARY, runs_max: int = RUNS_MAX) -> Shrunk | None:
    """Make a failing seed smaller. None if it does not fail."""
    search = _Search(seed, suite, job, runs_max)
    if not search.begin():
        return None
    search.fewer_faults()
    search.less_around()
    failure = search.result.failures[0]
    base = CampaignJob(without=job.without).profile_of(seed, suite.guards)
    return Shrunk(
        seed,
        failure.invariant,
        failure.what,
        profiles.difference(search.profile, base),
        search.result.struck,
        background(search.profile),
        search.drawn,
        search.runs,
    )


class _Search:
    def __init__(self, seed: int, suite: Suite, job: CampaignJob, runs_max: int) -> None:
        self._seed = seed
        self._suite = suite
        self._job = job
        self._runs_max = runs_max
        self.profile = job.profile_of(seed, suite.guards)
        self.result: seed_run.SeedResult
        self.drawn = 0
        self.runs = 0

    def begin(self) -> bool:
        self.result = self._run(self.profile)
        self.drawn = len(self.result.struck)
        return bool(self.result.failures)

    def fewer_faults(self) -> None:
        """Leave out halves of the faults, then quarters, down to single ones."""
        # Many failures need no fault at all, only the workload.
        if self._try(msgspec.structs.replace(self.profile, only=())):
            return
        numbers = [each.number for each in self.result.struck]
        # With all that happened named, what is drawn beyond them can no longer happen, and numbers stay comparable.
        self._try(msgspec.structs.replace(self.profile, only=tuple(numbers)))
        size = (len(numbers) + 1) // 2
        while size and self.runs < self._runs_max:
            first = 0
            while first < len(numbers):
                kept = numbers[:first] + numbers[first + size :]
                if self._try(msgspec.structs.replace(self.profile, only=tuple(kept))):
                    numbers = [each.number for each in self.result.struck]
                else:
                    first += size
            size //= 2

    def less_around(self) -> None:
        """Switch off what is no event, and let clients do less, until nothing more can go."""
        smaller = True
        while smaller and self.runs < self._runs_max:
            # From the beginning after each success: what could not go before may be able to now.
            smaller = any(self._try(candidate) for candidate in self._smaller())

    def _smaller(self) -> Iterator[Profile]:
        replace, profile = msgspec.structs.replace, self.profile
        for name, off in profiles.BACKGROUND.items():
            if getattr(profile, name) != off:
                yield replace(profile, **{name: off})
        for name in ("orchestrators", "janitors"):
            if getattr(profile, name):
                yield replace(profile, **{name: 0})
        if self._suite.has_ops:
            for ops_max in (1, 2, 4, 8):
                if ops_max < profile.ops_max:
                    yield replace(profile, ops_max=ops_max)

    def _try(self, profile: Profile) -> bool:
        """Try a smaller profile. True if the same breaks under it: then it is the one to continue with."""
        if self.runs >= self._runs_max:  # each try is a whole run: a person waits for this
            return False
        tried = self._run(profile)
        # The same invariant: another failure, found on the way, would be another bug than the one that is asked about.
        if not tried.failures or tried.failures[0].invariant != self.result.failures[0].invariant:
            return False
        self.profile, self.result = profile, tried
        return True

    def _run(self, profile: Profile) -> seed_run.SeedResult:
        self.runs += 1
        return seed_run.run(self._seed, self._suite, without=self._job.without, profile=profile, halt=True)


def background(profile: Profile) -> list[str]:
    """Return what is around the faults of a profile, in words."""
    said = []
    if profile.skew_us or profile.drift_ppm:
        said.append(f"clocks off by up to {profile.skew_us / 1_000_000:.3f} s, drifting by {profile.drift_ppm} ppm")
    if profile.hints != "all":
        said.append(f"hints: {profile.hints}")
    if profile.adapters != profiles.OutsideFaults():
        outside = msgspec.structs.asdict(profile.adapters)
        said.append("outside: " + ", ".join(f"{name} {rate} %" for name, rate in outside.items() if rate))
    if profile.shuffle:
        said.append("what is ready on a host runs in any order")
    if profile.heal != "all":
        said.append("one host stays dead")
    return said


def command(seed: int, job: CampaignJob, profile: str | None = None) -> str:
    """Return what to type to see a seed again, as it was asked for or under another profile."""
    words = ["worldline", "simulate", *([job.target] if job.target else [])]
    words += [*(["--suite", job.suite] if job.suite else []), "--seed", str(seed)]
    if job.without:
        words += ["--without", job.without]
    wanted = job.profile if profile is None else profile
    return shlex.join([*words, "--profile", wanted] if wanted else words)


def described(failure: Shrunk) -> list[str]:
    """A failure in lines for people: what broke, and what it took."""
    lines = [f"seed {failure.seed} breaks {failure.invariant}: {failure.what}"]
    if failure.faults:
        lines.append(f"  {len(failure.faults)} of {failure.drawn} faults are enough ({failure.runs} runs):")
        lines += [f"    {each}" for each in failure.faults]
    else:
        lines.append(f"  none of its {failure.drawn} faults is needed ({failure.runs} runs)")
    return lines + [f"    {each}" for each in failure.background]


def report(failure: Shrunk, job: CampaignJob) -> list[str]:
    """The same, with what to type to see it again."""
    return [
        *described(failure),
        f"  again, with all faults: {command(failure.seed, job)}",
        f"  again, with these alone: {command(failure.seed, job, failure.profile)}",
    ]
