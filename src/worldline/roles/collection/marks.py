"""Waiting for the end of a mark: for who takes references away from where they stay (compaction, deletion)."""

from __future__ import annotations

from worldline.base import env as envs
from worldline.base import errors, probes
from worldline.layers.upkeep import collection
from worldline.model import ids
from worldline.store import kv, transact

LOOK_MS = 100  # between two looks
LOOKS_MAX = 1_200  # then a caller is told to try again


async def unmarked(engine: kv.Engine, env: envs.Env, universe: ids.UniverseId) -> collection.State:
    """What is known of collections when no mark is under way: a batch that removes references expects it
    (`collection.expect_no_mark`). A mark whose collector has said nothing for long is given up. `Conflicted` if it
    takes too long.
    """
    for _ in range(LOOKS_MAX):
        read = await engine.read(*collection.reads(universe))
        state = collection.decode(universe, read.value(0), read.value(1))
        if not state.generation.marking:
            return state
        if state.is_marking(read.time_us):
            probes.hit("collection.mark-awaited")
            await env.sleep(LOOK_MS / 1000)
            continue
        probes.hit("collection.mark-given-up")
        batch = kv.Batch()
        collection.give_up(batch, state)
        await transact.commit(engine, env, batch)
    raise errors.Conflicted("a garbage collection has been marking for very long; try again")
