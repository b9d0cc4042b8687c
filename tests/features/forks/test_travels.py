"""Drawn histories on real stores: worlds forked anywhere under every policy, forks of forks, both sides run, reverted
and compared. Every digest, every row, every retained snapshot and every difference is that of the model (`travels`).
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from tests import aio, options
from tests.features.diff.test_diff_histories import check_cells, check_runs
from tests.kits import fixtures, kit, travels
from tests.kits.travels import Model, Tree
from worldline.features.diff.records import Diff
from worldline.inspect import doctor, verify
from worldline.kernel import state_rows, user_values
from worldline.layers import blobs as blob_layer
from worldline.layers.history import saved_state, step_reader
from worldline.model import row_keys
from worldline.model.journal import Kind
from worldline.model.rows import Rows
from worldline.runtime import world_reader, world_restore

HISTORIES = {
    "memory": options.number("travels_memory"),
    "lmdb": options.number("travels_lmdb"),
    "postgres": options.number("travels_postgres"),
}
SETTINGS = kit.settings(worker={"snapshot_idle_ms": 30, "snapshot_entries": 25})

NUMBERS = st.integers(0, 9)
PARTS = st.floats(0, 1)
SHORT = st.integers(0, 4)
WORLDS = st.sampled_from([-1, -1, *range(travels.TREE_MAX)])  # the youngest more often
LEAVES = st.one_of(
    st.tuples(st.just("effect"), NUMBERS),
    st.tuples(st.just("effect"), NUMBERS),
    st.tuples(st.just("effects"), st.lists(NUMBERS, max_size=3)),
    st.tuples(st.just("sleep"), SHORT),
    st.tuples(st.just("wait"), st.none() | SHORT),
    st.tuples(st.just("question"), NUMBERS),
    st.tuples(st.just("message"), NUMBERS),
    st.tuples(st.just("emit"), NUMBERS),
    st.sampled_from([("draw",), ("raise",)]),
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    plans = st.lists(inner, max_size=3)
    return st.one_of(
        st.tuples(st.just("child"), plans),
        st.tuples(st.just("start"), plans),
        st.tuples(st.just("in time"), SHORT, plans),
    )


PLANS = st.lists(st.recursive(LEAVES, nested, max_leaves=6), min_size=1, max_size=4)
POLICIES = st.sampled_from(["drop", "reissue", "share", "script"])
FORK = st.tuples(st.just("fork"), WORLDS, st.none() | PARTS, POLICIES, st.booleans(), st.booleans())
REVERT = st.tuples(st.just("revert"), WORLDS, PARTS, st.sampled_from(["drop", "reissue"]))
RUN = st.tuples(st.just("run"), WORLDS, PLANS)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), WORLDS, NUMBERS),
        RUN,
        st.tuples(st.just("ask"), WORLDS, NUMBERS),
        st.tuples(st.just("cancel"), WORLDS, st.integers(1, 3)),
        st.tuples(st.just("answer"), WORLDS, NUMBERS),
        st.tuples(st.just("rest"), WORLDS, SHORT),
        st.tuples(st.just("bank"), WORLDS, st.booleans()),
        st.tuples(st.sampled_from(["drop", "save", "gate"]), WORLDS),
        FORK,
    ),
    max_size=4,
)


@st.composite
def histories(draw: st.DrawFn) -> list[Any]:
    """At least two forks and a revert, and something before and behind each: a run, which may have something open."""
    acts = [*draw(ACTS), draw(RUN)]
    for each in (FORK, FORK, REVERT):
        acts = [*acts, draw(each), draw(RUN), *draw(ACTS)]
    return acts


@pytest.mark.parametrize("engine", fixtures.ENGINES)
def test_everything_is_what_the_model_says(engine: str, tmp_path: Path) -> None:
    numbers = iter(range(10**9))

    # No two lives are the same.
    @hypothesis.settings(max_examples=HISTORIES[engine], phases=[hypothesis.Phase.generate])
    @hypothesis.given(histories(), st.lists(st.tuples(WORLDS, WORLDS, PARTS, PARTS), min_size=2, max_size=4))
    def lives(acts: list[Any], compared: list[Any]) -> None:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        aio.run(life(fixtures.make(engine, folder), acts, compared))

    lives()


async def life(store: kit.Kit, acts: list[Any], compared: list[Any]) -> None:
    async with contextlib.aclosing(store):
        process = await store.process(travels.app, settings=SETTINGS)
        tree = Tree(process)
        await tree.begin()
        await tree.live(acts)
        await tree.stop()
        models = [await travels.model_of(branch) for branch in tree.branches]
        await process.close()
        # Another process, which has nothing of them in memory.
        client = await store.process()
        for model in models:
            await check_world(client, model)
            check_forked(model, models)
            check_reverts(model)
        assert (await doctor.examine(client.universe._connection, repair=False)).findings == []
        for left, right, at, to in compared:
            await check_diff(client, models[left % len(models)], models[right % len(models)], at, to)
        await client.close()


async def check_world(client: kit.Process, model: Model) -> None:
    """The state at the head and at every snapshot that is kept, and the head as each snapshot leads to it."""
    connection = client.universe._connection
    world, engine, at = client.universe.world(model.branch.world.name), client.engine, model.branch.at
    assert await world.head() == model.heads[-1]
    entries = await world.journal(limit=1_000_000)
    loaded = await world_restore.load_referenced(connection.blobs, entries)
    assert [world_restore.filled(entry, loaded) for entry in entries] == model.entries
    rows, head = await world._handle.rows_at(model.heads[-1].height)
    assert (dict(rows.items()), head) == (model.rows[-1], model.heads[-1])
    line = await world_reader.line_of(engine, at)
    steps = await world_restore.read_steps(engine, connection.blobs, line, above=0, up_to=head.height)
    await check_steps(connection.blobs, steps, model)
    kept = await verify.records(connection, line)
    assert kept[0].step == 0, "so short a history is kept whole"
    for record in kept:
        saved = await saved_state.load(connection.blobs, record.root)
        assert (saved.state, dict(saved.rows())) == (model.heads[record.step].state, model.rows[record.step])
        material = await world_restore.gather(engine, connection.blobs, at, baseline=record)
        restored = await asyncio.to_thread(world_restore.build, material, travels.app)
        assert (restored.head, restored.machine.state) == (model.heads[-1], model.heads[-1].state)
        assert dict(state_rows.rows_of(restored.machine)) == model.rows[-1]
        restored.machine.close()


async def check_steps(blobs: blob_layer.Blobs, steps: list[step_reader.StoredStep], model: Model) -> None:
    """The rows at the end of every step, as the stored changes lead to them."""
    head, rows = model.heads[0], Rows(sorted(model.rows[0].items()))
    assert [step.step for step in steps] == [*range(1, len(model.heads))]
    for step in steps:
        loaded: dict[bytes, bytes] = {}
        head = step_reader.fold(head, await world_restore.load_changes(blobs, [step], loaded), rows, loaded)
        assert (head, dict(rows.items())) == (model.heads[step.step], model.rows[step.step])


def check_forked(model: Model, models: list[Model]) -> None:
    """Up to where it was forked, a world is its parent, and has settled above whatever was open."""
    parent = model.branch.parent
    if parent is None:
        return
    [before] = [each for each in models if each.branch is parent]
    step = before.step_at(model.branch.height)
    assert model.heads[: step + 1] == before.heads[: step + 1]
    assert model.rows[step] == before.rows[step]
    machine = model.machine(-1)
    assert not machine.unfinished
    assert all(each.step > step for each in machine.work.open.values()), "what was open has a fate, or another name"


# What does not go back, and what becomes of work that is open then and now.
_STAYS = (row_keys.RUN_COUNT, row_keys.WORK_COUNT, row_keys.PROGRAM, row_keys.BRANCH)
_OTHER = (row_keys.SCRIPT, row_keys.CLOSING)


def check_reverts(model: Model) -> None:
    """A step that takes a world back leaves the rows of the step that it says."""
    for entry in model.entries:
        if entry.kind is Kind.REVERTED:
            step, height = user_values.load(tuple[int, int], entry.payload)
            assert model.heads[step].height == height
            then, now = model.rows[step], model.rows[entry.step]
            assert _comparable(now) == _comparable(then)


def _comparable(rows: travels.Rows) -> travels.Rows:
    return {key: row for key, row in rows.items() if key not in _STAYS and not key.startswith(_OTHER)}


async def check_diff(client: kit.Process, left: Model, right: Model, at: float, to: float) -> None:
    """Against both states, whole."""
    heights = [int(part * model.heads[-1].height) for model, part in ((left, at), (right, to))]
    mine, theirs = left.step_at(heights[0]), right.step_at(heights[1])
    since = left.common(right, mine, theirs)
    ours, others = (client.universe.world(each.branch.world.name) for each in (left, right))
    found = await ours.diff(others, at=heights[0], to=heights[1])
    start = left.heads[since].height
    assert (found.step, found.height) == (since, start)
    assert found.ancestor in _names(left) & _names(right)
    for side, model, step in ((found.entries.left, left, mine), (found.entries.right, right, theirs)):
        height = model.heads[step].height
        kinds: dict[str, int] = {}
        for entry in model.entries[start:height]:
            name = entry.kind.name.lower()
            kinds[name] = kinds.get(name, 0) + 1
        assert (side.world, side.step, side.height) == (model.branch.world.name, step, height)
        assert (side.count, side.kinds) == (height - start, dict(sorted(kinds.items())))
    machines = left.machine(mine), right.machine(theirs)
    check_cells(found, *machines)
    check_runs(found, *machines)
    check_effects(found, left, right, start, (mine, theirs))


def _names(model: Model) -> set[str]:
    return {each.world.name for each in travels.path(model.branch)}


def check_effects(found: Diff, left: Model, right: Model, start: int, steps: tuple[int, int]) -> None:
    """Every effect that one side alone has asked for since the ancestor is said, and none that neither has."""
    asked = []
    for model, step in zip((left, right), steps, strict=True):
        entries = model.entries[start : model.heads[step].height]
        requests = [user_values.load(list[Any], each.payload) for each in entries if each.kind is Kind.EFFECT_REQUESTED]
        asked.append({(run, op + 1) for _, name, run, op, *_ in requests if not name.startswith("worldline.")})
    said = {(each.run, each.operation) for each in found.effects}
    assert asked[0] ^ asked[1] <= said
