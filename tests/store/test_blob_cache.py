"""The blob cache: verified on every read, bounded, shared, never in the way."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from worldline.base import env as envs
from worldline.base import env_os, errors
from worldline.codec import digest
from worldline.store.objects import cached_objects as blob_cache

ROOT = Path(__file__).parents[2]
NOBODY = 65_534
KIB = 1024


def blob(number: int, size: int = KIB) -> tuple[bytes, bytes]:
    """Some bytes and their address."""
    data = random.Random(number).randbytes(size)
    return digest.sha256(data), data


def path_of(folder: Path, of: bytes) -> Path:
    return folder / of.hex()[:2] / of.hex()


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir())


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


async def make(folder: Path, *, kib: int = 64, env: envs.Env | None = None) -> blob_cache.BlobCache:
    return await blob_cache.open(folder, env or env_os.OsEnv(), bytes_max=kib * KIB)


async def held(cache: blob_cache.BlobCache, numbers: Iterator[int] | range) -> list[int]:
    return [number for number in numbers if await cache.get(blob(number)[0]) is not None]


@pytest.mark.parametrize("size", [0, 1, KIB, 16 * KIB])
async def test_what_is_put_is_got(tmp_path: Path, size: int) -> None:
    cache = await make(tmp_path / "new" / "cache")
    of, data = blob(1, size)
    assert await cache.get(of) is None
    assert await cache.put(of, data)
    assert await cache.get(of) == data
    assert await cache.put(of, data)
    assert await cache.get(of) == data
    assert cache.stats() == blob_cache.Stats(hits=2, misses=1)
    assert len(files(tmp_path)) == 1


async def test_bytes_under_a_wrong_address_are_refused(tmp_path: Path) -> None:
    cache = await make(tmp_path)
    of, data = blob(1)
    with pytest.raises(errors.DigestMismatch):
        await cache.put(of, data + b"x")
    assert await cache.get(of) is None
    assert files(tmp_path) == []


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "empty", "huge", "other"])
@pytest.mark.probe("cache.entry-damaged")
async def test_every_read_is_verified(tmp_path: Path, damage: str) -> None:
    cache = await make(tmp_path)
    of, data = blob(1)
    await cache.put(of, data)
    assert await cache.get(of) == data
    path = path_of(tmp_path, of)
    match damage:
        case "flip":
            path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        case "cut":
            path.write_bytes(data[:-1])
        case "grow":
            path.write_bytes(data + b"\0")
        case "empty":
            path.write_bytes(b"")
        case "huge":
            os.truncate(path, 10**12)
        case "other":
            path.write_bytes(blob(2)[1])
    assert await cache.get(of) is None
    assert not path.exists(), "removed, so that it is fetched again"
    assert cache.stats() == blob_cache.Stats(hits=1, misses=1, corrupt=1)
    assert await cache.put(of, data)
    assert await cache.get(of) == data


async def test_the_longest_unused_goes_first(tmp_path: Path) -> None:
    """The clock stands still, so the order of uses comes from the cache alone."""
    cache = await make(tmp_path, kib=16, env=envs.FixedEnv())
    for number in range(16):
        await cache.put(*blob(number))
    assert len(files(tmp_path)) == 16, "full to the brim, and nothing evicted"
    for number in (0, 5, 1):
        assert await cache.get(blob(number)[0]) is not None
    await cache.put(*blob(16))
    assert cache.stats().evictions == 3
    assert await held(cache, range(17)) == [0, 1, *range(5, 17)]


async def test_it_never_holds_more_than_it_may(tmp_path: Path) -> None:
    cache = await make(tmp_path, kib=32)
    source = random.Random(5)
    for number in range(120):
        size = source.choice([0, 1, 100, KIB, 3 * KIB, 8 * KIB])
        assert await cache.put(*blob(number, size))
        assert size_of(tmp_path) <= 32 * KIB
    assert size_of(tmp_path) > 16 * KIB, "eviction leaves most of it"
    assert cache.stats().evictions > 0


async def test_those_who_share_a_folder_notice_each_other(tmp_path: Path) -> None:
    caches = [await make(tmp_path, kib=32), await make(tmp_path, kib=32)]
    for number in range(150):
        assert await caches[number % 2].put(*blob(number))
        assert size_of(tmp_path) <= (32 + 2 * 4) * KIB


async def test_what_is_too_large_is_not_cached(tmp_path: Path) -> None:
    cache = await make(tmp_path, kib=16)
    assert await cache.put(*blob(1, 4 * KIB))
    assert not await cache.put(*blob(2, 4 * KIB + 1))
    assert await cache.get(blob(2, 4 * KIB + 1)[0]) is None
    assert cache.stats() == blob_cache.Stats(misses=1, refused=1)
    assert size_of(tmp_path) == 4 * KIB


async def test_a_restart_keeps_contents_and_order(tmp_path: Path) -> None:
    env = envs.FixedEnv()
    cache = await make(tmp_path, kib=16, env=env)
    for number in range(14):
        await cache.put(*blob(number))
    for number in (2, 0, 1):
        await cache.get(blob(number)[0])
    env.advance_us(1_000_000)
    again = await make(tmp_path, kib=16, env=env)
    for number in range(14, 17):
        await again.put(*blob(number))
    assert again.stats().evictions == 3
    assert await held(again, range(17)) == [0, 1, 2, *range(6, 17)]


async def test_a_smaller_room_is_made_smaller_when_opened(tmp_path: Path) -> None:
    cache = await make(tmp_path, kib=64, env=envs.FixedEnv())
    for number in range(40):
        await cache.put(*blob(number))
    smaller = await make(tmp_path, kib=16, env=envs.FixedEnv())
    assert size_of(tmp_path) == 14 * KIB
    assert await held(smaller, range(40)) == list(range(26, 40))


async def test_leftovers_of_the_dead_are_removed_when_old(tmp_path: Path) -> None:
    env = envs.FixedEnv()
    cache = await make(tmp_path, env=env)
    of, data = blob(1)
    await cache.put(of, data)
    old, young = (path_of(tmp_path, of).with_name(f"{blob_cache.TEMPORARY}{name}") for name in ("old", "young"))
    for path, age_us in ((old, blob_cache.TEMPORARY_AGE_US_MAX + 1), (young, 1_000_000)):
        path.write_bytes(b"torn")
        os.utime(path, ns=(0, (env.wall_us() - age_us) * 1000))
    await make(tmp_path, env=env)
    assert not old.exists()
    assert young.exists(), "its process may be alive"


async def test_many_tasks_at_once(tmp_path: Path) -> None:
    cache = await make(tmp_path, kib=32)

    async def one(number: int) -> None:
        of, data = blob(number % 60)
        got = await cache.get(of)
        assert got in (None, data)
        if got is None:
            assert await cache.put(of, data)

    await asyncio.gather(*(one(number) for number in range(600)))
    stats = cache.stats()
    assert stats.hits + stats.misses == 600
    assert (stats.corrupt, stats.refused, stats.faults) == (0, 0, 0)
    await cache.put(*blob(1000))
    assert size_of(tmp_path) <= 40 * KIB


def test_processes_share_one_folder(tmp_path: Path) -> None:
    """Each may exceed the room by an eighth, and nobody ever sees bytes that are not what they should be."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.store.test_blob_cache", "share", str(tmp_path), str(seed)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        for seed in range(3)
    ]
    for child in children:
        out, _ = child.communicate(timeout=60)
        assert child.returncode == 0
        hits, evictions, bad = (int(word) for word in out.split())
        assert hits > 0
        assert evictions > 0
        assert bad == 0
    assert size_of(tmp_path) <= (64 + 3 * 8) * KIB
    assert not [path for path in files(tmp_path) if path.name.startswith(blob_cache.TEMPORARY)]


def test_a_full_disk_means_not_cached(tmp_path: Path) -> None:
    """A file may have 1 kB in that process: the kernel's refusal is that of a full disk."""
    out = subprocess.run(
        [sys.executable, "-m", "tests.store.test_blob_cache", "full", str(tmp_path), "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    ).stdout
    assert out.decode().split() == ["False", "None", "1", "0", "True"]
    assert [path.stat().st_size for path in files(tmp_path)] == [1024]


@contextmanager
def powerless() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_broken_folder_is_no_error_later_but_one_when_opened(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cache = await make(folder)
    of, data = blob(1)
    await cache.put(of, data)
    folder.chmod(0)
    try:
        with powerless():
            assert await cache.get(of) is None
            assert not await cache.put(of, data)
            with pytest.raises(errors.StoreUnavailable, match="cannot cache blobs"):
                await make(folder)
    finally:
        folder.chmod(0o755)
    assert cache.stats() == blob_cache.Stats(misses=1, faults=2)
    assert await cache.get(of) == data


async def test_a_file_in_the_folders_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(errors.StoreUnavailable, match="cannot cache blobs"):
        await make(tmp_path / "file")


async def test_planted_things_are_not_read(tmp_path: Path) -> None:
    cache = await make(tmp_path / "cache")
    linked, data = blob(1)
    piped, _ = blob(2)
    (tmp_path / "outside").write_bytes(data)
    for of in (linked, piped):
        path_of(tmp_path / "cache", of).parent.mkdir()
    path_of(tmp_path / "cache", linked).symlink_to(tmp_path / "outside")
    os.mkfifo(path_of(tmp_path / "cache", piped))
    assert await cache.get(linked) is None
    assert await cache.get(piped) is None
    assert await cache.put(linked, data)
    assert await cache.get(linked) == data
    assert (tmp_path / "outside").read_bytes() == data


async def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    cache = await make(tmp_path)
    of, data = blob(1)
    await cache.put(of, data)
    path_of(tmp_path, of).unlink()
    path_of(tmp_path, of).parent.rmdir()
    assert await cache.get(of) is None
    assert await cache.put(of, data)
    assert await cache.get(of) == data


async def serve_share(folder: Path, seed: int) -> None:
    cache = await make(folder)
    source = random.Random(seed)
    bad = 0
    for _ in range(400):
        of, data = blob(source.randrange(120))
        got = await cache.get(of)
        if got is None:
            await cache.put(of, data)
        elif hashlib.sha256(got).digest() != of:
            bad += 1
    stats = cache.stats()
    sys.stdout.write(f"{stats.hits} {stats.evictions} {bad + stats.corrupt + stats.faults}\n")


async def serve_full(folder: Path) -> None:
    cache = await make(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
    of, data = blob(1, 10 * KIB)
    cached, got = await cache.put(of, data), await cache.get(of)
    stats = cache.stats()
    small = await cache.put(*blob(2, 1024))
    sys.stdout.write(f"{cached} {got!r} {stats.refused} {stats.faults} {small}\n")


if __name__ == "__main__":
    if sys.argv[1] == "share":
        asyncio.run(serve_share(Path(sys.argv[2]), int(sys.argv[3])))
    else:
        asyncio.run(serve_full(Path(sys.argv[2])))
