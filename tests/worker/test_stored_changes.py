"""What steps change, through a worker's cycles: bounded batches, blobs before the commit, and all of it read back."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests.kits.kit import Kit
from tests.layers.histories import noise
from tests.worker.test_budgets import drained, fill
from worldline.base import limits
from worldline.kernel import step as kernel_step
from worldline.kernel.machine import Machine
from worldline.kernel.parts import StepParts
from worldline.keys import cas as cas_keys
from worldline.keys import journal as journal_keys
from worldline.layers.history import history_line, step_reader
from worldline.model import change, state_digest, step_records
from worldline.model.change import Row
from worldline.runtime import world_restore
from worldline.store import kv
from worldline.worker import step_run as cycle_steps

app = wl.Program("p")


@dataclass(frozen=True)
class Put:
    number: int


@app.reducer()
@dataclass
class Count:
    count: int = 0

    @wl.on
    def put(self, event: Put) -> None:
        self.count += 1


class Changing:
    """The kernel's step, with changes of its own making: of every step a row that fits, of some a large one, which
    grows.
    """

    def __init__(self) -> None:
        self.states: dict[int, bytes] = {}
        self.rows: dict[bytes, Row] = {}

    def step(
        self, machine: Machine, given: step_records.Input, context: step_records.StepContext, parts: StepParts
    ) -> step_records.Stepped:
        self.states.setdefault(context.step - 1, machine.state)
        stepped = kernel_step.step(machine, given, context, parts)
        changes = [change.put(b"\x00%06d" % context.step, Row(noise(15_000, context.step), b"placed"))]
        if context.step % 10 == 0:
            before = self.rows.get(b"\x01large")
            grown = (noise(30_000) if before is None else before.meaning) + noise(100, context.step)
            base = None if before is None else before.meaning
            changes.append(change.put(b"\x01large", Row(grown), base=base))
        self.rows |= {each.key: each.row for each in changes if each.row is not None}
        state = state_digest.digests(self.states[context.step - 1], changes)[0]
        self.states[context.step] = state
        covered = state_digest.changes_digest(changes)
        return msgspec.structs.replace(stepped, changes=changes, covered=covered, plain=b"", state=state)


async def test_changes_are_committed_in_bounded_batches(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    changing = Changing()
    monkeypatch.setattr(cycle_steps, "kernel_step", SimpleNamespace(step=changing.step))
    async with memory_kit.hosting(app) as universe:
        connection = universe._connection
        engine = connection.store.engine
        world = await universe.create("w", app)
        at = await world._handle.address()
        sizes: list[int] = []
        missing: list[bytes] = []
        commit = engine.commit

        async def counted(*batches: kv.Batch) -> Any:
            for batch in batches:
                if journal_keys.head_key(at) in batch.puts:
                    sizes.append(sum(len(key) + len(put.value) for key, put in batch.puts.items()))
                    missing.extend(await unstored(engine, at.universe, at, batch))
            return await commit(*batches)

        monkeypatch.setattr(engine, "commit", counted)
        await fill(universe, at, [Put(number) for number in range(300)])
        await drained(universe, at)
        assert sum(sizes) > limits.BATCH_BYTES_MAX, "more than one commit could take"
        assert max(sizes) < limits.BATCH_BYTES_MAX // 2
        assert not missing
        material = await world_restore.gather(engine, connection.blobs, at)
        start, rows = world_restore.standing(material.baseline, material.base)
        assert step_reader.fold(start, material.steps, rows, material.loaded) == material.head
        assert material.head.step == 300
        found = dict(rows.items())
        assert {key: found[key] for key in changing.rows} == changing.rows
        assert 1 < len(material.loaded) <= 4, "the large row: its first image, and one after each sixteen deltas"


async def unstored(engine: kv.Engine, universe: Any, at: Any, batch: kv.Batch) -> list[bytes]:
    """The blobs that the changes in a batch need and that are not in the store before it."""
    items = sorted((key, put.value) for key, put in batch.puts.items() if key.startswith(journal_keys.frame_prefix(at)))
    first = journal_keys.frame_height(at, items[0][0]) - len(journal_keys.unpack_frame(items[0][1]).entries)
    reader = step_reader.StepReader(history_line.HistoryLine(at), above=first)
    addresses = [of for each in reader.take(items) for of in step_reader.needed(each)]
    read = await engine.read(*(kv.Get(cas_keys.blob_key(universe, of)) for of in addresses))
    return [of for index, of in enumerate(addresses) if read.value(index) is None]
