"""What the table of keyspaces says of deletions, backups, files and forks is what they do, to a world with something of
everything."""

from __future__ import annotations

from pathlib import Path

from tests.features.copies.backing_up import bare
from tests.features.copies.test_world_files import stores
from tests.features.deletion import deleting
from tests.kits import kit
from worldline.api.universe_api import Universe
from worldline.features.copies import backup_calls
from worldline.features.deletion import calls as deletion_calls
from worldline.keys import keyspace_table, space
from worldline.keys.keyspace_table import InBackup, InExport, Keyspace, OnDelete, OnFork
from worldline.model import ids
from worldline.store import kv

Contents = dict[str, dict[bytes, bytes]]  # of a universe or a world: by metric, what is behind its prefix

IN_UNIVERSE = {each.metric: each for each in keyspace_table.KEYSPACES if each.counted}
# What such a store has of all that a backup treats in some way.
HERE = [
    "universe_meta",
    "name",
    "index",
    "cas",
    "open",
    "due",
    "quotas",
    "quota_log",
    "settings",
    "grants",
    "grant_log",
    "world_meta",
    "epoch",
    "holder",
    "head",
    "journal",
    "baseline",
    "snapshot",
    "segment",
    "inbox",
    "seen",
    "dead",
    "trace",
]


async def contents(engine: kv.Engine, prefix: bytes) -> Contents:
    found: Contents = {}
    for key, raw in (await deleting.items(engine)).items():
        if key.startswith(prefix):
            found.setdefault(keyspace_table.metric_of(key), {})[key[len(prefix) :]] = raw
    return found


async def full(here: kit.Kit) -> tuple[kit.Process, ids.Address]:
    vault = deleting.Vault()
    process = await here.process(vault.program, settings=deleting.settings())
    world = await deleting.full(here, vault, process)
    await process.universe.set_quota(worlds=100)
    await process.universe.store_settings({"worker.snapshots_kept": 7})
    await process.universe.allow("ab" * 16)
    return process, await world._handle.address()


def rows(found: Contents) -> list[Keyspace]:
    return [IN_UNIVERSE[metric] for metric in found]


async def test_a_backup_has_what_the_table_says(tmp_path: Path) -> None:
    folder = str(tmp_path / "backups")
    async with stores(tmp_path, "memory", "memory") as (here, there):
        process, at = await full(here)
        await process.kill()
        name = f"{deleting.SECRET}-name"
        await (await here.process()).universe.world(name).send(deleting.Note("k", "unread"))
        before = await contents(await here.engine(), space.universe(at.universe))
        assert [each for each in HERE if each not in before] == []
        await backup_calls.backup(await bare(here), folder)
        await backup_calls.restore(folder, await bare(there))
        after = await contents(await there.engine(), space.universe(at.universe))
        for row in IN_UNIVERSE.values():
            old, new = before.get(row.metric, {}), after.get(row.metric, {})
            match row.backup:
                case InBackup.COPIED if row.metric != "held_copy":  # which a restore writes besides
                    assert new == old, row
                case InBackup.REWRITTEN:
                    assert [*new] == [*old], row
                    assert new != old, row
                case InBackup.BLOBS if row.metric == "cas":
                    assert [*new] == [*old], "the same addresses"
                case InBackup.LEFT_OUT:
                    assert not new or row.metric in ("holds", "generation"), row
        assert after["due"], "open work waits again"


async def test_a_deletion_takes_what_the_table_says(tmp_path: Path) -> None:
    async with stores(tmp_path, "memory") as (here,):
        process, at = await full(here)
        link = process.universe._connection
        before = rows(await contents(process.engine, space.world(at)))
        assert len(before) > 10
        assert await deletion_calls.delete(link, at, alias=f"{deleting.SECRET}-name", wait=True)
        left = rows(await contents(process.engine, space.world(at)))
        assert left == [each for each in before if each.deletion is OnDelete.STAYS]
        about = [key for key, raw in (await deleting.items(process.engine)).items() if deleting.about(at, key, raw)]
        places = {keyspace_table.metric_of(key) for key in about}
        assert places == {each.metric for each in left}, "nothing in the universe leads there"


async def test_a_file_has_what_the_table_says(tmp_path: Path) -> None:
    file = tmp_path / "full.world"
    async with stores(tmp_path, "memory", "memory") as (here, there):
        process, at = await full(here)
        before = await contents(process.engine, space.world(at))
        await process.universe.world(f"{deleting.SECRET}-name").export(file)
        await process.kill()
        target = await there.process()
        world = await target.universe.import_world(file, name="copy")
        copy = await world._handle.address()
        after = await contents(target.engine, space.world(copy))
        for row in IN_UNIVERSE.values():
            if not isinstance(row.place, space.InWorld):
                continue
            match row.export:
                case InExport.LEFT_OUT:
                    assert row.metric not in after, row
                case InExport.CARRIED if row.metric in before and row.metric != "journal":
                    assert row.metric in after, row
                case InExport.REBUILT:
                    assert row.metric in after, row
        assert "journal" not in after, "all of it is in segments"
        assert {"name", "index"} <= {*await contents(target.engine, space.universe(copy.universe))}


async def test_a_fork_has_what_the_table_says(tmp_path: Path) -> None:
    async with stores(tmp_path, "memory") as (here,):
        process, at = await full(here)
        await process.kill()
        still = await here.process()  # hosts nothing, so the fork is as it was made
        engine = still.engine
        before = await contents(engine, space.world(at))
        forked = await Universe(still.universe._connection).world(f"{deleting.SECRET}-name").fork("fork")
        after = await contents(engine, space.world(at))
        changed = [metric for metric in after if after[metric] != before.get(metric)]
        assert changed == ["retain"], "making one writes nothing of its parent but pins"
        own = rows(await contents(engine, space.world(await forked._handle.address())))
        assert [each.metric for each in own if each.fork is not OnFork.OWN] == []
        assert {"world_meta", "epoch", "head", "lineage", "baseline"} <= {each.metric for each in own}
