"""What befalls the machines of a cluster besides the faults at boundaries: deaths, pauses, cut links and clocks that
jump, at times of their own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from worldline.sim.faults.faulty_store import Faults
from worldline.sim.hosts.sim_machines import ClusterMember
from worldline.sim.runtime.sim_loop import SimLoop, SimMachine
from worldline.sim.runtime.truth import Truth

JUMP_SECONDS = (2, 15, 60, 600, -1, -3)  # of the store's clock


class Mishaps:
    """`draws`: what decides."""

    def __init__(
        self, loop: SimLoop, faults: Faults, members: Sequence[ClusterMember], truth: Truth, draws: random.Random
    ):
        self._loop = loop
        self._faults = faults
        self._profile = faults.profile
        self._members = members
        self._truth = truth
        self._draws = draws

    async def run(self, look: Callable[[], None]) -> None:
        """Until the time of the faults is over. `look` is called now and then."""
        ends_us = self._loop.now_us + self._profile.chaos_seconds * 1_000_000
        while self._loop.now_us < ends_us:
            await asyncio.sleep(self._draws.random() * 3)
            look()  # roles that a bug has stopped are noted before a death of their host can hide it
            # Drawn before it is known what happens, so the draws are the same ones whatever the profile has.
            member = self._draws.choice([each for each in self._members if not each.steady])
            if self._draws.random() * 100 < self._profile.store_jump:
                self._jump()
            # A dead or frozen machine has nothing that could befall it.
            elif member.host is not None and member.host.alive and not member.host.frozen:
                self._befall(member, member.host)

    def _jump(self) -> None:
        """The store's clock is set, most often so that every lease and claim runs out at once."""
        seconds = self._draws.choice(JUMP_SECONDS)
        if self._faults.allow(self._loop.root, f"store's clock jumps by {seconds} s"):
            self._truth.jump(seconds)
            self._truth.trace.note(self._loop.root, "jumped")

    def _befall(self, member: ClusterMember, host: SimMachine) -> None:
        assert member.engine is not None
        assert member.env is not None
        # Drawn also if the profile has no such faults: what comes later must not depend on it.
        event = self._draws.choice(["crash", "pause", "partition", "jump", "nothing"])
        if event == "crash" and self._profile.crash and self._faults.allow(host, "crash"):
            self._faults.crash(host)
        elif event == "pause" and self._profile.pause and self._faults.allow(host, "pause"):
            self._faults.pause(host)
        elif event == "partition" and self._profile.partition and self._faults.allow(host, "partition"):
            self._faults.cut(member.engine.link)
        elif event == "jump" and self._profile.skew_us and self._faults.allow(host, "clock jumps"):
            member.env.jump(self._draws.choice([-3_600, -5, 5, 3_600]) * 1_000_000)
