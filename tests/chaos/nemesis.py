"""What befalls the processes of a `Bank`, one thing after the other, drawn from a seed.

A process is killed; the account's host stands still beyond its lease; an operator moves the account; and on a server,
a host is cut off beyond its lease, also right after its step was applied and before it heard so.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Awaitable, Callable

from tests import aio
from tests.chaos import account, account_client, holders
from tests.chaos.bank import HOSTS, Bank
from worldline.base import errors
from worldline.model.settings import WorkerSettings
from worldline.runtime import operator_calls

TTL_SECONDS = account_client.TTL_SECONDS
BACKLOG = WorkerSettings().max_inbox_batch * 3 // 2
SPRUNG_SECONDS = 2.0
PATIENCE_SECONDS = 10.0  # for what usually comes soon; if it does not, the next fault is no worse


class Nemesis:
    def __init__(self, bank: Bank, *, seed: str) -> None:
        self._bank = bank
        self._draws = random.Random(seed)
        self.befell: list[str] = []
        self.faults: dict[str, Callable[[str], Awaitable[str]]] = {
            "kill": self._kill,
            "pause": self._pause,
            "outage": self._outage,
            "move": self._move,
            "revoke": self._revoke,
            "drain": self._drain,
        }
        if bank.proxies:
            self.faults |= {"swallow": self._swallow, "cut": self._cut}

    async def torment(self, seconds: float) -> None:
        """Every fault once, in an order that is drawn; then whatever is drawn, until the time is over."""
        ends = time.monotonic() + seconds
        waiting = self._draws.sample(list(self.faults), len(self.faults))
        while waiting or time.monotonic() < ends:
            await asyncio.sleep(self._draws.uniform(0.2, 0.8))
            self._bank.crew.check()
            await self._bank.all_ready()
            name = waiting.pop() if waiting else self._draws.choice(list(self.faults))
            holder = await self._holder()
            began = time.monotonic()
            told = await self.faults[name](holder or self._draws.choice(HOSTS))
            self.befell.append(f"{name} {told} {time.monotonic() - began:.1f} s")

    async def _holder(self, *, but: str = "") -> str | None:
        """The host that has the account, once one has it that is not `but`. None if that takes too long."""
        found: list[str] = []

        async def held() -> bool:
            _, name = await self._bank.lease()
            if name is not None and name != but:
                found.append(name)
            return bool(found)

        with contextlib.suppress(TimeoutError):
            await aio.until(held, seconds=PATIENCE_SECONDS)
        return found[0] if found else None

    def _beyond(self) -> float:
        """So many seconds, in which a lease runs out."""
        return TTL_SECONDS * self._draws.uniform(1.2, 1.6)

    # --- Processes ----------------------------------------------------------------------------------------------

    async def _kill(self, holder: str) -> str:
        name = self._draws.choice([holder, *self._bank.lives])
        await self._bank.crew.kill(self._bank.lives[name])
        self._bank.begin(name)
        return name

    async def _pause(self, holder: str) -> str:
        """If it is stopped while it writes to a folder, all others stand still as well."""
        process = self._bank.lives[holder]
        process.signal(signal.SIGSTOP)
        try:
            await process.wait_stopped()
            await asyncio.sleep(self._beyond())
        finally:
            process.signal(signal.SIGCONT)
        return holder

    async def _outage(self, holder: str) -> str:
        """No process hosts the account, and more is sent to it than the next host takes at once."""
        for name in HOSTS:
            await self._bank.crew.kill(self._bank.lives[name])
        await self._bank.send(BACKLOG)
        for name in self._draws.sample(HOSTS, len(HOSTS)):
            self._bank.begin(name)
        return holder

    # --- Operators ----------------------------------------------------------------------------------------------

    async def _move(self, holder: str) -> str:
        other = HOSTS[1 - HOSTS.index(holder)]
        store = self._bank.universe._connection.store
        at = await self._bank.universe.world(account.WORLD)._handle.address()
        try:
            await operator_calls.assign_world(store.engine, store.env, at, holders.worker_of(self._bank.lives[other]))
        except errors.NotFound:
            return f"refused: {other} is late with its life sign"
        told = await self._succeeded(holder)
        await operator_calls.unassign_world(store.engine, store.env, at)
        return told

    async def _revoke(self, holder: str) -> str:
        del holder
        store = self._bank.universe._connection.store
        at = await self._bank.universe.world(account.WORLD)._handle.address()
        return f"to epoch {await operator_calls.revoke_lease(store.engine, store.env, at)}"

    async def _drain(self, holder: str) -> str:
        store = self._bank.universe._connection.store
        worker = holders.worker_of(self._bank.lives[holder])
        try:
            await operator_calls.drain_worker(store.engine, store.env, worker, draining=True)
            told = await self._succeeded(holder)
            await operator_calls.drain_worker(store.engine, store.env, worker, draining=False)
        except errors.NotFound:
            return f"refused: {holder} has no life sign"
        return told

    async def _succeeded(self, holder: str) -> str:
        """Wait until another host has the account; not for long."""
        return f"{holder}, succeeded by {await self._holder(but=holder)}"

    # --- The network --------------------------------------------------------------------------------------------

    async def _swallow(self, holder: str) -> str:
        """A step of the holder is applied, it does not hear so, and it is cut off until the other host has gone on."""
        proxy = self._bank.proxies[holder]
        marker = account_client.op_id(self._bank.lives[holder].label, account_client.HOST_DOOR, "")
        trap = proxy.trap(marker.encode(), "swallow")
        try:
            async with asyncio.timeout(SPRUNG_SECONDS):
                await trap.sprung.wait()
        except TimeoutError:
            proxy.disarm(trap)
            return f"{holder} did nothing"
        proxy.set_mode("blackhole")
        await asyncio.sleep(0.2)
        await proxy.refuse()
        told = await self._succeeded(holder)
        await asyncio.sleep(self._draws.uniform(0.3, 0.8))
        proxy.set_mode("pass")
        await proxy.start()
        await self._bank.went_on(holder, seconds=PATIENCE_SECONDS)
        return told

    async def _cut(self, holder: str) -> str:
        """Either connections are refused, or nothing comes through: what was sent meanwhile comes late, or never."""
        proxy = self._bank.proxies[holder]
        if self._draws.random() < 0.5:
            await proxy.refuse()
            await asyncio.sleep(self._beyond())
            await proxy.start()
            return f"{holder}, refused"
        proxy.set_mode("blackhole")
        await asyncio.sleep(self._beyond())
        if self._draws.random() < 0.5:
            proxy.reset()
        proxy.set_mode("pass")
        return f"{holder}, not heard"
