"""The cache on disk of objects in S3: opened where a folder is named, used by every read, and never trusted."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.servers import s3
from worldline.base import errors, limits
from worldline.client import connection
from worldline.layers import cas
from worldline.model.settings import CacheSettings, Settings
from worldline.runtime import environment

DATA = b"large" * 20_000
_numbers = itertools.count()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of objects on a real server, which the environment leads to."""
    server = s3.shared()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.SECRET_KEY)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    return server.url(f"cache/{next(_numbers)}")


@asynccontextmanager
async def opened(store: Path, bucket: str, **settings: Any) -> AsyncIterator[wl.Universe]:
    chosen = Settings(cache=CacheSettings(**settings))
    async with wl.open(str(store), objects=bucket, create=True, settings=chosen) as universe:
        yield universe


async def lose(universe: wl.Universe) -> None:
    """Delete every object in the bucket."""
    for each in await universe._connection.store.objects.list(""):
        await universe._connection.store.objects.delete(each.name)


def cached(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


async def test_what_was_read_once_is_read_from_disk(bucket: str, tmp_path: Path) -> None:
    """Also by the next process: the object itself is gone by then."""
    folder = tmp_path / "cache"
    async with opened(tmp_path / "store", bucket, folder=str(folder)) as universe:
        of = await universe._connection.blobs.put(DATA)
        assert await universe._connection.blobs.get(of) == DATA
        assert [path.name for path in cached(folder)] == [of.hex()]
        await lose(universe)
        assert await universe._connection.blobs.get(of) == DATA
    async with opened(tmp_path / "store", bucket, folder=str(folder)) as universe:
        assert await universe._connection.blobs.get(of) == DATA
        levels = connection.surroundings(universe._connection.store, 0)
        assert (levels["worldline_cache_hits"], levels["worldline_cache_misses"]) == (1, 0)


async def test_damaged_entry_is_fetched_again_and_never_returned(bucket: str, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    async with opened(tmp_path / "store", bucket, folder=str(folder)) as universe:
        of = await universe._connection.blobs.put(DATA)
        await universe._connection.blobs.get(of)
        [entry] = cached(folder)
        entry.write_bytes(b"torn")
        assert await universe._connection.blobs.get(of) == DATA
        assert entry.read_bytes() == DATA
        entry.write_bytes(b"torn")
        await lose(universe)
        with pytest.raises(errors.Corrupt, match="is gone"):
            await universe._connection.blobs.get(of)


async def test_cache_keeps_to_its_size(bucket: str, tmp_path: Path) -> None:
    folder, size = tmp_path / "cache", limits.CACHE_BYTES_MIN
    async with opened(tmp_path / "store", bucket, folder=str(folder), bytes_max=size) as universe:
        made = [await universe._connection.blobs.put(bytes([number]) * 100_000) for number in range(20)]
        for of in made:
            assert cas.address(await universe._connection.blobs.get(of)) == of
        assert 0 < sum(path.stat().st_size for path in cached(folder)) <= size


async def test_small_blobs_and_other_objects_are_not_cached(bucket: str, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    async with opened(tmp_path / "store", bucket, folder=str(folder)) as universe:
        await universe._connection.blobs.get(await universe._connection.blobs.put(b"small"))
        assert cached(folder) == []
    async with opened(tmp_path / "store", str(tmp_path / "objects"), folder=str(folder)) as universe:
        await universe._connection.blobs.get(await universe._connection.blobs.put(DATA))
        assert universe._connection.store.cache is None
        assert cached(folder) == []


async def test_without_a_folder_nothing_is_written(bucket: str, tmp_path: Path) -> None:
    async with opened(tmp_path / "store", bucket) as universe:
        assert universe._connection.store.cache is None


async def test_environment_names_folder_and_size(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.CACHE, str(tmp_path / "named"))
    monkeypatch.setenv(environment.CACHE_BYTES, str(limits.CACHE_BYTES_MIN))
    async with opened(tmp_path / "store", bucket) as universe:
        of = await universe._connection.blobs.put(DATA)
        await universe._connection.blobs.get(of)
        large = await universe._connection.blobs.put(bytes(limits.CACHE_BYTES_MIN // 2))
        await universe._connection.blobs.get(large)
    assert [path.name for path in cached(tmp_path / "named")] == [of.hex()], "one blob may take a quarter of the room"
    async with opened(tmp_path / "store", bucket, folder=str(tmp_path / "chosen")) as universe:
        await universe._connection.blobs.get(of)
    assert len(cached(tmp_path / "chosen")) == 1, "what the caller says comes first"


@pytest.mark.parametrize(
    ("size", "why"),
    [
        ("lots", "WORLDLINE_CACHE_BYTES is 'lots'; use a whole number of bytes"),
        ("-5", "WORLDLINE_CACHE_BYTES is '-5'; use a whole number of bytes"),
        ("1", f"CacheSettings.bytes_max is 1; use a whole number from {limits.CACHE_BYTES_MIN} to "),
    ],
)
async def test_sizes_that_are_refused(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, why: str
) -> None:
    monkeypatch.setenv(environment.CACHE, str(tmp_path / "named"))
    monkeypatch.setenv(environment.CACHE_BYTES, size)
    with pytest.raises(errors.BadInput) as caught:
        async with opened(tmp_path / "store", bucket):
            pass
    assert str(caught.value).startswith(why)


async def test_folder_that_cannot_be_made(bucket: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(errors.StoreUnavailable, match="cannot cache blobs in"):
        async with opened(tmp_path / "store", bucket, folder=str(tmp_path / "file" / "cache")):
            pass


async def test_the_cache_of_an_encrypted_store_is_sealed(tmp_path: Path, bucket: str) -> None:
    """And one that was filled under another key fills anew."""
    folder = tmp_path / "cache"
    chosen = Settings(cache=CacheSettings(folder=str(folder)))
    old, new = ({"keys": {"a": b"a" * 32, "b": b"b" * 32}, "current": each} for each in ("a", "b"))

    async def read(codec: wl.ops.AesGcm, *, put: bool = False) -> tuple[int, int]:
        async with wl.open(
            str(tmp_path / "store"), objects=bucket, create=True, settings=chosen, codec=codec
        ) as universe:
            blobs, cache = universe._connection.blobs, universe._connection.store.cache
            assert cache is not None
            if put:
                await blobs.put(DATA)
            assert await blobs.get(cas.address(DATA)) == DATA
            stats = cache.stats()
            return stats.hits, stats.misses

    assert await read(wl.ops.AesGcm(**old), put=True) == (0, 1)  # type: ignore[arg-type]
    [file] = cached(folder)
    assert b"large" not in file.read_bytes()
    assert await read(wl.ops.AesGcm(**old)) == (1, 0)  # type: ignore[arg-type]
    assert await read(wl.ops.AesGcm(**new)) == (0, 1)  # type: ignore[arg-type]
    assert await read(wl.ops.AesGcm(**new)) == (1, 0)  # type: ignore[arg-type]
