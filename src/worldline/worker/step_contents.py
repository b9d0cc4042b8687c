"""Turning what steps derived into one world's batch: destinations looked up, large payloads put away first.

Everything here happens before the commit; acting on it is the worker's, afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import env as envs
from worldline.kernel import control_commands, runs, user_values
from worldline.kernel.authoring import message_calls as calls
from worldline.kernel.authoring.program import Program
from worldline.layers import cas, messages, ready, step_commit, trial, universes, worlds
from worldline.layers import journal as journals
from worldline.layers import work as works
from worldline.model import ids, inbox, payload, step_records
from worldline.model.inbox import ReceiptStatus
from worldline.model.work import Work, WorkState
from worldline.runtime import queue_names
from worldline.runtime.personal import message_values, store_vault
from worldline.runtime.world_bounds import WorldBounds
from worldline.store import kv
from worldline.worker.held_world import HeldWorld
from worldline.worker.step_run import StepsDone
from worldline.worker.waiting_input import handed_stamp

_WAITING = WorkState.WAITING
ROUTES_AT_ONCE = 1_000
_BEHIND = user_values.dump(step_commit.RECEIPT_BEHIND)


class Route(msgspec.Struct, frozen=True):
    """A message and what is known of where it goes."""

    outgoing: step_records.Outgoing
    destination: worlds.WorldRecord | None
    universe: str = ""  # the sender's, by name
    world: str = ""
    refused: str = ""  # why a rule of the universe is against it; then nothing else is known of it


class Built(msgspec.Struct, frozen=True):
    batch: kv.Batch
    head_raw: bytes
    claimed: list[works.Open]
    touched: list[ids.Address]  # other worlds that got a message
    answers_self: bool  # something was put into the world's own inbox
    unhinted: Sequence[ready.Hint] = ()  # the world's own, deleted


class LocalClaims:
    """Asked for every effect: may a co-located effect worker have it at once? What was not committed is given back."""

    def claim(self, at: ids.Address, work: Work, time_us: int) -> step_commit.Claim | None:  # noqa: ARG002 - it takes none
        return None

    def give_back(self, tokens: Sequence[bytes]) -> None:
        pass


async def route(engine: kv.Engine, env: envs.Env, held: HeldWorld, done: StepsDone) -> list[Route]:
    """Look up where messages go, in two reads for every thousand of them. Personal values in them are sealed again."""
    routes: list[Route] = []
    for start in range(0, len(done.outgoing), ROUTES_AT_ONCE):
        routes += await _route(engine, held.at, done.outgoing[start : start + ROUTES_AT_ONCE])
    if held.bounds is not None:  # before anything goes with a message: what is personal in it stays here, too
        routes = [_ruled(each, held.bounds) for each in routes]
    # After the rules: no value is sealed for a world that the message may not reach.
    if message_values.is_personal(done.outgoing):
        routes = await _reseal(
            message_values.Moving(engine, env, store_vault.of(held.machine), done.sealed), done, routes
        )
    return routes


async def _reseal(moving: message_values.Moving, done: StepsDone, routes: list[Route]) -> list[Route]:
    """Messages with personal values, for the worlds that get them."""
    found: list[Route] = []
    for each in routes:
        if each.destination is None:
            found.append(each)
        else:
            message = await moving.moved(each.outgoing, each.destination.at)
            found.append(msgspec.structs.replace(each, outgoing=message))
    done.reseal([each.outgoing for each in found], moving.done)
    return found


def _ruled(each: Route, bounds: WorldBounds) -> Route:
    """A message, refused if a rule is against it. An answer is addressed by the kernel, and no rule is about it."""
    outgoing, destination = each.outgoing, each.destination
    if outgoing.to is not None:
        return each
    to = outgoing.to_name if destination is None else destination.meta.name
    why = bounds.why_no_message(outgoing.message, to=to)
    return each if why is None else msgspec.structs.replace(each, destination=None, refused=why)


async def _route(engine: kv.Engine, sender: ids.Address, outgoing: list[step_records.Outgoing]) -> list[Route]:
    universe = sender.universe
    # `dict.fromkeys` here and below: each once, and in the same order in every process.
    names = list(dict.fromkeys(each.to_name for each in outgoing if each.to is None))
    found: dict[str, ids.Address | None] = {}
    if names:
        read = await engine.read(*(worlds.get_name(universe, name) for name in names))
        found = {name: worlds.named(universe, read.value(index)) for index, name in enumerate(names)}
    targets = [each.to if each.to is not None else found[each.to_name] for each in outgoing]
    known = list(dict.fromkeys(at for at in targets if at is not None and at.universe == universe))
    read = await engine.read(*(worlds.get(at) for at in known), worlds.get(sender), universes.get_meta(universe))
    metas = {at: worlds.find(at, read.value(index)) for index, at in enumerate(known)}
    own = worlds.find(sender, read.value(len(known)))
    called = universes.name_of(read.value(len(known) + 1)), "" if own is None else own.meta.name
    return [
        Route(each, None if at is None else metas.get(at), *called) for each, at in zip(outgoing, targets, strict=True)
    ]


async def put_large(held: HeldWorld, done: StepsDone) -> universes.GenerationRecord | None:
    """Everything too large for an entry or a change goes to the CAS before the commit that refers to it. Returns the
    generation that this commit expects; None if it refers to nothing.
    """
    large = [*done.large, *done.carried]
    large += [each.params for each in done.wanted.values() if not cas.is_small(each.params)]
    large += [each.data for each in done.outgoing if not cas.is_small(each.data)]
    if not large:
        return None
    # Before the first put: if a collection begins after this, the commit conflicts and nothing is lost.
    generation = await held.blobs.generation()
    for data in dict.fromkeys(large):
        await held.blobs.put(data)
    return generation


def build(
    held: HeldWorld,
    done: StepsDone,
    routes: Sequence[Route],
    claims: LocalClaims,
    *,
    time_us: int,
    hints: Sequence[ready.Hint] = (),
    generation: universes.GenerationRecord | None = None,
) -> Built:
    """One batch with all that these steps did. `hints`: those that they make superfluous; `generation`: of what they
    refer to (`put_large`).
    """
    opened: list[step_commit.OpenedWork] = []
    if done.wanted:
        works_wanted = [(wanted.intent, work_of(held.program, wanted)) for wanted in done.wanted.values()]
        refused = {} if held.bounds is None else held.bounds.refused(done.wanted.values())
        opened = [
            step_commit.OpenedWork(
                intent, work, claims.claim(held.at, work, time_us) if work.state is _WAITING else None
            )
            if intent not in refused
            else step_commit.OpenedWork(intent, work, refused=refused[intent])
            for intent, work in works_wanted
        ]
    try:
        return _build(held, done, routes, opened, time_us=time_us, hints=hints, generation=generation)
    except BaseException:
        # No batch has these claims, so no commit will ever perform or release them.
        claims.give_back([each.claim.token for each in opened if each.claim is not None])
        raise


def _build(
    held: HeldWorld,
    done: StepsDone,
    routes: Sequence[Route],
    opened: list[step_commit.OpenedWork],
    *,
    time_us: int,
    hints: Sequence[ready.Hint],
    generation: universes.GenerationRecord | None,
) -> Built:
    batch = kv.Batch()
    if generation is not None:
        # A collection that has begun since may remove what this commit refers to.
        generation.expect(batch)
    seen: list[step_commit.SeenInput] = []
    settled: list[works.Open] = []
    for each, applied in done.handed:
        if each.client_id is not None:
            stamp = kv.Stamp(each.stamp or handed_stamp(applied))
            seen.append(step_commit.SeenInput(each.item, each.client_id, stamp, time_us))
        if each.claim is not None and each.claim.intent in done.closed:
            settled.append(each.claim)
    sent = [_sent(each) for each in routes] if routes else []
    steps = step_commit.Steps(
        head_raw=held.head_raw,
        sealed=journals.SealedSteps(done.before, done.entries, done.data, done.after, done.changes),
        consumed=[each.stamp for each in done.taken] if done.taken else [],
        brought=_brought(held.at, done) if done.taken or done.buried else [],
        buried=done.buried,
        seen=seen,
        opened=opened,
        closed=list(done.closed),
        settled=settled,
        cancelled=_cancelled(held.program, done.cancelled) if done.cancelled else [],
        sent=sent,
        hints=hints,
        unfinished=inbox.Control(control_commands.CONTINUE, payload.EMPTY) if done.unfinished else None,
        traces=done.traces,
    )
    claimed, head_raw = step_commit.add(batch, held.lease, steps)
    if done.sealed or done.moved:
        store_vault.of(held.machine).add(batch, done.sealed)
        for each_moved in done.moved:
            each_moved.add(batch)
    # The hint by which a worker with other code finds the world (`runtime/blocked_scan.py`).
    if done.halted and any(not each.effect for each in done.halted):
        ready.mark_blocked(batch, held.at)
    if held.trial is not None:
        # In the same commit as the steps: a death before it still counts, one after it is over another step.
        trial.clear(batch, held.at)
    touched: list[ids.Address] = []
    answers_self = done.unfinished
    if sent:
        touched = list(dict.fromkeys(each.destination.at for each in sent if each.destination is not None))
        answers_self = answers_self or held.at in touched or any(each.receipt is not None for each in sent)
    # A refused effect is answered at once, through the world's own inbox.
    if held.bounds is not None:
        answers_self = answers_self or any(each.refused is not None for each in opened)
    return Built(batch, head_raw, claimed, touched, answers_self, hints)


def _brought(at: ids.Address, done: StepsDone) -> list[inbox.Message]:
    """Of what was read from the inbox, the messages of other universes."""
    items = [each.item for each in done.taken]
    items += [each.unread.item for each in done.buried]
    return [each for each in items if isinstance(each, inbox.Message) and each.from_universe != at.universe]


def _cancelled(program: Program, cancelled: list[step_records.WorkRequest]) -> list[step_commit.CancelledWork]:
    return [step_commit.CancelledWork(each.intent, work_of(program, each)) for each in cancelled]


def _sent(each: Route) -> step_commit.AddressedMessage:
    """A message as it leaves, and its receipt: none for a reply, and none for a question that is on its way."""
    code, why_not = _why_not(each)
    message = each.outgoing.message if each.destination is None else each.outgoing.put_to(each.destination.at)
    message = msgspec.structs.replace(
        message, payload=cas.as_payload(each.outgoing.data), universe=each.universe, world=each.world
    )
    answered = each.outgoing.to is not None or (why_not is None and bool(each.outgoing.message.reply))
    receipt = None if answered else _receipt(each.outgoing, code, why_not)
    return step_commit.AddressedMessage(message, each.destination if why_not is None else None, receipt)


def _why_not(each: Route) -> tuple[str, str | None]:
    """Why a message is not sent, with a code, if it is not. An answer, whose name is ours, is addressed by the kernel;
    whatever users send goes to a name.
    """
    reserved = messages.check_name(each.outgoing.message) if each.outgoing.to is None else None
    if reserved is not None:
        return calls.RESERVED, reserved
    if each.refused:
        return calls.NOT_ALLOWED, each.refused
    return calls.UNDELIVERABLE, messages.check_destination(each.destination)


def _receipt(outgoing: step_records.Outgoing, code: str, why_not: str | None) -> inbox.EffectReceipt:
    if why_not is None:
        return inbox.EffectReceipt(outgoing.intent, ReceiptStatus.OK, payload.inline(_BEHIND), 1)
    failure = runs.failure(code, f"message to {outgoing.to_name!r}: {why_not}", attempts=1)
    return inbox.EffectReceipt(outgoing.intent, ReceiptStatus.ERROR, payload.inline(failure), 1)


def work_of(program: Program, request: step_records.WorkRequest) -> Work:
    """Open work as it is first recorded."""
    return Work(
        kind=request.kind,
        state=WorkState.PARKED if request.parked else _WAITING,
        queue=queue_names.queue_of(program, request),
        reserved=0,
        name=request.name,
        params=cas.as_payload(request.params),
        step=request.step,
        ordinal=request.ordinal,
        opened_us=request.opened_us,
        due_us=request.due_us,
        deadline_us=request.deadline_us,
        correlation=request.correlation,
        error=request.parked,
        correlation_id=request.correlation_id,
    )
