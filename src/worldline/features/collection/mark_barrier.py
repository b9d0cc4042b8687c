"""Waiting for the end of a mark: for what removes references from where they stay (compaction, deletion)."""

from __future__ import annotations

from collections.abc import Callable

from worldline.base import env as envs
from worldline.base import errors, probes
from worldline.features.collection import batches
from worldline.layers import leases
from worldline.model import ids
from worldline.store import kv, transact

LOOK_MS = 100  # between two looks
LOOKS_MAX = 1_200  # then a caller is told to try again


IsDead = Callable[[ids.WorkerId], bool]  # proof that a worker's process is gone


def never_proven(worker: ids.WorkerId) -> bool:
    del worker
    return False


async def unmarked(
    engine: kv.Engine, env: envs.Env, universe: ids.UniverseId, is_dead: IsDead = never_proven
) -> batches.CollectionState:
    """What is known of collections when no mark is under way: a batch that removes references expects it
    (`batches.expect_no_mark`). A mark whose process is gone is given up. `Conflicted` if it takes too long.
    """
    # Bounded, because a mark may be renewed for any time: after two minutes the caller is told to try again.
    for _ in range(LOOKS_MAX):
        read = await engine.read(*batches.reads(universe))
        state = batches.decode(universe, read.value(0), read.value(1))
        if not state.generation.marking:
            return state
        if await goes_on(engine, state, is_dead):
            probes.hit("collection.mark-awaited")
            await env.sleep(LOOK_MS / 1000)
            continue
        probes.hit("collection.mark-given-up")
        batch = kv.Batch()
        batches.give_up(batch, state)
        # A conflict means that another process gave it up or ended it; the next look reads which.
        await transact.commit(engine, env, batch)
    raise errors.Conflicted("a garbage collection has been marking for very long; try again")


async def goes_on(engine: kv.Engine, state: batches.CollectionState, is_dead: IsDead = never_proven) -> bool:
    """Whether the process that marks is at work still. One that has named its heartbeat is gone with it, and need not
    be waited for. That is no safety: a mark that was given up is not believed.
    """
    named = b"" if state.last is None else state.last.worker
    # One read for the time and the heartbeat: the two belong to the same moment.
    read = await engine.read(*([leases.get_heartbeat(ids.WorkerId(named))] if named else []))
    if not state.is_marking(read.time_us):
        return False
    if not named:
        return True
    return not is_dead(ids.WorkerId(named)) and not batches.has_died(state, read.value(0), time_us=read.time_us)
