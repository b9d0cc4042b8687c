"""What was deleted is nowhere in the file of the embedded engine after a scrub, and nothing else has changed."""

from __future__ import annotations

import asyncio
import os
import random
import re
from pathlib import Path

import pytest

from tests import options
from tests.store.lmdb_child import Child, create
from tests.store.test_lmdb import TINY, append, count, opened, store_of
from worldline.base import errors, limits
from worldline.store import kv
from worldline.store.lmdb import lmdb_pages

SECRET = re.compile(rb"SECRET-[0-9]{6}-[0-9]{6}-")
SECONDS = options.seconds("scrub_seconds")  # of writers beside scrubs
EVERYTHING = kv.Range(b"\x00", b"\xff", 1_000_000, 1 << 30)


def raw(folder: Path) -> bytes:
    return (folder / "data.mdb").read_bytes()


async def contents(engine: kv.Engine) -> list[tuple[bytes, bytes]]:
    return (await engine.read(EVERYTHING)).page(0).items


async def churn(engine: kv.Engine, seed: int, *, turns: int) -> dict[bytes, bytes]:
    """Write, replace and delete values of all sizes; each has its own name in it. Returns those that are left."""
    drawn, live = random.Random(seed), dict[bytes, bytes]()
    for turn in range(turns):
        batch = create(b"turn/%06d" % turn)
        for number in range(drawn.randint(1, 25)):
            key = b"value/%d" % drawn.randint(0, 600)
            if key in batch.puts or key in batch.deletes:
                continue
            if drawn.random() < 0.5:
                size = drawn.choice((0, 60, 500, 1_500, 3_000, 9_000, 40_000))
                live[key] = b"SECRET-%06d-%06d-" % (turn, number) + drawn.randbytes(size)
                batch.put(key, live[key])
            else:
                live.pop(key, None)
                batch.delete(key)
        await engine.commit(batch)
    return live


def names(values: dict[bytes, bytes]) -> list[bytes]:
    return sorted(found.group() for value in values.values() if (found := SECRET.match(value)))


@pytest.mark.parametrize("seed", range(2))
async def test_what_was_deleted_is_nowhere_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(limits, "LMDB_SCRUB_PAGES", 5)
    async with opened(tmp_path) as engine:
        live = await churn(engine, seed, turns=80)
        before = await contents(engine)
        assert len(set(SECRET.findall(raw(tmp_path)))) > len(live), "LMDB keeps what was deleted"
        assert await kv.scrub(engine) == kv.Scrubbed(complete=True)
        assert sorted(set(SECRET.findall(raw(tmp_path)))) == names(live)
        assert await contents(engine) == before
        [outcome] = await engine.commit(append(b"after", b"log/"))
        assert isinstance(outcome, kv.Ok)
    async with opened(tmp_path) as engine:
        assert len(await contents(engine)) == len(before) + 2
        assert sorted(set(SECRET.findall(raw(tmp_path)))) == names(live)


async def test_a_scrub_that_is_cut_off_leaves_a_sound_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LMDB_SCRUB_PAGES", 3)
    async with opened(tmp_path) as engine:
        live = await churn(engine, 11, turns=60)
        before, parts = await contents(engine), 0
        chores = engine._chore
        left = 0

        async def some(chore):  # type: ignore[no-untyped-def]
            nonlocal left, parts
            if not left:
                raise asyncio.CancelledError
            left, parts = left - 1, parts + 1
            return await chores(chore)

        monkeypatch.setattr(engine, "_chore", some)
        for allowed in range(1, 40, 6):
            left = allowed
            with pytest.raises(asyncio.CancelledError):
                await kv.scrub(engine)
            assert await contents(engine) == before
        left = 100_000
        assert (await kv.scrub(engine)).complete
        assert parts > 60
        assert await contents(engine) == before
        assert sorted(set(SECRET.findall(raw(tmp_path)))) == names(live)


@pytest.mark.probe("lmdb.buffers-forgotten")
async def test_no_process_writes_what_it_remembers_of_deleted_values(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await engine.commit(create(b"own", b"mine"))
        child = await Child.start("forgetful", tmp_path, "SECRET-000001-000001-")
        assert await child.line() == "forgotten"
        assert SECRET.search(raw(tmp_path))
        assert (await kv.scrub(engine)).complete
        assert not SECRET.search(raw(tmp_path))
        child.go()
        assert await child.line() == "wrote"
        assert not SECRET.search(raw(tmp_path)), "from buffers of that process"
        await child.end()
        assert await count(engine, b"later/") == 60


async def test_what_a_copy_shows_stays_until_it_is_made(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        live = await churn(engine, 3, turns=30)
        frozen = await kv.freeze(engine)
        shown = (await frozen.read(EVERYTHING)).page(0).items
        batch = create(b"gone")
        batch.delete_range(b"value/", b"value0")
        await engine.commit(batch)
        assert await kv.scrub(engine) == kv.Scrubbed(complete=False, held_by=(os.getpid(),))
        assert (await frozen.read(EVERYTHING)).page(0).items == shown
        assert len(live) > 10
        await frozen.close()
        assert (await kv.scrub(engine)).complete
        assert not SECRET.search(raw(tmp_path))


async def test_readers_of_other_processes_are_named_and_killed_ones_do_not_count(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await churn(engine, 5, turns=20)
        child = await Child.start("hold", tmp_path, "reader")
        assert await child.line() == "held"
        batch = create(b"gone")
        batch.delete_range(b"value/", b"value0")
        await engine.commit(batch)
        assert await kv.scrub(engine) == kv.Scrubbed(complete=False, held_by=(child.process.pid,))
        await child.kill()
        assert (await kv.scrub(engine)).complete
        assert not SECRET.search(raw(tmp_path))


async def test_others_write_and_read_while_it_is_scrubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LMDB_SCRUB_PAGES", 16)
    async with opened(tmp_path, map_bytes=TINY) as engine:
        children = [await Child.start("write_for", tmp_path, name, SECONDS, TINY) for name in ("x", "y")]
        for child in children:
            assert await child.line() == "open"
        for child in children:
            child.go()
        writing = asyncio.gather(*(child.end() for child in children))
        turns = 0
        while not writing.done():
            await kv.scrub(engine)
            await engine.commit(append(b"mine/%d" % turns, b"log/"))
            turns += 1
        written = sum(int(line) for lines in await writing for line in lines)
        assert turns > 1
        assert await count(engine, b"x/") + await count(engine, b"y/") == written
        assert await count(engine, b"mine/") == await count(engine, b"log/") == turns
        assert {value for key, value in await contents(engine) if key[:2] in (b"x/", b"y/")} == {b"v" * 32 * limits.KIB}


async def test_bytes_behind_the_last_page_go_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await churn(engine, 1, turns=3)
        store = store_of(engine)
        end = (store._db.info()["last_pgno"] + 1) * store._db.stat()["psize"]
        with (tmp_path / "data.mdb").open("r+b") as file:
            file.seek(end + 5_000)
            file.write(b"SECRET-999999-999999-")
        assert (await kv.scrub(engine)).complete
        assert b"SECRET-999999" not in raw(tmp_path)


@pytest.mark.parametrize(
    ("where", "what"),
    [(0, b"\x55"), (10, b"\x06"), (12, b"\xff\xff"), (16, b"\x01\x00")],
    ids=["another number", "another kind", "bounds", "a pointer"],
)
async def test_a_page_that_is_not_understood_is_not_overwritten(tmp_path: Path, where: int, what: bytes) -> None:
    async with opened(tmp_path) as engine:
        for turn in range(3):
            await engine.commit(create(b"%d" % turn))
    data = bytearray(raw(tmp_path))
    for at in range(2 * 4096, len(data), 4096):
        data[at + where : at + where + len(what)] = what
    damaged = tmp_path / "damaged"
    damaged.write_bytes(data)
    number = os.open(damaged, os.O_RDWR)
    try:
        file = lmdb_pages.File(number)
        with pytest.raises(errors.Corrupt, match="nothing was overwritten in it"):
            file.clear_gaps(b"", pages_max=100)
        with pytest.raises(errors.Corrupt, match="nothing was overwritten in it"):
            file.free(1_000)
    finally:
        os.close(number)
    assert damaged.read_bytes() == data


def test_a_file_that_is_not_lmdbs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"", bytes(4096 * 4), b"another program's " * 1_000):
        path.write_bytes(data)
        number = os.open(path, os.O_RDWR)
        try:
            with pytest.raises(errors.Corrupt):
                lmdb_pages.File(number)
        finally:
            os.close(number)
        assert path.read_bytes() == data


async def test_engines_without_files_have_nothing_to_overwrite() -> None:
    class Bare:
        pass

    assert await kv.scrub(Bare()) == kv.Scrubbed(complete=True)  # type: ignore[arg-type]
