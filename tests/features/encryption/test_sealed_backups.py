"""Backups of encrypted stores: nothing of them is in plain, and they are read with the keys alone."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.features.copies.test_world_files import CutOff
from worldline.api.universe_api import Universe
from worldline.base import errors, limits
from worldline.client import connection
from worldline.features.copies import backup_calls, copy_lease_job, release_calls, world_import
from worldline.features.erasure import key_destruction
from worldline.host.feature_list import FEATURES
from worldline.inspect import doctor, verify
from worldline.keys import keyspace_table
from worldline.runtime import store_opening
from worldline.store import kv

SECRET = "the combination is 4711"
app = wl.Program("vaults")


@dataclass(frozen=True)
class Told:
    text: str


@app.reducer
@dataclass
class Known:
    text: str = ""

    @wl.on
    def told(self, event: Told) -> None:
        if not event.text:
            raise ValueError("nothing")
        self.text = event.text


def contents(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in folder.rglob("*") if file.is_file()]


async def filled(url: str, codec: wl.ops.AesGcm, *, exported: Path) -> str:
    async with wl.open(url, host=app, codec=codec) as universe:
        world = await universe.create("vault", app)
        await (await world.send(Told(SECRET))).applied()
        await (await world.send(Told(SECRET * 2_000))).applied()
        await aio.journaled(await world.send(Told("")))
        await (await world.send(Told(SECRET))).applied()
        gone = await universe.create("gone", app)
        await (await gone.send(Told(SECRET))).applied()
        await key_destruction.destroy_key(universe._connection, await gone._handle.address())
        await world.export(exported)
        return (await world.head()).chain.hex()


async def test_backups_of_encrypted_stores_are_encrypted(tmp_path: Path) -> None:
    folder = str(tmp_path / "backups")
    key = secrets.token_bytes(32)
    codec = wl.ops.AesGcm(keys={"one": key}, current="one")
    chain = await filled(str(tmp_path / "here"), codec, exported=tmp_path / "vault.world")
    async with store_opening.store(str(tmp_path / "here"), codec=codec, features=FEATURES) as store:
        made = await backup_calls.backup(store, folder)
        assert (await backup_calls.backup(store, folder)).new_blobs == 0
    assert not [data for data in contents(Path(folder)) if b"combination" in data or data.startswith(b"\x89WLP")]
    with pytest.raises(errors.CodecMismatch, match="--keys"):
        await backup_calls.verify(folder)
    with pytest.raises(errors.KeyMissing):
        await backup_calls.verify(folder, codec=wl.ops.AesGcm(keys={"two": key}, current="two"))
    with pytest.raises(errors.BadCopy):
        await backup_calls.verify(folder, codec=wl.ops.AesGcm(keys={"one": secrets.token_bytes(32)}, current="one"))
    assert len(await backup_calls.verify(folder, codec=codec)) == 2
    async with store_opening.store(str(tmp_path / "there"), codec=codec, features=FEATURES) as store:
        await backup_calls.restore(folder, store, id=made.id)
    async with connection.open(str(tmp_path / "there"), host=app, codec=codec) as opened:
        released = await release_calls.release_all(opened)
        assert "vault" in [each.meta.name for each in released]
        world = Universe(opened).world("vault")
        assert (await world.head()).chain.hex() == chain
        assert (await world.state(Known)).text == SECRET
        await (await world.send(Told("new"))).applied()
        with pytest.raises((wl.errors.KeyDestroyed, wl.NotFound)):
            await Universe(opened).world("gone").state(Known)
        imported = await Universe(opened).import_world(tmp_path / "vault.world", name="copy")
        await imported.resume()
        assert [letter.reason async for letter in Universe(opened).dead(prefix="copy")]
    assert not [data for data in contents(tmp_path / "there") if b"combination" in data]


async def test_a_restore_into_an_encrypted_store_that_was_cut_off_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blobs that it has put can be opened: the key that they are sealed with stays with them."""
    monkeypatch.setattr(copy_lease_job, "TTL_US", 1)
    folder = str(tmp_path / "backups")
    codec = wl.ops.AesGcm(keys={"one": secrets.token_bytes(32)}, current="one")
    chain = await filled(str(tmp_path / "here"), codec, exported=tmp_path / "vault.world")
    async with store_opening.store(str(tmp_path / "here"), codec=codec, features=FEATURES) as store:
        await backup_calls.backup(store, folder)
    for commits in range(1, 100):
        there = str(tmp_path / f"there{commits}")
        is_cut = True
        with contextlib.suppress(errors.StoreFailed):
            async with store_opening.store(there, codec=codec, features=FEATURES) as store:
                cut = msgspec.structs.replace(store, engine=CutOff(store.engine, commits, behind=True))
                await backup_calls.restore(folder, cut)
                is_cut = False
        if is_cut:
            async with store_opening.store(there, codec=codec, features=FEATURES) as store:
                with contextlib.suppress(errors.Exists):  # only the answer to the last commit was lost
                    await backup_calls.restore(folder, store)
        async with connection.open(there, host=app, codec=codec) as opened:
            await release_calls.release_all(opened)
            world = Universe(opened).world("vault")
            assert (await world.head()).chain.hex() == chain
            assert (await verify.verify(opened, await world._handle.address())).entries
            assert (await doctor.examine(opened, repair=False)).findings == []
        if not is_cut:
            assert commits > 5
            return
    raise AssertionError("it never ended")


async def test_an_import_that_was_cut_off_leaves_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of the world that it would have become goes with what it has sealed."""
    monkeypatch.setattr(limits, "COPY_KEYS_BYTES", 1)  # a batch for each key
    codec = wl.ops.AesGcm(keys={"one": secrets.token_bytes(32)}, current="one")
    await filled(str(tmp_path / "here"), codec, exported=tmp_path / "vault.world")
    seen: dict[str, None] = {}
    async with wl.open(str(tmp_path / "there"), host=app, codec=codec):
        pass  # made, with a universe
    async with connection.open(str(tmp_path / "there"), codec=codec) as opened:
        for commits in range(1, 100):
            before = await plain_keys(opened)
            store = msgspec.structs.replace(opened.store, engine=CutOff(opened.store.engine, commits, behind=True))
            cut = connection.Connection(store, opened.id, opened.name, [], opened.settings)
            with contextlib.suppress(errors.StoreFailed):
                await Universe(cut).import_world(tmp_path / "vault.world", name="copy")
            if [meta.name async for meta in Universe(opened).worlds()]:
                break
            written = [key for key in await plain_keys(opened) if key not in before]
            seen |= {keyspace_table.metric_of(key): None for key in written}
            await world_import.sweep(opened.store.engine, store.env, opened.id, period_us=0)
            left = [keyspace_table.metric_of(key) for key in await plain_keys(opened) if key not in before]
            assert not [each for each in left if each not in ("cas", "chunk", "data_key", "generation", "holds")]
    assert {"world_key", "import", "segment"} <= {*seen}


async def plain_keys(opened: connection.Connection) -> dict[bytes, bytes]:
    page = (await opened.store.engine.read(kv.Range(b"\x00", b"\xff", 1_000_000, 1 << 30))).page(0)
    return dict(page.items)
