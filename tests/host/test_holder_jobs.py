"""What features bring to processes that run worlds: jobs beside the steps, rules over steps, signed receipts.

A host has them from the list that its store carries, and does without those that nothing brings.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.features.compaction import compacting
from tests.features.compaction.compacting import Added, Go, Stored
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.base.env import FixedEnv
from worldline.features.anchors import anchor_signature
from worldline.features.compaction.job import Compactions
from worldline.features.proofs.job import Proofs
from worldline.host.feature_list import FEATURES
from worldline.layers.snapshots import StoredSnapshot
from worldline.model import ids
from worldline.model.snapshots import StateSnapshot
from worldline.runtime.feature import Feature
from worldline.runtime.holder_job import HolderJob, SupersededSnapshots
from worldline.worker import state_saving

Carry = Callable[[tuple[Feature, ...]], None]
AT = ids.Address(ids.UniverseId(bytes(16)), ids.WorldId(bytes(16)))
TAKEN = StateSnapshot(5, 9, bytes(32), bytes(32), 1, b"", 0)


@pytest.fixture
def carry(monkeypatch: pytest.MonkeyPatch) -> Carry:
    """Have stores carry other features."""
    return lambda features: monkeypatch.setattr(kits, "FEATURES", features)


def without(*names: str) -> tuple[Feature, ...]:
    return tuple(each for each in FEATURES if each.name not in names)


@pytest.mark.parametrize("reverse", [False, True])
async def test_jobs_are_made_in_the_order_of_the_features(memory_kit: Kit, carry: Carry, reverse: bool) -> None:
    carry(FEATURES[::-1] if reverse else FEATURES)
    process = await memory_kit.process(wl.Program("p"), settings=kits.settings(janitor={"prove_ms": 600}))
    made = [Proofs, Compactions] if reverse else [Compactions, Proofs]
    assert [type(each) for each in process.host.jobs] == made
    await process.close()
    client = await memory_kit.process()
    assert client.universe._connection.host is None
    await memory_kit.aclose()


def test_one_feature_brings_what_the_core_asks_once() -> None:
    assert [each.name for each in FEATURES if each.step_rules is not None] == ["policy"]
    assert [each.name for each in FEATURES if each.receipts is not None] == ["receipts"]


async def test_worlds_run_without_those_features(memory_kit: Kit, carry: Carry) -> None:
    """Then no snapshot goes, and no rule is read."""
    app = compacting.program()
    by_hand = compacting.by_hand(segment_margin=1_000)
    carry(without("compaction", "proofs", "policy", "receipts"))
    process = await memory_kit.process(app, settings=by_hand)
    assert process.host.jobs == ()
    world = await compacting.busy(process, app, rounds=4)
    stored = await Stored.of(process.universe, world)
    assert len(await stored.snapshots()) == 5
    await wl.Universe(process.universe._connection).add_rule("deny", "effect", names="echo")
    assert process.host.dump().diverged == []
    assert process.host.levels()["worldline_worlds_diverged"] == 0
    run = await world.start(app.workflows["wait"]("y"), id="allowed")
    await world.send(Go("y"))
    assert await run.result(20) == "5000 and y"
    await process.close()
    carry(FEATURES)
    process = await memory_kit.process(app, settings=by_hand)
    world = process.universe.world("w")
    with pytest.raises(wl.RunFailed, match="may not use echo"):
        await world.run(app.workflows["wait"]("y"), timeout=20)
    await world.send(Added("k0"))
    await world.snapshot()
    assert len(await (await Stored.of(process.universe, world)).snapshots()) == 2
    await process.close()
    await memory_kit.aclose()


@pytest.mark.parametrize("part", ["adapter", "worker"])
async def test_keys_of_receipts_are_not_passed_over(memory_kit: Kit, carry: Carry, tmp_path: Path, part: str) -> None:
    carry(without("receipts"))
    made = anchor_signature.new_key(FixedEnv(1))
    made.write(tmp_path / "key")
    changes: dict[str, dict[str, Any]] = {"adapter": {"receipt_key": str(tmp_path / "key")}}
    if part == "worker":
        changes["worker"] = {"receipt_keys": made.public}
    with pytest.raises(AssertionError, match="no feature signs receipts"):
        await memory_kit.process(wl.Program("p"), settings=kits.settings(**changes))
    await memory_kit.aclose()


class Keeping(HolderJob):
    """Says, if anything, that one snapshot goes."""

    def __init__(self, step: int | None) -> None:
        self._step = step

    async def superseded(self, at: ids.Address, taken: StateSnapshot) -> SupersededSnapshots | None:
        assert (at, taken) == (AT, TAKEN)
        return None if self._step is None else SupersededSnapshots([old(self._step)])


def old(step: int) -> StoredSnapshot:
    return StoredSnapshot(StateSnapshot(step, step, bytes(32), bytes(32), 1, b"", 0), b"")


async def test_the_first_job_that_answers_says_which_snapshots_go() -> None:
    for steps, going in [((), []), ((None, None), []), ((None, 3), [old(3)]), ((2, 3), [old(2)])]:
        jobs = [Keeping(step) for step in steps]
        assert (await state_saving._superseded(jobs, AT, TAKEN)).snapshots == going


async def test_a_job_that_says_nothing_does_nothing() -> None:
    job = HolderJob()
    job.stop()
    await job.close()
    assert (job.loop, job.diverged, job.labels(), await job.superseded(AT, TAKEN)) == (None, {}, {}, None)
