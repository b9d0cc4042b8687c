"""Backpressure: inputs from outside are refused while the backlog is too large.

Three bounds, each an estimate: unread items of a world's inbox, open effects of a universe, inputs that were handed
over to worlds of this process and wait for their step. Inputs that are in the backlog stay; a new one is refused, with
`Overloaded` and a time after which to try again. Only what comes from outside and asks for work is refused: events,
requests and new runs. Messages between worlds, receipts, timers and all other control pass, or a full system could not
reduce its backlog.

The same inputs are refused while a feature allows the universe no more of them (`runtime/universe_admission.py`), with
that feature's error.

Estimates are sampled from the store, never read for every input: the inbox's with a read that happens anyway, once per
sample period or number of inputs; the effects', and what features allow, after an input was taken, once per sample
period, less often the more effects there are. Between samples a process counts what it adds to an inbox itself. So
several processes may exceed a bound by a part of it each.
"""

from __future__ import annotations

from typing import NoReturn

import msgspec

from worldline.base import errors, grammar
from worldline.kernel import control_commands
from worldline.layers import inbox as inboxes
from worldline.layers import universe_settings
from worldline.model import ids, inbox
from worldline.model.settings import PressureSettings
from worldline.runtime import facts as telemetry
from worldline.runtime import open_effect_count, store_opening, universe_admission
from worldline.runtime.universe_admission import InputBounds
from worldline.store import kv
from worldline.worker.held_world import HeldWorld

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
        self,
        store: store_opening.Store,
        universe: ids.UniverseId,
        settings: PressureSettings,
        *,
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:
        self._engine = store.engine
        self._env = store.env
        self._admissions = store.admissions
        self._universe = universe
        self._own = settings
        self._settings = settings  # but for those that are stored with the universe
        self._telemetry = telemetry
        self._inboxes: dict[ids.Address, Depth] = {}
        self._effects = 0
        self._bounds: list[InputBounds] = []  # what features allow
        self._begun = False  # that was looked at
        self._closed = False  # by what is known, a feature takes no input at all
        self._full = False  # or the universe has too many open effects for the next one
        self._sampled_us: int | None = None  # when this was last looked at
        self._sample_again_us = 0
        self.waiting = 0  # inputs that were handed over to worlds of this process

    # --- Handed over in this process ---------------------------------------------------------------------------

    def enter(self, hosted: HeldWorld, item: inbox.Item) -> None:
        """Count an input that is about to be handed over, until `leave`. Refuses it if too many wait already."""
        settings = self._settings
        if is_refusable(item):
            waiting = hosted.waiting
            # The world's bound first: its message names the one world that is behind, which the process's bound cannot.
            if 0 < settings.waiting_world_max <= waiting:
                inputs, name = grammar.count(waiting, "waiting input"), hosted.name or hosted.at.world.hex()
                why = f"{inputs} for world {name!r} in this process"
                raise self._refuse(hosted.at, "world", why, RETRY_US_MIN)
            if 0 < settings.waiting_max <= self.waiting:
                raise self._refuse(
                    hosted.at,
                    "process",
                    f"{grammar.count(self.waiting, 'waiting input')} in this process",
                    RETRY_US_MIN,
                )
        hosted.enter()  # input that may not be refused counts too: it fills the same memory
        self.waiting += 1

    def leave(self, hosted: HeldWorld) -> None:
        hosted.leave()
        self.waiting -= 1

    # --- The inbox of a world that is held elsewhere -----------------------------------------------------------

    def wants(self, at: ids.Address, item: inbox.Item) -> list[kv.Range]:
        """Return what to read, besides, before this input is enqueued; nothing if enough is known."""
        settings = self._settings
        bound = settings.inbox_items_max
        if not bound or not is_refusable(item):
            return []
        known = self._inboxes.get(at)
        if known is not None:
            # A full inbox is believed for a sample period; one that is not full only until enough was added to matter.
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
            self._inboxes.pop(at, None)  # so that the entry moves to the end: the oldest sample is dropped first
            self._inboxes[at] = Depth(self._env.monotonic_us(), len(page.items), full)
            if len(self._inboxes) > INBOXES_MAX:
                del self._inboxes[next(iter(self._inboxes))]
        known = self._inboxes.get(at)
        if known is None:  # no sample yet, as this input was sent without a read: it passes
            return
        if known.full:
            why = (
                f"the inbox of world {at.world.hex()} is full, with {grammar.count(known.count, 'unread item')} or more"
            )
            raise self._refuse(at, "inbox", why, self._settings.sample_ms * 1000)
        known.added += 1  # before the commit: inputs on their way count, or a burst would pass unseen

    # --- The effects of the universe, and what features allow -------------------------------------------------

    async def begin(self) -> None:
        """Know what features allow from the first input on."""
        self._note(await self._look())

    def doubtful(self, item: inbox.Item) -> bool:
        """Whether the universe has too much for such an input, by what is known."""
        return self._full and is_refusable(item)

    async def check(self, at: ids.Address, item: inbox.Item, *, sure: bool = False) -> None:
        """Refuse the input if the universe has too many open effects or a feature takes none, by what is known.

        An input that passes does not wait for a look: inputs that were given one after the other must not overtake
        each other. `sure`: except for the first input of a process, which may be its only one.
        """
        if not is_refusable(item):
            return
        # A full universe is looked at again before refusing: it may have had answers since the last sample.
        if self._full or (sure and self._sampled_us is None):
            await self.sample(item)
        if self._full:
            self._refuse_full(at)

    async def check_body(self, at: ids.Address) -> None:
        """Refuse an input before its large payload is stored, if a feature takes none at all."""
        if self._closed or not self._begun:
            await self.begin()
        if self._closed:
            self._refuse_full(at)

    def _refuse_full(self, at: ids.Address) -> NoReturn:
        # Features first: their errors have no time after which to try again, as waiting alone does not help.
        for bounds in self._bounds:
            refused = bounds.refuse_input(effects=self._effects)
            if refused is not None:
                self._telemetry.tell(telemetry.InputRefused(at, bounds.why, 0))
                raise refused
        why = f"{grammar.clause(self._effects, 'effect', 'is', 'are')} open in this universe, or more"
        raise self._refuse(at, "effects", why, self._settings.sample_ms * 1000)

    def stale(self, item: inbox.Item) -> bool:
        """Whether it is time to look again at the open effects, and at what features allow."""
        if self._sampled_us is not None and self._env.monotonic_us() < self._sample_again_us:
            return False
        return is_refusable(item)

    async def sample(self, item: inbox.Item) -> None:
        """Look, if it is time to: after an input was accepted, so that the next ones are judged by it."""
        if not self.stale(item):
            return
        self._sampled_us = self._env.monotonic_us()  # inputs that come during the read use the last sample
        self._plan_sample()  # also if the read fails: an unreachable store is not asked with every input
        try:
            self._note(await self._look())
            # Counting stops at the lowest bound: what is above it changes nothing of the judgement.
            of_features = [each.effects_max for each in self._bounds]
            bounds = [each for each in (self._settings.open_effects_max, *of_features) if each]
            self._effects = await self._count_effects(min(bounds)) if bounds else 0
            self._judge()
            self._plan_sample()
        except errors.StoreError:
            return  # the last sample stays; the input itself reports that the store cannot be reached

    async def _look(self) -> kv.ReadResult:
        admission_reads = universe_admission.reads(self._admissions, self._universe)
        return await self._engine.read(universe_settings.get(self._universe), *admission_reads)

    def _note(self, read: kv.ReadResult) -> None:
        self._begun = True
        self._settings = universe_settings.decode(self._universe, read.value(0)).pressure(self._own)
        self._bounds = universe_admission.bounds(self._admissions, self._universe, read, first=1)
        self._judge()

    def _judge(self) -> None:
        self._closed = any(each.refuse_input() is not None for each in self._bounds)
        crowded = 0 < self._settings.open_effects_max <= self._effects
        self._full = crowded or any(each.refuse_input(effects=self._effects) is not None for each in self._bounds)

    def _plan_sample(self) -> None:
        """The more effects there are, the less often they are counted."""
        assert self._sampled_us is not None
        # A count reads every open effect, so its price grows with them; this keeps its share of the work constant.
        self._sample_again_us = self._sampled_us + self._settings.sample_ms * 1000 * max(1, self._effects // PAGE)

    async def _count_effects(self, bound: int) -> int:
        return await open_effect_count.count(self._engine, self._universe, count_max=bound)

    def _refuse(self, at: ids.Address, why: telemetry.Why, message: str, after_us: int) -> errors.Overloaded:
        """The error to raise. The time is drawn, so that callers refused together do not retry together."""
        least_us = max(after_us, RETRY_US_MIN)
        retry_after_us = least_us + self._env.random_below(least_us)
        self._telemetry.tell(telemetry.InputRefused(at, why, retry_after_us))
        return errors.Overloaded(message, retry_after=retry_after_us / 1_000_000)


def is_refusable(item: inbox.Item) -> bool:
    """Whether an input asks for new work."""
    return isinstance(item, inbox.InboxEvent) or (
        isinstance(item, inbox.Control) and item.command == control_commands.RUN
    )
