"""An intent waits for a person: what a caller that waits for its end is told, and when.

A flow domain's effect that is parked resumes when a person retries or answers it; nothing is lost meanwhile, and the
caller waits on. Its log says so, with the command to type: at once where the journal is followed, since parking is
journaled, else within `LOOK_SECONDS`; of a process that performs the effect itself, the host's line comes at once.
Intents of a cell go one after another, so an effect of the one before halts this one, too.

Nothing is read for an intent that ends before `LOOK_SECONDS`.
"""

from __future__ import annotations

import logging

import msgspec

from worldline.client import halted_runs
from worldline.client.world_handle import Handle
from worldline.codec import printable
from worldline.features.domains.pure import requirements
from worldline.layers import work as works
from worldline.model import ids, journal
from worldline.model.work import WorkKind, WorkState
from worldline.runtime import halt_text
from worldline.store import urls

log = printable.logger("worldline")

LOOK_SECONDS = 2.0  # between two looks while nothing says that something is parked
EFFECTS_MAX = 64  # of the cell that a look reads


class AwaitedIntent(msgspec.Struct, frozen=True):
    """The intent that is waited for."""

    schema: str  # its domain and action
    domain: str
    key: str
    intent: str


class ActWatch:
    """One caller that waits for the end of an intent."""

    __slots__ = ("_look_us", "_said", "_wanted", "_world", "is_due")

    def __init__(self, world: Handle, wanted: AwaitedIntent) -> None:
        self._world = world
        self._wanted = wanted
        self.is_due = False
        self._look_us: int | None = None  # no clock is read for an intent that is answered at once
        self._said: dict[tuple[ids.IntentId, int], None] = {}  # what the log has said, of which attempt

    def missed(self) -> None:
        """The world came to this process, or left it: what was said meanwhile was not heard."""
        self.is_due = True

    def saw(self, entry: journal.JournalEntry) -> None:
        """An entry of the world's journal that may say that something waits for a person."""
        if halted_runs.parks(entry):
            self.is_due = True

    async def told(self) -> None:
        """The hub tells callers of runs alone."""

    async def look(self) -> None:
        """For a caller to await while nothing comes."""
        if not log.isEnabledFor(logging.WARNING):
            return  # it would be told nothing
        now_us = self._world.connection.store.env.monotonic_us()
        if self._look_us is None:
            self._look_us = now_us
        if not self.is_due:
            if now_us - self._look_us < LOOK_SECONDS * 1_000_000:
                return
            if self._world.connection.host is None and not await self._has_failed():
                self._look_us = now_us
                return  # the state need not be read
        self._look_us, self.is_due = now_us, False
        await self._look()

    async def _has_failed(self) -> bool:
        """Whether an effect of some cell of the world is parked, or has failed, among the first that are open."""
        at = await self._world.address()
        read = await self._world.connection.store.engine.read(works.open_range(at, count_max=halted_runs.OPEN_MAX))
        return any(_failed(each) for each in works.decode_open(at, read.page(0)))

    async def _look(self) -> None:
        """Say of each effect that the intent waits for that it is parked, or that an attempt has failed."""
        at, wanted = await self._world.address(), self._wanted
        required = {
            effect: target.intent
            for effect, _, target in requirements.requirements(await self._world.machine_of_runs())
            if (target.domain, target.key) == (wanted.domain, wanted.key)
        }
        chosen = list(required)[:EFFECTS_MAX]
        if not chosen:
            return
        read = await self._world.connection.store.engine.read(*(works.get(at, each) for each in chosen))
        for index, effect in enumerate(chosen):
            found = works.decode(at, effect, read.value(index))
            if found is None or not _failed(found):
                continue
            # Parked again after a retry is news; one more failed attempt is not.
            which = (effect, found.work.attempt if found.work.state is WorkState.PARKED else -1)
            if which not in self._said:
                self._said[which] = None
                self._say(found, required[effect])

    def _say(self, found: works.Open, intent: str) -> None:
        work, wanted = found.work, self._wanted
        option = urls.option("store", self._world.connection.store.url)
        if work.state is WorkState.PARKED:
            said = halt_text.parked(work.name, found.intent, work.error, attempts=work.attempt, option=option)
        elif self._world.connection.host is None:
            said = halt_text.retried(work.name, found.intent, work.error, attempts=work.attempt, option=option)
        else:
            return  # a process that performs effects has these lines in its log
        behind = "" if intent == wanted.intent else f" behind intent {intent!r}"
        log.warning(
            "intent %r (%s) of world %r waits%s: %s", wanted.intent, wanted.schema, self._world.name, behind, said
        )


def _failed(found: works.Open) -> bool:
    """Of an effect that a flow domain requires: that of a run has the run's id."""
    work = found.work
    if work.kind is not WorkKind.EFFECT or work.correlation:
        return False
    return work.state is WorkState.PARKED or (bool(work.error) and work.state is not WorkState.SETTLED)
