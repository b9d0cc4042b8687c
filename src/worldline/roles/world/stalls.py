"""A step that does not return, and what its worker does about it.

There is one kernel thread, so while a handler or a workflow of one world does not return, no other world of the worker
can make a step. After the TTL of its lease, the worker lets go of all others, without saving them, and says with its
life sign that it is to be given none (`draining`), so that other workers run them. It keeps the lease of the one world
that does not return, and goes on renewing it: any worker that took it would hang as well, and with it all the worlds
that it has just been given. So one such world costs one worker, and not one after the other.

No step can be cut short here. If it returns after all, it is committed, and the worker takes worlds again. If it never
does, a person must end the process; the world is then taken by another worker, and its input with it.
"""

from __future__ import annotations

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.layers import leases
from worldline.model import ids
from worldline.roles import lease as world_lease
from worldline.roles.world.kernel_thread import Doing
from worldline.store import kv

WHY = "a handler or workflow of it does not return, and holds up its worker; end that process, and fix the code first"


class Stall(msgspec.Struct):
    """A call in the kernel's thread that has taken longer than a lease lives."""

    at: ids.Address | None
    since_us: int
    turns: int = 0
    drained: bool = False  # by us: whatever a person has said stays
    told: bool = False

    def age_ms(self, now_us: int) -> int:
        return (now_us - self.since_us) // 1000


def find(doing: Doing | None, known: Stall | None, *, now_us: int, ttl_us: int) -> Stall | None:
    """The stall under way: the one that is known, or a new one."""
    if doing is None:
        return None
    if known is not None and (known.at, known.since_us) == (doing.at, doing.since_us):
        return known
    return Stall(doing.at, doing.since_us) if now_us - doing.since_us > ttl_us else None


async def begin(engine: kv.Engine, env: envs.Env, worker: ids.WorkerId, stall: Stall) -> None:
    """Say that this worker is to be given no worlds. Called with every turn while it lasts."""
    stall.turns += 1
    if stall.told:
        return
    life = leases.decode_life(worker, (await engine.read(leases.get_life(worker))).value(0))
    if life is not None and not life.sign.draining:
        await world_lease.drain(engine, env, worker, draining=True)
        stall.drained = True
    stall.told = True


async def end(engine: kv.Engine, env: envs.Env, worker: ids.WorkerId, stall: Stall) -> None:
    """Take it back."""
    if stall.drained:
        try:
            await world_lease.drain(engine, env, worker, draining=False)
        except errors.NotFound:
            return  # the next life sign is a new one
