"""Which code a world runs under, and which workers may take it: no world goes to and fro between two versions.

A world's record names the code it runs under; a worker's heartbeat names the code of each of its programs. A worker
with other code leaves a world alone as long as a worker stands that has the world's own code and meets its labels,
whether that one holds the world now or not. So while new code is rolled out beside old, worlds stay with the old; when
the last worker with it is gone or being emptied, the new takes them and adopts the change, once.

An upgrade says otherwise: it assigns the world to a worker with other code, and that worker may take it.

This is advice, as assignments are: it decides which worker tries. Which may write is decided by the lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worldline.base import env as envs
from worldline.base import errors
from worldline.layers import leases, ready, worlds
from worldline.model import ids
from worldline.model.world_records import WorldMeta
from worldline.runtime import death_witness, placement, worker_labels
from worldline.store import kv, transact

UPGRADE = "upgrade"  # the reason of an assignment to other code


def is_other(meta: WorldMeta, labels: Mapping[str, str]) -> bool:
    """Whether a worker with these labels would run the world under other code than it has now."""
    code = labels.get(worker_labels.program_label(meta.program))
    return code is not None and code != placement.code_of(meta.program_hash)


class VersionGuard:
    """What one worker knows of the code that others run."""

    def __init__(
        self, engine: kv.Engine, others: death_witness.DeathWitness, me: ids.WorkerId, labels: Mapping[str, str]
    ) -> None:
        self._engine = engine
        self.others = others
        self._me = me
        self.labels = labels

    async def why_not(self, world: worlds.WorldRecord, state: leases.LeaseState) -> str | None:
        """Why this worker leaves the world to workers with its own code, or None if it may take it."""
        # The usual case reads no other worker.
        if not self._is_other(world, state):
            return None
        lives, now_us = await self.others.lives(self._engine)
        return self._why_not(world, lives, now_us)

    async def allowed(
        self, candidates: Sequence[tuple[worlds.WorldRecord, leases.LeaseState]]
    ) -> list[tuple[worlds.WorldRecord, leases.LeaseState]]:
        """Those of these worlds that this worker may take, by their code. One look at all workers, if it is needed."""
        if not any(self._is_other(world, state) for world, state in candidates):
            return list(candidates)
        lives, now_us = await self.others.lives(self._engine)
        return [
            (world, state)
            for world, state in candidates
            if not self._is_other(world, state) or self._why_not(world, lives, now_us) is None
        ]

    def _is_other(self, world: worlds.WorldRecord, state: leases.LeaseState) -> bool:
        """Whether a look at the other workers is needed: the code differs, and neither lease nor assignment is ours."""
        mine = (
            None if state.holder is None else state.holder.worker,
            None if state.assignment is None else state.assignment.worker,
        )
        return self._me not in mine and is_other(world.meta, self.labels)

    def _why_not(self, world: worlds.WorldRecord, lives: Sequence[leases.HeartbeatRecord], now_us: int) -> str | None:
        for life in lives:
            if life.worker != self._me and has_code(world, life, now_us) and not self.others.is_dead(life.worker):
                name = life.sign.labels.get(placement.NAME) or life.worker.hex()[:8]
                return f"left to worker {name}, which has its code; to change that: worldline upgrade {world.meta.name}"
        return None


def has_code(world: worlds.WorldRecord, life: leases.HeartbeatRecord, now_us: int) -> bool:
    """Whether worlds may be given to this worker, it meets the world's labels and has the world's own code."""
    return may_run(world, life, now_us) and not is_other(world.meta, life.sign.labels)


def may_run(world: worlds.WorldRecord, life: leases.HeartbeatRecord, now_us: int) -> bool:
    """The same, whichever version of the program it has."""
    return life.stands(now_us) and worker_labels.unfit(world.at, world.meta, life.sign.labels) is None


async def upgrade(
    engine: kv.Engine, env: envs.Env, others: death_witness.DeathWitness, at: ids.Address, *, code: str = ""
) -> tuple[leases.HeartbeatRecord, bool]:
    """Have a world go on under other code: assign it to a worker that has it. Of several, placement decides.

    `code`: the code, or how it begins; without, there must be exactly one other. Returns the worker, and whether
    anything had to change: a world that has this code already stays where it is.
    """

    async def attempt() -> (
        transact.NothingToWrite[tuple[leases.HeartbeatRecord, bool]]
        | transact.Write[tuple[leases.HeartbeatRecord, bool]]
    ):
        lives, now_us = await others.lives(engine)
        read = await engine.read(worlds.get(at), *leases.reads(at))
        world = worlds.decode(at, read.value(0))
        state = leases.decode(at, read.value(1), read.value(2), read.value(3))
        label = worker_labels.program_label(world.meta.program)
        able = [each for each in lives if may_run(world, each, now_us) and not others.is_dead(each.worker)]
        chosen = _of_code(world, {each.sign.labels[label]: None for each in able}, code)
        # By the score that placement uses, so that it does not move the world once more.
        to = max(
            (each for each in able if each.sign.labels[label] == chosen),
            key=lambda each: placement.score(each.worker, at.world),
        )
        assigned = None if state.assignment is None else state.assignment.worker
        # Done already, as when a caller that has lost the answer asks again.
        if chosen == placement.code_of(world.meta.program_hash) or assigned == to.worker:
            return transact.NothingToWrite((to, False))
        batch = kv.Batch()
        leases.assign(batch, state, to.worker, priority=ready.NORMAL, reason=UPGRADE)
        ready.leave(batch, at, priority=ready.LATER)
        return transact.Write(batch, lambda _: (to, True))

    return await transact.run(engine, env, attempt)


def _of_code(world: worlds.WorldRecord, running: Mapping[str, None], code: str) -> str:
    """The code to go on under, of those that workers run."""
    now = placement.code_of(world.meta.program_hash)
    name, program = world.meta.name, world.meta.program
    if code:
        found = [each for each in running if each.startswith(code.lower())]
        if not found:
            known = ", ".join(sorted(running)) or "none"
            raise errors.NotFound(f"no worker that may run world {name!r} has code {code!r} of it; there is: {known}")
    else:
        found = [each for each in running if each != now]
        if not found:
            raise errors.NotFound(
                f"no living worker has other code of program {program!r} than world {name!r}: start one that has it"
            )
    if len(found) > 1:
        raise errors.BadInput(f"workers have {len(found)} other versions of {program!r}: name one: {', '.join(found)}")
    return found[0]
