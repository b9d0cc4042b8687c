"""What can go wrong between a host and its store, drawn from a seed.

One memory engine holds the truth (`Truth`); each host sees it through a `HostEngine`, which delays, refuses, forgets to
answer, applies late, or lets the host die, freeze or lose its link right before or right after a commit is applied. How
often is up to the `Profile`. `Faults.active` turns everything off when it is time to heal.

Every fault that happens has a number and is written down (`Struck`); a profile may allow only some of the numbers,
which is how a failure is made smaller. Nothing here knows an invariant; see `checkers`.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.model import ids
from worldline.sim.faults import damage
from worldline.sim.faults.boundaries import BOUNDARIES, COLLECTING, COMPACTING, DELETING, FORKING, JUDGING, SENDING
from worldline.sim.faults.guards import Intact
from worldline.sim.faults.profiles import Profile
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.sim_loop import SimLoop, SimMachine
from worldline.sim.runtime.truth import Truth
from worldline.store import kv

NEAR_US = 500  # a store that is so near has answered a read at once
FOCUS = 60  # faults per thousand at the boundaries that a seed looks at most
FOCUS_FEW = 150  # at those of forks, messages, segments and collections: a run passes each a few times only,
FOCUS_COLD = 250  # and where cells are fetched
FOCUS_TRIALS = 300  # several holders in a row must die over the same input, or in the same restore
FOCUS_LEAN = 350  # a fork records its first own state once


class Struck(msgspec.Struct, frozen=True):
    """One fault that happened. `number`: its place among all that were drawn."""

    number: int
    time_us: int
    host: str
    fault: str
    where: str = ""

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.time_us / 1_000_000:8.3f} s  {self.host}: {self.fault}{where}"


async def _kept(_: ids.Address) -> None:
    """Where no lease is revoked."""


class Faults:
    """The faults of one run: what is drawn when, and what was hit."""

    def __init__(
        self,
        loop: SimLoop,
        seed: int,
        profile: Profile,
        *,
        guards: Intact | None = None,
        on_crash: Callable[[SimMachine], None] = lambda _: None,
        on_revoke: Callable[[ids.Address], Awaitable[None]] = _kept,
    ) -> None:
        self.loop = loop
        self.profile = profile
        self.guards = guards or Intact()
        self.active = False
        self.passed = 0
        self.drawn = 0
        self.struck: list[Struck] = []
        self.cells: Counter[tuple[str, str]] = Counter()
        self.on_revoke = on_revoke
        self._on_crash = on_crash
        # Two generators: latencies are drawn with every call, and must not shift which faults a seed has.
        self._draws = random.Random(f"{seed}:faults")
        self._net = random.Random(f"{seed}:net")
        self._quiet = contextvars.copy_context()
        self.damage = damage.Damage(seed)

    def begin(self) -> None:
        self.active = True

    def end(self) -> None:
        self.active = False

    def settle(self) -> None:
        """Remember the root's context: what is scheduled in it outlives any host."""
        self._quiet = contextvars.copy_context()

    def stand_off(self, latency_us: int) -> None:
        """The store is so far away. Nothing else of the profile changes."""
        self.profile = msgspec.structs.replace(self.profile, latency_us=latency_us)

    def latency(self, host: SimMachine | None = None) -> float:
        worst_us = self.profile.latency_us
        slow = self.active and self._net.random() * 1000 < self.profile.slow
        if slow and host is not None and self.allow(host, "slow answer"):
            worst_us = self.profile.slowest_us
        return int(self._net.random() * worst_us) / 1_000_000

    def often(self, rate: int) -> bool:
        """Something that is noise rather than a fault: it has no number."""
        return rate > 0 and self.active and self._draws.random() * 1000 < rate

    def hit(self, rate: int, host: SimMachine, fault: str, where: str = "") -> bool:
        """Whether a fault of such a rate happens now."""
        return rate > 0 and self.active and self._draws.random() * 1000 < rate and self.allow(host, fault, where)

    def allow(self, host: SimMachine, fault: str, where: str = "") -> bool:
        """A fault was drawn: whether it may happen. If so it is written down."""
        # Counted also when it may not happen: numbers stay those of the whole seed while it is made smaller.
        self.drawn += 1
        only = self.profile.only
        if only is not None and self.drawn not in only:
            return False
        self.struck.append(Struck(self.drawn, self.loop.now_us, host.label, fault, where))
        return True

    def pick(self, *choices: float) -> float:
        return self._draws.choice(choices)

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Something that happens whatever becomes of the hosts."""
        self.loop.call_later(seconds, do, context=self._quiet)

    def count(self, boundary: str, fault: str) -> None:
        self.cells[boundary, fault] += 1

    async def boundary(self, link: Link, name: str) -> None:
        """Maybe the host dies, freezes or loses its link right here."""
        profile, host = self.profile, link.host
        least = self._least(name)
        self.passed += 1 if self.active else 0
        nth = profile.nth_fault if self.active and self.passed == profile.nth else ""
        if nth == "crash" or self.hit(max(profile.crash, least), host, "crash", name):
            self.count(name, "crash")
            self.crash(host)
            await self.loop.create_future()  # nothing of a dead host goes on
        if nth == "pause" or self.hit(max(profile.pause, least), host, "pause", name):
            if self.pause(host):
                self.count(name, "pause")
            await asyncio.sleep(0)  # a frozen host stops here, and not after its next call
        if nth == "partition" or self.hit(max(profile.partition, least), host, "partition", name):
            self.count(name, "partition")
            self.cut(link)

    def _least(self, boundary: str) -> int:
        """Return how often faults happen here at least."""
        focus = self.profile.focus
        if focus == FORKING[-1]:
            return FOCUS_LEAN if boundary in BOUNDARIES[focus] else 0
        if focus in JUDGING:
            return FOCUS_TRIALS if any(boundary in BOUNDARIES[each] for each in (*JUDGING, "acquire")) else 0
        if focus in FORKING:
            return FOCUS_FEW if any(boundary in BOUNDARIES[each] for each in FORKING) else 0
        if focus in COLLECTING and any(boundary in BOUNDARIES[each] for each in (*COLLECTING, *DELETING)):
            return FOCUS if any(boundary in BOUNDARIES[each] for each in DELETING) else FOCUS_FEW
        if not focus or boundary not in BOUNDARIES[focus]:
            return 0
        if focus in (*SENDING, *COMPACTING):
            return FOCUS_FEW
        return FOCUS_COLD if focus == "cold" else FOCUS

    def unknown(self, boundary: str) -> int:
        """Return how often the answer to a commit is lost that stands here."""
        few = self.profile.focus in (*FORKING, *SENDING, *COLLECTING)
        return max(self.profile.unknown, self._least(boundary) if few else 0)

    def crash(self, host: SimMachine) -> None:
        self.loop.crash(host)
        self.loop.call_soon(self._on_crash, host, context=self._quiet)

    def pause(self, host: SimMachine) -> bool:
        """Freeze for up to four times the lease's TTL. True if that is beyond it."""
        times = 2 if self.profile.nth else self.pick(0.5, 1.5, 2, 4)
        self.loop.freeze(host)
        seconds = self.profile.settings.worker.lease_ttl_ms / 1000 * times
        self.loop.call_later(seconds, self.loop.thaw, host, context=self._quiet)
        return times > 1

    def cut(self, link: Link, kind: str = "") -> None:
        """Cut one direction or both for a while."""
        seconds = self.profile.settings.worker.lease_ttl_ms / 1000 * self.pick(0.2, 1, 2, 5)
        kind = kind or self._draws.choice(["both", "there", "back"])
        link.cut(there=kind in ("both", "there"), back=kind in ("both", "back"))
        self.loop.call_later(seconds, link.heal, context=self._quiet)


class Link:
    """One host's way to the store and back."""

    def __init__(self, host: SimMachine) -> None:
        self.host = host
        self.cut_there = False
        self.cut_back = False

    def cut(self, *, there: bool, back: bool) -> None:
        self.cut_there = there
        self.cut_back = back

    def heal(self) -> None:
        self.cut_there = self.cut_back = False


class HostEngine:
    """The store as one host sees it."""

    def __init__(self, truth: Truth, faults: Faults, host: SimMachine, env: envs.Env, *, lag_us: int = 0) -> None:
        self._truth = truth
        self._faults = faults
        self._host = host
        self._env = env
        self.link = Link(host)
        self._lag_us = lag_us  # how late it reads journals

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        kv.check_requests(requests)
        faults = self._faults
        before, after = BOUNDARIES["cold" if faults.loop.is_awaited else "read"]
        await faults.boundary(self.link, before)
        await asyncio.sleep(faults.latency(self._host))
        if self.link.cut_there or faults.hit(faults.profile.unavailable, self._host, "store out of reach", "read"):
            await self._no_answer()
        # Read first, delayed then: the host gets what was true a while ago.
        found = await self._truth.read(self._host, *requests, held_back=faults.guards.held_back)
        if self._lag_us and any(map(_is_journal, requests)):
            await asyncio.sleep(self._lag_us / 1_000_000)
        if faults.profile.latency_us > NEAR_US:
            await asyncio.sleep(faults.latency())
        if self.link.cut_back:
            await self._no_answer()
        await faults.boundary(self.link, after)
        return self._as_seen(self._damaged(requests, found))

    def _damaged(self, requests: tuple[kv.Request, ...], read: kv.ReadResult) -> kv.ReadResult:
        faults = self._faults
        if not faults.profile.damaged:
            return read
        answers = list(read.answers)
        for index, request in enumerate(requests):
            if faults.damage.may_hit(request) and faults.hit(
                faults.profile.damaged, self._host, "changes damaged on the way", "read"
            ):
                answers[index] = faults.damage.hit(request, read.page(index))
        return msgspec.structs.replace(read, answers=answers)

    def _as_seen(self, read: kv.ReadResult) -> kv.ReadResult:
        """Return what this engine can tell: one whose transactions stay open knows no version of the store."""
        seen = self._faults.guards.seen(read, self._env)
        if seen is not None:
            return seen
        return msgspec.structs.replace(read, version=0) if self._faults.profile.held else read

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        for batch in batches:
            kv.check(batch)
        faults, profile, host = self._faults, self._faults.profile, self._host
        about = keyspaces.about(batches[0]) if batches else ""
        before, after = BOUNDARIES.get(keyspaces.boundary(batches[0]) if batches else "", ("", ""))
        if before:
            await faults.boundary(self.link, before)
        await asyncio.sleep(faults.latency(host))
        if self.link.cut_there or faults.hit(profile.unavailable, host, "store out of reach", about):
            await self._no_answer()
        if faults.hit(faults.unknown(before), host, "answer lost", about):
            return await self._unanswered(batches, before, after)
        if faults.hit(profile.late, host, "applied late, answer lost", about):
            faults.count(before, "unknown")
            self._apply_later(batches)
            return self._unknown(batches, "still under way")
        early = faults.guards.early(self._truth, batches, about)
        if early is not None:
            self._apply_later(batches)
            return early
        if about == "step" and faults.hit(profile.overtaken, host, "applied, answer lost, overtaken", about):
            return await self._overtaken(batches, after)
        if faults.hit(profile.held, host, "transaction stays open", about):
            outcomes = await self._held(batches)
        else:
            # One by one: batches of one call are independent, and others may come between.
            outcomes = [await self._apply(batch) for batch in batches]
        await asyncio.sleep(faults.latency(host))
        if after:
            await faults.boundary(self.link, after)
        if self.link.cut_back:
            return self._unknown(batches, "the answer was lost")
        return outcomes

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        """Hints may be lost, late or made up."""
        faults, mode = self._faults, self._faults.profile.hints
        if self.link.cut_there or self.link.cut_back:
            await self._no_answer()
        if mode == "none" or (mode == "some" and faults.often(300)):
            await asyncio.sleep(timeout_ms / 1000)
            return False
        if mode == "some" and faults.often(100):
            await asyncio.sleep(faults.latency())
            return True
        hinted = await self._truth.engine.wait(prefix, seen, timeout_ms)
        if mode == "some" and faults.often(300):
            await asyncio.sleep(faults.pick(0.1, 1, 3))
        return hinted

    async def durability(self) -> kv.Durability:
        return await self._truth.engine.durability()

    async def close(self) -> None:
        """The store outlives the hosts that use it."""

    async def _overtaken(self, batches: tuple[kv.Batch, ...], after: str) -> list[kv.Outcome]:
        """The steps are in the journal, and before their host can learn of it, other hosts have the worlds."""
        for batch in batches:
            if isinstance(await self._apply(batch), kv.Ok):  # only a step that is stored can be overtaken
                self._faults.count(after, "unknown")
                for at in filter(None, map(_fenced, batch.expects)):
                    await self._faults.on_revoke(at)
        self._faults.cut(self.link, "both")
        return self._unknown(batches, "the answer was lost")

    async def _held(self, batches: tuple[kv.Batch, ...]) -> list[kv.Outcome]:
        """Others commit while these do, or while a transaction is idle that has nothing to do with them."""
        if self._faults.pick(0, 0, 1):
            version = self._truth.begin(self._faults.loop.root)
            self._faults.later(self._faults.pick(1, 5, 15), lambda: self._truth.abandon(version))
            return [await self._apply(batch) for batch in batches]
        versions = [self._truth.begin(self._host) for _ in batches]
        await asyncio.sleep(self._faults.pick(0.02, 0.3, 2))
        return [await self._apply(batch, version) for batch, version in zip(batches, versions, strict=True)]

    async def _apply(self, batch: kv.Batch, version: int | None = None) -> kv.Outcome:
        faults, about = self._faults, keyspaces.about(batch)
        held = next((at for at in map(_fenced, batch.expects) if at is not None), None)
        revocable = held is not None and about in ("step", "snapshot", "mark")
        if held and revocable and faults.hit(faults.profile.conflict, self._host, "lease revoked", about):
            await faults.on_revoke(held)
        outcome = await self._faults.guards.apply(self._truth, self._host, batch, version)
        if version is not None:
            self._truth.abandon(version)
        return outcome

    async def _unanswered(self, batches: tuple[kv.Batch, ...], unapplied: str, after: str) -> list[kv.Outcome]:
        """Some of the batches are applied, and the host is not told which."""
        for batch in batches:
            if self._faults.pick(0, 1):
                self._faults.count(after, "unknown")
                await self._apply(batch)
            else:
                self._faults.count(unapplied, "unknown")
        await asyncio.sleep(self._faults.latency())
        return self._unknown(batches, "the answer was lost")

    def _unknown(self, batches: tuple[kv.Batch, ...], why: str) -> list[kv.Outcome]:
        return self._faults.guards.unanswered(self._truth, batches, why)

    def _apply_later(self, batches: tuple[kv.Batch, ...]) -> None:
        """The commit is still under way in the store, whatever becomes of the host."""
        seconds = self._faults.pick(0.01, 0.5, 5)

        async def later() -> None:
            await asyncio.sleep(seconds)
            for batch in batches:
                await self._apply(batch)

        # Of the root: the store goes on when the host that sent it has died.
        self._faults.loop.start(self._faults.loop.root, later(), name="commit under way")

    async def _no_answer(self) -> None:
        await asyncio.sleep(0.05 + self._faults.latency())
        raise errors.StoreUnavailable("the store cannot be reached")


def _is_journal(request: kv.Request) -> bool:
    return isinstance(request, kv.Range) and keyspaces.is_journal(request.begin)


def _fenced(key: bytes) -> ids.Address | None:
    """The world whose epoch a batch expects by this key."""
    where = keyspaces.place(key)
    return where.at if where.what == "epoch" else None
