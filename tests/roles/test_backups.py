"""Backups of stores that run: what is in each is of one moment, whole by itself, and does nothing until it is told."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.roles import kit
from tests.roles import test_world_files as world_files
from tests.roles.test_conservation import CENTS, Account, bank, pay
from tests.roles.test_world_files import Add, Total, app, calls, quiet, work
from tests.roles.test_world_files import nap as nap_workflow
from tests.servers import s3
from worldline.base import errors
from worldline.client import changes
from worldline.client.copies import backups, release
from worldline.client.universe import Universe
from worldline.host import compose
from worldline.inspect import doctor, verify
from worldline.keys import leases as lease_keys
from worldline.keys import space
from worldline.keys import universes as universe_keys
from worldline.keys import work as work_keys
from worldline.keys import worlds as world_keys
from worldline.keys.upkeep import copying as copying_keys
from worldline.layers import format as formats
from worldline.layers import leases
from worldline.model.upkeep.backups import FileKind
from worldline.model.work import WorkState
from worldline.model.world import Status
from worldline.roles.copies import backup, turns
from worldline.roles.copies.backup import Made
from worldline.store import kv

__all__ = ["quiet"]
TRANSFERS = int(os.environ.get("WORLDLINE_TRANSFERS", "24"))
ACCOUNTS = max(4, TRANSFERS // 100)
ROUTES = [("memory", "lmdb"), ("lmdb", "postgres"), ("postgres", "memory")]


@contextlib.asynccontextmanager
async def stores(folder: Path, *engines: str) -> AsyncIterator[list[kit.Kit]]:
    async with world_files.stores(folder, *engines) as made:
        yield made


async def bare(store: kit.Kit, wrap: kit.Wrap = lambda engine: engine) -> compose.Store:
    """The store as a backup sees it, and a restore: without a universe."""
    engine = await store.engine()
    await formats.ensure(engine, store.env, create=True)
    bodies = await store._bodies()
    return compose.Store(store.url, wrap(engine), bodies, store.env, in_store_bytes_max=store.in_store_bytes_max)


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
            made.append(await backups.backup(await bare(here), folder))
        await paying
        await process.close()
    assert made[1].new_blobs < made[1].blobs or made[1].blobs == 0
    chosen = {made[0].id, made[len(made) // 2].id, made[-1].id}
    assert [each.id for each in await backups.verify(folder)] == [each.id for each in made]
    for place, id in enumerate(sorted(chosen)):
        async with stores(tmp_path / str(place), route[1]) as (there,):
            await backups.restore(folder, await bare(there), id=id)
            await check_accounts(there)


async def _pay(universe: Universe) -> None:
    rng = random.Random(7)
    for number in range(TRANSFERS):
        source, to = rng.sample(range(ACCOUNTS), 2)
        await universe.world(f"account-{source}").start(
            pay(f"t{number}", f"account-{to}", rng.randrange(1, 50)), id=f"t{number}"
        )


async def check_accounts(there: kit.Kit) -> None:
    """Let the copy go on until nothing is on its way."""
    process = await there.process(bank)
    worlds = [process.universe.world(meta.name) async for meta in process.universe.worlds()]
    assert len(worlds) == ACCOUNTS
    assert {(await each.describe()).status for each in worlds} == {Status.ARCHIVED}
    assert len(await release.release_all(process.universe._connection)) == ACCOUNTS
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

    async def read(self, *requests: kv.Request) -> kv.Snapshot:
        return await self._noticed(await super().read(*requests), requests)

    async def freeze(self) -> kv.Frozen:
        return Noticing(await kv.freeze(self._engine), self)

    async def _noticed(self, found: kv.Snapshot, requests: Sequence[kv.Request]) -> kv.Snapshot:
        names = world_keys.names(self._universe._connection.id)[0]
        for request in requests:
            if isinstance(request, kv.Range) and names <= request.begin and self._left:
                self._left -= 1
                if not self._left:
                    at = await self._universe.world("z")._handle.address()
                    await changes.rename(self._universe._connection, at, "a")
        return found


class Noticing:
    def __init__(self, frozen: kv.Frozen, noticing: Renaming) -> None:
        self._frozen = frozen
        self._noticing = noticing
        self.close = frozen.close

    async def read(self, *requests: kv.Request) -> kv.Snapshot:
        return await self._noticing._noticed(await self._frozen.read(*requests), requests)


async def test_what_moves_while_keys_are_copied_is_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "PAGE", 1)
    folder = str(tmp_path / "backups")
    async with stores(tmp_path, "memory", "memory") as (here, there):
        process = await here.process()
        for name in ("m1", "m2", "m3", "m4", "m5", "m6", "z"):
            await process.universe.create(name, app)
        await backups.backup(await bare(here, lambda engine: Renaming(engine, process.universe)), folder)
        assert (await process.universe.world("a").describe()).name == "a"
        await backups.restore(folder, await bare(there))
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
        await backups.backup(await bare(here), folder)
        await backups.restore(folder, await bare(there))
        copy = await there.process()
        await release.release_all(copy.universe._connection)
        second = await copy.universe.world("alice").send(Add(2))
        assert second.stamp > first.stamp
        assert await kit.unread(copy.engine, await copy.universe.world("alice")._handle.address()) == 2


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
        await world.start(work(0), id="open")
        await world.start(nap_workflow(), id="nap")
        await world_files.begun.wait()
        at = await world._handle.address()
        [claimed] = [each for each in await kit.opened(process.engine, at) if each.work.state is WorkState.CLAIMED]
        await process.universe.world("paused").send(Add(5), id="unread")
        made = await backups.backup(await bare(here), folder)
        epoch = await _epoch(process.engine, at)
        await process.kill()
        original = list(calls)

        await backups.restore(folder, await bare(there))
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
        released = await release.release_all(connection)
        assert sorted((each.meta.name, each.meta.status) for each in released) == [
            ("alice", Status.ACTIVE), ("paused", Status.PAUSED),
        ]  # fmt: skip
        assert await release.release_all(connection) == []
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
        await backups.backup(await bare(here), folder)
        await backups.restore(folder, await bare(there), live=True)
        copy = await there.process(app)
        assert await copy.universe.world("alice").ask(Total(), timeout=20) == 3


# --- Files -----------------------------------------------------------------------------------------------------------


async def filled(store: kit.Kit, *, worlds: int = 3) -> kit.Process:
    process = await store.process(app)
    for number in range(worlds):
        world = await process.universe.create(f"w{number}", app)
        await (await world.send(Add(number, "x" * 30_000 + str(number)))).applied(20)
        await world.snapshot()
    return process


def files(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file()}


async def test_backups_share_blobs_and_each_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    async with stores(tmp_path, "lmdb", "memory") as (here, there):
        process = await filled(here)
        store = await bare(here)
        first = await backups.backup(store, str(folder))
        again = await backups.backup(store, str(folder))
        assert (again.new_blobs, again.blobs) == (0, first.blobs)
        await (await process.universe.world("w0").send(Add(7, "y" * 30_000))).applied(20)
        third = await backups.backup(store, str(folder))
        assert 0 < third.new_blobs < third.blobs
        before = files(folder)
        last = await backups.backup(store, str(folder), keep=2)
        assert last.pruned == 2
        left = files(folder)
        assert {name: data for name, data in before.items() if name in left}.items() <= before.items()
        listed = await backups.list_all(str(folder))
        assert [each.id for each in listed] == [third.id, last.id]
        assert [each.id for each in await backups.verify(str(folder))] == [third.id, last.id]
        assert not [name for name in left if first.id in name or again.id in name]
        await backups.restore(str(folder), await bare(there), id=third.id)
        copy = await there.process(app)
        await release.release_all(copy.universe._connection)
        assert await copy.universe.world("w0").ask(Total(), timeout=20) == 7
        assert await copy.universe.world("w2").ask(Total(), timeout=20) == 2


async def test_blobs_whose_file_is_gone_are_copied_again(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    async with stores(tmp_path, "memory", "memory") as (here, there):
        await filled(here, worlds=1)
        first = await backups.backup(await bare(here), str(folder))
        shutil.rmtree(folder / "blobs")
        second = await backups.backup(await bare(here), str(folder))
        assert second.new_blobs == first.blobs
        await backups.restore(str(folder), await bare(there), id=second.id)
        index = next(each for each in sorted((folder / "index").rglob("*")) if each.is_file())
        index.unlink()
        index.write_bytes(b"damaged")
        with pytest.raises(errors.BadCopy, match="can be deleted"):
            await backups.backup(await bare(here), str(folder))


async def test_what_is_damaged_is_found_and_nothing_is_made_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    async with stores(tmp_path, "memory", "memory") as (here, there):
        process = await filled(here, worlds=1)
        made = await backups.backup(await bare(here), str(folder))
        await process.close()
        target = await bare(there)
        empty = await _everything(target.engine)
        for name, data in files(folder).items():
            if name.startswith("index/"):
                continue  # only the next backup reads it
            place = folder / name
            for damaged in (None, b"", data[:-1], data + b"x", *_flipped(data)):
                place.unlink()
                if damaged is not None:
                    place.write_bytes(damaged)
                kinds = (errors.BadCopy, errors.NotFound) if damaged is None else errors.BadCopy
                with pytest.raises(kinds):
                    await backups.restore(str(folder), target)
                with pytest.raises(kinds):
                    await backups.verify(str(folder), id=made.id)
                if not place.exists():
                    place.touch()
            place.unlink()
            place.write_bytes(data)
        assert await _everything(target.engine) == empty
        await backups.restore(str(folder), target, id=made.id)
        with pytest.raises(errors.Exists, match="not empty"):
            await backups.restore(str(folder), target)


def _flipped(data: bytes) -> list[bytes]:
    found: list[bytes] = []
    for place in range(0, len(data), max(1, len(data) // 12)):
        changed = bytearray(data)
        changed[place] ^= 0x20
        found.append(bytes(changed))
    return found


async def _everything(engine: kv.Engine) -> dict[bytes, bytes]:
    page = (await engine.read(kv.Range(b"\x00", b"\xff", count_max=10**6, bytes_max=2**30))).page(0)
    return dict(page.items)


async def test_bad_requests_are_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "backups")
    async with stores(tmp_path, "memory", "memory", "memory") as (here, other, there):
        process = await filled(here, worlds=1)
        await filled(other, worlds=1)
        made = await backups.backup(await bare(here), folder)
        with pytest.raises(errors.NotFound, match="no universe 'nowhere'"):
            await backups.backup(await bare(here), folder, universes=["nowhere"])
        with pytest.raises(errors.BadInput, match="another store"):
            await backups.backup(await bare(other), folder)
        for id, kind in (("../../etc", errors.BadInput), ("0" * 32, errors.NotFound)):
            with pytest.raises(kind):
                await backups.restore(folder, await bare(there), id=id)
        with pytest.raises(errors.StoreMissing):
            await backups.restore(str(tmp_path / "nowhere"), await bare(there))
        with pytest.raises(errors.Exists, match="not empty"):
            await backups.restore(folder, await bare(other))
        async with backups.opened(folder) as found:
            manifest = await found.manifest(made.id)
        assert manifest.universes[0].name == process.universe.name


async def test_newer_formats_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tmp_path / "backups")
    async with stores(tmp_path, "memory", "memory") as (here, there):
        await filled(here, worlds=1)
        with monkeypatch.context() as patched:
            patched.setattr(space, "FORMAT_MINOR", space.FORMAT_MINOR + 1)
            await backups.backup(await bare(here), folder)
        with pytest.raises(errors.StoreVersion, match="use a matching release"):
            await backups.restore(folder, await bare(there))


# --- Cut off ---------------------------------------------------------------------------------------------------------


class CutOffObjects:
    """Objects that fail for good at one of their puts: before it, or behind it."""

    def __init__(self, inner: Any, at: int, *, behind: bool) -> None:
        self._inner = inner
        self._left = at
        self._behind = behind
        self.get, self.list, self.delete, self.close = inner.get, inner.list, inner.delete, inner.close

    async def put(self, name: str, body: bytes) -> None:
        self._left -= 1
        if self._left < 0 or (self._left == 0 and not self._behind):
            raise errors.StoreFailed("cut off")
        await self._inner.put(name, body)
        if self._left == 0:
            raise errors.StoreFailed("cut off")


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
async def test_a_backup_that_is_cut_off_at_any_file_is_none_and_the_next_goes_on(
    behind: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = compose.open_objects
    async with stores(tmp_path, "memory", "memory") as (here, there):
        await filled(here, worlds=1)
        store = await bare(here)
        folder, whole = str(tmp_path / "backups"), 0
        blobs: list[int] = []
        for at in range(1, 200):

            async def cut(url: str, env: Any, *, create: bool, at: int = at) -> Any:
                return CutOffObjects(await opened(url, env, create=create), at, behind=behind)

            monkeypatch.setattr(compose, "open_objects", cut)
            with contextlib.suppress(errors.StoreFailed):
                whole = at
                blobs.append((await backups.backup(store, folder)).new_blobs)
                break
            monkeypatch.setattr(compose, "open_objects", opened)
            await backups.verify(folder)
        monkeypatch.setattr(compose, "open_objects", opened)
        assert whole > 5
        assert blobs[0] == 0, "what the others had put is used"
        await backups.backup(store, folder, keep=1)
        async with backups.opened(folder) as found:
            [left] = await found.ids()
            manifest = await found.manifest(left)
            assert len(await found.names("blobs/")) == len(await found.names("index/"))
            assert len(await found.names("keys/")) == len([f for f in manifest.files if f.kind is not FileKind.BLOBS])
        await backups.restore(folder, await bare(there))


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
async def test_a_restore_that_is_cut_off_at_any_commit_is_made_again(behind: bool, tmp_path: Path) -> None:
    folder = str(tmp_path / "backups")
    async with stores(tmp_path, "memory") as (here,):
        process = await filled(here, worlds=2)
        await process.universe.world("w1").start(work(0), id="claimed")
        await world_files.begun.wait()
        await process.universe.world("w0").pause()
        await process.universe.world("w0").send(Add(10), id="unread")
        head = await process.universe.world("w0").head()
        await backups.backup(await bare(here), folder)
        await process.kill()
    for at in range(1, 100):
        async with stores(tmp_path / str(at), "memory") as (there,):
            cut = await bare(there, functools.partial(world_files.CutOff, at=at, behind=behind))
            try:
                await backups.restore(folder, cut)
            except errors.StoreFailed:
                assert not await _is_made(cut.engine) or behind
                if not await _is_made(cut.engine):
                    await there.jump(turns.TTL_US / 1_000_000 + 1)
                    await backups.restore(folder, await bare(there))
                ended = False
            else:
                ended = True
            copy = await there.process()  # no adapter, which would clear away
            world = copy.universe.world("w0")
            assert await world.head() == head
            assert await kit.unread(copy.engine, await world._handle.address()) == 1
            assert await _turn(copy.engine) is None
            assert (await doctor.examine(copy.universe._connection, repair=False)).findings == []
            due = kv.Range(*work_keys.due_all(copy.universe._connection.id))
            assert len((await copy.engine.read(due)).page(0).items) == 1, "nothing is left of the first attempt"
            await verify.verify(copy.universe._connection, await world._handle.address())
            await copy.close()
            if ended:
                assert at > 5
                return
    raise AssertionError("it never ended")


async def _is_made(engine: Any) -> bool:
    read = await engine.read(kv.Range(*universe_keys.names(), count_max=1))
    return bool(read.page(0).items)


async def _turn(engine: kv.Engine) -> bytes | None:
    return (await engine.read(kv.Get(copying_keys.restoring_key()))).value(0)


async def test_another_restore_that_was_not_finished_is_named(tmp_path: Path) -> None:
    folder = str(tmp_path / "backups")
    async with stores(tmp_path, "memory", "memory") as (here, there):
        await filled(here, worlds=1)
        first = await backups.backup(await bare(here), folder)
        await backups.backup(await bare(here), folder)
        cut = await bare(there, lambda engine: world_files.CutOff(engine, 4, behind=False))
        with pytest.raises(errors.StoreFailed):
            await backups.restore(folder, cut)
        with pytest.raises(errors.Exists, match="was not finished"):
            await backups.restore(folder, await bare(there), id=first.id)


async def test_one_backup_of_a_store_at_a_time(tmp_path: Path) -> None:
    async with stores(tmp_path, "memory") as (here,):
        await filled(here, worlds=1)
        store = await bare(here)
        turn = turns.Turn(store.engine, store.env, kv.Get(copying_keys.backup_key()), "another backup")
        await turn.take()

        async def renew() -> None:
            while True:
                await asyncio.sleep(0.1)
                await turn.commit(kv.Batch())

        renewing = asyncio.create_task(renew())
        with pytest.raises(errors.Closed, match="another backup is under way"):
            await backups.backup(store, str(tmp_path / "backups"))
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        await here.jump(turns.TTL_US / 1_000_000 + 1)
        await backups.backup(store, str(tmp_path / "backups"))
        with pytest.raises(errors.Conflicted):
            await turn.commit(kv.Batch())


class Losing(kit.Around):
    """An engine whose first frozen state is lost."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self._freezes = 0

    async def freeze(self) -> kv.Frozen:
        self._freezes += 1
        frozen = await kv.freeze(self._engine)
        return Lost(frozen) if self._freezes == 1 else frozen


class Lost:
    def __init__(self, frozen: kv.Frozen) -> None:
        self._frozen = frozen
        self._left = 3

    async def read(self, *requests: kv.Request) -> kv.Snapshot:
        self._left -= 1
        if self._left < 0:
            raise errors.StoreUnavailable("the frozen state is lost")
        return await self._frozen.read(*requests)

    async def close(self) -> None:
        await self._frozen.close()


@pytest.mark.probe("copies.frozen-again")
async def test_a_frozen_state_that_is_lost_is_taken_again(tmp_path: Path) -> None:
    async with stores(tmp_path, "memory") as (here,):
        await filled(here, worlds=1)
        made = await backups.backup(await bare(here, Losing), str(tmp_path / "backups"))
        assert [each.id for each in await backups.verify(str(tmp_path / "backups"))] == [made.id]


async def test_backups_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = s3.shared()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.SECRET_KEY)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    folder = server.url(f"backups-{os.getpid()}")
    async with stores(tmp_path, "lmdb", "memory") as (here, there):
        process = await filled(here, worlds=2)
        first = await backups.backup(await bare(here), folder)
        await process.close()
        assert (await backups.backup(await bare(here), folder, keep=1)).pruned == 1
        [checked] = await backups.verify(folder)
        assert checked.blobs == first.blobs
        await backups.restore(folder, await bare(there))
        copy = await there.process(app)
        assert [meta.name async for meta in copy.universe.worlds()] == ["w1", "w0"]
