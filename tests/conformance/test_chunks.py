"""Blobs kept in the store itself, on every engine: whole or not at all, once, and nothing left over."""

from __future__ import annotations

import asyncio

import pytest

from tests import aging
from tests.conformance import kits
from worldline.base import env_os, errors, limits
from worldline.keys import chunks as chunk_keys
from worldline.keys import space
from worldline.layers import blobs, cas, chunks
from worldline.model import ids
from worldline.runtime import store_opening
from worldline.store import kv

UNIVERSE = ids.UniverseId(b"U" * limits.ID_BYTES)
ENV = env_os.OsEnv()
MOST = limits.CHUNKED_BYTES_MAX


def body(size: int, *, first: int = 0) -> bytes:
    """Bytes in which no two chunks are equal."""
    return b"".join((first + number).to_bytes(8, "big") for number in range(size // 8 + 1))[:size]


def in_store(engine: kv.Engine) -> blobs.Blobs:
    return blobs.Blobs(engine, store_opening.NoObjects(), ENV, UNIVERSE, in_store_bytes_max=MOST)


async def keys_of(engine: kv.Engine, part: space.InUniverse) -> list[bytes]:
    """All keys of a keyspace of the universe."""
    found: list[bytes] = []
    begin = start = space.universe(UNIVERSE) + space.part(part)
    end = begin + b"\xff"
    while True:
        page = (await engine.read(kv.Range(start, end))).page(0)
        found += [key for key, _ in page.items]
        if not page.more:
            return found
        start = found[-1] + b"\x00"


async def counts(engine: kv.Engine) -> tuple[int, int]:
    """How many chunks and uploads there are."""
    chunk, upload = space.InUniverse.CHUNK, space.InUniverse.UPLOAD
    return len(await keys_of(engine, chunk)), len(await keys_of(engine, upload))


async def test_what_was_put_is_got(kit: kits.Kit) -> None:
    engine = await kit.open()
    store = in_store(engine)
    written = 0
    sizes = [limits.INLINE_BYTES_MAX + 1, chunks.CHUNK, chunks.CHUNK + 1, chunks.PART, chunks.PART + 1, MOST]
    for number, size in enumerate(sizes):
        data = body(size, first=number << 32)
        of = cas.address(data)
        assert await store.has(of) is False
        assert await store.put(data) == of
        assert await store.put(data, expected=of) == of
        assert await in_store(await kit.open()).get(of) == data
        written += -(-size // chunks.CHUNK)
        assert await counts(engine) == (written, 0)


async def test_racing_puts_publish_one_and_leave_nothing_of_the_others(kit: kits.Kit) -> None:
    stores = [in_store(await kit.open()) for _ in range(4)]
    data = body(2 * chunks.PART + 1)
    assert await asyncio.gather(*(each.put(data) for each in stores)) == [cas.address(data)] * 4
    engine = await kit.open()
    assert await in_store(engine).get(cas.address(data)) == data
    assert await counts(engine) == (2 * limits.CHUNKS_BATCH_MAX + 1, 0)


async def test_an_abandoned_upload_is_swept_and_what_is_published_stays(kit: kits.Kit) -> None:
    engine = await kit.open()
    store = in_store(engine)
    data = body(chunks.PART + 1)
    of = await store.put(data)
    lost = body(2 * chunks.PART, first=1 << 32)
    batch = kv.Batch()
    now_us = (await engine.read()).time_us
    begun = chunks.begin(batch, UNIVERSE, cas.address(lost), bytes(16), lost, time_us=now_us, age_us=1)
    assert isinstance((await engine.commit(batch))[0], kv.Ok)
    assert (await aging.older(engine, UNIVERSE, 1_000)).age_us == 1_001
    assert await store.abandoned(period_us=1_001, remove=True) == 0, "it may still be written"
    assert await store.abandoned(period_us=1_000, remove=False) == 1
    assert await store.abandoned(period_us=1_000, remove=True) == 1
    assert await counts(engine) == (limits.CHUNKS_BATCH_MAX + 1, 0)
    late = kv.Batch()
    chunks.extend(late, UNIVERSE, begun, lost, chunks.PART)
    assert isinstance((await engine.commit(late))[0], kv.Conflict), "it cannot go on where it was swept"
    assert await store.get(of) == data


async def test_more_than_a_store_keeps_is_refused_and_writes_nothing(kit: kits.Kit) -> None:
    engine = await kit.open()
    with pytest.raises(errors.TooLarge, match="more needs an object store: name a folder or s3"):
        await in_store(engine).put(bytes(MOST + 1))
    assert await counts(engine) == (0, 0)
    assert await keys_of(engine, space.InUniverse.CAS) == []


def test_a_chunk_of_another_upload_is_no_chunk_of_this() -> None:
    key = chunk_keys.chunk_key(UNIVERSE, bytes(32), b"n" * 16, 3)
    with pytest.raises(errors.DecodeError):
        chunk_keys.chunk_number(UNIVERSE, bytes(32), b"m" * 16, key)
