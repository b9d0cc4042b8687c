"""One copy of a store at a time: taking the turn, keeping it, and giving it back."""

from __future__ import annotations

import contextlib

from worldline.base import env as envs
from worldline.base import errors
from worldline.features.copies import copy_lease
from worldline.store import kv, transact

TTL_US = 10_000_000
RENEW_US = TTL_US // 4
LOOK_SECONDS = 0.25


class CopyLeaseKeeper:
    """The turn of one process. `what`: for people."""

    def __init__(self, engine: kv.Engine, env: envs.Env, turn_get: kv.Get, what: str) -> None:
        self._engine = engine
        self._env = env
        self._wanted = turn_get
        self._what = what
        self._turn: copy_lease.CopyLease | None = None
        self._renewed_us = 0

    async def take(self) -> copy_lease.CopyLease | None:
        """Wait until a turn that is not renewed any more has run out, and take it. Returns what was there, if a process
        did not end its turn. `Closed` if the other process is at work.
        """
        first: copy_lease.CopyLease | None = None
        while True:
            read = await self._engine.read(self._wanted)
            found = copy_lease.decode(self._wanted, read.value(0))
            if found is None or found.record.time_us <= read.time_us:
                batch = kv.Batch()
                turn = copy_lease.begin(
                    batch,
                    self._wanted,
                    found,
                    token=envs.new_id(self._env),
                    what=self._what,
                    until_us=read.time_us + TTL_US,
                )
                if await transact.applied(self._engine, self._env, batch):
                    self._turn, self._renewed_us = turn, self._env.monotonic_us()
                    return found
            # A record that changes while it is watched is renewed, so its process is there.
            elif first is not None and first.raw != found.raw:
                raise errors.Closed(f"{found.record.what} is under way in another process; wait until it is done")
            first = first or found
            await self._env.sleep(LOOK_SECONDS)

    async def keep(self) -> None:
        """Called often: renews it when it is time. `Conflicted` if another process has taken it."""
        if self._env.monotonic_us() - self._renewed_us >= RENEW_US:
            # Nothing else to write: advancing the turn is the whole batch.
            await self.commit(kv.Batch())

    async def commit(self, batch: kv.Batch) -> kv.Ok:
        """Commit a batch that stands only while this turn does."""
        assert self._turn is not None
        time_us = (await self._engine.read()).time_us
        after = copy_lease.advance(batch, self._turn, until_us=time_us + TTL_US)
        return await self._commit(batch, after)

    async def end(self, batch: kv.Batch) -> None:
        """Commit the last batch."""
        assert self._turn is not None
        copy_lease.end(batch, self._turn)
        await self._commit(batch, None)

    async def give_back(self) -> None:
        """End it without a result. If that fails, it runs out."""
        if self._turn is not None:
            # Given back because something has failed: this must not hide that error.
            with contextlib.suppress(errors.StoreError, errors.Lost):
                await self.end(kv.Batch())

    async def _commit(self, batch: kv.Batch, after: copy_lease.CopyLease | None) -> kv.Ok:
        [outcome] = await transact.commit(self._engine, self._env, batch)
        if not isinstance(outcome, kv.Ok):
            raise errors.Conflicted(f"{self._what} was taken over by another process, or the store was changed by one")
        self._turn, self._renewed_us = after, self._env.monotonic_us()
        return outcome
