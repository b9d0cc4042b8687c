"""Whole lives of two worlds, with a process killed in any commit: nothing is lost, nothing happens twice.

Every commit of everybody goes through `Mortal`, which kills the process that makes it, before or after it is applied,
or loses its answer. At the end everything the producer sent is journaled once or a dead letter, heights and stamps are
in order, every intent has had one answer, every message has arrived once, and no key of a queue is left or missing.
"""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.layers import engines, host, scenario
from tests.layers.scenario import SECOND
from worldline.base import env as envs
from worldline.base import errors
from worldline.keys import work as work_keys
from worldline.layers import inbox, work
from worldline.model import ids
from worldline.model import inbox as inbox_model
from worldline.model.journal import Entry, Kind
from worldline.model.work import WorkState
from worldline.store import kv, memory

A, B = scenario.address(0), scenario.address(1)
ROUNDS_MAX = 400
IDLE_ROUNDS = 16  # longer than any claim, timer or heartbeat lasts
ANSWERS = (Kind.EFFECT_RESULT, Kind.TIMER_FIRED, Kind.EFFECT_CANCELLED, Kind.TIMER_CANCELLED)
COMMANDS = [
    (A, "effect:1"),
    (A, "timer:2"),
    (A, "cancel:3"),
    (B, "send:4"),
    (A, "poison:5"),
    (A, "claimed:6"),
    (A, "send:7"),
    (A, "send:8"),
    (B, "timer:9"),
    (B, "effect:10"),
    (B, "cancel:11"),
    (B, "poison:12"),
    (A, "timer:13"),
]


class Mortal:
    """An engine that counts commits and lets the chosen ones go wrong."""

    def __init__(self, engine: kv.Engine, plan: dict[int, str]) -> None:
        self.engine = engine
        self.plan = plan
        self.count = 0

    async def read(self, *requests: kv.Request) -> kv.Snapshot:
        return await self.engine.read(*requests)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        self.count += 1
        fate = self.plan.get(self.count, "ok")
        if fate == "before":
            raise host.Killed
        outcomes = [] if fate == "lost" else await self.engine.commit(*batches)
        if fate == "after":
            raise host.Killed
        return outcomes if fate == "ok" else [kv.CommitUnknown(fate) for _ in batches]

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        return await self.engine.wait(prefix, seen, timeout_ms)

    async def durability(self) -> kv.Durability:
        return await self.engine.durability()

    async def close(self) -> None:
        await self.engine.close()


class Life:
    """Everybody, taking turns. Whoever is killed comes back without memory; a worker sometimes under a new id."""

    def __init__(self, engine: kv.Engine, env: envs.FixedEnv, plan: dict[int, str]) -> None:
        self.engine = Mortal(engine, plan)
        self.env = env
        self.calls: list[ids.IntentId] = []
        self.born = 0
        self.left = list(COMMANDS)

    async def run(self) -> None:
        for number in (0, 1):
            await scenario.create_world(self.engine.engine, self.env, number)
        self.worker = self._worker()
        idle = 0
        for turn in range(ROUNDS_MAX):
            busy = False
            for actor in (self._produce, self._work, self._adapt, self._fire):
                try:
                    busy |= await actor(turn)
                except host.Killed:
                    busy = True
                    if actor == self._work:
                        self.worker = self._worker()
            await check_now(self.engine.engine)
            self.env.advance_us(SECOND)
            idle = 0 if busy else idle + 1
            if idle == IDLE_ROUNDS:
                return
        raise AssertionError("still busy")

    def _worker(self) -> host.Worker:
        self.born += 1
        return host.Worker(self.engine, self.env, scenario.worker_id(self.born // 2))

    async def _produce(self, turn: int) -> bool:
        producer = host.Producer(self.engine, self.env, self.left)
        busy = await producer.turn()
        self.left = producer.left  # only what is known to be taken is crossed off
        return busy

    async def _work(self, turn: int) -> bool:
        worker = self.worker
        if turn % 3 == 0 or worker.life is None:
            try:
                await worker.beat()
            except errors.Exists:
                return False  # its former life has not run out yet
        busy = False
        for at, peer in ((A, B), (B, A)):
            if at in worker.held or await worker.acquire(at) is not None:
                try:
                    busy |= await worker.turn(at, peer)
                except errors.Lost:
                    busy = True
        adapter = host.Adapter(self.engine, self.env, worker.worker, self.calls)
        while worker.claimed:
            await adapter.answer(worker.claimed.pop())
        return busy

    async def _adapt(self, turn: int) -> bool:
        return await host.Adapter(self.engine, self.env, scenario.worker_id(90), self.calls).turn()

    async def _fire(self, turn: int) -> bool:
        return await host.Clockwork(self.engine, self.env, scenario.worker_id(91)).turn()


async def scan(engine: kv.Engine, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
    page = (await engine.read(kv.Range(begin, end, count_max=100_000, bytes_max=1 << 30))).page(0)
    assert not page.more
    return page.items


async def check_now(engine: kv.Engine) -> None:
    """J3, J6, E2, E4: what must hold after any commit. `read_journal` verifies the chain and the head."""
    pointers = await scan(engine, *work_keys.due_all(scenario.UNIVERSE))
    found = work.decode_due(scenario.UNIVERSE, kv.Page(pointers, more=False, stable=kv.ZERO_STAMP))
    for at in (A, B):
        entries = await host.read_journal(engine, at)
        state = host.State()
        for entry in entries:
            state.fold(entry)
        page = (await engine.read(inbox.read_range(at, count_max=100_000))).page(0)
        unread = inbox.decode(page.items)
        journaled = {entry.stamp for entry in entries if entry.stamp}
        assert not journaled & {each.stamp for each in unread}, "journaled and still unread"
        opened = work.decode_open(at, kv.Page(await scan(engine, *work_keys.open_work(at)), False, kv.ZERO_STAMP))
        assert {each.intent for each in opened} == set(state.open), "the queues are not what the journal says"
        for each in opened:
            matching = [one for one in found if one.pointer.intent == each.intent and work.matches(one, each)]
            answers = [one for one in unread if answered(one) == each.intent]
            settled = each.work.state is WorkState.SETTLED
            assert (len(matching), len(answers)) == ((0, 1) if settled else (1, 0)), each


def answered(unread: inbox.Unread) -> bytes | None:
    item = unread.item
    return item.intent if isinstance(item, inbox_model.Receipt | inbox_model.TimerFired) else None


async def check_end(engine: kv.Engine, calls: list[ids.IntentId]) -> None:
    journals = {at: await host.read_journal(engine, at) for at in (A, B)}
    for at, entries in journals.items():
        assert (await engine.read(inbox.read_range(at, count_max=10))).page(0).items == []
        stamps = [entry.stamp for entry in entries if entry.stamp]
        assert stamps == sorted(set(stamps)), "J5: the journal's order is the inbox's"
        times = [entry.time_us for entry in entries]
        assert times == sorted(times), "J8"
        taken = sorted(entry.payload.decode() for entry in entries if entry.kind is Kind.EVENT)
        rejected = sorted(entry.payload.decode() for entry in entries if entry.kind is Kind.UNDECODABLE_INPUT)
        wanted = [text for world, text in COMMANDS if world == at]
        assert taken == sorted(text for text in wanted if not text.startswith("poison")), "J1"
        assert rejected == sorted(text for text in wanted if text.startswith("poison"))
        await check_dead(engine, at, entries)
        asked = [entry.correlation for entry in entries if entry.kind in (Kind.EFFECT_REQUESTED, Kind.TIMER_SET)]
        answers = [entry.correlation for entry in entries if entry.kind in ANSWERS]
        assert sorted(asked) == sorted(answers), "E1: one answer for each intent"
        assert len(asked) == len(set(asked))
    for at, peer in ((A, B), (B, A)):
        sent = [entry.payload for entry in journals[at] if entry.kind is Kind.MESSAGE_SENT]
        arrived = [entry.payload for entry in journals[peer] if entry.kind is Kind.MESSAGE]
        assert sent == arrived, "F1: every message arrives once, in order"
        assert len(sent) == len([text for world, text in COMMANDS if world == at and text.startswith("send")])
    assert await scan(engine, *work_keys.due_all(scenario.UNIVERSE)) == []
    journaled = [
        entry.correlation for entries in journals.values() for entry in entries if entry.kind is Kind.EFFECT_REQUESTED
    ]
    assert {intent.hex() for intent in calls} <= set(journaled), "E3: nothing outside the journal is called"


async def check_dead(engine: kv.Engine, at: ids.Address, entries: list[Entry]) -> None:
    rejected = [(entry.stamp, entry.step, entry.time_us) for entry in entries if entry.kind is Kind.UNDECODABLE_INPUT]
    page = (await engine.read(inbox.dead_range(at, count_max=100))).page(0)
    letters = inbox.decode_dead(page.items)
    assert [(each.stamp, each.dead.step, each.dead.time_us) for each in letters] == rejected


def live(plan: dict[int, str]) -> int:
    """A life on the reference engine; how many commits it took."""
    env = envs.FixedEnv()
    engine = memory.MemoryEngine(env)
    life = Life(engine, env, plan)
    scenario.now(life.run())
    scenario.now(check_end(engine, life.calls))
    return life.engine.count


COMMITS = live({})


@pytest.mark.parametrize("fate", ["before", "after", "lost", "applied"])
def test_one_fault_in_any_commit(fate: str) -> None:
    for number in range(1, COMMITS + 1):
        try:
            live({number: fate})
        except BaseException as error:
            error.add_note(f"{fate} commit {number}")
            raise


@hypothesis.given(
    st.dictionaries(
        st.integers(1, 2 * COMMITS), st.sampled_from(["before", "after", "lost", "applied"]), min_size=2, max_size=20
    )
)
@hypothesis.settings(max_examples=100)
def test_many_faults(plan: dict[int, str]) -> None:
    live(plan)


@pytest.mark.parametrize("name", engines.NAMES)
async def test_life_on_real_engines(name: str, tmp_path: Path) -> None:
    env = envs.FixedEnv()
    fates = ["before", "after", "lost", "applied"]
    plan = {number: fates[number // 3 % 4] for number in range(3, 2 * COMMITS, 3)}
    async with engines.opened(name, tmp_path, env) as engine:
        life = Life(engine, env, plan)
        await life.run()
        await check_end(engine, life.calls)
