"""A toy world and everybody around it, made of layer functions alone: what the tests of whole lives run.

The world's events are commands: `effect`, `claimed` (an effect handed to the adapter here), `timer`, `cancel` (the
oldest open work), `send` (a message to the other world), `poison` (cannot be taken). All that it knows is in its
journal; a `Worker` that takes it over reads it back from there. `Producer`, `Adapter` and `Clockwork` are the others.
Each has a bounded `turn`, and each may be killed in any commit: then whoever owns it makes a new one, with an empty
memory.
"""

from __future__ import annotations

import dataclasses

from tests.layers import scenario
from tests.layers.scenario import SECOND
from worldline.base import env as envs
from worldline.base import errors
from worldline.codec import structs
from worldline.layers import commit, inbox, journal, leases, messages, work, worlds
from worldline.model import ids, payload
from worldline.model import inbox as inbox_model
from worldline.model import journal as journal_model
from worldline.model.journal import Draft, Kind
from worldline.model.work import Work, WorkKind, WorkState
from worldline.store import kv, transact

TTL_US = 10 * SECOND
CLAIM_US = 5 * SECOND
TIMER_US = 3 * SECOND
EFFECTS = "effects"
TIMERS = "timers"
ITEMS_MAX = 3  # steps in one commit


class Killed(Exception):
    """This process is no more."""


@dataclasses.dataclass
class State:
    """What a world is: the work it waits for, as its journal says."""

    open: dict[ids.IntentId, Work] = dataclasses.field(default_factory=dict)

    def fold(self, entry: journal_model.Entry | Draft) -> None:
        match entry.kind:
            case Kind.EFFECT_REQUESTED | Kind.TIMER_SET:
                wanted = structs.decode(Work, entry.payload)
                self.open[ids.IntentId(bytes.fromhex(entry.correlation))] = wanted
            case Kind.EFFECT_RESULT | Kind.TIMER_FIRED | Kind.EFFECT_CANCELLED | Kind.TIMER_CANCELLED:
                del self.open[ids.IntentId(bytes.fromhex(entry.correlation))]
            case _:
                pass


@dataclasses.dataclass
class Done:
    """What the steps of one cycle add up to."""

    entries: list[journal_model.Entry] = dataclasses.field(default_factory=list)
    data: list[bytes] = dataclasses.field(default_factory=list)
    consumed: list[bytes] = dataclasses.field(default_factory=list)
    buried: list[commit.Buried] = dataclasses.field(default_factory=list)
    opened: dict[ids.IntentId, commit.Opened] = dataclasses.field(default_factory=dict)
    closed: list[ids.IntentId] = dataclasses.field(default_factory=list)
    cancelled: list[commit.Cancelled] = dataclasses.field(default_factory=list)
    sent: list[commit.Sent] = dataclasses.field(default_factory=list)


async def certain(engine: kv.Engine, env: envs.Env, batch: kv.Batch) -> transact.Certain:
    [outcome] = await transact.commit(engine, env, batch)
    return outcome


class Worker:
    """Runs one world at a time for one life."""

    def __init__(self, engine: kv.Engine, env: envs.Env, worker: ids.WorkerId) -> None:
        self.engine = engine
        self.env = env
        self.worker = worker
        self.incarnation = ids.Incarnation(env.random_bytes(16))
        self.life: leases.Life | None = None
        self.held: dict[ids.Address, leases.Lease] = {}
        self.states: dict[ids.Address, State] = {}
        self.claimed: list[work.Open] = []  # for the adapter in this process

    async def beat(self) -> None:
        read = await self.engine.read(leases.get_life(self.worker))
        batch = kv.Batch()
        life = leases.heartbeat(
            batch,
            self.worker,
            before=leases.decode_life(self.worker, read.value(0)),
            incarnation=self.incarnation,
            now_us=read.time_us,
            ttl_us=TTL_US,
            capacity=10,
            labels={},
        )
        if isinstance(await certain(self.engine, self.env, batch), kv.Ok):
            self.life = life

    async def acquire(self, at: ids.Address) -> leases.Lease | None:
        """Try once. The state is read back from the journal only when the lease is ours."""
        assert self.life is not None
        read = await self.engine.read(*leases.reads(at))
        state = leases.decode(at, read.value(0), read.value(1), read.value(2))
        holder_life = None
        if state.holder is not None:
            holder = ids.WorkerId(state.holder.worker)
            holder_life = leases.decode_life(holder, (await self.engine.read(leases.get_life(holder))).value(0))
        batch = kv.Batch()
        try:
            held = leases.acquire(batch, state, me=self.life, holder_life=holder_life, now_us=read.time_us)
        except errors.Exists:
            return None
        if not isinstance(await certain(self.engine, self.env, batch), kv.Ok):
            return None
        self.held[at] = held
        self.states[at] = State()
        for entry in await read_journal(self.engine, at):
            self.states[at].fold(entry)
        return held

    async def turn(self, at: ids.Address, peer: ids.Address) -> bool:
        """One cycle: read, step, commit. Whether there was anything to do; `Lost` if the world is no longer ours."""
        held = self.held[at]
        read = await self.engine.read(journal.get_head(at), inbox.read_range(at, count_max=ITEMS_MAX), worlds.get(peer))
        unread = inbox.decode(read.page(1).items)
        if not unread:
            return False
        head_raw = read.value(0)
        assert head_raw is not None
        head, done = journal.decode_head(head_raw), Done()
        for each in unread:
            head = self._step(at, each, head, done, worlds.find(peer, read.value(2)), read.time_us)
        steps = commit.Steps(
            head_raw,
            journal.Sealed(journal.decode_head(head_raw), done.entries, done.data, head),
            consumed=done.consumed,
            buried=done.buried,
            opened=list(done.opened.values()),
            closed=done.closed,
            sent=done.sent,
            cancelled=done.cancelled,
        )
        batch = kv.Batch()
        claimed = commit.add(batch, held, steps)
        outcome = await certain(self.engine, self.env, batch)
        if isinstance(outcome, kv.Conflict):
            del self.held[at], self.states[at]
            raise commit.lost(outcome, held)
        self.claimed += claimed
        return True

    def _step(
        self,
        at: ids.Address,
        unread: inbox.Unread,
        before: journal_model.Head,
        done: Done,
        peer: worlds.World | None,
        time_us: int,
    ) -> journal_model.Head:
        state, step = self.states[at], before.step + 1
        drafts = self._drafts(at, unread, step, done, peer, time_us)
        for draft in drafts:
            state.fold(draft)
        unsealed = journal.seal(before, drafts, state=bytes(32), time_us=time_us)
        sealed = journal.seal(
            before, drafts, state=journal.chain_digest(before.chain, unsealed.entries), time_us=time_us
        )
        after = sealed.after
        done.entries += sealed.entries
        done.data += sealed.data
        done.consumed.append(unread.stamp)
        if drafts[0].kind is Kind.UNDECODABLE_INPUT:
            done.buried.append(commit.Buried(unread, "poison", step, after.time_us))
        return after

    def _drafts(
        self, at: ids.Address, unread: inbox.Unread, step: int, done: Done, peer: worlds.World | None, time_us: int
    ) -> list[Draft]:
        state, item = self.states[at], unread.item
        if isinstance(item, inbox_model.Receipt | inbox_model.TimerFired):
            intent = ids.IntentId(item.intent)
            if intent not in state.open:
                return [Draft(Kind.LATE_ANSWER, b"", unread.stamp, intent.hex())]
            done.closed.append(intent)
            kind = Kind.EFFECT_RESULT if isinstance(item, inbox_model.Receipt) else Kind.TIMER_FIRED
            return [Draft(kind, b"", unread.stamp, intent.hex())]
        if isinstance(item, inbox_model.Message):
            return [Draft(Kind.MESSAGE, item.message, unread.stamp)]
        assert isinstance(item, inbox_model.Event)
        assert item.payload.inline is not None
        text = item.payload.inline.decode()
        command = text.partition(":")[0]
        if command == "poison":
            return [Draft(Kind.UNDECODABLE_INPUT, text.encode(), unread.stamp)]
        made = Draft(Kind.EVENT, text.encode(), unread.stamp)
        if command in ("effect", "claimed", "timer"):
            return [made, self._ask(at, command, step, done, time_us)]
        if command == "cancel" and state.open:
            return [made, self._cancel(at, done)]
        if command == "send" and peer is not None and messages.check_destination(peer) is None:
            return [made, self._send(at, step, done, peer)]
        return [made]

    def _ask(self, at: ids.Address, command: str, step: int, done: Done, time_us: int) -> Draft:
        is_timer = command == "timer"
        intent = ids.intent_id(at, step=step, ordinal=0, kind=command, params=b"")
        wanted = Work(
            kind=WorkKind.TIMER if is_timer else WorkKind.EFFECT,
            state=WorkState.WAITING,
            queue=TIMERS if is_timer else EFFECTS,
            shard=0,
            name=command,
            params=payload.EMPTY,
            step=step,
            ordinal=0,
            opened_us=time_us,
            due_us=time_us + (TIMER_US if is_timer else 0),
        )
        claim = None
        if command == "claimed":
            claim = commit.Claim(self.worker, ids.Token(self.env.random_bytes(16)), time_us + CLAIM_US)
        done.opened[intent] = commit.Opened(intent, wanted, claim)
        return Draft(
            Kind.TIMER_SET if is_timer else Kind.EFFECT_REQUESTED, structs.encode(wanted), correlation=intent.hex()
        )

    def _cancel(self, at: ids.Address, done: Done) -> Draft:
        intent, wanted = next(iter(self.states[at].open.items()))
        if done.opened.pop(intent, None) is None:  # opened by this very commit: then it never is
            done.cancelled.append(commit.Cancelled(intent, wanted))
        kind = Kind.TIMER_CANCELLED if wanted.kind is WorkKind.TIMER else Kind.EFFECT_CANCELLED
        return Draft(kind, b"", correlation=intent.hex())

    def _send(self, at: ids.Address, step: int, done: Done, peer: worlds.World) -> Draft:
        message_id = ids.intent_id(at, step=step, ordinal=0, kind="send", params=b"")
        message = inbox_model.Message(
            message_id, at.universe, at.world, step, inbox_model.MessageMode.INBOX, "letters", payload.EMPTY
        )
        done.sent.append(commit.Sent(peer, message, hint_priority=0))
        return Draft(Kind.MESSAGE_SENT, message_id)


class Producer:
    """Enqueues commands, each under an id of its own, until it knows that each is taken."""

    def __init__(self, engine: kv.Engine, env: envs.Env, commands: list[tuple[ids.Address, str]]) -> None:
        self.engine = engine
        self.env = env
        self.left = list(commands)

    async def turn(self) -> bool:
        if not self.left:
            return False
        at, text = self.left[0]
        item = scenario.event(text)

        async def attempt() -> transact.Done[None] | transact.Write[None]:
            seen = inbox.get_seen(at, text)
            read = await self.engine.read(worlds.get(at), seen)
            found = read.value(1)
            if found is not None:
                inbox.seen_stamp(found, item, client_id=text)
                return transact.Done(None)
            batch = kv.Batch()
            worlds.expect_open(batch, worlds.decode(at, read.value(0)))
            inbox.enqueue(batch, at, item, client_id=text, time_us=read.time_us, window_us=scenario.WINDOW_US)
            return transact.Write(batch, lambda _: None)

        await transact.run(self.engine, self.env, attempt)
        self.left.pop(0)
        return True


async def due(engine: kv.Engine, queue: str) -> tuple[work.Found, work.Open | None] | None:
    """The first pointer that is due, with its authority."""
    time_us = (await engine.read(kv.Get(b"\x01"))).time_us
    page = await engine.read(work.due_range(scenario.UNIVERSE, queue=queue, shard=0, now_us=time_us, count_max=1))
    found = work.decode_due(scenario.UNIVERSE, page.page(0))
    if not found:
        return None
    at, intent = found[0].pointer.at, found[0].pointer.intent
    return found[0], work.decode(at, intent, (await engine.read(work.get(at, intent))).value(0))


class Adapter:
    """Claims one effect, calls the outside, answers."""

    def __init__(self, engine: kv.Engine, env: envs.Env, worker: ids.WorkerId, calls: list[ids.IntentId]) -> None:
        self.engine = engine
        self.env = env
        self.worker = worker
        self.calls = calls  # what the outside has seen

    async def turn(self) -> bool:
        met = await due(self.engine, EFFECTS)
        if met is None:
            return False
        found, authority = met
        batch = kv.Batch()
        if authority is None or not work.matches(found, authority):
            work.discard(batch, found, authority)
            await certain(self.engine, self.env, batch)
            return True
        now_us = self.env.wall_us()
        token = ids.Token(self.env.random_bytes(16))
        held = work.claim(
            batch, authority, worker=self.worker, token=token, now_us=now_us, until_us=now_us + CLAIM_US
        )  # fmt: skip
        if isinstance(await certain(self.engine, self.env, batch), kv.Ok):
            await self.answer(held)
        return True

    async def answer(self, held: work.Open) -> None:
        self.calls.append(held.intent)
        world = worlds.decode(held.at, (await self.engine.read(worlds.get(held.at))).value(0))
        batch = kv.Batch()
        work.settle(batch, held)
        worlds.expect_open(batch, world)
        status = inbox_model.ReceiptStatus.OK
        receipt = inbox_model.Receipt(held.intent, status, payload.EMPTY, held.work.attempt)
        inbox.enqueue_once(batch, held.at, receipt)
        await certain(self.engine, self.env, batch)


class Clockwork:
    """Fires one timer that is due."""

    def __init__(self, engine: kv.Engine, env: envs.Env, worker: ids.WorkerId) -> None:
        self.engine = engine
        self.env = env
        self.worker = worker

    async def turn(self) -> bool:
        met = await due(self.engine, TIMERS)
        if met is None:
            return False
        found, authority = met
        batch = kv.Batch()
        if authority is None or not work.matches(found, authority):
            work.discard(batch, found, authority)
        else:
            world = worlds.decode(authority.at, (await self.engine.read(worlds.get(authority.at))).value(0))
            token = ids.Token(self.env.random_bytes(16))
            fired = work.fire(batch, authority, token=token, worker=self.worker, now_us=self.env.wall_us())
            worlds.expect_open(batch, world)
            inbox.enqueue_once(batch, authority.at, fired)
        await certain(self.engine, self.env, batch)
        return True


async def read_journal(engine: kv.Engine, at: ids.Address) -> list[journal_model.Entry]:
    """All of it, checked against the head."""
    entries: list[journal_model.Entry] = []
    while True:
        above = entries[-1].height if entries else 0
        read = await engine.read(journal.read_range(at, above=above), journal.get_head(at))
        entries += journal.decode(at, read.page(0).items, above=above)
        if not read.page(0).more:
            assert journal.verify(journal_model.GENESIS, entries) == journal.decode_head(read.value(1))
            return entries
