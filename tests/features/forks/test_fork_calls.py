"""`world_fork` and `world_create_from_seed` may be repeated: the same call gives the same world, whatever became of the
first answer; the same name with anything else asked for is refused.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests.features.forks.everything_open import Added, Balance
from tests.features.forks.forking import Shop
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.base import errors
from worldline.features.forks import fork_commit
from worldline.layers.history import history_line
from worldline.model import ids
from worldline.model.world_records import ForkPolicy
from worldline.store import kv

ASKED: dict[str, Any] = {"at": 2, "effects": "reissue", "script": [{"effect": "charge", "answer": "a"}]}
OTHERS: list[dict[str, Any]] = [
    {"at": 1},
    {"at": None},
    {"at": None, "before": "event Added"},
    {"effects": "drop"},
    {"script": None},
    {"script": [{"effect": "charge", "answer": "b"}]},
    {"live": True},
    {"labels": {"a": "b"}},
]


class Loses(kits.Around):
    """The answers to commits that make a fork are lost: how, is up to the test. `tried`: how often one was sent."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self.how: list[str] = []
        self.tried = 0

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        if not any(_makes_fork(batch) for batch in batches):
            return await super().commit(*batches)
        self.tried += 1
        how = self.how.pop(0) if self.how else "answered"
        if how == "lost on the way":
            return [kv.CommitUnknown("lost") for _ in batches]
        outcomes = await super().commit(*batches)
        if how == "given up":
            raise errors.StoreUncertain("lost for good")
        return [kv.CommitUnknown("lost") for _ in batches] if how == "lost on the way back" else outcomes


def _makes_fork(batch: kv.Batch) -> bool:
    return any(_is_lineage(put.value) for put in batch.puts.values())


def _is_lineage(raw: bytes) -> bool:
    try:
        return history_line.decode_lineage(raw) is not None
    except errors.DecodeError:
        return False


async def template(universe: wl.Universe, shop: Shop) -> wl.World:
    world = await universe.ensure("alice", shop.program)
    for cents in (1, 2, 4):
        await (await world.send(Added(cents))).applied()
    return world


async def test_a_lost_answer_is_found_out(kit: Kit) -> None:
    shop = Shop()
    engines: list[Loses] = []

    def wrap(engine: kv.Engine) -> kv.Engine:
        engines.append(Loses(engine))
        return engines[-1]

    async with kit.hosting(shop.program) as universe:
        await template(universe, shop)
        client = await kit.process(wrap=wrap)
        for how in (["lost on the way"], ["lost on the way back"], ["lost on the way", "lost on the way back"]):
            for make in (_fork, _seed):
                engines[0].how, engines[0].tried = [*how], 0
                made = await make(client.universe, shop, f"{make.__name__} {how}")
                assert (engines[0].tried, engines[0].how) == (len(how) + 1, [])
                assert await made.ask(Balance(), timeout=20) == 3
        assert len([each async for each in universe.worlds()]) == 1 + 3 * 2
        await client.close()


@pytest.mark.parametrize("make", ["fork", "seed"])
async def test_a_caller_that_lost_the_answer_gets_the_first_result(memory_kit: Kit, make: str) -> None:
    shop = Shop()
    engines: list[Loses] = []

    def wrap(engine: kv.Engine) -> kv.Engine:
        engines.append(Loses(engine))
        return engines[-1]

    host = await memory_kit.process(shop.program)
    world = await template(host.universe, shop)
    await world.pause()
    client = await memory_kit.process(wrap=wrap)
    asked = _fork if make == "fork" else _seed
    engines[0].how = ["given up"]
    with pytest.raises(errors.StoreUncertain):
        await asked(client.universe, shop, "fork")
    await world.resume()
    await (await world.send(Added(8))).applied()  # the parent goes on meanwhile
    first = await host.universe.world("fork")._handle.address()
    again = [await asked(each.universe, shop, "fork") for each in (client, host, client)]
    assert [await each._handle.address() for each in again] == [first] * 3
    assert engines[0].tried == 1
    assert await again[0].ask(Balance(), timeout=20) == 3
    await client.close()
    await host.close()


async def _fork(universe: wl.Universe, shop: Shop, name: str) -> wl.World:
    return await universe.world("alice").fork(name, **ASKED)


async def _seed(universe: wl.Universe, shop: Shop, name: str) -> wl.World:
    return await universe.create(name, shop.program, seed="alice@2")


async def test_the_same_name_for_something_else_is_refused(memory_kit: Kit) -> None:
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await template(universe, shop)
        await world.fork("fork", **ASKED)
        said = "'fork' already: a dry fork of 'alice' at height 2, which was asked for with other arguments"
        for other in OTHERS:
            with pytest.raises(wl.Exists, match=said):
                await world.fork("fork", **ASKED | other)
        stranger = await universe.ensure("bob", shop.program)
        with pytest.raises(wl.Exists, match=said):
            await stranger.fork("fork", **ASKED | {"at": 0})
        with pytest.raises(wl.Exists, match=said):
            await universe.create("fork", shop.program, seed="alice@2")
        await universe.create("seeded", shop.program, seed="alice@2")
        for seed, labels in (("alice", None), ("alice@1", None), ("bob", None), ("alice@2", {"a": "b"})):
            with pytest.raises(wl.Exists, match="a live fork of 'alice' at height 2"):
                await universe.create("seeded", shop.program, seed=seed, labels=labels)
        with pytest.raises(wl.Exists, match=r"named 'bob' already$"):
            await world.fork("bob")
        await universe.create("seeded", shop.program, seed="alice@2")
        assert sorted([each.name async for each in universe.worlds()]) == ["alice", "bob", "fork", "seeded"]


async def test_calls_at_once_make_one_world(kit: Kit) -> None:
    shop = Shop()
    async with kit.hosting(shop.program) as universe:
        world = await template(universe, shop)
        at, connection = await world._handle.address(), universe._connection
        store, blobs = connection.store, connection.blobs
        fork = functools.partial(fork_commit.world_fork, store.engine, store.env, blobs, admissions=store.admissions)
        seed = functools.partial(
            fork_commit.world_create_from_seed, store.engine, store.env, blobs, at, admissions=store.admissions
        )
        wanted = fork_commit.ForkRequest("fork", None, ForkPolicy.DROP, live=False, script=[], labels=None)
        made = await asyncio.gather(*(fork(at, wanted) for _ in range(5)))
        planted = await asyncio.gather(*(seed(name="seeded", program="shop", at=1) for _ in range(5)))
        assert (len({*made}), len({*planted})) == (1, 1)
        assert sorted([each.name async for each in universe.worlds()]) == ["alice", "fork", "seeded"]
        with pytest.raises(wl.BadInput, match="one of program 'shop', not 'other'"):
            await seed(name="x", program="other")
        unknown = ids.Address(at.universe, ids.WorldId(b"n" * 16))
        with pytest.raises(wl.NotFound):
            await fork(unknown, msgspec.structs.replace(wanted, name="other"))


async def test_a_fork_reads_little_wherever_it_begins(memory_kit: Kit) -> None:
    """Also at the very height of a snapshot, from which a page of the journal would be a long one."""
    shop = Shop()
    read: list[int] = []

    class Counts(kits.Around):
        async def read(self, *requests: kv.Request) -> kv.ReadResult:
            found = await super().read(*requests)
            for number, request in enumerate(requests):
                if isinstance(request, kv.Range):
                    read.append(sum(len(value) for _, value in found.page(number).items))
            return found

    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        for _ in range(20):
            await (await world.send(Added(1))).applied()
        await world.snapshot()
        height = (await world.head()).height
        for _ in range(200):
            await (await world.send(Added(1))).applied()
        client = await memory_kit.process(wrap=Counts)
        total = {}
        for at in (0, 5, height - 1, height, height + 1, height + 100, height + 200):
            read.clear()
            await client.universe.world("alice").fork(f"at-{at}", at=at)
            total[at] = sum(read)
            assert (await universe.world(f"at-{at}").state(shop.Till)).cents == at

        assert max(total.values()) < 3 * fork_commit.REACH_BYTES, total
        await client.close()


async def test_a_fork_is_one_commit_that_copies_nothing(memory_kit: Kit) -> None:
    """However long its parent's history is, and wherever it begins: by what a process writes that does nothing else."""
    shop = Shop()
    written: list[int] = []

    class Writes(kits.Around):
        async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
            for batch in batches:
                puts = sum(len(key) + len(put.value) for key, put in batch.puts.items())
                written.append(puts + sum(len(append.value) for append in batch.appends))
            return await super().commit(*batches)

    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        client = await memory_kit.process(wrap=Writes)
        written.clear()
        sizes = []
        for number in range(3):
            await (await world.send(Added(1))).applied()
            for at in (None, (await world.head()).height - 1):
                await client.universe.world("alice").fork(f"f-{number}-{at is None:d}", at=at)
                [size] = written
                written.clear()
                sizes.append(size)
            for _ in range(100):
                await (await world.send(Added(1))).applied()
            await world.snapshot()
        assert 0 < max(sizes) - min(sizes) < 50 < min(sizes), sizes
        await client.close()
