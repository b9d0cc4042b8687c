"""Turning what steps derived into one world's batch: destinations looked up, large payloads put away first.

Everything here happens before the commit; acting on it is the worker's, afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec

from worldline.base import env as envs
from worldline.base import limits
from worldline.codec import digest
from worldline.kernel import commands, runs
from worldline.kernel.authoring.program import Program
from worldline.keys import journal as journal_keys
from worldline.layers import cas, commit, messages, ready, worlds
from worldline.layers import inbox as inboxes
from worldline.layers import journal as journals
from worldline.layers import work as works
from worldline.model import ids, inbox, payload, step
from worldline.model.inbox import ReceiptStatus
from worldline.model.work import Work, WorkKind, WorkState
from worldline.roles.world.held_world import Done, Hosted, handed_stamp
from worldline.store import kv

TIMER_QUEUE = "worldline/timers"
READY_URGENT = 0  # somebody waits for the answer: requests and commands from outside
READY_PRIORITY = 1  # everything else that comes in
READY_LATER = 2  # nothing may be waiting; somebody is to look at where the world is wanted
READY_PRIORITIES = (READY_URGENT, READY_PRIORITY, READY_LATER)
ROUTES_AT_ONCE = 1_000


class Route(msgspec.Struct, frozen=True):
    """A message and what is known of where it goes."""

    outgoing: step.Outgoing
    destination: worlds.World | None
    ready_raw: bytes | None


class Built(msgspec.Struct, frozen=True):
    batch: kv.Batch
    head_raw: bytes
    claimed: list[works.Open]
    touched: list[ids.Address]  # other worlds that got a message
    answers_self: bool  # something was put into the world's own inbox
    unhinted: int | None = None  # the priority of the world's hint that was taken away


class Claims:
    """Asked for every effect: may a co-located adapter have it at once? What was not committed is given back."""

    def claim(self, work: Work, time_us: int) -> commit.Claim | None:  # noqa: ARG002 - the default takes none
        return None

    def give_back(self, tokens: Sequence[bytes]) -> None:
        pass


async def route(engine: kv.Engine, hosted: Hosted, outgoing: list[step.Outgoing]) -> list[Route]:
    """Look up where messages go, in two reads for every thousand of them."""
    routes: list[Route] = []
    for start in range(0, len(outgoing), ROUTES_AT_ONCE):
        routes += await _route(engine, hosted.at.universe, outgoing[start : start + ROUTES_AT_ONCE])
    return routes


async def _route(engine: kv.Engine, universe: ids.UniverseId, outgoing: list[step.Outgoing]) -> list[Route]:
    names = list(dict.fromkeys(each.to_name for each in outgoing if each.to is None))
    found: dict[str, ids.Address | None] = {}
    if names:
        read = await engine.read(*(worlds.get_name(universe, name) for name in names))
        found = {name: worlds.named(universe, read.value(index)) for index, name in enumerate(names)}
    targets = [each.to if each.to is not None else found[each.to_name] for each in outgoing]
    known = list(dict.fromkeys(at for at in targets if at is not None and at.universe == universe))
    read = await engine.read(
        *(worlds.get(at) for at in known), *(ready.get(at, priority=READY_PRIORITY) for at in known)
    )
    metas = {at: (worlds.find(at, read.value(i)), read.value(len(known) + i)) for i, at in enumerate(known)}
    return [
        Route(each, *(metas.get(at, (None, None)) if at is not None else (None, None)))
        for each, at in zip(outgoing, targets, strict=True)
    ]


async def put_large(hosted: Hosted, done: Done) -> None:
    """Everything too large for an entry goes to the CAS before the commit that refers to it."""
    for data in done.large:
        await hosted.blobs.put(data)
    for wanted in done.wanted.values():
        if not cas.is_small(wanted.params):
            await hosted.blobs.put(wanted.params)
    for outgoing in done.outgoing:
        if not cas.is_small(outgoing.data):
            await hosted.blobs.put(outgoing.data)


def build(
    hosted: Hosted, done: Done, routes: Sequence[Route], claims: Claims, *, time_us: int, hint: int | None = None
) -> Built:
    """One batch with all that these steps did. `hint`: the priority of the hint that they make superfluous."""
    opened: list[commit.Opened] = []
    if done.wanted:
        works_wanted = [(wanted.intent, work_of(hosted.program, wanted)) for wanted in done.wanted.values()]
        opened = [commit.Opened(intent, work, claims.claim(work, time_us)) for intent, work in works_wanted]
    try:
        return _build(hosted, done, routes, opened, time_us=time_us, hint=hint)
    except BaseException:
        claims.give_back([each.claim.token for each in opened if each.claim is not None])
        raise


def _build(
    hosted: Hosted, done: Done, routes: Sequence[Route], opened: list[commit.Opened], *, time_us: int, hint: int | None
) -> Built:
    batch = kv.Batch()
    steps = commit.Steps(
        head_raw=hosted.head_raw,
        sealed=journals.Sealed(done.before, done.entries, done.data, done.after),
        consumed=[each.stamp for each in done.taken],
        buried=done.buried,
        opened=opened,
        closed=list(done.closed),
        cancelled=[commit.Cancelled(each.intent, work_of(hosted.program, each)) for each in done.cancelled],
    )
    claimed = commit.add(batch, hosted.lease, steps)
    for handover, applied in done.handed:
        if handover.claim is not None and handover.claim.intent in done.closed:
            works.settle_in_step(batch, handover.claim)
        if handover.client_id is not None:
            stamp = kv.Stamp(handover.stamp or handed_stamp(applied))
            inboxes.record_seen(
                batch, hosted.at, handover.item, client_id=handover.client_id, stamp=stamp, time_us=time_us
            )
    touched, answers_self = _post(batch, hosted, routes) if routes else ([], False)
    if hint is not None and not ready.consume(batch, hosted.at, priority=hint):
        hint = None
    if done.unfinished:  # said in the inbox too, so that whoever takes the world after us goes on
        inboxes.enqueue_once(batch, hosted.at, inbox.Control(commands.CONTINUE, payload.EMPTY))
        answers_self = True
    head_raw = batch.puts[journal_keys.head_key(hosted.at)].value
    return Built(batch, head_raw, claimed, touched, answers_self, hint)


def _post(batch: kv.Batch, hosted: Hosted, routes: Sequence[Route]) -> tuple[list[ids.Address], bool]:
    """Messages into their destinations' inboxes, and a receipt for each into the sender's own."""
    touched: dict[ids.Address, None] = {}
    answers_self = False
    for each in routes:
        is_reply = each.outgoing.to is not None
        asks = bool(each.outgoing.message.headers.get("ask"))
        why_not = messages.check_destination(each.destination)
        if why_not is None:
            assert each.destination is not None
            message = msgspec.structs.replace(each.outgoing.message, payload=cas.as_payload(each.outgoing.data))
            index = messages.post(batch, each.destination, message)
            if each.destination.at not in touched:
                # Written also over one that is there: a step should not fail because a hint was taken away.
                ready.mark(batch, each.destination.at, priority=READY_PRIORITY, seen=None, append=index)
            touched[each.destination.at] = None
        if is_reply or (why_not is None and asks):
            continue
        inboxes.enqueue_once(batch, hosted.at, _receipt(each.outgoing, why_not))
        answers_self = True
    return list(touched), answers_self


def _receipt(outgoing: step.Outgoing, why_not: str | None) -> inbox.Receipt:
    if why_not is None:
        return inbox.Receipt(outgoing.intent, ReceiptStatus.OK, payload.EMPTY, 1)
    failure = runs.failure("undeliverable", f"message to {outgoing.to_name!r}: {why_not}", attempts=1)
    return inbox.Receipt(outgoing.intent, ReceiptStatus.ERROR, payload.inline(failure), 1)


def work_of(program: Program, wanted: step.Wanted) -> Work:
    """Open work as it is first recorded."""
    return Work(
        kind=wanted.kind,
        state=WorkState.WAITING,
        queue=queue_of(program, wanted),
        reserved=0,
        name=wanted.name,
        params=cas.as_payload(wanted.params),
        step=wanted.step,
        ordinal=wanted.ordinal,
        opened_us=wanted.opened_us,
        due_us=wanted.due_us,
        deadline_us=wanted.deadline_us,
        correlation=wanted.correlation,
    )


def queue_of(program: Program, wanted: step.Wanted) -> str:
    """Timers have a queue of their own; an effect goes to the one it declares, under its program's name."""
    if wanted.kind is WorkKind.TIMER:
        return TIMER_QUEUE
    effect = program.effects.get(wanted.name)
    return effect_queue(program, "default" if effect is None else effect.queue, wanted.name)


@functools.lru_cache(maxsize=4096)
def effect_queue(program: Program, queue: str, name: str) -> str:
    """One queue for each kind of effect, so that a kind whose limits are used up is in nobody's way."""
    whole = f"{program.name}/{queue}/{name}"
    if len(whole.encode()) <= limits.NAME_BYTES_MAX:
        return whole
    return f"{queue_prefix(program)}#{digest.sha256(whole.encode()).hex()[:32]}"


def queue_prefix(program: Program) -> str:
    """What all queues of a program begin with."""
    return program.name.encode()[:32].decode(errors="ignore")


def priority_of(item: inbox.Item) -> int:
    """How urgent an input from outside is."""
    asked = isinstance(item, inbox.Control) or (isinstance(item, inbox.Event) and bool(item.correlation))
    return READY_URGENT if asked else READY_PRIORITY


def any_stamp(env: envs.Env) -> kv.Stamp:
    """For a hint that no item caused. It only has to differ from others."""
    return kv.Stamp(env.random_bytes(limits.STAMP_BYTES))
