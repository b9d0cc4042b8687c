"""Backups and restores that are cut off, that meet another one, or lose the state that they read."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from pathlib import Path
from typing import Any

import pytest

from tests.features.copies import test_world_files as world_files
from tests.features.copies.backing_up import bare, filled
from tests.features.copies.test_world_files import Add, quiet, stores, work
from tests.kits import kit
from worldline.base import errors
from worldline.features.copies import backup_calls, copy_lease_job
from worldline.features.copies import keyspace as copying_keys
from worldline.features.copies.backup_records import FileKind
from worldline.inspect import doctor, verify
from worldline.keys import universes as universe_keys
from worldline.keys import work as work_keys
from worldline.runtime import store_opening
from worldline.store import kv

__all__ = ["quiet"]


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
    opened = store_opening.open_objects
    async with stores(tmp_path, "memory", "memory") as (here, there):
        await filled(here, worlds=1)
        store = await bare(here)
        folder, whole = str(tmp_path / "backups"), 0
        blobs: list[int] = []
        for at in range(1, 200):

            async def cut(url: str, env: Any, *, create: bool, at: int = at) -> Any:
                return CutOffObjects(await opened(url, env, create=create), at, behind=behind)

            monkeypatch.setattr(store_opening, "open_objects", cut)
            with contextlib.suppress(errors.StoreFailed):
                whole = at
                blobs.append((await backup_calls.backup(store, folder)).new_blobs)
                break
            monkeypatch.setattr(store_opening, "open_objects", opened)
            await backup_calls.verify(folder)
        monkeypatch.setattr(store_opening, "open_objects", opened)
        assert whole > 5
        assert blobs[0] == 0, "what the others had put is used"
        await backup_calls.backup(store, folder, keep=1)
        async with backup_calls.opened(folder) as found:
            [left] = await found.ids()
            manifest = await found.manifest(left)
            assert len(await found.names("blobs/")) == len(await found.names("index/"))
            assert len(await found.names("keys/")) == len([f for f in manifest.files if f.kind is not FileKind.BLOBS])
        await backup_calls.restore(folder, await bare(there))


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
async def test_a_restore_that_is_cut_off_at_any_commit_is_made_again(behind: bool, tmp_path: Path) -> None:
    folder = str(tmp_path / "backups")
    async with stores(tmp_path, "memory") as (here,):
        process = await filled(here, worlds=2)
        _ = await process.universe.world("w1").start(work(0), id="claimed")
        await world_files.begun.wait()
        await process.universe.world("w0").pause()
        await process.universe.world("w0").send(Add(10), id="unread")
        head = await process.universe.world("w0").head()
        await backup_calls.backup(await bare(here), folder)
        await process.kill()
    for at in range(1, 100):
        async with stores(tmp_path / str(at), "memory") as (there,):
            cut = await bare(there, functools.partial(world_files.CutOff, at=at, behind=behind))
            try:
                await backup_calls.restore(folder, cut)
            except errors.StoreFailed:
                assert not await _is_made(cut.engine) or behind
                if not await _is_made(cut.engine):
                    await there.jump(copy_lease_job.TTL_US / 1_000_000 + 1)
                    await backup_calls.restore(folder, await bare(there))
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
        first = await backup_calls.backup(await bare(here), folder)
        await backup_calls.backup(await bare(here), folder)
        cut = await bare(there, lambda engine: world_files.CutOff(engine, 4, behind=False))
        with pytest.raises(errors.StoreFailed):
            await backup_calls.restore(folder, cut)
        with pytest.raises(errors.Exists, match="was not finished"):
            await backup_calls.restore(folder, await bare(there), id=first.id)


async def test_one_backup_of_a_store_at_a_time(tmp_path: Path) -> None:
    async with stores(tmp_path, "memory") as (here,):
        await filled(here, worlds=1)
        store = await bare(here)
        turn = copy_lease_job.CopyLeaseKeeper(
            store.engine, store.env, kv.Get(copying_keys.backup_key()), "another backup"
        )
        await turn.take()

        async def renew() -> None:
            while True:
                await asyncio.sleep(0.1)
                await turn.commit(kv.Batch())

        renewing = asyncio.create_task(renew())
        with pytest.raises(errors.Closed, match="another backup is under way"):
            await backup_calls.backup(store, str(tmp_path / "backups"))
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        await here.jump(copy_lease_job.TTL_US / 1_000_000 + 1)
        await backup_calls.backup(store, str(tmp_path / "backups"))
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

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
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
        made = await backup_calls.backup(await bare(here, Losing), str(tmp_path / "backups"))
        assert [each.id for each in await backup_calls.verify(str(tmp_path / "backups"))] == [made.id]
