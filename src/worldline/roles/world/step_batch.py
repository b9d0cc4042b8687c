"""Turning what steps derived into one world's batch: destinations looked up, large payloads put away first.

Everything here happens before the commit; acting on it is the worker's, afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.kernel import commands, runs
from worldline.kernel.authoring.program import Program
from worldline.keys import journal as journal_keys
from worldline.layers import cas, commit, messages, ready, worlds
from worldline.layers import inbox as inboxes
from worldline.layers import journal as journals
from worldline.layers import work as works
from worldline.model import ids, inbox, payload, step
from worldline.model.inbox import ReceiptStatus
from worldline.model.work import Work, WorkState
from worldline.roles import queue_names
from worldline.roles.world.held_world import Done, Hosted, handed_stamp
from worldline.store import kv

ROUTES_AT_ONCE = 1_000


class Route(msgspec.Struct, frozen=True):
    """A message and what is known of where it goes."""

    outgoing: step.Outgoing
    destination: worlds.World | None


class Built(msgspec.Struct, frozen=True):
    batch: kv.Batch
    head_raw: bytes
    claimed: list[works.Open]
    touched: list[ids.Address]  # other worlds that got a message
    answers_self: bool  # something was put into the world's own inbox
    unhinted: Sequence[ready.Hint] = ()  # the world's own, deleted


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
    read = await engine.read(*(worlds.get(at) for at in known))
    metas = {at: worlds.find(at, read.value(index)) for index, at in enumerate(known)}
    return [
        Route(each, None if at is None else metas.get(at)) for each, at in zip(outgoing, targets, strict=True)
    ]  # fmt: skip


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
    hosted: Hosted, done: Done, routes: Sequence[Route], claims: Claims, *, time_us: int,
    hints: Sequence[ready.Hint] = (),
) -> Built:  # fmt: skip
    """One batch with all that these steps did. `hints`: those that they make superfluous."""
    opened: list[commit.Opened] = []
    if done.wanted:
        works_wanted = [(wanted.intent, work_of(hosted.program, wanted)) for wanted in done.wanted.values()]
        opened = [commit.Opened(intent, work, claims.claim(work, time_us)) for intent, work in works_wanted]
    try:
        return _build(hosted, done, routes, opened, time_us=time_us, hints=hints)
    except BaseException:
        claims.give_back([each.claim.token for each in opened if each.claim is not None])
        raise


def _build(
    hosted: Hosted, done: Done, routes: Sequence[Route], opened: list[commit.Opened], *, time_us: int,
    hints: Sequence[ready.Hint],
) -> Built:  # fmt: skip
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
    ready.remove(batch, hints)
    if done.unfinished:  # said in the inbox too, so that whoever takes the world after us goes on
        inboxes.enqueue_once(batch, hosted.at, inbox.Control(commands.CONTINUE, payload.EMPTY))
        answers_self = True
    head_raw = batch.puts[journal_keys.head_key(hosted.at)].value
    return Built(batch, head_raw, claimed, touched, answers_self, hints)


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
            messages.post(batch, each.destination, message)
            if each.destination.at == hosted.at:
                answers_self = True  # its holder reads its own inbox next
            touched[each.destination.at] = None
        if is_reply or (why_not is None and asks):
            continue
        inboxes.enqueue_once(batch, hosted.at, _receipt(each.outgoing, why_not))
        answers_self = True
    for at in touched:
        if at != hosted.at:
            ready.leave(batch, at, priority=ready.NORMAL)
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
        queue=queue_names.queue_of(program, wanted),
        shard=0,
        name=wanted.name,
        params=cas.as_payload(wanted.params),
        step=wanted.step,
        ordinal=wanted.ordinal,
        opened_us=wanted.opened_us,
        due_us=wanted.due_us,
        deadline_us=wanted.deadline_us,
        correlation=wanted.correlation,
    )
