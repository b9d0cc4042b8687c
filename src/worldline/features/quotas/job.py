"""Counting what a universe has, so that its quota can be held to.

A count is a walk through all keys of a universe, a page at a time: bytes of keys, values and the bodies of objects;
worlds, forks that pin and open effects by their keys. What it comes to is published as one record, which producers read
together with the quota. So a count is as old as its walk and the rest before the next, and between two of them a
universe may get as many bytes beyond its quota as its producers send meanwhile.

Only universes with a quota are counted; the bytes, for which all of a universe is read, only if they are bounded. Any
number of processes may count: of two that end at once, one publishes.
"""

from __future__ import annotations

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.codec import printable, tuples
from worldline.features.quotas import batches, quota_metrics, records, world_count
from worldline.keys import cas as cas_keys
from worldline.keys import keyspace_table, space
from worldline.keys.space import InUniverse, InWorld
from worldline.layers import universes
from worldline.model import ids
from worldline.runtime import open_effect_count, wakeup
from worldline.runtime.store_context import StoreContext
from worldline.runtime.universes.served_universes import Served
from worldline.store import kv, transact

log = printable.logger("worldline.janitor")

PAGE_KEYS = 10_000
PAGE_BYTES = 4 * limits.MIB  # read in one turn
QUOTAS_PAGE = 1_000  # quotas read at once

_INDEX, _CAS = keyspace_table.row(InUniverse.INDEX), keyspace_table.row(InUniverse.CAS)
_RETAIN = keyspace_table.row(InWorld.RETAIN)

assert QUOTAS_PAGE <= limits.READ_REQUESTS_MAX


class UsageWalk:
    """One count of one universe."""

    def __init__(self, engine: kv.Engine, universe: ids.UniverseId, *, bytes_too: bool = True) -> None:
        self._engine = engine
        self._universe = universe
        self._bytes_too = bytes_too
        self._start, self._end = tuples.prefix_range(space.universe(universe))
        self._began_us = 0
        self._bytes = self._worlds = 0
        self._forks: dict[bytes, None] = {}

    async def turn(self) -> records.Usage | None:
        """The next page. Returns what was counted, if that was the last."""
        if not self._bytes_too:
            return await self._cheap()
        wanted = kv.Range(self._start, self._end, count_max=PAGE_KEYS, bytes_max=PAGE_BYTES)
        read = await self._engine.read(wanted)
        self._began_us = self._began_us or read.time_us
        page = read.page(0)
        for key, value in page.items:
            self._add(key, value)
        if page.more:
            self._start = tuples.successor(page.items[-1][0])
            return None
        effects = await open_effect_count.count(self._engine, self._universe)
        return records.Usage(self._worlds, self._bytes, effects, len(self._forks), self._began_us, read.time_us)

    def _add(self, key: bytes, value: bytes) -> None:
        row = keyspace_table.of(key)
        if row is None or row.counted:
            self._bytes += len(key) + len(value)
        if row is _INDEX:
            self._worlds += 1
        elif row is _CAS:
            self._bytes += _object_bytes(value)
        elif row is _RETAIN:
            match keyspace_table.take_apart(key).rest:
                case (int(), tuples.Uuid(fork)):  # a pin, and not their count
                    self._forks[fork] = None

    async def _cheap(self) -> records.Usage:
        """All but the bytes, which are not bounded."""
        began_us = (await self._engine.read()).time_us
        worlds = await world_count.count_worlds(self._engine, self._universe)
        pins = await world_count.count_pins(self._engine, self._universe)
        effects = await open_effect_count.count(self._engine, self._universe)
        return records.Usage(worlds, None, effects, pins, began_us, (await self._engine.read()).time_us)


def _object_bytes(raw: bytes) -> int:
    """The size of a blob's body, if that is an object."""
    try:
        found = cas_keys.BLOB.unpack(raw)
    except errors.Error:
        return 0  # damaged, which `worldline doctor` reports; or this process does not have its key
    return 0 if found.object is None else found.size


async def publish(
    engine: kv.Engine, env: envs.Env, universe: ids.UniverseId, last_raw: bytes | None, counted: records.Usage
) -> None:
    """Say what was counted, unless another process has said something since `last_raw` was read."""
    batch = kv.Batch()
    meta_raw = (await engine.read(universes.get_meta(universe))).value(0)
    if universes.is_closed(meta_raw):
        return  # nothing is written in a universe that is being deleted
    universes.expect_there(batch, universe, meta_raw)
    batches.publish(batch, universe, last_raw, counted)
    await transact.commit(engine, env, batch)


async def count_now(engine: kv.Engine, env: envs.Env, universe: ids.UniverseId) -> records.Usage:
    """Count all of a universe at once, and publish it."""
    before = (await engine.read(batches.get_usage(universe))).value(0)
    walk = UsageWalk(engine, universe)
    while (counted := await walk.turn()) is None:
        pass
    await publish(engine, env, universe, before, counted)
    return counted


def usage_counter(context: StoreContext) -> UsageCounter | None:
    """The role that counts; None if the settings turn it off."""
    return UsageCounter(context) if context.settings.usage_ms > 0 else None


class UsageCounter:
    """The role: counts one universe after the other, a page in a turn."""

    name = "quotas"

    def __init__(self, context: StoreContext) -> None:
        self._engine = context.engine
        self._env = context.env
        self._universes = context.universes
        self._settings = context.settings
        self._telemetry = context.telemetry
        self._watch = wakeup.Wakeup(context.engine, context.env, [])
        self._line: list[tuple[Served, records.QuotaRecord]] = []  # those that are still to be counted in this round
        self._walk: UsageWalk | None = None  # of the first of them
        self._before: bytes | None = None
        self._told: dict[ids.UniverseId, None] = {}  # those of which metrics say that they are bounded

    def wake(self) -> None:
        self._watch.wake()

    async def close(self) -> None:
        await self._watch.close()

    async def tick(self) -> None:
        """One turn, and a rest: a short one while a count is under way."""
        self._watch.clear()
        over = await self.turn()
        await self._watch.rest(self._settings.usage_ms if over else self._settings.turn_ms)

    async def turn(self) -> bool:
        """A page of the count that is under way, or the next one. Returns whether all were counted."""
        if not self._line:
            await self._choose()
        if not self._line:
            return True
        served, quota = self._line[0]
        if self._walk is None:
            self._before = (await self._engine.read(batches.get_usage(served.id))).value(0)
            self._walk = UsageWalk(self._engine, served.id, bytes_too=quota.bytes is not None)
        counted = await self._walk.turn()
        if counted is not None:
            await publish(self._engine, self._env, served.id, self._before, counted)
            self._tell(served, quota, counted)
            self._walk = None
            del self._line[0]
        return not self._line

    async def _choose(self) -> None:
        """The universes with a quota, and those that had one when they were last counted."""
        served = self._universes.all
        for start in range(0, len(served), QUOTAS_PAGE):
            part = served[start : start + QUOTAS_PAGE]
            read = await self._engine.read(*(batches.get(each.id) for each in part))
            for index, each in enumerate(part):
                try:
                    quota = batches.decode(each.id, read.value(index)).quota
                except errors.Corrupt as error:  # the others can be counted all the same
                    log.warning("the quota of universe %s cannot be read: %s", each.name, error)
                    continue
                if quota != records.UNBOUNDED or each.id in self._told:
                    self._line.append((each, quota))

    def _tell(self, served: Served, quota: records.QuotaRecord, counted: records.Usage) -> None:
        self._telemetry.tell(quota_metrics.usage_counted(served.name, counted, quota))
        if quota == records.UNBOUNDED:
            self._told.pop(served.id, None)
        else:
            self._told[served.id] = None
