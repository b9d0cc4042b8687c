"""The effects that bring messages to worlds of other universes, of this store or another, and answers back.

A message is enqueued there under its own id, which is that of the intent, so that however often it is tried it is one
item (`layers/messages.py`). The batch expects that the world takes input and, from another universe, that the grant
stands that allows it (`layers/universes.py`). The sender is read from the claim: the universe is the one whose effects
this process performs, and nothing that user code has written can name another.

An answer is the receipt of the effect that brought the question. The question's record says to which world it was put,
and only that world's answer settles it: a world that asks needs no grant for the answer.

A store that is out of reach is tried again, with growing pauses. What will not become right by itself is an error
receipt at once: no such universe or world, a world that takes no input, a sender that is not allowed to, a universe
that has all that it may have. A sender whose universe has filled its share of the inbox is tried again, too, for a
while: its run waits, its world does not, and the owner's own inputs keep the rest of the inbox.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import msgspec

from worldline.base import env as envs
from worldline.base import errors, failures, grammar, probes
from worldline.codec import sealed_token
from worldline.effects import attempt as attempts
from worldline.effects import parking
from worldline.kernel import runs
from worldline.kernel.authoring import message_calls as calls
from worldline.kernel.authoring.calls import Effect, Retry
from worldline.layers import blobs as blob_layer
from worldline.layers import cas, messages, ready, universe_settings, universes, worlds
from worldline.layers import work as works
from worldline.model import ids, inbox
from worldline.model.inbox import MessageMode, ReceiptStatus, Reply
from worldline.model.settings import PressureSettings
from worldline.model.world_records import TAKES_INPUT
from worldline.runtime import universe_admission
from worldline.runtime.peer_stores import PeerUniverse
from worldline.runtime.universe_admission import InputBounds
from worldline.store import kv, transact

CONCURRENCY = 128
_PERSONAL = "a wl.Personal stays in its universe; send what the other side may keep as a plain value"
TIMEOUT_SECONDS = 60  # of one attempt
RETRY = Retry(attempts=None, initial_delay=0.2, max_delay=60.0)
WAITING_MAX = 10_000  # messages without room that are remembered; one that is forgotten begins to wait anew


class ReachableStores(Protocol):
    """The stores that this process can reach: its own, under the empty name, and its peers."""

    async def find(self, name: str) -> PeerUniverse:
        """`NotFound` if there is no store of this name; `StoreError` if it cannot be opened now."""

    def names(self) -> list[str]: ...

    async def lost(self, name: str, place: PeerUniverse) -> None:
        """A store has failed permanently in this process: open it again the next time, unless it was already."""


class MessageInTransit(msgspec.Struct, frozen=True):
    """A message on its way. `to`: where to, as its sender said it; `universe` and `world` are that there."""

    to: str
    universe: ids.UniverseId
    world: str
    message: inbox.Message
    content: calls.Content
    sent_us: int


class NotYet(errors.Error):
    """What has to happen before has not happened so far."""

    code = "not_yet"


class Full(errors.Error):
    """The sender's universe has its share of the inbox: the message is tried again."""

    code = calls.OVERLOADED


def effects(
    places: ReachableStores, env: envs.Env, *, window_us: int, pressure: PressureSettings
) -> list[Effect[..., Any]]:
    """`worldline.send` and `worldline.reply`, performed by this process."""
    carrier = Carrier(places, env, window_us=window_us, pressure=pressure)

    async def send(to: str, content: bytes, ask: bool) -> Any:
        return await carrier.send(_claim(), to, calls.unpack(content), ask=ask)

    async def reply(universe: bytes, world: bytes, question: bytes, ok: bool, data: bytes) -> Any:
        asker = ids.Address(ids.UniverseId(universe), ids.WorldId(world))
        status = ReceiptStatus.OK if ok else ReceiptStatus.ERROR
        return await carrier.reply(_claim(), asker, ids.IntentId(question), status, data)

    return [
        Effect(each, name, {}, timeout=TIMEOUT_SECONDS, concurrency=CONCURRENCY, retry=RETRY)
        for each, name in ((send, calls.SEND), (reply, calls.REPLY))
    ]


def _claim() -> works.Open:
    claim = attempts.attempt().claim
    assert isinstance(claim, works.Open), "messages are delivered under a claim"
    return claim


class Carrier:
    """Brings messages and answers to other universes."""

    def __init__(self, places: ReachableStores, env: envs.Env, *, window_us: int, pressure: PressureSettings) -> None:
        self._places = places
        self._env = env
        self._window_us = window_us
        self._pressure = pressure
        self._without_room: dict[bytes, int] = {}  # messages, and when each was first found to have no room

    # --- Messages ----------------------------------------------------------------------------------------------

    async def send(self, claim: works.Open, to: str, content: calls.Content, *, ask: bool) -> Any:
        """Enqueue a message, or find that it was. Returns its receipt; of a question, where it was put to."""
        if sealed_token.MAGIC in content.data:
            _refuse(calls.UNDELIVERABLE, f"message to {to!r}: {_PERSONAL}")
        goes = calls.destination(to)
        name = goes.peer
        place: PeerUniverse | None = None
        try:
            place = await self._places.find(name)
            universe = universes.decode((await place.engine.read(universes.get(goes.universe))).value(0))
            if universe is None:
                _refuse(calls.UNDELIVERABLE, f"message to {to!r}: no universe {goes.universe!r}{_hint(goes)}")
            message = await self._message(claim, content, ask=ask)
            reserved = messages.check_name(message)
            if reserved is not None:
                _refuse(calls.RESERVED, f"message to {to!r}: {reserved}")
            letter = MessageInTransit(to, universe, goes.world, message, content, claim.work.opened_us)
            at, stamp, already = await self._enqueue(place, letter, claim)
        except errors.StoreFailed:
            # This engine stays broken: the next message opens the store again.
            if place is not None:
                await self._places.lost(name, place)
            raise
        except errors.NotFound as error:
            _refuse(calls.UNDELIVERABLE, f"message to {to!r}: {error}")
        if ask:
            return attempts.AnsweredElsewhere(at)
        return [claim.intent, stamp, already]

    async def _message(self, claim: works.Open, content: calls.Content, *, ask: bool) -> inbox.Message:
        """The message as its sender's own store has it: the sender is what the claim says."""
        own = await self._places.find("")
        read = await own.engine.read(worlds.get(claim.at), universes.get_meta(claim.at.universe))
        sender = worlds.decode(claim.at, read.value(0))
        return inbox.Message(
            claim.intent,
            claim.at.universe,
            claim.at.world,
            claim.work.step,
            MessageMode.INBOX if content.inbox else MessageMode.TYPED,
            content.name,
            cas.as_payload(content.data),
            content.headers,
            content.correlation or claim.work.correlation_id or claim.intent.hex(),
            content.to,
            Reply.RECEIPT if ask else Reply.NONE,
            universes.name_of(read.value(1)),
            sender.meta.name,
        )

    async def _enqueue(
        self, place: PeerUniverse, letter: MessageInTransit, claim: works.Open
    ) -> tuple[ids.Address, kv.Stamp, bool]:
        """Where it is now, under which stamp, and whether it was there before.

        The claim is looked at after what allows the message was read, and before it is enqueued: another attempt that
        is refused later has seen a change, so this one conflicts.
        """
        engine, universe, message, to = place.engine, letter.universe, letter.message, letter.to
        found: list[ids.Address] = []

        async def attempt() -> transact.NothingToWrite[tuple[kv.Stamp, bool]] | transact.Write[tuple[kv.Stamp, bool]]:
            grants = universes.get_grants(universe), universes.newest_grant_change(universe)
            named = await engine.read(worlds.get_name(universe, letter.world), *grants, universe_settings.get(universe))
            bounds = universe_settings.decode(universe, named.value(3)).pressure(self._pressure)  # of the receiver
            at = worlds.named(universe, named.value(0))
            if at is None:
                granted = universes.decode_grants(universe, named.value(1), named.page(2))
                _check_allowed(granted, letter, letter.world)
                _refuse(calls.UNDELIVERABLE, f"message to {to!r}: no such world")
            found[:] = [at]
            share = _share_reads(bounds, at, message)
            read = await engine.read(
                worlds.get(at),
                messages.get_seen(at, message),
                *grants,
                *share,
                *universe_admission.reads(place.admissions, universe),
            )
            seen = read.value(1)
            if seen is not None:  # whatever has changed since: it is there
                return transact.NothingToWrite((messages.seen_stamp(seen, message), True))
            world = worlds.find(at, read.value(0))
            allowed = universes.decode_grants(universe, read.value(2), read.page(3))
            _check_allowed(allowed, letter, letter.world if world is None else world.meta.name)
            why_not = messages.check_destination(world)
            if world is None or why_not is not None:
                _refuse(calls.UNDELIVERABLE, f"message to {to!r}: {why_not}")
            # Within a universe, messages are not from outside, and nothing refuses them.
            if universe != message.from_universe:
                _check_admitted(
                    letter, universe_admission.bounds(place.admissions, universe, read, first=4 + len(share))
                )
                if share:
                    self._check_share(bounds, at, letter, read.page(4))
            if messages.is_too_old(sent_us=letter.sent_us, time_us=read.time_us, window_us=self._window_us):
                why = "it was on its way for so long that whether it was accepted before cannot be known"
                _refuse(calls.EXPIRED, f"message to {to!r}: {why}")
            await self._check_claim(claim)
            batch = kv.Batch()
            if not cas.is_small(letter.content.data):  # only now: nothing is stored there for a refused sender
                await _put(batch, place.blobs(universe), letter.content.data)
            index = messages.deliver(batch, world, message, time_us=read.time_us, window_us=self._window_us)
            # A grant that is taken back before the commit makes it conflict.
            if universe != message.from_universe:
                universes.expect_grants(batch, allowed)
            ready.leave(batch, at, priority=ready.NORMAL)
            return transact.Write(batch, lambda ok: (ok.stamps[index], False))

        stamp, already = await transact.run(engine, self._env, attempt)
        self._without_room.pop(message.message, None)
        return found[0], stamp, already

    def _check_share(self, bounds: PressureSettings, at: ids.Address, letter: MessageInTransit, page: kv.Page) -> None:
        """Refuse or delay a message whose universe has its share of the inbox, or if all others have theirs: the rest
        is for the owner's inputs. Attempts at the same time may each find room for one: the bound is an estimate.
        """
        mine, every = messages.brought(at, page, ids.UniverseId(letter.message.from_universe))
        for unread, part in ((mine, bounds.inbox_sender_part), (every, bounds.inbox_others_part)):
            items, size = _part(bounds.inbox_items_max, part), _part(bounds.inbox_bytes_max, part)
            if unread.items < items and unread.bytes < size:
                continue
            who = "its universe" if unread is mine else "other universes"
            why = (
                f"message to {letter.to!r}: {grammar.count(unread.items, 'message')} of {who} ({unread.bytes} bytes) "
                f"{'is' if unread.items == 1 else 'are'} unread there, "
                f"and the share is {items} ({size} bytes)"
            )
            if self._waited_us(letter) > bounds.inbox_sender_wait_ms * 1000:
                _refuse(calls.OVERLOADED, why)
            probes.hit("deliver.share-full")
            raise Full(why)

    def _waited_us(self, letter: MessageInTransit) -> int:
        """How long ago this process first found no room for the message, which it has just found again. No clock but
        the monotonic one is asked: an error is final, and one wrong reading of the store's clock must not cause it.
        """
        now_us = self._env.monotonic_us()
        # Put back at the end: what is forgotten first was not tried for the longest time.
        first_us = self._without_room.pop(letter.message.message, now_us)
        self._without_room[letter.message.message] = first_us
        if len(self._without_room) > WAITING_MAX:
            del self._without_room[next(iter(self._without_room))]
        return now_us - first_us

    async def _check_claim(self, claim: works.Open) -> None:
        """Another attempt may have told the sender already that the message is refused: then this one must not."""
        own = await self._places.find("")
        read = await own.engine.read(works.get(claim.at, claim.intent))
        found = works.decode(claim.at, claim.intent, read.value(0))
        if found is None or found.work.token != claim.work.token:
            probes.hit("deliver.claim-lost")
            raise errors.Conflicted(f"message {claim.intent.hex()}: its delivery was taken over by another attempt")

    # --- Answers -----------------------------------------------------------------------------------------------

    async def reply(
        self, claim: works.Open, asker: ids.Address, question: ids.IntentId, status: ReceiptStatus, data: bytes
    ) -> bool:
        """Give a question its answer, as its one receipt. False if no run waits for it any more."""
        if sealed_token.MAGIC in data:
            status, data = ReceiptStatus.ERROR, runs.failure(calls.UNDELIVERABLE, f"the answer: {_PERSONAL}")
        name, place = await self._place_of(asker.universe)
        try:
            receipt = inbox.EffectReceipt(question, status, cas.as_payload(data), 1)
            return await self._answer(place, claim.at, asker, receipt, data)
        except errors.StoreFailed:
            await self._places.lost(name, place)
            raise

    async def _answer(
        self,
        place: PeerUniverse,
        world_asked: ids.Address,
        asker: ids.Address,
        receipt: inbox.EffectReceipt,
        data: bytes,
    ) -> bool:
        engine = place.engine
        question = ids.IntentId(receipt.intent)

        async def attempt() -> transact.NothingToWrite[bool] | transact.Write[bool]:
            read = await engine.read(worlds.get(asker), works.get(asker, question))
            world = worlds.find(asker, read.value(0))
            asked = works.decode(asker, question, read.value(1))
            if world is None or asked is None or asked.work.state is works.SETTLED:
                return transact.NothingToWrite(False)  # it is answered, or given up
            if asked.work.name != calls.SEND:
                _refuse(calls.NOT_ALLOWED, f"{question.hex()} is no question to another universe")
            # The answer may be faster than the record that says that the question has arrived.
            if asked.work.state is not works.SENT:
                raise NotYet("that the question was delivered is not recorded so far")
            if not works.was_put_to(asked, world_asked):
                _refuse(calls.NOT_ALLOWED, f"question {question.hex()} was not put to this world")
            if world.meta.status not in TAKES_INPUT:
                raise NotYet(f"the world that asked is {world.meta.status.name.lower()}")
            batch = kv.Batch()
            if not cas.is_small(data):
                await _put(batch, place.blobs(asker.universe), data)
            works.answer(batch, asked)
            tried = {"attempt": asked.work.attempt, "correlation": asked.work.correlation}
            parking.tell(batch, world, msgspec.structs.replace(receipt, **tried))
            return transact.Write(batch, lambda _: True)

        return await transact.run(engine, self._env, attempt)

    async def _place_of(self, universe: ids.UniverseId) -> tuple[str, PeerUniverse]:
        """The store that a universe is in: this one, or one of the peers."""
        unreachable: errors.StoreError | None = None
        for name in ["", *self._places.names()]:
            place: PeerUniverse | None = None
            try:
                place = await self._places.find(name)
                if (await place.engine.read(universes.get_meta(universe))).value(0) is not None:
                    return name, place
            # Another peer may have the universe: this error counts only if none of them has it.
            except errors.StoreError as error:
                if isinstance(error, errors.StoreFailed) and place is not None:
                    await self._places.lost(name, place)
                unreachable = error
        if unreachable is not None:
            raise unreachable
        raise NotYet(f"the store of universe {universe.hex()}, which asked, is not among the peers of this host")


def _check_allowed(allowed: universes.Granted, letter: MessageInTransit, world: str) -> None:
    """Before it is said whether there is such a world: a sender that is not allowed to send there must not learn it."""
    message, label = letter.message, letter.content.label
    if not allowed.covers(universe=message.from_universe, world=message.world, to=world, event=label):
        who = f"world {message.world!r} of universe {message.universe!r} ({message.from_universe.hex()})"
        _refuse(calls.NOT_ALLOWED, f"message to {letter.to!r}: {who} may not send {label} there")


def _check_admitted(letter: MessageInTransit, allowed: Sequence[InputBounds]) -> None:
    """For the universe that it goes to, a message from another one comes from outside."""
    for bounds in allowed:
        refused = bounds.refuse_message()
        if refused is not None:
            _refuse(refused.code, f"message to {letter.to!r}: {refused.why}")


def _share_reads(bounds: PressureSettings, at: ids.Address, message: inbox.Message) -> list[kv.Range]:
    """What other universes have brought and is unread, as far as it matters. Nothing within a universe."""
    bound = bounds.inbox_items_max
    if not bound or at.universe == message.from_universe:
        return []
    return [messages.brought_range(at, count_max=_part(bound, bounds.inbox_others_part))]


def _part(bound: int, part: int) -> int:
    return max(1, bound // part)  # the smallest bound has room for one, too


def _hint(goes: calls.Destination) -> str:
    return "" if goes.peer else f"; a world of this universe whose name has a slash is written '/{goes.universe}/...'"


def _refuse(code: str, why: str) -> NoReturn:
    """No other attempt will help."""
    raise failures.Fatal(why, code=code)


async def _put(batch: kv.Batch, blobs: blob_layer.Blobs, data: bytes) -> None:
    """Store what the batch refers to."""
    # Read before the blob is put, as publishers must: a collection may begin between the two.
    generation = await blobs.generation()
    await blobs.put(data)
    generation.expect(batch)
