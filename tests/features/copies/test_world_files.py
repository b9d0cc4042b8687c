"""Worlds as files: what an imported world has, that it does nothing until it is told, and files that are none."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import aging, aio
from tests.kits import fixtures, kit, people
from tests.layers import engines
from worldline.base import errors, limits
from worldline.codec import canonical
from worldline.features.collection import batches as collection_batches
from worldline.features.copies import pack_file, release_calls, world_import
from worldline.features.copies.world_file import Tag
from worldline.inspect import doctor, verify
from worldline.keys import age as age_keys
from worldline.keys import cas as cas_keys
from worldline.keys import space
from worldline.layers import universes
from worldline.model import ids
from worldline.store import kv

app = wl.Program("copied")
calls: list[str] = []  # idempotency keys, as an outside server would see them
gate: asyncio.Event
begun: asyncio.Event


@dataclass(frozen=True)
class Add:
    number: int
    note: str = ""


@dataclass(frozen=True)
class Total(wl.Request[int]):
    pass


@app.reducer()
@dataclass
class Sum:
    total: int = 0

    @wl.on
    def add(self, event: Add) -> None:
        if event.number < 0:
            raise ValueError("only more")
        self.total += event.number

    @wl.on
    def ask(self, event: Total) -> int:
        return self.total


@app.effect
async def outside(number: int) -> int:
    calls.append(wl.attempt().key)
    begun.set()
    if number == 0:
        await gate.wait()
    return number


@app.workflow
async def work(number: int) -> str:
    try:
        await outside(number)
    except wl.EffectFailed as error:
        return error.code
    return "done"


@app.workflow
async def nap() -> str:
    await wl.sleep(30)
    await outside(7)
    return "slept"


@pytest.fixture(autouse=True)
def quiet() -> None:
    global gate, begun
    gate, begun = asyncio.Event(), asyncio.Event()
    calls.clear()


@contextlib.asynccontextmanager
async def stores(folder: Path, *engines: str) -> AsyncIterator[list[kit.Kit]]:
    made = [fixtures.make(engine, folder / str(place)) for place, engine in enumerate(engines)]
    async with contextlib.AsyncExitStack() as stack:
        for each in made:
            await stack.enter_async_context(contextlib.aclosing(each))
        yield made


async def exported(store: kit.Kit, file: Path, *, notes: str = "") -> None:
    """A world with everything: a run that waits for an effect, one for a timer, unread and dead inputs, large ones."""
    process = await store.process(app)
    world = await process.universe.create("alice", app, labels={"tier": "1"})
    await (await world.send(Add(1, notes), id="first")).applied(20)
    await aio.journaled(await world.send(Add(-1)), 20)
    _ = await world.start(work(0), id="open")
    _ = await world.start(nap(), id="nap")
    await begun.wait()
    await world.snapshot()
    await world.pause()
    await world.send(Add(10, notes), id="unread")
    await world.export(file)
    await process.kill()


async def stays_quiet(store: kit.Kit, world: wl.World) -> None:
    before = len(calls)
    await store.jump(3_600)
    await asyncio.sleep(0.5)
    assert len(calls) == before
    assert (await world.head()).step == (await world.head()).step


@pytest.mark.parametrize("effects", ["drop", "reissue"])
async def test_a_copy_does_nothing_until_it_is_told(effects: Any, tmp_path: Path) -> None:
    file = tmp_path / "alice.world"
    async with stores(tmp_path, "lmdb", "memory") as (here, there):
        await exported(here, file, notes="x" * 40_000)
        original = list(calls)
        process = await there.process(app)
        world = await process.universe.import_world(file, name="bob", effects=effects)
        head = await world.head()
        await stays_quiet(there, world)
        assert await world.head() == head
        with pytest.raises(errors.Closed):
            await world.send(Add(1))
        assert calls == original
        await world.resume()
        gate.set()
        assert await world.ask(Total(), timeout=20) == 11, "what was unread is taken"
        assert await (await world.attach("open")).result(20) == ("cancelled" if effects == "drop" else "done")
        assert await (await world.attach("nap")).result(20) == "slept"
        assert len(calls) == len(original) + (1 if effects == "drop" else 2)
        assert {*calls[len(original) :]} & {*original} == set(), "no key outside is the original's"
        with pytest.raises(errors.IdReused):
            await world.send(Add(11), id="unread")
        await world.send(Add(10, "x" * 40_000), id="unread")
        assert await world.ask(Total(), timeout=20) == 11, "an id that was seen before the export is one input"
        [letter] = await kit.dead(process.engine, await world._handle.address())
        assert "only more" in letter.dead.reason
        connection = process.universe._connection
        assert (await verify.verify(connection, await world._handle.address())).height > head.height
        assert (await doctor.examine(connection, repair=False)).findings == []


async def test_a_world_can_be_copied_beside_itself(tmp_path: Path) -> None:
    file = tmp_path / "alice.world"
    async with stores(tmp_path, "lmdb") as (store,):
        await exported(store, file)
        process = await store.process(app)
        with pytest.raises(errors.Exists, match="--as"):
            await process.universe.import_world(file)
        copy = await process.universe.import_world(file, name="copy", live=False)
        assert (await copy.describe()).dry
        assert (await copy.head()) == await process.universe.world("alice").head()
        with pytest.raises(errors.BadInput):
            await process.universe.import_world(file, name="other", effects="share")  # type: ignore[arg-type]
        with pytest.raises(errors.Exists):
            await copy.export(file)
        with pytest.raises(errors.BadInput, match="nowhere"):
            await process.universe.import_world(tmp_path / "nowhere")


async def test_personal_values_go_along_unless_they_were_erased(tmp_path: Path) -> None:
    program, _ = people.program()
    async with stores(tmp_path, "lmdb", "memory") as (here, there):
        process = await here.process(program)
        world = await process.universe.create("people", program)
        for user in ("ada", "bob"):
            joined = people.Joined(user, wl.Personal(f"{user}: {people.SECRET}", of=user))
            await (await world.send(joined)).applied(20)
        await world.erase(key="ada")
        await world.export(tmp_path / "people.world")
        assert b"ada: " + people.SECRET.encode() not in b"".join(
            data for _, data in pack_file.of_bytes(pack_file.PackKind.WORLD, (tmp_path / "people.world").read_bytes())
        )
        await process.close()
        copy = await there.process(program)
        imported = await copy.universe.import_world(tmp_path / "people.world")
        await imported.resume()
        bob = await imported.ask(people.MailOf("bob"), timeout=20)
        assert bob is not None
        assert bob.value == f"bob: {people.SECRET}"
        ada = await imported.ask(people.MailOf("ada"), timeout=20)
        assert ada is not None
        with pytest.raises(wl.errors.Erased):
            _ = ada.value
        await imported.erase(key="bob")
        everything = (await copy.engine.read(kv.Range(b"\x00", b"\xff", count_max=10**6, bytes_max=2**30))).page(0)
        assert not [key for key, raw in everything.items if people.SECRET.encode() in raw]


async def test_a_quota_counts_what_is_imported(tmp_path: Path) -> None:
    file = tmp_path / "alice.world"
    async with stores(tmp_path, "memory", "memory") as (here, there):
        await exported(here, file)
        process = await there.process()
        await process.universe.set_quota(worlds=1)
        await process.universe.import_world(file)
        before = await contents(process.engine, process.universe._connection.id)
        with pytest.raises(wl.errors.QuotaExceeded):
            await process.universe.import_world(file, name="one more")
        assert await contents(process.engine, process.universe._connection.id) == before


async def test_a_copy_that_was_resumed_by_hand_does_not_wait_any_more(tmp_path: Path) -> None:
    file = tmp_path / "alice.world"
    async with stores(tmp_path, "memory", "memory") as (here, there):
        await exported(here, file)
        process = await there.process()
        world = await process.universe.import_world(file)
        link = process.universe._connection
        assert [name for _, name, _ in await release_calls.held_copies(link)] == [world.name]
        await world.resume()
        await world.archive()
        assert await release_calls.held_copies(link) == []
        assert await release_calls.release_all(link) == []
        assert (await world.describe()).status is wl.Status.ARCHIVED


# --- Files that are none ---------------------------------------------------------------------------------------------


async def contents(engine: kv.Engine, universe: ids.UniverseId) -> dict[bytes, bytes]:
    """All of a universe but its blobs, and what collections know of them."""
    page = (await engine.read(kv.Range(b"\x00", b"\xff", count_max=10**6, bytes_max=2**30))).page(0)
    kinds = (space.InUniverse.CAS, space.InUniverse.CHUNK, space.InUniverse.HOLDS, space.InUniverse.GENERATION)
    prefixes = tuple(space.universe(universe) + space.part(kind) for kind in kinds)
    return {key: raw for key, raw in page.items if not key.startswith(prefixes)}


def repacked(records: list[pack_file.Record]) -> bytes:
    packer = pack_file.Packer(pack_file.PackKind.WORLD)
    return b"".join([packer.add(*each) for each in records]) + packer.finish()


async def refuse(process: kit.Process, file: Path, data: bytes) -> None:
    """Nothing is made of it, and nothing is left."""
    _write(file, data)
    universe = process.universe._connection.id
    before = await contents(process.engine, universe)
    with pytest.raises(errors.BadCopy):
        await process.universe.import_world(file, name="bad")
    assert await contents(process.engine, universe) == before


async def test_damaged_files_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    file = tmp_path / "alice.world"
    async with stores(tmp_path, "memory", "memory") as (here, there):
        await exported(here, file, notes="n" * 20_000)
        data = file.read_bytes()
        records = list(pack_file.of_bytes(pack_file.PackKind.WORLD, data))
        process = await there.process()
        bad = tmp_path / "bad.world"
        for place in range(0, len(data), max(1, len(data) // 40)):
            changed = bytearray(data)
            changed[place] ^= 0x10
            await refuse(process, bad, bytes(changed))
            await refuse(process, bad, data[:place])
        for place in range(len(records)):  # cut at every record, and whole by its checksums
            await refuse(process, bad, repacked(records[:place])) if place < _journal_end(records) else None
        for place, (tag, body) in enumerate(records):
            if tag in (Tag.BLOB, Tag.SEGMENT, Tag.WORLD):
                await refuse(process, bad, repacked([*records[:place], *records[place + 1 :]]))
            if tag in (Tag.SNAPSHOT, Tag.SEGMENT, Tag.WORLD):
                await refuse(process, bad, repacked([*records[:place], (tag, body), *records[place:]]))
        await process.universe.import_world(file, name="good")


def _write(file: Path, data: bytes) -> None:
    file.write_bytes(data)


def _journal_end(records: list[pack_file.Record]) -> int:
    return 1 + max(place for place, (tag, _) in enumerate(records) if tag == Tag.SEGMENT)


HOSTILE: list[Any] = [None, -1, 0, 2**63, 2**64 - 1, "", "../../etc/passwd", "a" * 200, b"", bytes(32), [], {}, [[]]]


async def test_hostile_records_make_nothing_that_is_not_whole(tmp_path: Path) -> None:
    """Every field of every record replaced, under right checksums: a typed error and nothing left, or a world that
    verifies.
    """
    file = tmp_path / "alice.world"
    async with stores(tmp_path, "memory", "memory") as (here, there):
        await exported(here, file)
        records = list(pack_file.of_bytes(pack_file.PackKind.WORLD, file.read_bytes()))
        process = await there.process()
        connection = process.universe._connection
        bad = tmp_path / "bad.world"
        made = 0
        for place, (tag, body) in enumerate(records):
            for hostile in _mutated(tag, body):
                bad.write_bytes(repacked([*records[:place], (tag, hostile), *records[place + 1 :]]))
                before = await contents(process.engine, connection.id)
                try:
                    world = await process.universe.import_world(bad, name=f"world-{place}-{made}")
                except errors.BadCopy:
                    assert await contents(process.engine, connection.id) == before
                else:
                    made += 1
                    await verify.verify(connection, await world._handle.address())
        assert made < 100


def _mutated(tag: int, body: bytes) -> list[bytes]:
    if tag in (Tag.BLOB, Tag.PIECE, Tag.DEAD):
        return [b"", body[:-1], body + b"\x00", bytes(64)]
    plain: Any = canonical.decode(body)
    others: list[Any] = [None, [], {}, plain[:-1], [*plain, 1]]
    found = [canonical.encode(each) for each in others]
    for place in range(len(plain)):
        for other in HOSTILE:
            found.append(canonical.encode([*plain[:place], other, *plain[place + 1 :]]))
    return [*found, bytes(10), b""]


# --- Imports that are cut off ----------------------------------------------------------------------------------------


class CutOff(kit.Around):
    """An engine that fails for good at one of its commits: before it, or behind it."""

    def __init__(self, engine: kv.Engine, at: int, *, behind: bool) -> None:
        super().__init__(engine)
        self._left = at
        self._behind = behind

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        self._left -= 1
        if self._left < 0 or (self._left == 0 and not self._behind):
            raise errors.StoreFailed("cut off")
        found = await super().commit(*batches)
        if self._left == 0:
            raise errors.StoreFailed("cut off")
        return found


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
async def test_an_import_that_is_cut_off_at_any_commit_leaves_nothing_that_stays(behind: bool, tmp_path: Path) -> None:
    file = tmp_path / "alice.world"
    async with stores(tmp_path, "memory", "memory") as (here, there):
        await exported(here, file, notes="n" * 20_000)
        look = await there.process()
        connection = look.universe._connection
        before = await contents(look.engine, connection.id)
        for commits in range(1, 100):
            process = await there.process(wrap=functools.partial(CutOff, at=commits, behind=behind))
            with contextlib.suppress(errors.StoreFailed):
                world = await process.universe.import_world(file)
                await verify.verify(connection, await world._handle.address())
                break
            names = [meta.name async for meta in look.universe.worlds()]
            if names:
                assert behind, "the last commit was made, only its answer was lost"
                assert (await look.universe.import_world(file)).name == names[0]
                await verify.verify(connection, await look.universe.world(names[0])._handle.address())
                break
            await world_import.sweep(look.engine, connection.store.env, connection.id, period_us=0)
            assert await contents(look.engine, connection.id) == before
        assert commits > 4


async def test_what_is_left_of_an_import_goes_by_the_age_of_the_universe(tmp_path: Path) -> None:
    """Another process may be at it still: then its import would fail."""
    file = tmp_path / "alice.world"
    async with stores(tmp_path, "memory", "memory") as (here, there):
        await exported(here, file, notes="n" * 20_000)
        look = await there.process()
        env, universe = look.universe._connection.store.env, look.universe._connection.id
        before = await contents(look.engine, universe)
        process = await there.process(wrap=functools.partial(CutOff, at=3, behind=True))
        with pytest.raises(errors.StoreFailed):
            await process.universe.import_world(file)
        left = await contents(look.engine, universe)
        assert left != before
        assert await world_import.sweep(look.engine, env, universe) == 0
        assert await contents(look.engine, universe) == left
        await aging.older(look.engine, universe, world_import.ABANDONED_US)

        async def sweep_elsewhere() -> None:
            assert await world_import.sweep(look.engine, env, universe) == 1

        # Two janitors at once: what one has swept, the other does not count.
        assert await world_import.sweep(engines.Meddled(look.engine, sweep_elsewhere), env, universe) == 0
        assert await world_import.sweep(look.engine, env, universe) == 0
        assert not {*await contents(look.engine, universe)} - {*before} - {age_keys.age_key(universe)}


@pytest.mark.probe("copies.collected-meanwhile")
async def test_a_collection_that_begins_meanwhile_takes_nothing_of_an_import(tmp_path: Path) -> None:
    """The generation is raised once blobs are there: they are raised, too, before the world is."""
    file = tmp_path / "alice.world"
    async with stores(tmp_path, "memory", "memory") as (here, there):
        await exported(here, file)
        process = await there.process(wrap=Collected)
        world = await process.universe.import_world(file)
        universe = process.universe._connection.id
        page = (await process.engine.read(kv.Range(*cas_keys.blobs(universe), count_max=10**6))).page(0)
        assert page.items
        assert {cas_keys.BLOB.unpack(raw).generation for _, raw in page.items} == {1}
        assert (await process.engine.read(universes.get_generation(universe))).value(0) is not None
        await verify.verify(process.universe._connection, await world._handle.address())


class Collected(kit.Around):
    """Raises the generation as a collection does, when the import has put something."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self._begun = False

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        found = await super().commit(*batches)
        for key in [key for batch in batches for key in batch.puts]:
            universe = ids.UniverseId(key[3 : 3 + limits.ID_BYTES]) if len(key) > 20 else None
            if universe and not self._begun and key.startswith(cas_keys.blobs(universe)[0]):
                self._begun = True
                state = await self._state(universe)
                batch = kv.Batch()
                begun = collection_batches.begin(batch, state, bytes(16), time_us=1)
                await super().commit(batch)
                batch = kv.Batch()
                collection_batches.end(batch, begun, time_us=2, above=b"")
                await super().commit(batch)
        return found

    async def _state(self, universe: ids.UniverseId) -> collection_batches.CollectionState:
        read = await self.read(*collection_batches.reads(universe))
        return collection_batches.decode(universe, read.value(0), read.value(1))
