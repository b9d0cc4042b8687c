"""Backups of stores that run: what is in each is of one moment, and a copy does nothing until it is told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import options
from tests.features.abroad.test_conservation import CENTS, Account, bank, pay
from tests.features.copies import test_world_files as world_files
from tests.features.copies.backing_up import bare
from tests.features.copies.test_world_files import Add, Total, app, calls, quiet, stores, work
from tests.features.copies.test_world_files import nap as nap_workflow
from tests.kits import kit
from worldline.api.universe_api import Universe
from worldline.base import errors
from worldline.client import world_changes
from worldline.features.copies import backup_calls, backup_writer, release_calls
from worldline.features.copies.backup_writer import Made
from worldline.inspect import doctor, verify
from worldline.keys import leases as lease_keys
from worldline.keys import worlds as world_keys
from worldline.layers import leases
from worldline.model.work import WorkState
from worldline.model.world_records import Status
from worldline.store import kv

__all__ = ["quiet"]
TRANSFERS = options.number("transfers")
ACCOUNTS = max(4, TRANSFERS // 100)
ROUTES = [("memory", "lmdb"), ("lmdb", "postgres"), ("postgres", "memory")]


# --- One moment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES, ids="-".join)
async def test_no_cent_is_lost_or_doubled_in_any_backup(route: tuple[str, str], tmp_path: Path) -> None:
    """Accounts pay each other while backups are made: with what is on its way, each has all the money."""
    folder = str(tmp_path / "backups")
    async with stores(tmp_path, route[0]) as (here,):
        process = await here.process(bank)
        for number in range(ACCOUNTS):
            await process.universe.create(f"account-{number}", bank)
        paying = asyncio.create_task(_pay(process.universe))
        made: list[Made] = []
        while not paying.done() or len(made) < 3:
            made.append(await backup_calls.backup(await bare(here), folder))
        await paying
        await process.close()
    assert made[1].new_blobs < made[1].blobs or made[1].blobs == 0
    chosen = {made[0].id, made[len(made) // 2].id, made[-1].id}
    assert [each.id for each in await backup_calls.verify(folder)] == [each.id for each in made]
    for place, id in enumerate(sorted(chosen)):
        async with stores(tmp_path / str(place), route[1]) as (there,):
            await backup_calls.restore(folder, await bare(there), id=id)
            await check_accounts(there)


async def _pay(universe: Universe) -> None:
    rng = random.Random(7)
    for number in range(TRANSFERS):
        source, to = rng.sample(range(ACCOUNTS), 2)
        _ = await universe.world(f"account-{source}").start(
            pay(f"t{number}", f"account-{to}", rng.randrange(1, 50)), id=f"t{number}"
        )


async def check_accounts(there: kit.Kit) -> None:
    """Let the copy go on until nothing is on its way."""
    process = await there.process(bank)
    worlds = [process.universe.world(meta.name) async for meta in process.universe.worlds()]
    assert len(worlds) == ACCOUNTS
    assert {(await each.describe()).status for each in worlds} == {Status.ARCHIVED}
    assert len(await release_calls.release_all(process.universe._connection)) == ACCOUNTS
    async with asyncio.timeout(60):
        while await _is_busy(process, worlds):  # noqa: ASYNC110 - there is no event for nothing being left to do
            await asyncio.sleep(0.02)
    accounts = [await world.state(Account) for world in worlds]
    assert sum(each.cents for each in accounts) == ACCOUNTS * CENTS
    assert not any(each.doubles for each in accounts)
    connection = process.universe._connection
    for world in worlds:
        await verify.verify(connection, await world._handle.address())
    assert (await doctor.examine(connection, repair=False)).findings == []
    await process.close()


async def _is_busy(process: kit.Process, worlds: list[wl.World]) -> bool:
    for world in worlds:
        at = await world._handle.address()
        if await kit.unread(process.engine, at) or await kit.opened(process.engine, at):
            return True
        if any([await run.status() is wl.RunStatus.RUNNING for run in await world.runs()]):
            return True
    return False


class Renaming(kit.Around):
    """While keys are read one after the other, a name moves from behind to what was read already."""

    def __init__(self, engine: kv.Engine, universe: Universe) -> None:
        super().__init__(engine)
        self._universe = universe
        self._left = 6

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        return await self._noticed(await super().read(*requests), requests)

    async def freeze(self) -> kv.Frozen:
        return Noticing(await kv.freeze(self._engine), self)

    async def _noticed(self, found: kv.ReadResult, requests: Sequence[kv.Request]) -> kv.ReadResult:
        names = world_keys.names(self._universe._connection.id)[0]
        for request in requests:
            if isinstance(request, kv.Range) and names <= request.begin and self._left:
                self._left -= 1
                if not self._left:
                    at = await self._universe.world("z")._handle.address()
                    await world_changes.rename(self._universe._connection, at, "a")
        return found


class Noticing:
    def __init__(self, frozen: kv.Frozen, noticing: Renaming) -> None:
        self._frozen = frozen
        self._noticing = noticing
        self.close = frozen.close

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        return await self._noticing._noticed(await self._frozen.read(*requests), requests)


async def test_what_moves_while_keys_are_copied_is_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_writer, "PAGE", 1)
    folder = str(tmp_path / "backups")
    async with stores(tmp_path, "memory", "memory") as (here, there):
        process = await here.process()
        for name in ("m1", "m2", "m3", "m4", "m5", "m6", "z"):
            await process.universe.create(name, app)
        await backup_calls.backup(await bare(here, lambda engine: Renaming(engine, process.universe)), folder)
        assert (await process.universe.world("a").describe()).name == "a"
        await backup_calls.restore(folder, await bare(there))
        copy = await there.process()
        assert (await copy.universe.world("z").describe()).name == "z"
        assert len([meta async for meta in copy.universe.worlds()]) == 7


async def test_stamps_of_the_copy_are_above_those_of_the_original(tmp_path: Path) -> None:
    """Else what is sent to the copy would be taken before what was unread, or in its place."""
    folder = str(tmp_path / "backups")
    async with stores(tmp_path, "memory", "lmdb") as (here, there):
        await kv.raise_stamps(await here.engine(), kv.stamp(10**12, 0))
        process = await here.process()
        world = await process.universe.create("alice", app)
        await world.pause()
        first = await world.send(Add(1))
        await backup_calls.backup(await bare(here), folder)
        await backup_calls.restore(folder, await bare(there))
        copy = await there.process()
        await release_calls.release_all(copy.universe._connection)
        second = await copy.universe.world("alice").send(Add(2))
        assert second.stamp > first.stamp
        assert await kit.unread(copy.engine, await copy.universe.world("alice")._handle.address()) == 2


async def test_stamps_of_the_copy_are_above_those_of_inputs_that_were_taken(tmp_path: Path) -> None:
    """Nothing is unread: the records of ids have the stamps, and what is sent to the copy must get none of these."""
    folder = str(tmp_path / "backups")
    async with stores(tmp_path, "memory", "lmdb") as (here, there):
        await kv.raise_stamps(await here.engine(), kv.stamp(10**12, 0))
        process = await here.process(app)
        elsewhere = await here.process()
        await process.universe.create("alice", app)
        first = await elsewhere.universe.world("alice").send(Add(1), id="first")
        await first.applied(20)
        await backup_calls.backup(await bare(here), folder)
        await backup_calls.restore(folder, await bare(there))
        copy = await there.process()
        await release_calls.release_all(copy.universe._connection)
        world = copy.universe.world("alice")
        assert (await world.send(Add(1), id="first")).stamp == first.stamp
        assert (await world.send(Add(2))).stamp > first.stamp


# --- Two copies ------------------------------------------------------------------------------------------------------


async def test_a_restored_store_does_nothing_until_it_is_told(tmp_path: Path) -> None:
    folder = str(tmp_path / "backups")
    async with stores(tmp_path, "lmdb", "memory") as (here, there):
        process = await here.process(app)
        world = await process.universe.create("alice", app)
        await process.universe.create("paused", app)
        await process.universe.world("paused").pause()
        await process.universe.create("archived", app)
        await process.universe.world("archived").archive()
        await (await world.send(Add(1), id="first")).applied(20)
        _ = await world.start(work(0), id="open")
        _ = await world.start(nap_workflow(), id="nap")
        await world_files.begun.wait()
        at = await world._handle.address()
        [claimed] = [each for each in await kit.opened(process.engine, at) if each.work.state is WorkState.CLAIMED]
        await process.universe.world("paused").send(Add(5), id="unread")
        made = await backup_calls.backup(await bare(here), folder)
        epoch = await _epoch(process.engine, at)
        await process.kill()
        original = list(calls)

        await backup_calls.restore(folder, await bare(there))
        copy = await there.process(app)
        connection = copy.universe._connection
        assert await _epoch(copy.engine, at) > epoch
        read = await copy.engine.read(leases.get_holder(at), kv.Range(*lease_keys.workers(), count_max=10))
        assert read.value(0) is None
        assert [kit_worker for kit_worker, _ in read.page(1).items if made.id.encode() in kit_worker] == []
        [open_effect] = [each for each in await kit.opened(copy.engine, at) if each.intent == claimed.intent]
        assert (open_effect.work.state, open_effect.work.token, open_effect.work.worker) == (
            WorkState.WAITING,
            b"",
            b"",
        )
        await there.jump(3_600)
        await asyncio.sleep(0.5)
        assert calls == original
        assert await kit.unread(copy.engine, at) == 0, "no timer has fired"
        with pytest.raises(errors.Closed):
            await copy.universe.world("alice").send(Add(1))
        assert (await doctor.examine(connection, repair=False)).findings == []

        world_files.gate.set()
        released = await release_calls.release_all(connection)
        assert sorted((each.meta.name, each.meta.status) for each in released) == [
            ("alice", Status.ACTIVE),
            ("paused", Status.PAUSED),
        ]
        assert await release_calls.release_all(connection) == []
        alice = copy.universe.world("alice")
        assert await (await alice.attach("open")).result(20) == "done"
        assert await (await alice.attach("nap")).result(20) == "slept"
        assert calls[len(original)] == original[0], "the same intent has the same key: a server outside knows it"
        await copy.universe.world("paused").resume()
        assert await copy.universe.world("paused").ask(Total(), timeout=20) == 5
        await copy.universe.world("paused").send(Add(5), id="unread")
        assert await copy.universe.world("paused").ask(Total(), timeout=20) == 5, "an id of then is one input"
        assert (await copy.universe.world("archived").describe()).status is Status.ARCHIVED


async def _epoch(engine: kv.Engine, at: Any) -> int:
    read = await engine.read(*leases.reads(at))
    return leases.decode(at, read.value(0), read.value(1), read.value(2)).epoch.number


async def test_a_copy_may_go_on_at_once(tmp_path: Path) -> None:
    folder = str(tmp_path / "backups")
    async with stores(tmp_path, "memory", "memory") as (here, there):
        process = await here.process(app)
        world = await process.universe.create("alice", app)
        await world.pause()
        await world.send(Add(3))
        await world.resume()
        await process.kill()
        await backup_calls.backup(await bare(here), folder)
        await backup_calls.restore(folder, await bare(there), live=True)
        copy = await there.process(app)
        assert await copy.universe.world("alice").ask(Total(), timeout=20) == 3
