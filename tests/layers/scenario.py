"""What the tests of the layers share: a store without a loop, worlds in it, and commits whose answers get lost.

`MemoryEngine` and `FixedEnv` never wait for anything, so their coroutines end at the first turn: `now` runs one in
place, and state machines need no event loop. `Store` is that engine with plain calls. `Unsure` is an engine that loses
answers as it is told, for the tests of unknown commits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from worldline.base import env as envs
from worldline.base import limits
from worldline.layers import inbox, journal, worlds
from worldline.model import ids, payload, snapshots
from worldline.model import inbox as inbox_model
from worldline.model import journal as journal_model
from worldline.model import world_records as world_model
from worldline.store import kv, memory_engine, transact

T = TypeVar("T")

MS = 1_000
SECOND = 1_000_000
WINDOW_US = 3_600 * SECOND
UNIVERSE = ids.UniverseId(b"U" * limits.ID_BYTES)
OTHER_UNIVERSE = ids.UniverseId(b"V" * limits.ID_BYTES)
PROGRAM_HASH = b"P" * limits.DIGEST_BYTES


def now(main: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never has to wait."""
    try:
        main.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    main.close()
    raise AssertionError("the coroutine waits for something")


def ident(kind: str, number: int = 0) -> bytes:
    """Sixteen bytes that say what they are."""
    made = f"{kind}-{number}".encode().ljust(limits.ID_BYTES, b".")
    assert len(made) == limits.ID_BYTES
    return made


def worker_id(number: int) -> ids.WorkerId:
    return ids.WorkerId(ident("worker", number))


def token(number: int) -> ids.Token:
    return ids.Token(ident("token", number))


def address(number: int = 0, *, universe: ids.UniverseId = UNIVERSE) -> ids.Address:
    return ids.Address(universe, ids.WorldId(ident("world", number)))


class Store:
    """The reference engine on a clock that stands still, with plain calls."""

    def __init__(self, seed: int = 0) -> None:
        self.env = envs.FixedEnv(seed)
        self.engine = memory_engine.MemoryEngine(self.env)

    @property
    def time_us(self) -> int:
        return self.env.wall_us()

    def read(self, *requests: kv.Request) -> kv.ReadResult:
        return now(self.engine.read(*requests))

    def value(self, key: bytes) -> bytes | None:
        return self.read(kv.Get(key)).value(0)

    def commit(self, batch: kv.Batch) -> kv.Outcome:
        [outcome] = now(self.engine.commit(batch))
        return outcome

    def ok(self, batch: kv.Batch) -> kv.Ok:
        outcome = self.commit(batch)
        assert isinstance(outcome, kv.Ok), outcome
        return outcome

    def conflict(self, batch: kv.Batch) -> kv.Conflict:
        """The batch must lose, and nothing may change by it."""
        before = self.everything()
        outcome = self.commit(batch)
        assert isinstance(outcome, kv.Conflict), outcome
        assert self.everything() == before
        return outcome

    def everything(self) -> dict[bytes, bytes]:
        return dict(self.under(b"\x00", b"\xff"))

    def under(self, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        page = self.read(kv.Range(begin, end, count_max=1_000_000, bytes_max=1 << 40)).page(0)
        assert not page.more
        return page.items

    def erase(self, keys: Iterable[bytes]) -> None:
        """Damage: remove keys behind everybody's back."""
        for key in list(keys):
            self.ok(replaced(key, self.value(key), None))

    def set(self, key: bytes, value: bytes) -> None:
        """Damage: write a key behind everybody's back."""
        self.ok(replaced(key, self.value(key), value))

    def create_world(self, number: int = 0, *, universe: ids.UniverseId = UNIVERSE) -> worlds.WorldRecord:
        return now(create_world(self.engine, self.env, number, universe=universe))

    def world(self, at: ids.Address) -> worlds.WorldRecord:
        return worlds.decode(at, self.read(worlds.get(at)).value(0))

    def set_status(self, at: ids.Address, status: world_model.Status) -> worlds.WorldRecord:
        batch = kv.Batch()
        if status is world_model.Status.DELETED:
            changed = worlds.bury(batch, self.world(at))
        else:
            changed = worlds.change(batch, self.world(at), status=status)
        self.ok(batch)
        return changed

    def unread(self, at: ids.Address) -> list[inbox.UnreadItem]:
        return inbox.decode(self.read(inbox.read_range(at, count_max=100_000)).page(0).items)

    def items(self, at: ids.Address) -> list[inbox_model.Item | None]:
        return [unread.item for unread in self.unread(at)]

    def head(self, at: ids.Address) -> journal_model.Head:
        return journal.decode_head(self.head_raw(at))

    def head_raw(self, at: ids.Address) -> bytes:
        raw = self.read(journal.get_head(at)).value(0)
        assert raw is not None
        return raw


async def create_world(
    engine: kv.Engine, env: envs.Env, number: int = 0, *, universe: ids.UniverseId = UNIVERSE
) -> worlds.WorldRecord:
    batch = kv.Batch()
    baseline = snapshots.StateSnapshot(
        step=0,
        height=0,
        chain=journal_model.GENESIS.chain,
        root=bytes(limits.DIGEST_BYTES),
        size=0,
        program_hash=PROGRAM_HASH,
        time_us=env.wall_us(),
    )
    world = worlds.create(
        batch,
        address(number, universe=universe),
        name=f"world {number}",
        program="program",
        program_hash=PROGRAM_HASH,
        labels={},
        baseline=baseline,
        time_us=env.wall_us(),
    )
    [outcome] = await transact.commit(engine, env, batch)
    assert isinstance(outcome, kv.Ok)
    return world


def event(text: str, *, correlation: str = "") -> inbox_model.InboxEvent:
    return inbox_model.InboxEvent("test/Event@1", payload.inline(text.encode()), correlation=correlation)


def first_stamp(
    conflict: kv.Conflict, at: ids.Address, item: inbox_model.Item, *, client_id: bytes | str
) -> kv.Stamp | None:
    """The stamp under which this very item was taken before; None if the id was not what conflicted."""
    failed, found = conflict.at(inbox.get_seen(at, client_id).key)
    if not failed:
        return None
    assert found is not None, "an absent id cannot conflict by being absent"
    return inbox.seen_stamp(found, item, client_id=client_id)


def replaced(key: bytes, before: bytes | None, after: bytes | None) -> kv.Batch:
    """Write or remove one key, whatever it means."""
    batch = kv.Batch()
    if before is None:
        batch.absent(key)
    else:
        batch.expect(key, before)
    if after is None:
        batch.delete(key)
    else:
        batch.put(key, after)
    return batch


def flipped(data: bytes, *, at: int = -1) -> bytes:
    """The same bytes with one bit changed."""
    damaged = bytearray(data)
    damaged[at] ^= 0x01
    return bytes(damaged)


class Unsure:
    """An engine whose next commits fare as `plan` says; with the plan used up, they fare well.

    "ok": applied and answered; "lost": not applied, no answer; "applied": applied, no answer; "late": no answer, and
    applied right before the commit after the next, while the repeat has long been answered.
    """

    def __init__(self, engine: kv.Engine, plan: Iterable[str] = ()) -> None:
        self.engine = engine
        self.plan = deque(plan)
        self._late: deque[tuple[int, tuple[kv.Batch, ...]]] = deque()
        self._commits = 0

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        return await self.engine.read(*requests)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        self._commits += 1
        while self._late and self._late[0][0] <= self._commits:
            await self.engine.commit(*self._late.popleft()[1])
        fate = self.plan.popleft() if self.plan else "ok"
        if fate == "ok":
            return await self.engine.commit(*batches)
        if fate == "applied":
            await self.engine.commit(*batches)
        elif fate == "late":
            self._late.append((self._commits + 2, batches))
        else:
            assert fate == "lost"
        return [kv.CommitUnknown(fate) for _ in batches]

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        return await self.engine.wait(prefix, seen, timeout_ms)

    async def durability(self) -> kv.Durability:
        return await self.engine.durability()

    async def close(self) -> None:
        await self.engine.close()
