"""Backpressure: inputs from outside are refused while the backlog is too large.

Three bounds, each an estimate: unread items of a world's inbox, open effects of a universe, inputs that were handed
over to worlds of this process and wait for their step. Inputs that are in the backlog stay; a new one is refused, with
`Overloaded` and a time after which to try again. Only what comes from outside and asks for work is refused: events,
requests and new runs. Messages between worlds, receipts, timers and all other control pass, or a full system could not
reduce its backlog.

Estimates are sampled from the store, never read for every input: the inbox's with a read that happens anyway, once per
sample period or number of inputs; the effects' after an input was taken, once per sample period, less often the more
there are. Between samples a process counts what it adds to an inbox itself. So several processes may exceed a bound by
a part of it each.
"""

from __future__ import annotations

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.codec import tuples
from worldline.kernel import commands
from worldline.layers import inbox as inboxes
from worldline.layers import work as works
from worldline.model import ids, inbox
from worldline.model.settings import PressureSettings
from worldline.roles import queue_names, telemetry
from worldline.roles.world.held_world import HeldWorld
from worldline.store import kv

INBOXES_MAX = 4_096  # the inboxes whose depth is remembered
PAGE = 10_000
RETRY_US_MIN = 250_000
PART = 64  # near its bound, an inbox is sampled again after this fraction of it was added


class Depth(msgspec.Struct):
    """What is known of an inbox: how much was in it when it was read, and what we have added since."""

    read_us: int
    count: int
    full: bool
    added: int = 0


class Pressure:
    def __init__(
        self, engine: kv.Engine, env: envs.Env, universe: ids.UniverseId, settings: PressureSettings,
        *, telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._env = env
        self._universe = universe
        self._settings = settings
        self._telemetry = telemetry
        self._inboxes: dict[ids.Address, Depth] = {}
        self._effects = 0
        self._effects_us: int | None = None  # when they were counted
        self._count_again_us = 0
        self.waiting = 0  # inputs that were handed over to worlds of this process

    # --- Handed over in this process ---------------------------------------------------------------------------

    def enter(self, hosted: HeldWorld, item: inbox.Item) -> None:
        """An input is about to be handed over; `leave` when it is settled. Refuses it if too many wait already."""
        settings = self._settings
        if is_refusable(item):
            waiting = hosted.waiting
            if 0 < settings.waiting_world_max <= waiting:
                why = f"{waiting} inputs wait for world {hosted.name or hosted.at.world.hex()!r} in this process"
                raise self._refuse(hosted.at, "world", why, RETRY_US_MIN)
            if 0 < settings.waiting_max <= self.waiting:
                raise self._refuse(hosted.at, "process", f"{self.waiting} inputs wait in this process", RETRY_US_MIN)
        hosted.enter()
        self.waiting += 1

    def leave(self, hosted: HeldWorld) -> None:
        hosted.leave()
        self.waiting -= 1

    # --- The inbox of a world that is held elsewhere -----------------------------------------------------------

    def wants(self, at: ids.Address, item: inbox.Item) -> list[kv.Range]:
        """What to read, besides, before this input is enqueued; nothing if enough is known."""
        settings = self._settings
        bound = settings.inbox_items_max
        if not bound or not is_refusable(item):
            return []
        known = self._inboxes.get(at)
        if known is not None:
            fresh = self._env.monotonic_us() - known.read_us < settings.sample_ms * 1000
            allowed = max(bound // PART, (bound - known.count) // 4)
            if fresh and (known.full or known.added < allowed):
                return []
            known.read_us = self._env.monotonic_us()  # inputs that come during the read use the last sample
        return [inboxes.read_range(at, count_max=bound, bytes_max=settings.inbox_bytes_max)]

    def check_inbox(self, at: ids.Address, item: inbox.Item, page: kv.Page | None) -> None:
        """Refuse the input if the inbox is full, by what is known or was read just now."""
        bound = self._settings.inbox_items_max
        if not bound or not is_refusable(item):
            return
        if page is not None:
            full = page.more or len(page.items) >= bound
            self._inboxes.pop(at, None)
            self._inboxes[at] = Depth(self._env.monotonic_us(), len(page.items), full)
            if len(self._inboxes) > INBOXES_MAX:
                del self._inboxes[next(iter(self._inboxes))]
        known = self._inboxes.get(at)
        if known is None:
            return
        if known.full:
            why = f"the inbox of world {at.world.hex()} is full, with {known.count} unread items or more"
            raise self._refuse(at, "inbox", why, self._settings.sample_ms * 1000)
        known.added += 1

    # --- The effects of the universe ---------------------------------------------------------------------------

    def effects_doubtful(self, item: inbox.Item) -> bool:
        """Whether the universe has too many open effects, by what is known."""
        return 0 < self._settings.open_effects_max <= self._effects and is_refusable(item)

    async def check_effects(self, at: ids.Address, item: inbox.Item, *, sure: bool = False) -> None:
        """Refuse the input if the universe has too many open effects, by what is known.

        An input that passes does not wait for a count: inputs that were given one after the other must not overtake
        each other. `sure`: except for the first input of a process, which may be its only one.
        """
        bound = self._settings.open_effects_max
        if not bound or not is_refusable(item):
            return
        if self._effects >= bound or (sure and self._effects_us is None):
            await self.count_effects(item)
        if self._effects >= bound:
            why = f"{self._effects} effects or more are open in this universe"
            raise self._refuse(at, "effects", why, self._settings.sample_ms * 1000)

    def effects_stale(self, item: inbox.Item) -> bool:
        """Whether it is time to count open effects."""
        if self._effects_us is not None and self._env.monotonic_us() < self._count_again_us:
            return False
        return self._settings.open_effects_max > 0 and is_refusable(item)

    async def count_effects(self, item: inbox.Item) -> None:
        """Count open effects, if it is time to: after an input was taken, so that the next ones are judged by it."""
        if not self.effects_stale(item):
            return
        self._effects_us = self._env.monotonic_us()  # inputs that come during the read use the last sample
        self._plan_count()
        try:
            self._effects = await self._count_effects(self._settings.open_effects_max)
            self._plan_count()
        except errors.StoreError:
            return  # the last sample stays; the input itself reports that the store cannot be reached

    def _plan_count(self) -> None:
        """The more there are, the less often they are counted."""
        assert self._effects_us is not None
        self._count_again_us = self._effects_us + self._settings.sample_ms * 1000 * max(1, self._effects // PAGE)

    async def _count_effects(self, bound: int) -> int:
        count = 0
        ranges = works.effects_ranges(self._universe, timers=queue_names.TIMER_QUEUE, count_max=min(bound, PAGE))
        while ranges and count < bound:
            read = await self._engine.read(*ranges)
            following: list[kv.Range] = []
            for index, each in enumerate(ranges):
                page = read.page(index)
                count += len(page.items)
                if page.more:
                    begin = tuples.successor(page.items[-1][0])
                    following.append(msgspec.structs.replace(each, begin=begin))
            ranges = following
        return count

    def _refuse(self, at: ids.Address, why: telemetry.Why, message: str, after_us: int) -> errors.Overloaded:
        """The error to raise. The time is drawn, so that callers refused together do not retry together."""
        least_us = max(after_us, RETRY_US_MIN)
        retry_after_us = least_us + self._env.random_below(least_us)
        self._telemetry.tell(telemetry.Refused(at, why, retry_after_us))
        return errors.Overloaded(message, retry_after=retry_after_us / 1_000_000)


def is_refusable(item: inbox.Item) -> bool:
    """Whether an input asks for new work."""
    return isinstance(item, inbox.Event) or (isinstance(item, inbox.Control) and item.command == commands.RUN)
