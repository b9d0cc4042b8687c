"""Simulating a program: a scenario on a whole cluster that breaks, in virtual time, once for each seed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from worldline.api.universe_api import Universe
from worldline.kernel.authoring.program import Program
from worldline.kernel.authoring.scripts import Script

SEEDS = 1_000


class Broken(AssertionError):
    """A seed under which something does not hold. `seed` and `invariant` say which; the text has the faults it took."""

    def __init__(self, report: str, *, seed: int, invariant: str) -> None:
        super().__init__(report)
        self.seed = seed
        self.invariant = invariant


def simulate(
    scenario: Callable[[Universe], AsyncIterator[None] | Awaitable[None]],
    /,
    *,
    program: Program | Sequence[Program],
    seeds: int = SEEDS,
    seed: int = 0,
    profile: str = "",
    script: Script | None = None,
) -> None:
    """Run `async def scenario(universe)` once for each seed, from `seed` on. `Broken` at the first that fails.

    While the scenario drives worlds, their hosts crash, freeze, lose their store and come back. What follows a `yield`
    in it runs after all that has ended and everything has come to rest. Every guarantee of the store is checked as
    well. Effects run as written, in virtual time; `script` answers for those that would touch the real outside.
    `profile`: what goes wrong, as `worldline simulate --profile` takes it.
    """
    # Loaded when it is needed: other tests have no use for the simulator.
    from worldline.sim import campaign, shrinker, suite  # noqa: PLC0415
    from worldline.sim.load import scenarios  # noqa: PLC0415

    programs = [program] if isinstance(program, Program) else list(program)
    made = suite.of(scenarios.Scenario(programs, scenario, script))
    job = campaign.CampaignJob(profile=profile)
    # In this process: the scenario is a function of the test, which another process could not import by name.
    ran = campaign.campaign(range(seed, seed + seeds), made, job=job, keep_going=False)
    for failure in ran.failures:
        # The fewest faults that still break it are what a person can follow.
        smaller = shrinker.shrink(failure.seed, made, job=job)
        assert smaller is not None, "a seed fails again"
        again = f"simulate(..., seed={failure.seed}, seeds=1, profile={smaller.profile!r})"
        report = "\n".join([*shrinker.described(smaller), f"  again, with these alone: {again}"])
        raise Broken(report, seed=failure.seed, invariant=failure.invariant)
