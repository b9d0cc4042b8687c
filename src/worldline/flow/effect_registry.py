"""Effects of a standalone host: the handlers by type, and performing one, with its timeout and retries.

The runner of effects never raises: whatever a handler does becomes a FulfillEffect job. A timeout is an outcome like
any other, and is not retried; the handler is left to itself, and what it gives later comes as a second outcome, which
the job drops as stale. A handler gets a frozen copy of the snapshot: changing it fails.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from worldline.base import env as envs
from worldline.base import errors, limits, probes
from worldline.codec import printable
from worldline.flow_core import faults, flow_records, jobs, js_values, patches
from worldline.kernel.authoring.calls import Signature

_log = printable.logger("worldline.flow")


@dataclass(frozen=True)
class EffectCall:
    """What a handler is called with: the effect's parameters, and everything else frozen. `head`: the snapshot as
    Core's record.
    """

    params: Mapping[str, Any]
    requirement: Mapping[str, Any]
    snapshot: Mapping[str, Any]
    head: flow_records.Snapshot = flow_records.GIVEN


Patches = list[patches.Patch]
Handler = Callable[[EffectCall], Awaitable[Patches] | Patches]
Settle = Callable[[jobs.FulfillEffect], None]


@dataclass(frozen=True)
class Registered:
    """A handler and how it is performed."""

    handler: Handler
    timeout_ms: int
    retries: int
    retry_delay_ms: int


class Registry:
    """Handlers by the type of their effect."""

    def __init__(self) -> None:
        self._handlers: dict[str, Registered] = {}

    def register(self, type: str, handler: Handler, *, timeout_ms: int, retries: int, retry_delay_ms: int) -> None:
        """Keep a handler by its type. A second one for the same type is refused."""
        if type in self._handlers:
            raise errors.Exists(f"the effect {type!r} has a handler already")
        # It is answered from the frozen context, so that a replay answers the same.
        if type == jobs.SYSTEM_GET:
            raise errors.BadInput(f"{type} is answered by the host itself")
        if timeout_ms <= 0 or retries < 0 or retry_delay_ms < 0:
            raise errors.BadInput("a timeout is more than 0 ms; retries and their delay are not negative")
        self._handlers[type] = Registered(handler, timeout_ms, retries, retry_delay_ms)

    def find(self, type: str) -> Registered | None:
        return self._handlers.get(type)


def answering(function: Callable[..., Any]) -> Handler:
    """Make a handler of a plain function: it gets the parameters by name, and what it returns is set where `into` says.

    What it raises is set where `fail` says, as code and message; without `fail`, the effect has failed. A parameter
    `snapshot: flow.Snapshot` gets the snapshot at the dispatch, frozen, as an effect of a world does.
    """
    signature = Signature(function, {}, of_effect=True)

    async def handler(call: EffectCall) -> Patches:
        given = {name: each for name, each in call.params.items() if name not in ("into", "fail")}
        given |= signature.given(call.head)
        target = call.params.get("fail")
        try:
            found = function(**given)
            answer = await found if inspect.isawaitable(found) else found
        except Exception as error:
            # Without a field for it, the failure is the effect's own, and may be retried.
            if not isinstance(target, str):
                raise
            return [patches.set_(target, {"code": type(error).__name__, "message": str(error)})]
        return [patches.set_(str(call.params["into"]), answer)] if "into" in call.params else []

    return handler


def call(requirement: flow_records.Requirement, head: flow_records.Snapshot) -> EffectCall:
    """What a handler is given, frozen at the moment of the dispatch."""
    # A copy of this moment: the head moves while the handler runs.
    asked = js_values.frozen(flow_records.plain(requirement))
    return EffectCall(
        params=asked["params"],
        requirement=asked,
        snapshot=js_values.frozen(flow_records.plain(head)),
        head=flow_records.frozen(head),
    )


async def perform(
    registered: Registered | None,
    requirement: flow_records.Requirement,
    call: EffectCall,
    env: envs.Env,
    settle: Settle,
) -> None:
    """Perform one effect and give its outcome; one that is late gives a second outcome. Never raises."""
    if registered is None:
        said = f"no handler is registered for {requirement.type!r}"
        _log.warning("%s, for intent %s: call host.register first", said, requirement.intent_id)
        return settle(_failed(requirement, faults.UNKNOWN_EFFECT, said))
    for attempt in range(registered.retries + 1):
        work = asyncio.ensure_future(_attempt(registered.handler, requirement, call))
        # The environment's clock, which tests and simulations replace.
        limit = asyncio.ensure_future(env.sleep(registered.timeout_ms / 1_000))
        try:
            # `wait` leaves a handler that is late as it is: what it gives comes as a second outcome.
            await asyncio.wait({work, limit}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                said = f"{requirement.type!r} took longer than {registered.timeout_ms} ms"
                _log.warning("the handler of %s, for intent %s", said, requirement.intent_id)
                settle(_failed(requirement, jobs.EFFECT_TIMEOUT, said))
                return settle(await work)
        except asyncio.CancelledError:
            # The task was cancelled, by `cancel` or `close`: its handler must not run on.
            work.cancel()
            raise
        finally:
            limit.cancel()
        found = _settled(work, requirement)
        last = attempt == registered.retries
        # Only what a handler has raised is tried again: patches that do not fit would come again.
        if last or found.failure is None or found.failure.code != jobs.EFFECT_EXECUTION_FAILED:
            return settle(found)
        await env.sleep(registered.retry_delay_ms / 1_000)
    return None


def _settled(work: asyncio.Future[jobs.FulfillEffect], requirement: flow_records.Requirement) -> jobs.FulfillEffect:
    """Return the outcome of an attempt that has ended; one whose handler cancelled itself was cancelled."""
    if work.cancelled():
        # The handler did it itself, so its effect has an outcome all the same.
        probes.hit("flow.handler-cancelled")
        return _failed(requirement, jobs.EFFECT_CANCELLED, f"{requirement.type!r} was cancelled")
    return work.result()


async def _attempt(handler: Handler, requirement: flow_records.Requirement, call: EffectCall) -> jobs.FulfillEffect:
    try:
        found = handler(call)
        result = await found if inspect.isawaitable(found) else found
    except Exception as error:  # noqa: BLE001 - a user's handler: whatever it raises is the effect's outcome
        _log.warning(
            "the handler of %r raised, for intent %s (requirement %s)",
            requirement.type,
            requirement.intent_id,
            requirement.id,
            exc_info=error,
        )
        said = str(error) or type(error).__name__
        return _failed(requirement, jobs.EFFECT_EXECUTION_FAILED, said[: limits.REASON_CHARACTERS_MAX])
    return jobs.fulfilled(requirement.intent_id, requirement.id, result)


def _failed(requirement: flow_records.Requirement, code: str, message: str) -> jobs.FulfillEffect:
    return jobs.FulfillEffect(requirement.intent_id, requirement.id, (), jobs.Failure(code, message))
