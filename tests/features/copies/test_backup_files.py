"""The files of backups: shared blobs, damage, other formats, requests that are refused, a bucket."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.features.copies.backing_up import bare, filled
from tests.features.copies.test_world_files import Add, Total, app, quiet, stores
from tests.servers import s3
from worldline.base import errors
from worldline.features.copies import backup_calls, release_calls
from worldline.keys import space
from worldline.store import kv

__all__ = ["quiet"]


def files(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file()}


async def test_backups_share_blobs_and_each_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    async with stores(tmp_path, "lmdb", "memory") as (here, there):
        process = await filled(here)
        store = await bare(here)
        first = await backup_calls.backup(store, str(folder))
        again = await backup_calls.backup(store, str(folder))
        assert (again.new_blobs, again.blobs) == (0, first.blobs)
        await (await process.universe.world("w0").send(Add(7, "y" * 30_000))).applied(20)
        third = await backup_calls.backup(store, str(folder))
        assert 0 < third.new_blobs < third.blobs
        before = files(folder)
        last = await backup_calls.backup(store, str(folder), keep=2)
        assert last.pruned == 2
        left = files(folder)
        assert {name: data for name, data in before.items() if name in left}.items() <= before.items()
        listed = await backup_calls.list_all(str(folder))
        assert [each.id for each in listed] == [third.id, last.id]
        assert [each.id for each in await backup_calls.verify(str(folder))] == [third.id, last.id]
        assert not [name for name in left if first.id in name or again.id in name]
        await backup_calls.restore(str(folder), await bare(there), id=third.id)
        copy = await there.process(app)
        await release_calls.release_all(copy.universe._connection)
        assert await copy.universe.world("w0").ask(Total(), timeout=20) == 7
        assert await copy.universe.world("w2").ask(Total(), timeout=20) == 2


async def test_blobs_whose_file_is_gone_are_copied_again(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    async with stores(tmp_path, "memory", "memory") as (here, there):
        await filled(here, worlds=1)
        first = await backup_calls.backup(await bare(here), str(folder))
        shutil.rmtree(folder / "blobs")
        second = await backup_calls.backup(await bare(here), str(folder))
        assert second.new_blobs == first.blobs
        await backup_calls.restore(str(folder), await bare(there), id=second.id)
        index = next(each for each in sorted((folder / "index").rglob("*")) if each.is_file())
        index.unlink()
        index.write_bytes(b"damaged")
        with pytest.raises(errors.BadCopy, match="can be deleted"):
            await backup_calls.backup(await bare(here), str(folder))


async def test_what_is_damaged_is_found_and_nothing_is_made_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    async with stores(tmp_path, "memory", "memory") as (here, there):
        process = await filled(here, worlds=1)
        made = await backup_calls.backup(await bare(here), str(folder))
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
                    await backup_calls.restore(str(folder), target)
                with pytest.raises(kinds):
                    await backup_calls.verify(str(folder), id=made.id)
                if not place.exists():
                    place.touch()
            place.unlink()
            place.write_bytes(data)
        assert await _everything(target.engine) == empty
        await backup_calls.restore(str(folder), target, id=made.id)
        with pytest.raises(errors.Exists, match="not empty"):
            await backup_calls.restore(str(folder), target)


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
        made = await backup_calls.backup(await bare(here), folder)
        with pytest.raises(errors.NotFound, match="no universe 'nowhere'"):
            await backup_calls.backup(await bare(here), folder, universes=["nowhere"])
        with pytest.raises(errors.BadInput, match="another store"):
            await backup_calls.backup(await bare(other), folder)
        for id, kind in (("../../etc", errors.BadInput), ("0" * 32, errors.NotFound)):
            with pytest.raises(kind):
                await backup_calls.restore(folder, await bare(there), id=id)
        with pytest.raises(errors.StoreMissing):
            await backup_calls.restore(str(tmp_path / "nowhere"), await bare(there))
        with pytest.raises(errors.Exists, match="not empty"):
            await backup_calls.restore(folder, await bare(other))
        async with backup_calls.opened(folder) as found:
            manifest = await found.manifest(made.id)
        assert manifest.universes[0].name == process.universe.name


async def test_newer_formats_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tmp_path / "backups")
    async with stores(tmp_path, "memory", "memory") as (here, there):
        await filled(here, worlds=1)
        with monkeypatch.context() as patched:
            patched.setattr(space, "FORMAT_MINOR", space.FORMAT_MINOR + 1)
            await backup_calls.backup(await bare(here), folder)
        with pytest.raises(errors.StoreVersion, match="use a matching release"):
            await backup_calls.restore(folder, await bare(there))


async def test_backups_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = s3.shared()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.SECRET_KEY)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    folder = server.url(f"backups-{os.getpid()}")
    async with stores(tmp_path, "lmdb", "memory") as (here, there):
        process = await filled(here, worlds=2)
        first = await backup_calls.backup(await bare(here), folder)
        await process.close()
        assert (await backup_calls.backup(await bare(here), folder, keep=1)).pruned == 1
        [checked] = await backup_calls.verify(folder)
        assert checked.blobs == first.blobs
        await backup_calls.restore(folder, await bare(there))
        copy = await there.process(app)
        assert [meta.name async for meta in copy.universe.worlds()] == ["w1", "w0"]
