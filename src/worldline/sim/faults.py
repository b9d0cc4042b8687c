"""What can go wrong between a host and its store, drawn from a seed.

One memory engine holds the truth (`Truth`); each host sees it through a `HostEngine`, which delays, refuses, forgets to
answer, applies late, or lets the host die, freeze or lose its link right before or right after a commit is applied. A
`Profile` is drawn for each seed: every class of fault is on or off by a coin (so that none hides another), with a rate
of its own. `Faults.active` turns everything off when it is time to heal.

Nothing here knows an invariant; see `checkers`. Boundaries are named after reliability.md, section 3.3.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Literal

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.codec import digest
from worldline.model.settings import AdapterSettings, Settings, TimerSettings, WorkerSettings
from worldline.sim import ablations, reading
from worldline.sim.env_sim import EPOCH_US
from worldline.sim.loop import HOST, Host, SimLoop
from worldline.store import kv, objects

# What stands before and after each kind of commit. A name that stands nowhere here cannot be stopped at.
BOUNDARIES: dict[str, tuple[str, str]] = {
    "acquire": ("B1 before acquire", "B1 after acquire"),
    "step": ("B2 after drain, before append", "B7 after append, before publish"),
    "claim": ("B4 before claim", "B4 after claim, before call"),
    "settle": ("B5 after call, before receipt", "B17 after ack, before reply"),
    "fire": ("B6 before timer fires", "B6 after timer fired"),
    "blob": ("B8 after upload, before metadata", "B8 after metadata"),
    "snapshot": ("B9 after snapshot blob, before index", "B9 after index and promote"),
    "beat": ("B19 before renewal", "B19 between renewal and answer"),
    "enqueue": ("ingress before enqueue", "ingress after enqueue"),
    "read": ("B18 before read", "B18 after read"),
}
UNREACHABLE = {
    "B3 after append, before cursor": "one batch appends and deletes what was consumed (J6 asserts it)",
    "B10 after index, before promote": "one batch records a snapshot and makes it the baseline",
    "B20 between message and sender's receipt": "one batch holds both",
    "B16 after reaper move": "expired claims are due again by themselves; there is no reaper",
}
RARE = ["fire", "fire", "snapshot", "settle", "claim"]  # kinds of commits that there are few of
FAULTS = ("crash", "pause", "unknown", "partition")
FLIPS_MAX = 2  # damage on the way does not come for ever; damage at rest is another matter
FOCUS = 60  # faults per thousand at the boundaries that a seed looks at most


class Adapters(msgspec.Struct, frozen=True):
    """How the outside misbehaves, in percent of calls."""

    late: int = 0
    silent: int = 0
    wrong: int = 0
    double: int = 0


class Profile(msgspec.Struct, frozen=True):
    """Everything that is drawn before a seed runs. Rates are per thousand commits, or reads."""

    hosts: int = 2
    clients: int = 2
    split: bool = False  # every role on machines of its own
    focus: str = ""  # a kind of commit at which every fault is likely, whatever the coins said
    shuffle: bool = False
    latency_us: int = 2_000
    slow: int = 0
    crash: int = 0
    pause: int = 0
    partition: int = 0
    unknown: int = 0
    late: int = 0
    unavailable: int = 0
    objects: int = 0
    hints: Literal["all", "some", "none"] = "all"
    skew_us: int = 0
    drift_ppm: int = 0
    nth: int = 0  # exactly here, counted over all boundaries that are passed, and ...
    nth_fault: Literal["crash", "pause", "partition"] = "crash"  # ... this happens
    adapters: Adapters = Adapters()
    heal: Literal["all", "core"] = "all"
    chaos_seconds: int = 20
    settings: Settings = Settings()


def draw(seed: int) -> Profile:
    """The profile of a seed."""
    draws = random.Random(f"{seed}:profile")

    def coin(low: int, high: int) -> int:
        return draws.randint(low, high) if draws.random() < 0.5 else 0

    return Profile(
        hosts=draws.choice([1, 2, 2, 3]),
        clients=draws.choice([1, 2, 3]),
        split=draws.random() < 0.4,
        focus=draws.choice([kind for kind in BOUNDARIES if kind != "read"] + RARE + [""] * 3),
        shuffle=draws.random() < 0.5,
        latency_us=draws.choice([10, 500, 2_000, 20_000]),
        slow=coin(5, 50),
        crash=coin(2, 20),
        pause=coin(2, 15),
        partition=coin(2, 10),
        unknown=coin(10, 100),
        late=coin(5, 50),
        unavailable=coin(5, 50),
        objects=coin(100, 600),
        hints=draws.choice(["all", "some", "some", "none"]),
        skew_us=coin(1, 20_000_000),
        drift_ppm=coin(1, 5_000),
        adapters=Adapters(coin(5, 20), coin(2, 10), coin(5, 20), coin(5, 20)),
        heal=draws.choice(["all", "all", "core"]),
        chaos_seconds=draws.randint(10, 30),
        settings=draw_settings(draws),
    )


def draw_settings(draws: random.Random) -> Settings:
    """Constants are drawn too: a bound that is never met is never tested."""
    ttl_ms = draws.choice([1_000, 3_000, 10_000])
    claim_ms = draws.choice([1_000, 3_000, 8_000])
    return Settings(
        worker=WorkerSettings(
            lease_ttl_ms=ttl_ms,
            heartbeat_ms=ttl_ms // 4,
            scan_ms=draws.choice([300, 1_000, 3_000]),
            max_inbox_batch=draws.choice([1, 3, 64]),
            max_cycle_wall_ms=draws.choice([1, 250]),
            max_worlds_per_cycle=draws.choice([1, 2, 256]),
            max_worlds_warm=draws.choice([1, 3, 1_000]),
            idle_release_ms=draws.choice([500, 3_000, 60_000]),
            snapshot_entries=draws.choice([4, 15, 60, 5_000]),
            snapshot_ms=draws.choice([2_000, 300_000]),
            snapshot_idle_ms=draws.choice([200, 2_000]),
        ),
        adapter=AdapterSettings(
            claim_ttl_ms=claim_ms,
            renew_ms=claim_ms // 3,
            scan_ms=draws.choice([300, 1_000, 3_000]),
            concurrency=draws.choice([1, 4, 256]),
            claim_batch=draws.choice([1, 64]),
        ),
        timer=TimerSettings(scan_ms=draws.choice([300, 1_000, 3_000]), batch=draws.choice([1, 512])),
    )


class Applied(msgspec.Struct, frozen=True):
    """One batch that was applied: when on the store's clock, by whom, and what its keys held before."""

    number: int
    time_us: int
    host: Host
    batch: kv.Batch
    stamps: tuple[kv.Stamp, ...]
    before: dict[bytes, bytes | None]


class Trace:
    """A rolling hash over what happened, and the last of it in words."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._hash = hashlib.sha256()
        self.keep = 0
        self.events = 0
        self.lines: list[str] = []

    def note(self, host: Host, op: str, *parts: bytes) -> None:
        task = asyncio.current_task(self._loop)
        head = f"{self._loop.now_us} {host.label} {'-' if task is None else task.get_name()} {op}"
        self._hash.update(head.encode())
        for part in parts:
            self._hash.update(len(part).to_bytes(4, "big") + part)
        self.events += 1
        if len(self.lines) < self.keep:
            self.lines.append(f"{head} {digest.sha256(b'|'.join(parts)).hex()[:16]}")

    def hex(self) -> str:
        return self._hash.hexdigest()


class Truth:
    """The store itself: applies one batch at a time, keeps a plain copy beside it, and tells whoever audits."""

    def __init__(self, engine: kv.Engine, loop: SimLoop, trace: Trace) -> None:
        self.engine = engine
        self.trace = trace
        self.copy: dict[bytes, bytes] = {}
        self.audit: list[Callable[[Applied], None]] = []
        self.commits = 0
        self._loop = loop

    def time_us(self) -> int:
        return EPOCH_US + self._loop.now_us

    async def read(self, host: Host, *requests: kv.Request) -> kv.Snapshot:
        keys = [each.key if isinstance(each, kv.Get) else each.begin for each in requests]
        self.trace.note(host, "read", *keys)
        return await self.engine.read(*requests)

    async def commit(self, host: Host, batch: kv.Batch) -> kv.Outcome:
        self.commits += 1
        self.trace.note(host, "commit", *_bytes_of(batch))
        [outcome] = await self.engine.commit(batch)
        self.trace.note(host, type(outcome).__name__)
        if isinstance(outcome, kv.Ok):
            touched = (*batch.puts, *batch.deletes)
            before = {key: self.copy.get(key) for key in touched}
            self._apply(batch, outcome.stamps)
            applied = Applied(self.commits, self.time_us(), host, batch, outcome.stamps, before)
            for look in self.audit:
                look(applied)
        return outcome

    def _apply(self, batch: kv.Batch, stamps: tuple[kv.Stamp, ...]) -> None:
        """The same once more, as simply as can be: at the end both must hold the same (K1)."""
        for begin, end in batch.ranges:
            self.copy = {key: value for key, value in self.copy.items() if not begin <= key < end}
        for key in batch.deletes:
            self.copy.pop(key, None)
        for put in batch.puts.values():
            self.copy[put.key] = put.value if put.stamp is None else put.value + stamps[put.stamp]
        for append, stamp in zip(batch.appends, stamps, strict=True):
            self.copy[append.prefix + stamp] = append.value
        assert not batch.counts, "no layer counts yet; the copy would need to"


def _bytes_of(batch: kv.Batch) -> list[bytes]:
    parts = [key + (b"" if value is None else value) for key, value in batch.expects.items()]
    parts += [begin + end for begin, end in batch.ranges]
    parts += list(batch.deletes)
    parts += [put.key + put.value for put in batch.puts.values()]
    return parts + [append.prefix + append.value for append in batch.appends]


class Faults:
    """The faults of one run: what is drawn when, and what was hit."""

    def __init__(self, loop: SimLoop, seed: int, profile: Profile, *, without: str = "") -> None:
        self.loop = loop
        self.profile = profile
        self.without = without
        self.active = False
        self.passed = 0
        self.cells: Counter[tuple[str, str]] = Counter()
        self.on_crash: Callable[[Host], None] = lambda _: None
        self._draws = random.Random(f"{seed}:faults")
        self._net = random.Random(f"{seed}:net")
        self._quiet = contextvars.copy_context()

    def settle(self) -> None:
        """Remember the root's context: what is scheduled in it outlives any host."""
        self._quiet = contextvars.copy_context()

    def latency(self) -> float:
        worst_us = self.profile.latency_us
        if self.active and self._net.random() * 1000 < self.profile.slow:
            worst_us = 3 * self.profile.settings.worker.lease_ttl_ms * 1000
        return int(self._net.random() * worst_us) / 1_000_000

    def hit(self, rate: int) -> bool:
        return rate > 0 and self.active and self._draws.random() * 1000 < rate

    def pick(self, *choices: float) -> float:
        return self._draws.choice(choices)

    def count(self, boundary: str, fault: str) -> None:
        self.cells[boundary, fault] += 1

    async def boundary(self, link: Link, name: str) -> None:
        """Maybe the host dies, freezes or loses its link right here."""
        profile, host = self.profile, link.host
        least = FOCUS if profile.focus and name in BOUNDARIES[profile.focus] else 0
        self.passed += 1 if self.active else 0
        nth = profile.nth_fault if self.active and self.passed == profile.nth else ""
        if nth == "crash" or self.hit(max(profile.crash, least)):
            self.count(name, "crash")
            self.crash(host)
            await self.loop.create_future()  # nothing of a dead host goes on
        if nth == "pause" or self.hit(max(profile.pause, least)):
            self.count(name, "pause")
            self.pause(host)
            await asyncio.sleep(0)
        if nth == "partition" or self.hit(max(profile.partition, least)):
            self.count(name, "partition")
            self.cut(link)

    def crash(self, host: Host) -> None:
        self.loop.crash(host)
        self.loop.call_soon(self.on_crash, host, context=self._quiet)

    def pause(self, host: Host) -> None:
        """Freeze for up to four times the lease's TTL, most often beyond it."""
        seconds = self.profile.settings.worker.lease_ttl_ms / 1000 * self.pick(0.5, 1.5, 2, 4)
        self.loop.freeze(host)
        self.loop.call_later(seconds, self.loop.thaw, host, context=self._quiet)

    def cut(self, link: Link) -> None:
        """Cut one direction or both for a while."""
        seconds = self.profile.settings.worker.lease_ttl_ms / 1000 * self.pick(0.2, 1, 2, 5)
        kind = self._draws.choice(["both", "there", "back"])
        link.cut_there = kind in ("both", "there")
        link.cut_back = kind in ("both", "back")
        self.loop.call_later(seconds, link.heal, context=self._quiet)


class Link:
    """One host's way to the store and back."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.cut_there = False
        self.cut_back = False

    def heal(self) -> None:
        self.cut_there = self.cut_back = False


class HostEngine:
    """The store as one host sees it."""

    def __init__(self, truth: Truth, faults: Faults, host: Host, env: envs.Env) -> None:
        self._truth = truth
        self._faults = faults
        self._host = host
        self._env = env
        self.link = Link(host)

    async def read(self, *requests: kv.Request) -> kv.Snapshot:
        kv.check_requests(requests)
        faults = self._faults
        await faults.boundary(self.link, BOUNDARIES["read"][0])
        await asyncio.sleep(faults.latency())
        if self.link.cut_there or faults.hit(faults.profile.unavailable):
            await self._no_answer()
        found = await self._truth.read(self._host, *requests)
        await asyncio.sleep(faults.latency())
        if self.link.cut_back:
            await self._no_answer()
        await faults.boundary(self.link, BOUNDARIES["read"][1])
        if faults.without == "store-time":
            return kv.Snapshot(found.answers, self._env.wall_us(), found.seen)
        return found

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        for batch in batches:
            kv.check(batch)
        faults, profile = self._faults, self._faults.profile
        before, after = BOUNDARIES.get(reading.about(batches[0]), ("", "")) if batches else ("", "")
        if before:
            await faults.boundary(self.link, before)
        await asyncio.sleep(faults.latency())
        if self.link.cut_there or faults.hit(profile.unavailable):
            await self._no_answer()
        if faults.hit(profile.unknown):
            return await self._unanswered(batches, before, after)
        if faults.hit(profile.late):
            faults.count(before, "unknown")
            self._apply_later(batches)
            return self._unknown(batches, "still under way")
        if faults.without == "output-gate" and before.startswith("B2"):
            self._apply_later(batches)
            return [ablations.pretended(self._truth, batch) for batch in batches]
        outcomes = [await self._apply(batch) for batch in batches]
        await asyncio.sleep(faults.latency())
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
        if mode == "none" or (mode == "some" and faults.hit(300)):
            await asyncio.sleep(timeout_ms / 1000)
            return False
        if mode == "some" and faults.hit(100):
            await asyncio.sleep(faults.latency())
            return True
        hinted = await self._truth.engine.wait(prefix, seen, timeout_ms)
        if mode == "some" and faults.hit(300):
            await asyncio.sleep(faults.pick(0.1, 1, 3))
        return hinted

    async def durability(self) -> kv.Durability:
        return await self._truth.engine.durability()

    async def close(self) -> None:
        """The truth outlives those who look at it."""

    async def _apply(self, batch: kv.Batch) -> kv.Outcome:
        return await ablations.apply(self._truth, self._host, batch, self._faults.without)

    async def _unanswered(self, batches: tuple[kv.Batch, ...], before: str, after: str) -> list[kv.Outcome]:
        """Some of the batches are applied, and nobody learns which."""
        for batch in batches:
            if self._faults.pick(0, 1):
                self._faults.count(after, "unknown")
                await self._apply(batch)
            else:
                self._faults.count(before, "unknown")
        await asyncio.sleep(self._faults.latency())
        return self._unknown(batches, "the answer was lost")

    def _unknown(self, batches: tuple[kv.Batch, ...], why: str) -> list[kv.Outcome]:
        if self._faults.without == "unknown":
            return [ablations.pretended(self._truth, batch) for batch in batches]
        return [kv.CommitUnknown(why) for _ in batches]

    def _apply_later(self, batches: tuple[kv.Batch, ...]) -> None:
        """The commit is still under way in the store, whatever becomes of the host."""
        seconds = self._faults.pick(0.01, 0.5, 5)

        async def later() -> None:
            await asyncio.sleep(seconds)
            for batch in batches:
                await self._apply(batch)

        self._faults.loop.start(self._faults.loop.root, later(), name="commit under way")

    async def _no_answer(self) -> None:
        await asyncio.sleep(0.05 + self._faults.latency())
        raise errors.StoreUnavailable("the store cannot be reached")


def current_host() -> Host:
    """The host whose code is running."""
    return HOST.get()


class FaultyObjects:
    """Objects that fail now and then: refused, written without saying so, or damaged on the way back."""

    def __init__(self, bodies: objects.Objects, faults: Faults) -> None:
        self._bodies = bodies
        self._faults = faults
        self._flips: dict[str, int] = {}  # in a row, of each object

    async def put(self, name: str, body: bytes) -> None:
        if self._faults.hit(self._faults.profile.objects // 4):
            if self._faults.pick(0, 1):
                await self._bodies.put(name, body)
            raise errors.StoreUnavailable("no answer from the objects")
        await self._bodies.put(name, body)

    async def get(self, name: str) -> bytes:
        body = await self._bodies.get(name)
        if not self._hit():
            self._flips[name] = 0
            return body
        if self._faults.pick(0, 1, 1, 1) and body and self._flips.get(name, 0) < FLIPS_MAX:
            self._flips[name] = self._flips.get(name, 0) + 1
            return bytes([body[0] ^ 1]) + body[1:]
        self._flips[name] = 0
        raise errors.StoreUnavailable("no answer from the objects")

    async def list(self, prefix: str, *, after: str = "", count_max: int = 1000) -> list[objects.Listed]:
        return await self._bodies.list(prefix, after=after, count_max=count_max)

    async def delete(self, name: str) -> None:
        await self._bodies.delete(name)

    async def close(self) -> None:
        """The bodies outlive those who look at them."""

    def _hit(self) -> bool:
        return self._faults.hit(self._faults.profile.objects)


def reachable() -> list[tuple[str, str]]:
    """Every cell of boundary and fault that a campaign must hit. A read has no unknown outcome."""
    names = [name for pair in BOUNDARIES.values() for name in pair]
    return [(name, fault) for name in names for fault in FAULTS if not (fault == "unknown" and name.startswith("B18"))]
