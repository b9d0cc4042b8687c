"""Files that were made to do harm: nothing is stored of them, they take no more memory or room than they may, and
whatever is wrong with one is said in the same way. The option `hostile_files` sets how many are tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import aio, options
from tests.features.copies import hostile_files
from tests.features.copies.backing_up import bare, filled
from tests.features.copies.test_world_files import Add, app, exported, quiet, stores
from tests.kits import kit
from worldline.base import errors, limits
from worldline.codec import canonical
from worldline.features.copies import backup_calls, copy_bounds, file_blobs, history_check, pack_file
from worldline.features.copies import calls as copy_calls
from worldline.features.copies import records as copy_records
from worldline.features.copies.world_file import Tag
from worldline.inspect import verify
from worldline.keys import cas as cas_keys
from worldline.keys import imports, space
from worldline.model import ids
from worldline.model.change import Change, Row
from worldline.model.rows import Rows
from worldline.store import kv

__all__ = ["quiet"]
NOWHERE = ids.Address(ids.UniverseId(bytes(16)), ids.WorldId(bytes(16)))
FILES = options.number("hostile_files")


async def everything(engine: kv.Engine) -> dict[bytes, bytes]:
    page = (await engine.read(kv.Range(b"\x00", b"\xff", count_max=10**6, bytes_max=2**30))).page(0)
    assert not page.more
    return dict(page.items)


async def kept(process: kit.Process) -> dict[bytes, bytes]:
    """Everything but what says that an import goes on, or did."""
    prefix = space.universe(process.universe._connection.id)
    passing = tuple(prefix + space.part(each) for each in (space.InUniverse.HOLDS, space.InUniverse.GENERATION))
    return {key: raw for key, raw in (await everything(process.engine)).items() if not key.startswith(passing)}


def caused(error: errors.Error) -> errors.Error:
    """What a fault of ours would be is none of the file's."""
    assert not isinstance(error.__cause__, TypeError | AssertionError), repr(error.__cause__)
    return error


async def stored(process: kit.Process) -> int:
    """Bytes of blobs."""
    found = await process.engine.read(kv.Range(*cas_keys.blobs(process.universe._connection.id), count_max=10**6))
    return sum(cas_keys.BLOB.unpack(raw).size for _, raw in found.page(0).items)


async def test_a_small_file_that_unpacks_to_much_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    file, bomb = tmp_path / "alice.world", tmp_path / "bomb.world"
    async with stores(tmp_path, "memory", "memory") as (here, there):
        await exported(here, file)
        process = await there.process()
        hostile_files.bomb(file, bomb, mib=65)
        assert bomb.stat().st_size < 200_000
        before = await kept(process)
        for call in (process.universe.import_world(bomb), copy_calls.verify(bomb)):
            with pytest.raises(errors.CopyTooLarge, match="--bytes-max"):
                await call
        assert await kept(process) == before
        await copy_calls.verify(bomb, bytes_max=100 * limits.MIB)
        await process.universe.import_world(bomb, name="asked", bytes_max=100 * limits.MIB)
        assert await stored(process) < limits.MIB, "blobs that nothing refers to are not stored"


async def test_the_bound_is_that_of_the_file_if_it_is_large() -> None:
    most = copy_bounds.CopyBounds("it", 10 * limits.MIB)
    most.unpack(limits.COPY_RATIO_MAX * 10 * limits.MIB - 2 * limits.COPY_RECORD_BYTES)
    with pytest.raises(errors.CopyTooLarge):
        most.unpack(limits.COPY_RECORD_BYTES + 1)
    with pytest.raises(errors.BadInput, match="cannot be -1"):
        copy_bounds.CopyBounds("it", 1, -1)


async def test_checking_a_file_takes_little_memory(tmp_path: Path) -> None:
    """A file of blobs that nothing refers to: 40 MiB, and of a few of them at a time there is anything in memory."""
    file, large = tmp_path / "alice.world", tmp_path / "large.world"
    async with stores(tmp_path, "memory") as (here,):
        await exported(here, file)
    hostile_files.bomb(file, large, mib=40)
    tracemalloc.start()
    await copy_calls.verify(large)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20 * limits.MIB


async def test_a_state_that_takes_too_much_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "alice.world"
    async with stores(tmp_path, "memory") as (here,):
        await exported(here, file, notes="n" * 40_000)
    assert (await copy_calls.verify(file)).name == "alice"
    monkeypatch.setattr(limits, "COPY_STATE_BYTES_MAX", 20_000)
    with pytest.raises(errors.CopyTooLarge, match="in memory; with --bytes-max"):
        await copy_calls.verify(file)
    assert (await copy_calls.verify(file, bytes_max=10**7)).name == "alice"


async def test_rows_are_counted_when_they_seem_many_and_those_that_went_do_not_count() -> None:
    limit = copy_bounds.CopyBounds("it", 0, 0)
    limit.state_bytes_max = 100_000
    checking = history_check.Checking(file_blobs.FileBlobs(0, limit), NOWHERE, limit)
    checking._rows = Rows()
    rows = checking._rows

    def put(keys: range) -> None:
        for number in keys:
            changed = [Change(b"key%d" % number, Row(bytes(10_000)))]
            rows.apply(changed)
            checking._count(changed)

    for _ in range(50):  # the same row again and again
        put(range(1))
    with pytest.raises(errors.CopyTooLarge):
        put(range(50))


async def test_a_universe_without_room_takes_nothing_of_a_file(tmp_path: Path) -> None:
    file, cut = tmp_path / "alice.world", tmp_path / "cut.world"
    async with stores(tmp_path, "memory", "memory") as (here, there):
        await exported(here, file, notes="n" * 40_000)
        process = await there.process()
        await process.universe.set_quota(worlds=0)
        write(cut, file.read_bytes()[:-1])
        with pytest.raises(wl.errors.QuotaExceeded):
            await process.universe.import_world(cut)  # that is asked first: the file is not even read
        for quota, room in (({"worlds": 0}, {"worlds": 2}), ({"bytes": 50_000}, {"bytes": 10**6})):
            await process.universe.set_quota(**quota)
            before = await kept(process)
            with pytest.raises(wl.errors.QuotaExceeded):
                await process.universe.import_world(file, name=f"bad-{next(iter(quota))}")
            assert len((await kept(process)).keys() - before.keys()) <= 1, "what was counted"
            await process.universe.set_quota(**room)
            await process.universe.import_world(file, name=f"good-{next(iter(quota))}")


async def test_a_quota_of_bytes_counts_what_was_imported_just_before(tmp_path: Path) -> None:
    """The count that the janitor has made last is older."""
    async with stores(tmp_path, "memory") as (there,):
        process = await there.process()
        await process.universe.set_quota(bytes=200_000)
        taken = 0
        with contextlib.suppress(wl.errors.QuotaExceeded):
            for number in range(20):
                other = tmp_path / f"{number}.world"
                await _another(other, number)
                await process.universe.import_world(other, name=f"w{number}")
                taken += 1
        assert 0 < taken < 10


async def _another(into: Path, number: int) -> None:
    """A file of a world with blobs of its own."""
    async with stores(into.parent / f"store-{number}", "memory") as (store,):
        process = await store.process(app)
        world = await process.universe.create("w", app)
        await (await world.send(Add(1, f"{number}" * 30_000))).applied(20)
        await world.export(into)
        await process.close()


def write(file: Path, data: bytes) -> None:
    file.write_bytes(data)


# --- What a file says that it is -------------------------------------------------------------------------------------

BAD_NAMES = ("", "a\x1b[2J", "a\nb", "x" * 129, " a", "/a")
NAME, PROGRAM, HASH, STATUS, LABELS, CREATED, DRY, UNIVERSE, EXPORTED, HEAD, ORIGINS = range(11)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[(field, text) for field in (NAME, PROGRAM, UNIVERSE) for text in BAD_NAMES],
        (HASH, b""),
        (HASH, bytes(31)),
        (CREATED, -1),
        (EXPORTED, 2**63),
        (STATUS, 99),
        (LABELS, {"a\x9bb": "c"}),
        (LABELS, {"a": "\x07"}),
        (LABELS, {f"l{n}": "" for n in range(33)}),
        (ORIGINS, []),
        (ORIGINS, [[bytes(16), bytes(16), -1, 0]]),
    ],
)
async def test_what_a_file_says_of_itself_is_checked_like_what_people_choose(
    field: int, value: Any, made: bytes, tmp_path: Path
) -> None:
    records = list(pack_file.of_bytes(pack_file.PackKind.WORLD, made))
    plain: Any = canonical.decode(records[0][1])
    assert len(plain) == len(copy_records.ExportedWorld.__struct_fields__)
    plain[field] = value
    file = tmp_path / "bad.world"
    file.write_bytes(hostile_files.repacked([(Tag.WORLD, canonical.encode(plain)), *records[1:]]))
    with pytest.raises(errors.BadCopy) as caught:
        await copy_calls.verify(file)
    assert "\x1b" not in str(caught.value)
    async with stores(tmp_path, "memory") as (there,):
        process = await there.process()
        with pytest.raises(errors.BadCopy):
            await process.universe.import_world(file, name="chosen")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small file, made once."""
    folder = tmp_path_factory.mktemp("made")

    async def make() -> None:
        async with stores(folder, "memory") as (store,):
            process = await store.process(app)
            world = await process.universe.create("alice", app, labels={"tier": "1"})
            await (await world.send(Add(1), id="first")).applied(20)
            await aio.journaled(await world.send(Add(-1)), 20)
            await world.snapshot()
            await (await world.send(Add(2, "n" * 20_000))).applied(20)
            await world.pause()
            await world.send(Add(10), id="unread")
            await world.export(folder / "alice.world")
            await process.kill()

    asyncio.run(make())
    return (folder / "alice.world").read_bytes()


# --- Many of them ----------------------------------------------------------------------------------------------------


async def test_whatever_is_wrong_with_a_file_is_a_bad_copy(made: bytes, tmp_path: Path) -> None:
    """A file is refused as one, and nothing is stored; or a world is made of it that verifies."""
    file = tmp_path / "some.world"
    good = 0
    async with stores(tmp_path, "memory") as (there,):
        process = await there.process()
        connection = process.universe._connection
        for number, data in enumerate(hostile_files.mutations(made, pack_file.PackKind.WORLD, 1, FILES)):
            write(file, data)
            try:
                contents = await copy_calls.verify(file)
            except (errors.BadCopy, errors.CopyTooLarge) as error:
                caused(error)
                before = await kept(process)
                with pytest.raises((errors.BadCopy, errors.CopyTooLarge)):
                    await process.universe.import_world(file, name=f"w{number}")
                assert await kept(process) == before
                continue
            good += 1
            world = await process.universe.import_world(file, name=f"w{number}")
            found = await verify.verify(connection, await world._handle.address())
            assert found.height == contents.height
        assert good < FILES // 2


async def test_a_file_that_changes_while_it_is_imported_makes_no_world(made: bytes, tmp_path: Path) -> None:
    """Another process replaces its bytes between the check and the import, with bytes that would pass themselves."""
    records = list(pack_file.of_bytes(pack_file.PackKind.WORLD, made))
    file = tmp_path / "some.world"
    write(file, made)
    [dead] = [place for place, (tag, _) in enumerate(records) if tag == Tag.DEAD]
    other = hostile_files.repacked([*records[:dead], *records[dead + 1 :]])

    class Replacing(kit.Around):
        async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
            if any(markers[0] <= key < markers[1] for batch in batches for key in batch.puts):
                write(file, other)
            return await super().commit(*batches)

    async with stores(tmp_path, "memory") as (there,):
        process = await there.process(wrap=Replacing)
        markers = imports.imports(process.universe._connection.id)
        with pytest.raises(errors.BadCopy, match="changed while it was imported"):
            await process.universe.import_world(file)
        assert [each async for each in process.universe.worlds()] == []
        assert len(other) < len(made)


async def test_whatever_is_wrong_with_a_backup_is_a_bad_copy(tmp_path: Path) -> None:
    """One file of it changed, under a name and a manifest that say so: all of a store is made of it, or nothing."""
    folder, bad = tmp_path / "backups", tmp_path / "bad"
    async with stores(tmp_path, "memory", "memory") as (here, there):
        process = await filled(here, worlds=1)
        await backup_calls.backup(await bare(here), str(folder))
        await process.close()
        target = await bare(there)
        empty = await everything(target.engine)
        for changed in hostile_files.backups(folder, bad, FILES // 8):
            refusals: list[errors.Error] = []
            for call in (backup_calls.verify(str(bad)), backup_calls.restore(str(bad), target)):
                try:
                    await call
                except (errors.BadCopy, errors.CopyTooLarge, errors.StoreVersion, errors.NotFound) as error:
                    refusals.append(caused(error))
            if len(refusals) == 2:
                assert await everything(target.engine) == empty, changed
            else:  # it is another store, and a whole one
                async with stores(tmp_path, "memory") as (other,):
                    await backup_calls.restore(str(bad), await bare(other))
                target = await bare(await _emptied(there, empty))


async def _emptied(store: kit.Kit, empty: dict[bytes, bytes]) -> kit.Kit:
    engine = await store.engine()
    while found := (await engine.read(kv.Range(b"\x00", b"\xff", count_max=1_000))).page(0).items:
        batch = kv.Batch()
        for key, raw in found:
            batch.expect(key, raw)
            batch.delete(key)
        await engine.commit(batch)
    batch = kv.Batch()
    for key, raw in empty.items():
        batch.absent(key)
        batch.put(key, raw)
    await engine.commit(batch)
    return store


async def test_a_small_backup_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    folder, bad = tmp_path / "backups", tmp_path / "bad"
    async with stores(tmp_path, "memory", "memory") as (here, there):
        process = await filled(here, worlds=1)
        await backup_calls.backup(await bare(here), str(folder))
        await process.close()
        target = await bare(there)
        empty = await everything(target.engine)
        hostile_files.backup_bomb(folder, bad, mib=65)
        for call in (backup_calls.verify(str(bad)), backup_calls.restore(str(bad), target)):
            with pytest.raises(errors.CopyTooLarge, match="--bytes-max"):
                await call
        assert await everything(target.engine) == empty
        await backup_calls.restore(str(bad), target, bytes_max=100 * limits.MIB)
