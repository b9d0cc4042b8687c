"""Bringing a world back runs none of its code: histories drawn from seeds, with code that raises wherever it is called.

The histories are lives of random programs in memory, written into a store as a worker would have; then every function
and class of the program is made to raise, and each world is restored from its rows and changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, NoReturn

import pytest

import worldline as wl
from tests import options
from tests.kernel import test_random_programs as programs
from tests.kits.kit import Kit
from worldline import testing
from worldline.codec import structs
from worldline.kernel import state_rows
from worldline.kernel.machine import Machine
from worldline.keys import journal as journal_keys
from worldline.keys import snapshots as snapshot_keys
from worldline.layers import blobs as blob_layer
from worldline.layers import journal as journals
from worldline.layers import snapshots as snapshot_layer
from worldline.layers.history import journal_file, saved_state
from worldline.model import ids, journal
from worldline.model import snapshots as snapshot_model
from worldline.model.change import Row
from worldline.runtime import world_restore
from worldline.store import kv
from worldline.store.objects import memory_objects as objects_memory

HISTORIES = options.number("histories")
LEAVES: list[Callable[[Random], list[Any]]] = [
    lambda draw: ["effect", draw.randint(0, 9)],
    lambda draw: ["sleep", draw.randint(0, 12)],
    lambda draw: ["wait", draw.choice([None, 3]), draw.randint(0, 1)],
    lambda draw: ["gather", [draw.randint(0, 9) for _ in range(draw.randint(0, 4))]],
    lambda draw: ["start effect", draw.randint(0, 9)],
    lambda draw: ["emit", draw.randint(0, 9)],
    lambda draw: ["after", draw.randint(0, 12)],
    lambda draw: [draw.choice(["await", "give up", "raise", "again", "state", "draw"])],
]


class History:
    """One life: where it is, what was exported of it, and the rows that it ended with."""

    def __init__(
        self, exported: journal_file.ExportedJournal, head: journal.Head, rows: list[tuple[bytes, Row]]
    ) -> None:
        self.exported = exported
        self.head = head
        self.rows = rows


def plan(draw: Random, depth: int = 0) -> list[Any]:
    made: list[Any] = [draw.choice(LEAVES)(draw) for _ in range(draw.randint(1, 4))]
    if depth < 2 and draw.random() < 0.5:
        inner = plan(draw, depth + 1)
        made.append(
            draw.choice(
                [
                    ["scope", draw.choice([None, 5]), draw.random() < 0.5, inner, draw.choice([None, 4])],
                    ["children", [inner, plan(draw, depth + 1)]],
                    ["start", inner],
                    ["try", inner, plan(draw, depth + 1)],
                ]
            )
        )
    return made


def acts(draw: Random) -> list[Any]:
    made: list[Any] = [["run", plan(draw)]]
    for _ in range(draw.randint(2, 7)):
        made.append(
            draw.choice(
                [
                    ["run", plan(draw)],
                    ["send", draw.randint(0, 9), None],
                    ["cancel", draw.randint(0, 2)],
                    ["advance", draw.randint(0, 12)],
                    ["ask", draw.randint(0, 2)],
                ]
            )
        )
    return made


def lived(seed: int) -> History:
    draw = Random(seed)
    script = wl.Script().on(programs.outside, programs.answer)
    with testing.world(programs.app, script, seed=seed, shuffle=True, drops=False, twice=False) as world:
        programs.live(world, acts(draw), until=draw.choice([0, 3, 300]))
        exported = world._actor.life.export(str(seed))
        return History(exported, world.head, state_rows.rows_of(world.machine))


@pytest.fixture(scope="module")
def histories() -> list[History]:
    return [lived(seed) for seed in range(HISTORIES)]


async def write(engine: kv.Engine, blobs: blob_layer.Blobs, at: ids.Address, history: History) -> None:
    """The journal as a worker would have left it, above the baseline of a new world."""
    exported = history.exported
    for data in exported.blobs.values():
        await blobs.put(data)
    machine = Machine(programs.app)
    state = saved_state.whole(machine.state, state_rows.rows_of(machine))
    root = (await saved_state.save(blobs, state)).root
    born = snapshot_model.StateSnapshot(0, 0, journal.GENESIS.chain, root, state.header.size, programs.app.hash, 0)
    batch = kv.Batch()
    batch.absent(journal_keys.head_key(at))
    batch.put(journal_keys.head_key(at), journals.pack_head(journal.GENESIS))
    saved = snapshot_layer.save(batch, at, born)
    batch.put(snapshot_keys.baseline_key(at), snapshot_keys.BASELINE.pack(saved.record))
    steps = kv.Batch()
    sealed = journals.SealedSteps(
        journal.GENESIS,
        list(exported.entries),
        [structs.encode(entry) for entry in exported.entries],
        history.head,
        [each.stored for each in exported.changed],
    )
    journals.append(steps, at, sealed, before_raw=journals.pack_head(journal.GENESIS))
    assert [type(outcome) for outcome in await engine.commit(batch)] == [kv.Ok]
    assert [type(outcome) for outcome in await engine.commit(steps)] == [kv.Ok]


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, all that the user wrote raises."""

    def raises(*_: object, **__: object) -> NoReturn:
        raise AssertionError("user code ran while a world was brought back")

    for flow in programs.app.workflows.values():
        monkeypatch.setattr(flow, "function", raises)
    for effect in programs.app.effects.values():
        monkeypatch.setattr(effect, "function", raises)
    for cls in (programs.Heard, programs.Ping, programs.Count):
        for name in ("__init__", "__eq__", "ping", "count"):
            if name in vars(cls):
                monkeypatch.setattr(cls, name, raises)


async def test_every_history_comes_back_without_its_code(
    kit: Kit, histories: list[History], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await kit.engine()
    universe = ids.UniverseId(b"u" * 16)
    blobs = blob_layer.Blobs(engine, objects_memory.MemoryObjects(kit.env), kit.env, universe)
    homes = [ids.Address(universe, ids.WorldId(number.to_bytes(16, "big"))) for number in range(1, HISTORIES + 1)]
    await asyncio.gather(*(write(engine, blobs, at, history) for at, history in zip(homes, histories, strict=True)))
    forbid(monkeypatch)
    steps = 0
    with ThreadPoolExecutor(1) as executor:
        for at, history in zip(homes, histories, strict=True):
            restored = await world_restore.restore(engine, blobs, programs.app, at, executor)
            assert restored.head == history.head
            assert restored.machine.state == history.head.state
            assert state_rows.rows_of(restored.machine) == history.rows
            steps += restored.head.step
    assert steps > 5 * HISTORIES
