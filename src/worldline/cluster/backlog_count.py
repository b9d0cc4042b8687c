"""The backlog of a universe, counted for metrics: unread items, dead letters, open and overdue work, worlds by status.

There are three walks, each at its own pace through its own keys: all worlds with their inboxes, all open work, and the
due queues. A turn is one bounded read or two of each walk that is under way; a walk that has come to its end tells its
counts as one fact and rests for `backlog_ms`. So what a count costs does not depend on how often metrics are scraped,
and a count is as old as its walk and its rest.

Numbers of items are lower bounds: of one world so many are counted at most, and so many bytes of all worlds of a turn.
Nothing is written, and nothing depends on it. The janitor's process does this, only if a listener counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.cluster import stamp_ages
from worldline.codec import printable, tuples
from worldline.keys import inbox as inbox_keys
from worldline.keys import work as work_keys
from worldline.layers import inbox as inboxes
from worldline.layers import leases, worlds
from worldline.layers import work as works
from worldline.model import ids
from worldline.model.settings import JanitorSettings
from worldline.model.work import WorkKind, WorkState
from worldline.model.world_records import Status, WorldMeta
from worldline.runtime import death_witness, wakeup
from worldline.runtime import facts as telemetry
from worldline.store import kv

log = printable.logger("worldline.janitor")

WORLDS_MAX = 256  # looked at in one turn; each takes a handful of requests
ITEMS_MAX = 1_000  # unread items or dead letters of one world that are counted
ITEMS_BYTES_MAX = 2 * limits.MIB  # read for that in one turn, about
ITEMS_BYTES_EACH_MIN = ITEMS_BYTES_MAX // WORLDS_MAX
OPEN_MAX = 1_000  # records of open work in one turn
QUEUES_MAX = 64  # due queues in one turn
OVERDUE_MAX = 1_000  # pointers of one queue that are counted
UNHOSTED_US = 30_000_000  # a world that waits for less may be about to be taken
MARK_MS = 10_000  # between two marks of what is stable, while nothing is counted

STATUSES = tuple(each.name.lower() for each in Status if each is not Status.DELETED)
KINDS = tuple(each.name.lower() for each in WorkKind if each is not WorkKind.MESSAGE)
STATES = tuple(each.name.lower() for each in WorkState)

Counted = telemetry.WorldsCounted | telemetry.OpenCounted | telemetry.DueCounted


class Backlog:
    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        universe: ids.UniverseId,
        *,
        name: str,
        settings: JanitorSettings,
        telemetry: telemetry.Telemetry,
        is_dead: Callable[[ids.WorkerId], bool] = lambda _: False,
    ) -> None:
        self._engine = engine
        self._env = env
        self._settings = settings
        self._telemetry = telemetry
        self._watch = wakeup.Wakeup(engine, env, [])
        self._ages = stamp_ages.StampAges()
        self._walks: list[_Walk] = [
            WorldsWalk(
                engine,
                env,
                universe,
                name,
                ages=self._ages,
                others=death_witness.DeathWitness(env, is_dead),
                worlds_max=min(settings.worlds_max, WORLDS_MAX),
            ),
            OpenWalk(engine, env, universe, name),
            DueWalk(engine, env, universe, name),
        ]
        self._rests_until_us = [0] * len(self._walks)

    def wake(self) -> None:
        self._watch.wake()

    async def close(self) -> None:
        await self._watch.close()

    async def tick(self) -> None:
        """One turn, and a rest: a short one while a walk is under way."""
        self._watch.clear()
        await self.turn()
        now_us = self._env.monotonic_us()
        left_ms = max(0, min(self._rests_until_us) - now_us) // 1000
        await self._watch.rest(max(self._settings.turn_ms, min(left_ms, MARK_MS)))

    @property
    def within_ms(self) -> int:
        """The rest between two turns."""
        return self._settings.turn_ms

    async def remove(self) -> bool:
        """Nothing is ever removed here. Returns whether that was all."""
        return True

    async def turn(self) -> bool:
        """A part of each walk that does not rest. Returns whether all rest now."""
        # Any range will do: what is stable is said of the whole store.
        page = (await self._engine.read(kv.Range(b"\x00", b"\x01", count_max=1))).page(0)
        self._ages.mark(page.stable, now_us=self._env.monotonic_us())
        for index, walk in enumerate(self._walks):
            if self._rests_until_us[index] > self._env.monotonic_us():
                continue
            counted = await walk.turn()
            if counted is not None:
                self._rests_until_us[index] = self._env.monotonic_us() + self._settings.backlog_ms * 1000
                self._telemetry.tell(counted)
        return min(self._rests_until_us) > self._env.monotonic_us()


class WorldsWalk:
    """All worlds in the order of their ids: inboxes, dead letters, holders."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        universe: ids.UniverseId,
        name: str,
        *,
        ages: stamp_ages.StampAges,
        others: death_witness.DeathWitness,
        worlds_max: int,
    ) -> None:
        self._engine = engine
        self._env = env
        self._universe = universe
        self._name = name
        self._ages = ages
        self._others = others
        self._worlds_max = worlds_max
        self._begin()

    def _begin(self) -> None:
        self._after: ids.WorldId | None = None
        self._worlds, self._unread = _zeros(STATUSES), _zeros(STATUSES)
        self._unread_worlds, self._unread_age_us = _zeros(STATUSES), _zeros(STATUSES)
        self._unhosted = self._dead = self._dead_age_us = 0

    async def turn(self) -> telemetry.WorldsCounted | None:
        read = await self._engine.read(worlds.list_range(self._universe, after=self._after, count_max=self._worlds_max))
        page = read.page(0)
        metas = self._readable(page)
        for meta in metas.values():
            self._worlds[meta.status.name.lower()] += 1
        await self._count(metas)
        if page.more:
            self._after = worlds.listed_at(self._universe, page)[-1].world
            return None
        lives, now_us = await self._others.lives(self._engine)
        counted = telemetry.WorldsCounted(
            self._name,
            self._env.wall_us(),
            self._worlds,
            self._unread,
            self._unread_worlds,
            self._unread_age_us,
            self._unhosted,
            self._dead,
            self._dead_age_us,
            self._states(lives, now_us),
        )
        self._begin()
        return counted

    def _readable(self, page: kv.Page) -> dict[ids.Address, WorldMeta]:
        found: dict[ids.Address, WorldMeta] = {}
        for item in page.items:
            try:
                # One by one: a damaged record must not hide the others of its page.
                found.update(worlds.listed(self._universe, kv.Page([item], more=False, stable=page.stable)))
            except errors.Corrupt as error:
                log.warning("a listed world cannot be read, and is not counted: %s", error)
        return found

    async def _count(self, metas: dict[ids.Address, WorldMeta]) -> None:
        """First whether there is anything, which mostly there is not; then how much, where there is."""
        if not metas:
            return
        firsts = [inboxes.read_range(at, count_max=1) for at in metas]
        firsts += [inboxes.dead_range(at, count_max=1) for at in metas]
        read = await self._engine.read(*firsts)
        unread = [at for index, at in enumerate(metas) if read.page(index).items]
        dead = [at for index, at in enumerate(metas) if read.page(len(metas) + index).items]
        if not unread and not dead:
            return
        bytes_max = max(ITEMS_BYTES_EACH_MIN, ITEMS_BYTES_MAX // (len(unread) + len(dead)))
        read = await self._engine.read(
            *(inboxes.read_range(at, count_max=ITEMS_MAX, bytes_max=bytes_max) for at in unread),
            *(msgspec.structs.replace(inboxes.dead_range(at, count_max=ITEMS_MAX), bytes_max=bytes_max) for at in dead),
        )
        for index, at in enumerate(unread):
            self._add_unread(metas[at].status.name.lower(), read.page(index))
        for index in range(len(dead)):
            self._add_dead(read.page(len(unread) + index), read.time_us)
        waiting = [at for index, at in enumerate(unread) if self._waits(metas[at], read.page(index))]
        self._unhosted += await self._without_holder(waiting)

    def _add_unread(self, status: str, page: kv.Page) -> None:
        if not page.items:
            return  # it was processed meanwhile
        self._unread[status] += len(page.items)
        self._unread_worlds[status] += 1
        self._unread_age_us[status] = max(self._unread_age_us[status], self._age_us(page))

    def _add_dead(self, page: kv.Page, time_us: int) -> None:
        self._dead += len(page.items)
        for item in page.items:
            try:
                [letter] = inboxes.decode_dead([item])
            except errors.Corrupt:
                continue  # `worldline doctor` reports it
            self._dead_age_us = max(self._dead_age_us, time_us - letter.dead.time_us)

    def _age_us(self, page: kv.Page) -> int:
        return self._ages.age_us(inbox_keys.stamp_of(page.items[0][0]), now_us=self._env.monotonic_us())

    def _waits(self, meta: WorldMeta, page: kv.Page) -> bool:
        """Whether a world should have been taken by now."""
        return meta.status is Status.ACTIVE and bool(page.items) and self._age_us(page) >= UNHOSTED_US

    async def _without_holder(self, addresses: Sequence[ids.Address]) -> int:
        """How many of these no live worker holds."""
        if not addresses:
            return 0
        lives, now_us = await self._others.lives(self._engine)
        alive = [life.sign.incarnation for life in lives if self._is_alive(life, now_us)]
        read = await self._engine.read(*(get for at in addresses for get in leases.reads(at)))
        count = 0
        for index, at in enumerate(addresses):
            try:
                holder = leases.decode(at, *(read.value(3 * index + offset) for offset in range(3))).holder
            except errors.Corrupt:
                continue  # its worker reports it
            count += holder is None or holder.incarnation not in alive
        return count

    def _states(self, lives: Sequence[leases.HeartbeatRecord], now_us: int) -> dict[str, int]:
        states = {"alive": 0, "draining": 0, "dead": 0}
        for life in lives:
            if not self._is_alive(life, now_us):
                states["dead"] += 1
            else:
                states["draining" if life.sign.draining else "alive"] += 1
        return states

    def _is_alive(self, life: leases.HeartbeatRecord, now_us: int) -> bool:
        return life.alive(now_us) and not self._others.is_dead(life.worker)


class OpenWalk:
    """All open effects and timers, by state. Work that is parked stands in no queue, so there is no shorter way."""

    def __init__(self, engine: kv.Engine, env: envs.Env, universe: ids.UniverseId, name: str) -> None:
        self._engine = engine
        self._env = env
        self._universe = universe
        self._name = name
        self._begin()

    def _begin(self) -> None:
        self._start, self._end = work_keys.open_all(self._universe)
        self._work = {(kind, state): 0 for kind in KINDS for state in STATES}

    async def turn(self) -> telemetry.OpenCounted | None:
        page = (await self._engine.read(kv.Range(self._start, self._end, count_max=OPEN_MAX))).page(0)
        for _, raw in page.items:
            try:
                found = work_keys.WORK.unpack(raw)
            except errors.Corrupt:
                continue  # `worldline doctor` reports it
            self._work[found.kind.name.lower(), found.state.name.lower()] += 1
        if page.more:
            self._start = tuples.successor(page.items[-1][0])
            return None
        counted = telemetry.OpenCounted(self._name, self._env.wall_us(), self._work)
        self._begin()
        return counted


class DueWalk:
    """All due queues, and of each what is due by now: the oldest stands first, so what is due later is not read."""

    def __init__(self, engine: kv.Engine, env: envs.Env, universe: ids.UniverseId, name: str) -> None:
        self._engine = engine
        self._env = env
        self._universe = universe
        self._name = name
        self._begin()

    def _begin(self) -> None:
        self._start, self._end = work_keys.due_all(self._universe)
        self._overdue, self._overdue_age_us = _zeros(KINDS), _zeros(KINDS)

    async def turn(self) -> telemetry.DueCounted | None:
        for _ in range(QUEUES_MAX):
            read = await self._engine.read(kv.Range(self._start, self._end, count_max=1))
            found = works.decode_due(self._universe, read.page(0))
            if not found:
                counted = telemetry.DueCounted(self._name, self._env.wall_us(), self._overdue, self._overdue_age_us)
                self._begin()
                return counted
            queue = found[0].pointer.queue
            await self._count(queue, read.time_us)
            # Behind this queue: the rest of it is not due yet, or more than is counted.
            self._start = tuples.prefix_range(work_keys.queue_prefix(self._universe, queue))[1]
        return None

    async def _count(self, queue: str, now_us: int) -> None:
        """Work of one kind has its queue to itself, and the first pointer is due for longest."""
        wanted = works.due_range(self._universe, queue=queue, now_us=now_us, count_max=OVERDUE_MAX)
        page = (await self._engine.read(wanted)).page(0)
        if not page.items:
            return
        oldest_key, raw = page.items[0]
        kind = work_keys.DUE.unpack(raw).kind.name.lower()
        self._overdue[kind] += len(page.items)
        age_us = now_us - work_keys.pointer(self._universe, oldest_key).due_us
        self._overdue_age_us[kind] = max(self._overdue_age_us[kind], age_us)


_Walk = WorldsWalk | OpenWalk | DueWalk


def _zeros(names: Sequence[str]) -> dict[str, int]:
    return dict.fromkeys(names, 0)
