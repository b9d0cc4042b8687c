"""Effects that a process may have died of: each is performed alone, so that a death is evidence.

If a process dies while it performs two of them, or one and a world on trial (`runtime/trial_neighbours.py`), that
proves nothing against either. So one is not claimed where another is performed or a world is on trial; its claim says
that it is alone, and only a death under such a claim counts towards parking it. It does not wait for ever: after a
while it is claimed all the same, and then it is not alone, and neither is any other from then on.

Who is counted is kept (`Work.blamed`). A worker that lives is taken off: by itself, when it finds that it has lost its
claim (`lost`), and by its heartbeat, right before the verdict (`counted`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from worldline.base import env as envs
from worldline.base import probes
from worldline.layers import leases
from worldline.layers import work as works
from worldline.model import ids
from worldline.runtime import trial_neighbours
from worldline.store import kv, transact
from worldline.worker.world_worker import WorldWorker

HELD_BACK_US = (
    30_000_000  # how long one waits, for each death that there was: what never ends must not keep it for ever
)
HELD_BACK_TIMES_MAX = 20
LOOK_US = 200_000  # between two looks at what is held back
NEVER_US = 2**62


class Suspects:
    """Those of one process: that wait, that are performed, and that this process has lost and may be blamed for."""

    def __init__(self, engine: kv.Engine, env: envs.Env, worker: ids.WorkerId) -> None:
        self._engine = engine
        self._env = env
        self._worker = worker
        self._local: WorldWorker | None = None
        self._beside = trial_neighbours.Beside()
        self._since_us: dict[ids.IntentId, int] = {}
        self._performed: dict[ids.IntentId, None] = {}
        self._lost: dict[ids.IntentId, ids.Address] = {}

    def join(self, local: WorldWorker) -> None:
        self._local = local
        self._beside = local.trials.beside

    @property
    def count(self) -> int:
        return len(self._since_us)

    @property
    def rest_us(self) -> int:
        """How long there is nothing to do about them."""
        return LOOK_US if self._since_us or self._lost else NEVER_US

    # --- Claims -----------------------------------------------------------------------------------------------

    def holds_back(self, opened: works.Open) -> bool:
        """Whether this effect is not to be claimed now."""
        if not works.is_suspect(opened):
            return False
        if self._is_free():
            # One may be claimed now, and the others wait from here on for that one.
            self._since_us.clear()
            return False
        now_us = self._env.monotonic_us()
        lasts_us = HELD_BACK_US * min(max(1, opened.work.died), HELD_BACK_TIMES_MAX)
        if now_us - self._since_us.setdefault(opened.intent, now_us) >= lasts_us:
            return False
        probes.hit("effects.held-back")
        return True

    def take(self, opened: works.Open) -> bool:
        """One is claimed now. Whether it is alone."""
        if not works.is_suspect(opened):
            return False
        alone = self._is_free()
        self._since_us.pop(opened.intent, None)
        self._performed[opened.intent] = None
        return alone

    def leave(self, intent: ids.IntentId) -> None:
        """It is not performed here any more."""
        self._performed.pop(intent, None)

    def _is_free(self) -> bool:
        """Whether no other is performed here, and no world is on trial, or being restored. A process that has not
        looked for worlds yet is about to restore those of the one that died.
        """
        local = self._local
        trials = local is not None and (not local.has_searched or any(held.on_trial for held in local.held))
        return not (self._performed or self._beside.has_marks or trials)

    def beside(
        self, claim: works.Open, disturbed: Callable[[], Awaitable[None]]
    ) -> contextlib.AbstractAsyncContextManager[None]:
        """Have the worlds on trial in this process know that an attempt runs which it may die of: one has `died`.
        `disturbed`: is awaited before something else is run that it may die of.
        """
        return self._beside.effect(disturbed if claim.work.alone else None)

    # --- Workers that live --------------------------------------------------------------------------------------

    def lost(self, claim: works.Open) -> None:
        """The claim has run out while its attempt was made here, and this process lives."""
        if claim.work.alone:
            self._lost[claim.intent] = claim.at

    async def acquit_self(self) -> None:
        """Take this process off wherever it is counted as dead."""
        for intent, at in list(self._lost.items()):
            opened = works.decode(at, intent, (await self._engine.read(works.get(at, intent))).value(0))
            if opened is not None and self._worker in opened.work.blamed:
                batch = kv.Batch()
                if not works.acquit(batch, opened, self._worker):
                    continue  # another has claimed it: its heartbeat, or the next look, will do
                probes.hit("effects.acquitted-itself")
                await transact.commit(self._engine, self._env, batch)
                continue  # looked at again: another may have been first
            self._lost.pop(intent, None)

    async def counted(self, claim: works.Open) -> list[bytes]:
        """The workers that are counted as dead, without those whose heartbeats are there."""
        workers = [ids.WorkerId(each) for each in claim.work.blamed]
        read = await self._engine.read(*(leases.get_heartbeat(each) for each in workers))
        lives = [leases.decode_heartbeat(each, read.value(index)) for index, each in enumerate(workers)]
        living = [life.worker for life in lives if life is not None and life.alive(read.time_us)]
        if living:
            probes.hit("effects.acquitted-by-heartbeat")
        return [each for each in claim.work.blamed if each not in living]
