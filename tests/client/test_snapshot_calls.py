"""Saved states from outside: listed, followed beside the journal, and forked from by hash."""

from __future__ import annotations

import asyncio

import pytest

import worldline as wl
from tests.kits.kit import Kit
from tests.kits.sums import Add, program


async def _sum(world: wl.World) -> int:
    total: int = (await world.state())["Sum"][""]["total"]
    return total


async def _saved(universe: wl.Universe, app: wl.Program) -> tuple[wl.World, list[int]]:
    """A world with three saved states, and their heights."""
    world = await universe.ensure("w", app)
    heights = []
    for number in (1, 2):
        await (await world.send(Add(number))).applied(20)
        await world.snapshot()
        heights.append((await world.head()).height)
    await (await world.send(Add(4))).applied(20)
    return world, heights


async def test_a_world_is_forked_from_a_snapshot_by_its_hash(kit: Kit) -> None:
    app = program()
    async with kit.hosting(app) as universe:
        world, heights = await _saved(universe, app)
        first, second, third = await world.snapshots()
        assert [each.height for each in (first, second, third)] == [0, *heights]
        assert [each.baseline for each in (first, second, third)] == [False, False, True]
        fork = await world.fork("fork", snapshot=second.hash, live=True)
        assert await _sum(fork) == 1
        assert await _sum(world) == 7
        lineage = await fork.lineage()
        assert lineage is not None
        assert (lineage.parent_snapshot_hash.hex(), lineage.height) == (second.hash, heights[0])
        assert await _sum(await world.fork("fork", snapshot=second.hash[:12].upper(), live=True)) == 1
        between = await (await world.fork("between", at=heights[1] - 1)).lineage()
        assert between is not None
        assert between.parent_snapshot_hash.hex() == second.hash  # the saved state below the fork
        assert [each.hash for each in await fork.snapshots()][:2] == [first.hash, second.hash]
        for wrong, why in (("ab", "8 characters"), (7, "named by its hash")):
            with pytest.raises(wl.BadInput, match=why):
                await world.fork("other", snapshot=wrong)  # type: ignore[arg-type]
        with pytest.raises(wl.NotFound, match="worldline snapshots w"):
            await world.fork("other", snapshot="00" * 32)
        with pytest.raises(wl.BadInput, match="give one of"):
            await world.fork("other", snapshot=first.hash, at=1)


@pytest.mark.parametrize("hosted", [True, False])
async def test_followers_see_each_state_that_is_saved_behind_its_entries(memory_kit: Kit, *, hosted: bool) -> None:
    app = program()
    host = await memory_kit.process(app)
    world, heights = await _saved(host.universe, app)
    watched = world if hosted else (await memory_kit.process()).universe.world("w")
    seen: list[tuple[str, int]] = []

    async def follow() -> None:
        async for each in watched.follow(above=0, snapshots=True):
            if isinstance(each, wl.ops.SnapshotRecord):
                assert each.baseline
                seen.append(("snapshot", each.height))
            elif isinstance(each, wl.Entry):
                seen.append(("entry", each.height))
            if len([kind for kind, _ in seen if kind == "snapshot"]) == 3:
                return

    following = asyncio.ensure_future(follow())
    await (await world.send(Add(8))).applied(20)
    await world.snapshot()
    await asyncio.wait_for(following, 20)
    top = (await world.head()).height
    assert [height for kind, height in seen if kind == "entry"] == list(range(1, top + 1))
    assert [height for kind, height in seen if kind == "snapshot"] == [*heights, top]
    for index, (kind, height) in enumerate(seen):
        assert kind == "entry" or ("entry", height) in seen[:index]
