"""The one retry loop.

`commit` turns lost answers into certain ones (`applied`: of one batch, as yes or no); `run` repeats read-build-commit
until the batch holds. All are bounded and back off with jitter. No layer and no role retries a commit by any other way.

A lost answer is resolved by committing the same batch again. `Ok`: applied now. `Conflict` that shows our own bytes
(`kv.applied_before`): applied the first time. Any other `Conflict`: either not applied, or applied the first time and
overtaken by another writer since; it is marked `repeated`. Either way it will not be applied any more: a writer that
needs to know which now reads what the batch would have left behind (a journal frame, a record under a fresh id).
This works because every batch has a guard.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits, probes
from worldline.store import kv

T = TypeVar("T")

Certain = kv.Ok | kv.Conflict


class NothingToWrite(msgspec.Struct, Generic[T], frozen=True):
    """Nothing to write: this is the answer."""

    value: T


class Write(msgspec.Struct, Generic[T], frozen=True):
    """Commit the batch; on `Ok`, this is the answer. On `Conflict` the attempt is made again."""

    batch: kv.Batch
    result: Callable[[kv.Ok], T]


async def run(engine: kv.Engine, env: envs.Env, attempt: Callable[[], Awaitable[NothingToWrite[T] | Write[T]]]) -> T:
    """Call `attempt` until it is done or its batch is committed.

    `attempt` reads what it needs and builds a batch from that; it is called again after each conflict, so it must not
    act on anything but its batch.
    """
    for turn in range(limits.TRANSACT_ATTEMPTS_MAX):
        plan = await attempt()
        if isinstance(plan, NothingToWrite):
            return plan.value
        [outcome] = await commit(engine, env, plan.batch)
        if isinstance(outcome, kv.Ok):
            return plan.result(outcome)
        await _pause(env, turn)
    raise errors.Conflicted(f"gave up after {limits.TRANSACT_ATTEMPTS_MAX} attempts against other writers")


async def commit(engine: kv.Engine, env: envs.Env, *batches: kv.Batch) -> list[Certain]:
    """Commit until every outcome is certain. Without batches the engine is not called.

    An `Ok` found by a repeat carries the first time's stamps if a put of the batch recorded one of them, else none.
    """
    if not batches:
        return []
    # Nothing is outstanding yet: if the engine says that nothing was applied, that is certain, and is raised.
    first = await _commit_once(engine, batches, sure=True)
    if not any(isinstance(outcome, kv.CommitUnknown) for outcome in first):
        # All are certain; the condition is for type checkers.
        return [outcome for outcome in first if not isinstance(outcome, kv.CommitUnknown)]
    return await _repeat(engine, env, batches, first)


async def applied(engine: kv.Engine, env: envs.Env, batch: kv.Batch) -> bool:
    """Commit one batch. Whether it was applied, for a caller who does not ask what it conflicted with."""
    [outcome] = await commit(engine, env, batch)
    return isinstance(outcome, kv.Ok)


async def _repeat(
    engine: kv.Engine, env: envs.Env, batches: Sequence[kv.Batch], first: list[kv.Outcome]
) -> list[Certain]:
    """Commit again what has no certain outcome yet."""
    certain: dict[int, Certain] = {}
    waiting = list(range(len(batches)))
    repeated = False
    for turn in range(limits.UNKNOWN_ATTEMPTS_MAX):
        outcomes = await _commit_once(engine, [batches[index] for index in waiting], sure=False) if repeated else first
        for index, outcome in zip(waiting, outcomes, strict=True):
            # Only a repeat can meet its own bytes: a conflict of the first commit is what it says.
            if isinstance(outcome, kv.Conflict) and repeated and kv.applied_before(batches[index], outcome):
                probes.hit("transact.applied-before")
                certain[index] = kv.Ok(_recorded_stamps(batches[index], outcome))
            elif isinstance(outcome, kv.Conflict) and repeated:
                probes.hit("transact.lost-or-overtaken")
                certain[index] = msgspec.structs.replace(outcome, repeated=True)
            elif not isinstance(outcome, kv.CommitUnknown):
                certain[index] = outcome
        waiting = [index for index in waiting if index not in certain]
        if not waiting:
            return [certain[index] for index in range(len(batches))]
        repeated = True
        await _pause(env, turn)
    raise errors.StoreUncertain(f"no certain answer to a commit after {limits.UNKNOWN_ATTEMPTS_MAX} attempts")


async def _commit_once(engine: kv.Engine, batches: Sequence[kv.Batch], *, sure: bool) -> list[kv.Outcome]:
    """One call. While an answer is outstanding, an engine that cannot be reached leaves it outstanding."""
    try:
        return await engine.commit(*batches)
    except (errors.StoreUnavailable, errors.StoreFull) as error:
        if sure:
            raise
        probes.hit("transact.unreachable-while-unknown")
        return [kv.CommitUnknown(str(error)) for _ in batches]


def _recorded_stamps(batch: kv.Batch, conflict: kv.Conflict) -> tuple[kv.Stamp, ...]:
    """The stamps of a batch applied before, worked out from one that a guard's value recorded."""
    for put in batch.puts.values():
        failed, found = conflict.at(put.key)
        if put.stamp is None or not failed or found is None:
            continue
        recorded = found[-limits.STAMP_BYTES :]
        # The ordinals of one batch follow each other, so one stamp that was recorded tells all the others.
        base, ordinal = recorded[:8], int.from_bytes(recorded[8:], "big") - put.stamp
        return tuple(kv.Stamp(base + (ordinal + index).to_bytes(4, "big")) for index in range(len(batch.appends)))
    return ()


async def _pause(env: envs.Env, turn: int) -> None:
    # With jitter: writers that met in one commit would otherwise meet in the next.
    delay_ms = envs.backoff_ms(env, turn, first_ms=limits.RETRY_FIRST_MS, most_ms=limits.RETRY_MOST_MS)
    await env.sleep(delay_ms / 1000)
