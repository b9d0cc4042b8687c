"""Answers of effects, on their way into the store.

What was performed is not performed again because its answer cannot be stored. While the store or the objects are out of
reach, the answer is kept here and storing it is tried again. An answer that can never be stored is a failure that says
so, and no other attempt is made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from worldline.base import env as envs
from worldline.base import errors, failures, limits, probes
from worldline.codec import printable, sealed_token
from worldline.effects import attempt as attempts
from worldline.effects.attempt import AttemptResult
from worldline.kernel import runs
from worldline.kernel.authoring.calls import Effect
from worldline.layers import blobs as blob_layer
from worldline.layers import cas
from worldline.layers import work as works
from worldline.runtime import facts
from worldline.runtime.personal import outside_desk
from worldline.store import kv

T = TypeVar("T")

log = printable.logger("worldline.adapter")

# What another attempt at storing something may overcome; a bucket that is missing may be made.
FOR_NOW = (
    errors.StoreUnavailable,
    errors.StoreFull,
    errors.StoreUncertain,
    errors.StoreMissing,
    errors.Conflicted,
)
TEXT_CHARACTERS = limits.INLINE_BYTES_MAX // 8  # of a failure, if what it may have takes too many bytes


async def insist(env: envs.Env, claim: works.Open, store: Callable[[], Awaitable[T]]) -> T:
    """Store something that is kept here, as soon as that can be done."""
    turn = 0
    while True:
        try:
            return await store()
        except FOR_NOW as error:
            probes.hit("effects.answer-kept")
            if turn == 0:
                log.warning(
                    "effect %s has ended, and that cannot be stored now; it is tried again: %s",
                    claim.intent.hex(),
                    error,
                    extra=facts.about(claim.at, step=claim.work.step),
                )
        delay_ms = envs.backoff_ms(env, turn, first_ms=limits.RETRY_FIRST_MS, most_ms=limits.RETRY_MOST_MS)
        await env.sleep(delay_ms / 1000)
        turn += 1


async def stored(
    env: envs.Env, blobs: blob_layer.Blobs, effect: Effect[..., Any], claim: works.Open, ended: AttemptResult
) -> AttemptResult:
    """A large answer, stored; a failure if it can never be."""
    try:
        carried = await insist(env, claim, lambda: blobs.carry(ended.data))
    except errors.StoreError:
        raise  # this process has lost its store; another one performs the effect
    except errors.Error as error:
        probes.hit("effects.answer-not-storable")
        return attempts.not_storable(effect, error.code, str(error))
    return msgspec.structs.replace(ended, carried=carried)


async def desk_of(env: envs.Env, engine: kv.Engine, claim: works.Open, arguments: bytes) -> outside_desk.CollectingDesk:
    """Where an attempt opens the personal values in its arguments, and seals those of its answer."""
    # With attempt and token: two attempts must not seal different values under the same number.
    seed = claim.intent + claim.work.attempt.to_bytes(8, "big") + (claim.work.token or b"")
    found = sealed_token.find(arguments)
    if not found:
        return outside_desk.CollectingDesk(env, seed)
    opened, subjects = await outside_desk.read(engine, await outside_desk.root_of(engine, claim.at), found)
    return outside_desk.CollectingDesk(env, seed, opened, subjects)


async def kept_apart(
    env: envs.Env,
    engine: kv.Engine,
    effect: Effect[..., Any],
    claim: works.Open,
    ended: AttemptResult,
    *,
    desk: outside_desk.CollectingDesk | None,
) -> AttemptResult:
    """An answer whose personal values are kept apart. A failure if what it was made of was erased meanwhile."""
    assert desk is not None

    async def store() -> None:
        root = await outside_desk.root_of(engine, claim.at)
        await outside_desk.keep(engine, env, root, ended.sealed, desk.subjects)

    try:
        await insist(env, claim, store)
    except failures.Erased as error:
        probes.hit("effects.answer-erased")
        message = f"{effect.name}() was performed, and its answer is not kept: {error}"
        return AttemptResult(False, code=error.code, message=message, final=True)
    return ended


def failure(ended: AttemptResult, tried: int) -> bytes:
    """A failure that a receipt carries along. A text of wide characters may have to be cut for that."""
    data = runs.failure(ended.code, ended.message, attempts=tried, data=ended.failed_with)
    if not cas.is_small(data):
        data = runs.failure(ended.code, ended.message[:TEXT_CHARACTERS], attempts=tried, data=ended.failed_with)
    return data
