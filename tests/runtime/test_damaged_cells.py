"""A cell that is not in memory, and whose stored bytes are damaged or missing: its world is refused as corrupt."""

from __future__ import annotations

from random import Random

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit, Process
from tests.runtime import test_cells_on_demand as large
from tests.runtime.test_cells_on_demand import Move, Put, Twin
from tests.worker import test_containment as containment
from worldline.inspect import why
from worldline.keys import cas as cas_keys
from worldline.layers import leases
from worldline.model import row_keys
from worldline.model.trie import paths
from worldline.model.world_records import Status
from worldline.observe import measures, sinks
from worldline.runtime import facts
from worldline.store import kv

CELL = "k123"


async def node_key(process: Process, world: wl.World) -> tuple[bytes, bytes]:
    """The key of the node in which the cell's row is saved, and its address."""
    held = await large.held_of(process, world)
    key, asking = row_keys.cell("Cell", CELL), paths.Paths(held.unsaved.root.address, [row_keys.cell("Cell", CELL)])
    address = held.unsaved.root.address
    while asking.wanted:
        [address] = asking.wanted
        asking.take(await held.blobs.get_many([address]))
    assert asking.row(key) is not None
    return cas_keys.blob_key(held.at.universe, address), address


async def write(engine: kv.Engine, key: bytes, value: bytes | None) -> bytes | None:
    """Put other bytes in the place of a record, or none. Returns those before."""
    raw = (await engine.read(kv.Get(key))).value(0)
    batch = kv.Batch()
    if raw is None:
        batch.absent(key)
    else:
        batch.expect(key, raw)
    if value is None:
        batch.delete(key)
    else:
        batch.put(key, value)
    assert isinstance((await engine.commit(batch))[0], kv.Ok)
    return raw


@pytest.mark.parametrize("how", ["flipped", "deleted"])
async def test_the_world_is_refused_and_goes_on_when_the_node_is_whole(memory_kit: Kit, how: str) -> None:
    app, twin = large.program(), Twin()
    meter = measures.Meter()
    observed = sinks.Observed(facts.Telling([("meter", meter.tell)]))
    process = await memory_kit.process(app, settings=kits.settings(worker=large.SMALL), observed=observed)
    world, other = await process.universe.ensure("w", app), await process.universe.ensure("other", app)
    await large.fill(world, twin)
    await world.snapshot()
    await large.live(world, twin, Random(1), 20)
    await world.snapshot()
    at = await world._handle.address()
    key, address = await node_key(process, world)
    raw = (await process.engine.read(kv.Get(key))).value(0)
    assert raw is not None
    await write(process.engine, key, None if how == "deleted" else raw[:-1] + bytes([raw[-1] ^ 1]))
    (await large.held_of(process, world)).machine.cells.cool(0)
    await world.send(Put(CELL, "later"))
    said = await containment.until_refused(process, at)
    assert said.startswith(f"cell Cell['{CELL}'] is damaged: node {address.hex()}, ")
    assert process.host.worlds._refusals._refused[at].kind == "corrupt"
    assert meter.value("worldline_worlds_refused_total", "corrupt") >= 1
    assert await kits.unread(process.engine, at) == 1
    assert (await other.state()) == {}  # the others go on
    await (await other.send(Put("x", "y"))).applied()

    async def free() -> bool:
        return (await process.engine.read(leases.get_holder(at))).value(0) is None

    await aio.until(free)

    async def told() -> bool:
        reasons = (await why.why(world._handle)).reasons
        return any(each.kind == "refused" and address.hex() in each.error for each in reasons)

    await aio.until(told)
    await write(process.engine, key, raw)
    await world.change(status=Status.PAUSED)
    await world.change(status=Status.ACTIVE)
    twin.put(CELL, "later")
    assert await world.ask(Move(CELL, "k1"), timeout=20) == len(twin.cells["k1"])
    assert (await world.state(app.reducers["Cell"].cls, CELL)).texts == twin.cells[CELL]
    await process.close()
