"""What is erased or deleted is nowhere in the file of an embedded store; what is owed is done by the janitor."""

from __future__ import annotations

from pathlib import Path

import pytest

import worldline as wl
from tests import aio
from tests.cli.cli_kit import run
from tests.kits import people
from tests.kits.janitors import janitor_of
from tests.kits.people import SECRET
from worldline.base import env_os
from worldline.features.collection import calls as collection_calls
from worldline.features.deletion import calls as deletion_calls
from worldline.features.encryption import keyspace as encryption_keyspace
from worldline.features.encryption.master_keys import AesGcm
from worldline.features.erasure import key_destruction, scrub_job
from worldline.model.settings import JanitorSettings
from worldline.store import kv, memory_engine

LONG = "a long secret " * 3_000  # in the CAS
KEY = bytes(range(32))


def raw(store: Path) -> bytes:
    return (store / "data.mdb").read_bytes()


def settings() -> JanitorSettings:
    return JanitorSettings(turn_ms=1, collect_ms=0)


async def test_personal_values_are_overwritten_by_the_janitor(tmp_path: Path) -> None:
    app, _ = people.program()
    async with wl.open(str(tmp_path), host=app) as universe:
        world = await universe.create("w", app)
        await (await world.send(people.ada())).applied()
        assert SECRET.encode() in raw(tmp_path)
        assert (await world.erase(key="ada")).values
        store = universe._connection.store
        assert await scrub_job.is_owed(store.engine)
        tidy = janitor_of(universe._connection, settings(), dedupe_window_ms=10**9)
        while not await tidy.turn():
            pass
        assert SECRET.encode() not in raw(tmp_path)
        assert not await scrub_job.is_owed(store.engine)
        await tidy.close()
        await aio.journaled(await world.send(people.Shouted("ada")))
        assert SECRET.encode() not in raw(tmp_path)


async def test_the_key_of_an_erased_world_is_overwritten(tmp_path: Path) -> None:
    app, _ = people.program()
    codec = AesGcm(keys={"k": KEY}, current="k")
    async with wl.open(str(tmp_path), host=app, codec=codec) as universe:
        world = await universe.create("w", app)
        await (await world.send(people.ada())).applied()
        at = await world._handle.address()
        store = universe._connection.store
        assert store.wrapping is not None
        record = (await store.engine.read(kv.Get(encryption_keyspace.world_key(at)))).value(0)
        assert record is not None
        wrapped = encryption_keyspace.VALUE.unpack(record).wrapped
        assert wrapped in raw(tmp_path)
        await key_destruction.destroy_key(universe._connection, at)
        assert wrapped in raw(tmp_path), "LMDB frees the page as it is"
        assert (await scrub_job.scrub(store.engine, store.env)).complete
        assert wrapped not in raw(tmp_path)


async def test_a_deleted_world_is_overwritten_and_its_blobs_when_they_are_collected(tmp_path: Path) -> None:
    app, _ = people.program()
    async with wl.open(str(tmp_path), host=app) as universe:
        world = await universe.create("w", app)
        await aio.journaled(await world.send(people.Shouted("plain text of a deleted world")))
        await aio.journaled(await world.send(people.Shouted(LONG)))
        other = await universe.create("other", app)
        await aio.journaled(await other.send(people.Shouted("of a world that stays")))
        assert b"plain text of a deleted world" in raw(tmp_path)
        link = universe._connection
        await deletion_calls.delete(link, await world._handle.address(), wait=True)
        assert b"plain text of a deleted world" not in raw(tmp_path)
        assert b"of a world that stays" in raw(tmp_path)
        assert b"a long secret" in raw(tmp_path)
        await collection_calls.collect(link, grace=0)
        done = await collection_calls.collect(link, grace=0)
        assert done.deleted.count or not done.unreferenced.count
        assert await scrub_job.is_owed(link.store.engine)
        assert (await scrub_job.scrub(link.store.engine, link.store.env)).complete
        assert b"a long secret" not in raw(tmp_path)


def test_the_command_overwrites_what_it_erases_and_scrubs_by_hand(tmp_path: Path) -> None:
    app, _ = people.program()

    async def stock() -> None:
        async with wl.open(str(tmp_path), host=app) as universe:
            world = await universe.create("w", app)
            await (await world.send(people.ada())).applied()

    aio.run(stock())
    assert SECRET.encode() in raw(tmp_path)
    done = run("erase", "w", "--key", "ada", "--yes", "--json", "--store", tmp_path)
    assert done.json["overwritten"] is True
    assert SECRET.encode() not in raw(tmp_path)
    said = run("scrub", "--store", tmp_path)
    assert said.out.strip() == "what was erased before is overwritten"


async def test_a_copy_that_is_made_meanwhile_is_said_and_it_stays_owed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, _ = people.program()
    async with wl.open(str(tmp_path), host=app) as universe:
        world = await universe.create("w", app)
        await (await world.send(people.ada())).applied()
        store = universe._connection.store
        frozen = await kv.freeze(store.engine)
        await world.erase(key="ada")
        tidy = janitor_of(universe._connection, settings(), dedupe_window_ms=10**9)
        while not await tidy.turn():
            pass
        assert "type `worldline scrub`" in caplog.text
        assert await scrub_job.is_owed(store.engine)
        await frozen.close()
        await tidy.close()
        assert (await scrub_job.scrub(store.engine, store.env)).complete
        assert not await scrub_job.is_owed(store.engine)


async def test_a_store_that_never_erased_anything_owes_nothing() -> None:
    env = env_os.OsEnv()
    engine = memory_engine.MemoryEngine(env)
    await scrub_job.owe(engine, env)
    assert not await scrub_job.is_owed(engine)
    assert (await scrub_job.scrub(engine, env)).complete
