from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.layers import engines, scenario
from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.keys import journal as journal_keys
from worldline.keys import leases as lease_keys
from worldline.keys import snapshots as snapshot_keys
from worldline.keys import worlds as keys
from worldline.layers import snapshots, worlds
from worldline.model import ids, journal, leases
from worldline.model import world_records as model
from worldline.store import kv, transact

Status = model.Status
UNIVERSE = scenario.UNIVERSE
OFTEN = (Status.PAUSED, Status.ARCHIVED)  # the world must not be deleted before anything has happened to it
NAMES = ["a", "a/b", "zoë"]
BASELINE = snapshots.at_head(journal.GENESIS, root=bytes(32), size=0, program_hash=scenario.PROGRAM_HASH)


def create(
    batch: kv.Batch,
    number: int,
    name: str,
    *,
    labels: dict[str, str] | None = None,
    program: str = "program",
    universe: ids.UniverseId = UNIVERSE,
) -> worlds.WorldRecord:
    return worlds.create(
        batch,
        scenario.address(number, universe=universe),
        name=name,
        program=program,
        program_hash=scenario.PROGRAM_HASH,
        labels=labels or {},
        baseline=BASELINE,
        time_us=7,
    )


def listing(
    store: scenario.Store, *, count_max: int, universe: ids.UniverseId = UNIVERSE
) -> list[tuple[ids.Address, model.WorldMeta]]:
    """The whole list, page by page."""
    found: list[tuple[ids.Address, model.WorldMeta]] = []
    more = True
    while more:
        after = found[-1][0].world if found else None
        page = store.read(worlds.list_range(universe, after=after, count_max=count_max)).page(0)
        listed = worlds.listed(universe, page)
        assert not found or not listed or listed[0][0] > found[-1][0], "a page goes back"
        found += listed
        more = page.more
    return found


def name_raw(store: scenario.Store, name: str) -> bytes | None:
    return store.read(worlds.get_name(UNIVERSE, name)).value(0)


class WorldsMachine(RuleBasedStateMachine):
    """Worlds against a dict of metas (deleted ones too) and a dict of names."""

    def __init__(self) -> None:
        super().__init__()
        self.store = scenario.Store()
        self.metas: dict[int, model.WorldMeta] = {}
        self.names: dict[str, int] = {}
        self.read_before: list[worlds.WorldRecord] = []
        self.guards = 0
        self.create(0, NAMES[0], {})

    def find(self, number: int) -> worlds.WorldRecord | None:
        at = scenario.address(number)
        return worlds.find(at, self.store.read(worlds.get(at)).value(0))

    @rule(number=st.integers(0, 2), name=st.sampled_from(NAMES), labels=st.sampled_from([{}, {"tier": "1"}]))
    def create_another(self, number: int, name: str, labels: dict[str, str]) -> None:
        self.create(number, name, labels)

    def create(self, number: int, name: str, labels: dict[str, str]) -> None:
        batch = kv.Batch()
        made = create(batch, number, name, labels=labels)
        outcome = self.store.commit(batch)
        taken = [keys.meta_key(made.at)] * (number in self.metas) + [keys.name_key(UNIVERSE, name)] * (
            name in self.names
        )
        if isinstance(outcome, kv.Conflict):
            assert sorted(taken) == [key for key, _ in outcome.found]
            assert taken
        else:
            assert not taken
            self.metas[number] = made.meta
            self.names[name] = number
            self.read_before.append(made)

    @rule(
        number=st.integers(0, 2),
        status=st.sampled_from([None, *Status, *OFTEN, *OFTEN]),
        labels=st.sampled_from([None, {}, {"eu": ""}]),
        program=st.sampled_from([None, ("other", b"hash")]),
    )
    def change(
        self, number: int, status: Status | None, labels: dict[str, str] | None, program: tuple[str, bytes] | None
    ) -> None:
        world = self.find(number)
        assert (world is None) == (number not in self.metas or self.metas[number].status is Status.DELETED)
        if world is None:
            return
        batch = kv.Batch()
        before = self.metas[number]
        if status not in (None, before.status, *model.TRANSITIONS[before.status]) or status is Status.DELETED:
            with pytest.raises(errors.Closed, match="cannot become"):
                worlds.change(batch, world, status=status, labels=labels, program=program)
            assert not batch.expects
            return
        changed = worlds.change(batch, world, status=status, labels=labels, program=program)
        self.store.ok(batch)
        self.metas[number] = model.WorldMeta(
            before.name,
            before.program if program is None else program[0],
            before.program_hash if program is None else program[1],
            before.status if status is None else status,
            before.labels if labels is None else labels,
            before.created_us,
            before.revision + 1,
        )
        assert changed.meta == self.metas[number]
        self.read_before.append(changed)

    @rule(number=st.integers(0, 2), name=st.sampled_from(NAMES))
    def rename(self, number: int, name: str) -> None:
        world = self.find(number)
        raw = None if world is None else name_raw(self.store, world.meta.name)
        if world is None or raw is None:
            return
        batch = kv.Batch()
        if name == world.meta.name or self.names[world.meta.name] != number:
            with pytest.raises((errors.Exists, errors.NotFound)):
                worlds.rename(batch, world, name, raw=raw)
            return
        renamed = worlds.rename(batch, world, name, raw=raw)
        if isinstance(self.store.commit(batch), kv.Ok):
            assert name not in self.names
            del self.names[world.meta.name]
            self.names[name] = number
            self.metas[number] = msgspec.structs.replace(world.meta, name=name, revision=world.meta.revision + 1)
            assert renamed.meta == self.metas[number]
        else:
            assert name in self.names

    @rule(number=st.integers(0, 2), name=st.sampled_from(NAMES))
    def point(self, number: int, name: str) -> None:
        world = self.find(number)
        if world is None:
            return
        batch = kv.Batch()
        if self.names.get(name) == number:
            with pytest.raises(errors.Exists, match="points to"):
                worlds.point_name(batch, UNIVERSE, name, world, raw=name_raw(self.store, name))
        else:
            worlds.point_name(batch, UNIVERSE, name, world, raw=name_raw(self.store, name))
            self.store.ok(batch)
            self.names[name] = number

    @rule(name=st.sampled_from(NAMES))
    def free(self, name: str) -> None:
        raw = name_raw(self.store, name)
        if raw is not None:
            batch = kv.Batch()
            worlds.free_name(batch, UNIVERSE, name, raw=raw)
            self.store.ok(batch)
            del self.names[name]

    @rule(number=st.integers(0, 2))
    def delete_with_its_name(self, number: int) -> None:
        """In one batch; the name is free at once, the id never again."""
        world = self.find(number)
        raw = None if world is None else name_raw(self.store, world.meta.name)
        if world is None or raw is None or self.names[world.meta.name] != number:
            return
        batch = kv.Batch()
        deleted = worlds.bury(batch, world)
        worlds.free_name(batch, UNIVERSE, world.meta.name, raw=raw)
        self.store.ok(batch)
        self.metas[number] = deleted.meta
        del self.names[world.meta.name]

    @precondition(lambda self: self.read_before)
    @rule(data=st.data())
    def produce(self, data: st.DataObject) -> None:
        """A producer that read a world some time ago loses if anything about it has changed."""
        world = data.draw(st.sampled_from(self.read_before))
        self.guards += 1
        batch = kv.Batch()
        batch.absent(b"guard%d" % self.guards)
        batch.put(b"guard%d" % self.guards, b"")
        if world.meta.status not in (Status.ACTIVE, Status.PAUSED):
            with pytest.raises(errors.Closed, match="takes no input"):
                worlds.expect_open(batch, world)
            return
        worlds.expect_open(batch, world)
        outcome = self.store.commit(batch)
        now = next(meta for number, meta in self.metas.items() if scenario.address(number) == world.at)
        assert isinstance(outcome, kv.Ok) == (now == world.meta)

    @precondition(lambda self: self.read_before)
    @rule(data=st.data())
    def change_late(self, data: st.DataObject) -> None:
        """A change made from what was read before somebody else's is lost."""
        world = data.draw(st.sampled_from(self.read_before))
        now = next(meta for number, meta in self.metas.items() if scenario.address(number) == world.at)
        if now != world.meta and world.meta.status is not Status.DELETED:
            batch = kv.Batch()
            worlds.change(batch, world, labels={"late": "1"})
            self.store.conflict(batch)

    @invariant()
    def every_world_is_as_it_should_be(self) -> None:
        for number, meta in self.metas.items():
            world = self.find(number)
            if meta.status is Status.DELETED:
                assert world is None
                with pytest.raises(errors.NotFound):
                    self.store.world(scenario.address(number))
            else:
                assert world is not None
                assert world.meta == meta
                assert keys.META.pack(meta) == world.raw

    @invariant()
    def the_list_holds_what_is_not_deleted(self) -> None:
        alive = {scenario.address(n): meta for n, meta in self.metas.items() if meta.status is not Status.DELETED}
        for count_max in (1, 2, 100):
            assert listing(self.store, count_max=count_max) == sorted(alive.items())

    @invariant()
    def names_point_where_they_should(self) -> None:
        for name in NAMES:
            number = self.names.get(name)
            expected = None if number is None else scenario.address(number)
            assert worlds.named(UNIVERSE, name_raw(self.store, name)) == expected


TestWorldsMachine = WorldsMachine.TestCase
TestWorldsMachine.settings = settings(max_examples=60, stateful_step_count=30)


def test_a_new_world_has_everything_it_needs() -> None:
    store = scenario.Store()
    batch = kv.Batch()
    world = create(batch, 1, "alice", labels={"tier": "1"})
    store.ok(batch)
    at = scenario.address(1)
    meta = model.WorldMeta("alice", "program", scenario.PROGRAM_HASH, Status.ACTIVE, {"tier": "1"}, 7)
    assert store.everything() == {
        keys.meta_key(at): keys.META.pack(meta),
        keys.index_key(at): keys.INDEX.pack(meta),
        keys.name_key(UNIVERSE, "alice"): keys.NAME.pack(keys.NameRecord(at.world)),
        lease_keys.epoch_key(at): lease_keys.EPOCH.pack(leases.Epoch(0, b"")),
        journal_keys.head_key(at): journal_keys.HEAD.pack(journal.GENESIS),
        snapshot_keys.snapshot_key(at, 0): snapshot_keys.SNAPSHOT.pack(BASELINE),
        snapshot_keys.baseline_key(at): snapshot_keys.BASELINE.pack(BASELINE),
    }
    assert store.world(at) == world


def test_the_list_of_one_universe_holds_no_world_of_another() -> None:
    store = scenario.Store()
    for number in range(3):
        for universe in (UNIVERSE, scenario.OTHER_UNIVERSE):
            store.create_world(number, universe=universe)
    for universe in (UNIVERSE, scenario.OTHER_UNIVERSE):
        found = [at for at, _ in listing(store, count_max=2, universe=universe)]
        assert found == [scenario.address(number, universe=universe) for number in range(3)]


def test_a_world_that_was_never_there() -> None:
    at = scenario.address(1)
    assert worlds.find(at, None) is None
    with pytest.raises(errors.NotFound, match=at.world.hex()):
        worlds.decode(at, None)
    assert worlds.named(UNIVERSE, None) is None


MANY = {f"label-{number}": "x" for number in range(limits.LABELS_MAX + 1)}


@pytest.mark.parametrize(
    ("labels", "good"),
    [
        ({}, True),
        ({"a": ""}, True),
        ({"a": "b c"}, True),
        (dict(list(MANY.items())[:-1]), True),
        (MANY, False),
        ({"": "a"}, False),
        ({"a\n": "b"}, False),
        ({"a": "b\n"}, False),
        ({"a" * 129: "b"}, False),
        ({"a": "b" * 129}, False),
    ],
)
def test_labels_are_bounded(labels: dict[str, str], good: bool) -> None:
    store = scenario.Store()
    world = store.create_world()
    if good:
        create(kv.Batch(), 1, "a", labels=labels)
        batch = kv.Batch()
        worlds.change(batch, world, labels=labels)
        store.ok(batch)
        assert store.world(world.at).meta.labels == labels
    else:
        with pytest.raises(errors.BadInput):
            create(kv.Batch(), 1, "a", labels=labels)
        with pytest.raises(errors.BadInput):
            worlds.change(kv.Batch(), world, labels=labels)


@pytest.mark.parametrize("bad", ["", " a", "a/", "a" * 129])
def test_bad_names_are_refused_everywhere(bad: str) -> None:
    store = scenario.Store()
    world = store.create_world()
    raw = name_raw(store, world.meta.name)
    assert raw is not None
    with pytest.raises(errors.BadInput):
        create(kv.Batch(), 1, bad)
    with pytest.raises(errors.BadInput):
        create(kv.Batch(), 1, "a", program=bad)
    with pytest.raises(errors.BadInput):
        worlds.change(kv.Batch(), world, program=(bad, b""))
    with pytest.raises(errors.BadInput):
        worlds.change(kv.Batch(), world, name=bad)
    with pytest.raises(errors.BadInput):
        worlds.rename(kv.Batch(), world, bad, raw=raw)
    with pytest.raises(errors.BadInput):
        worlds.get_name(UNIVERSE, bad)


@pytest.mark.parametrize("before", [Status.ACTIVE, Status.PAUSED, Status.ARCHIVED])
@pytest.mark.parametrize("after", Status)
def test_a_status_goes_only_where_it_may(before: Status, after: Status) -> None:
    store = scenario.Store()
    at = store.create_world().at
    world = store.set_status(at, before)
    batch = kv.Batch()
    if before is Status.DELETED:
        with pytest.raises(errors.Closed, match="is deleted"):
            worlds.change(batch, world, status=after)
        with pytest.raises(errors.Closed, match="is deleted already"):
            worlds.bury(batch, world)
        assert not batch.expects
    elif after is Status.DELETED:
        assert worlds.bury(batch, world).meta == model.WorldMeta(
            "", "", b"", Status.DELETED, {}, world.meta.created_us, world.meta.revision + 1
        )
        store.ok(batch)
    elif after is before or after in model.TRANSITIONS[before]:
        assert worlds.change(batch, world, status=after).meta.status is after
        store.ok(batch)
    else:
        with pytest.raises(errors.Closed, match=f"is {before.name.lower()}; it cannot become {after.name.lower()}"):
            worlds.change(batch, world, status=after)
        assert not batch.expects


@pytest.mark.parametrize("status", Status)
def test_only_open_worlds_take_input(status: Status) -> None:
    store = scenario.Store()
    world = store.set_status(store.create_world().at, status)
    batch = kv.Batch()
    if status in (Status.ACTIVE, Status.PAUSED):
        worlds.expect_open(batch, world)
        assert batch.expects == {keys.meta_key(world.at): world.raw}
    else:
        with pytest.raises(errors.Closed, match=f"is {status.name.lower()} and takes no input"):
            worlds.expect_open(batch, world)


def test_a_world_is_not_renamed_to_what_it_is_called_nor_by_a_name_of_another() -> None:
    store = scenario.Store()
    first, second = store.create_world(1), store.create_world(2)
    raws = [name_raw(store, world.meta.name) for world in (first, second)]
    assert raws[0] is not None
    assert raws[1] is not None
    with pytest.raises(errors.Exists, match="already"):
        worlds.rename(kv.Batch(), first, first.meta.name, raw=raws[0])
    with pytest.raises(errors.NotFound, match="does not point to"):
        worlds.rename(kv.Batch(), first, "new", raw=raws[1])


def test_a_world_begins_at_the_beginning() -> None:
    later = msgspec.structs.replace(BASELINE, step=0, height=1)
    with pytest.raises(AssertionError):
        worlds.create(
            kv.Batch(),
            scenario.address(1),
            name="a",
            program="p",
            program_hash=b"",
            labels={},
            baseline=later,
            time_us=0,
        )


def test_labels_given_are_copied() -> None:
    given = {"a": "1"}
    world = create(kv.Batch(), 1, "a", labels=given)
    given["a"] = "2"
    assert world.meta.labels == {"a": "1"}


def test_nothing_of_a_deleted_world_changes() -> None:
    store = scenario.Store()
    world = store.create_world()
    deleted = store.set_status(world.at, Status.DELETED)
    for wanted in ({"labels": {"a": "1"}}, {"status": Status.DELETED}, {"status": Status.ACTIVE}, {"name": "b"}):
        with pytest.raises(errors.Closed, match="is deleted"):
            worlds.change(kv.Batch(), deleted, **wanted)


def test_going_back_to_an_earlier_status_is_still_a_change() -> None:
    """Otherwise a producer that read before would not notice that there was a change in between."""
    store = scenario.Store()
    first = store.create_world()
    store.set_status(first.at, Status.PAUSED)
    again = store.set_status(first.at, Status.ACTIVE)
    assert again.meta.status is first.meta.status
    assert again.raw != first.raw


def test_a_change_of_nothing_is_a_change() -> None:
    store = scenario.Store()
    world = store.create_world()
    batch = kv.Batch()
    changed = worlds.change(batch, world)
    store.ok(batch)
    assert changed.meta == msgspec.structs.replace(world.meta, revision=1)


def test_a_name_is_not_given_to_a_world_deleted_meanwhile() -> None:
    store = scenario.Store()
    world = store.create_world()
    batch = kv.Batch()
    worlds.point_name(batch, UNIVERSE, "alias", world, raw=None)
    store.set_status(world.at, Status.DELETED)
    assert [key for key, _ in store.conflict(batch).found] == [keys.meta_key(world.at)]


def test_a_name_moved_meanwhile_is_neither_freed_nor_moved_again() -> None:
    store = scenario.Store()
    first, second = store.create_world(1), store.create_world(2)
    raw = name_raw(store, first.meta.name)
    assert raw is not None
    late = [kv.Batch(), kv.Batch(), kv.Batch()]
    worlds.free_name(late[0], UNIVERSE, first.meta.name, raw=raw)
    worlds.rename(late[1], first, "new", raw=raw)
    worlds.point_name(late[2], UNIVERSE, first.meta.name, store.create_world(3), raw=raw)
    moving = kv.Batch()
    worlds.point_name(moving, UNIVERSE, first.meta.name, second, raw=raw)
    store.ok(moving)
    for batch in late:
        assert [key for key, _ in store.conflict(batch).found] == [keys.name_key(UNIVERSE, first.meta.name)]


def test_a_name_stays_in_its_universe() -> None:
    store = scenario.Store()
    stranger = store.create_world(1, universe=scenario.OTHER_UNIVERSE)
    with pytest.raises(AssertionError):
        worlds.point_name(kv.Batch(), UNIVERSE, "alias", stranger, raw=None)


@pytest.mark.parametrize("name", engines.NAMES)
async def test_of_many_creators_of_one_name_one_wins(name: str, tmp_path: Path) -> None:
    env = envs.FixedEnv()
    async with engines.opened(name, tmp_path, env) as engine:
        batches = [kv.Batch() for _ in range(8)]
        for number, batch in enumerate(batches):
            create(batch, number, "wanted")
        outcomes = [outcome for [outcome] in await asyncio.gather(*(engine.commit(batch) for batch in batches))]
        winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, kv.Ok)]
        assert len(winners) == 1
        read = await engine.read(worlds.get_name(UNIVERSE, "wanted"), worlds.list_range(UNIVERSE, count_max=100))
        assert worlds.named(UNIVERSE, read.value(0)) == scenario.address(winners[0])
        assert [at for at, _ in worlds.listed(UNIVERSE, read.page(1))] == [scenario.address(winners[0])]
        for outcome in outcomes:
            if isinstance(outcome, kv.Conflict):
                assert outcome.found == ((keys.name_key(UNIVERSE, "wanted"), read.value(0)),)


@pytest.mark.parametrize("plan", [["lost"], ["applied"], ["late"], ["applied", "lost"]])
def test_lost_answers_create_and_rename_once(plan: list[str]) -> None:
    store = scenario.Store()
    batch = kv.Batch()
    world = create(batch, 1, "a")
    [made] = scenario.now(transact.commit(scenario.Unsure(store.engine, plan), store.env, batch))
    assert isinstance(made, kv.Ok)
    raw = name_raw(store, "a")
    assert raw is not None
    batch = kv.Batch()
    renamed = worlds.rename(batch, world, "b", raw=raw)
    [moved] = scenario.now(transact.commit(scenario.Unsure(store.engine, plan), store.env, batch))
    assert isinstance(moved, kv.Ok)
    assert store.world(world.at) == renamed
    assert (name_raw(store, "a"), name_raw(store, "b")) == (None, raw)


def test_a_creator_that_lost_is_told_so_also_after_a_lost_answer() -> None:
    store = scenario.Store()
    mine, other = kv.Batch(), kv.Batch()
    create(mine, 1, "a")
    create(other, 2, "a")
    slow = engines.Meddled(store.engine, lambda: store.engine.commit(other), lost=True)
    [outcome] = scenario.now(transact.commit(slow, store.env, mine))
    assert isinstance(outcome, kv.Conflict)
    assert [at for at, _ in listing(store, count_max=10)] == [scenario.address(2)]


def test_damage_is_noticed() -> None:
    store = scenario.Store()
    world = store.create_world()
    for bad in (scenario.flipped(world.raw), world.raw[:-1], keys.INDEX.pack(world.meta), b""):
        with pytest.raises(errors.DecodeError):
            worlds.find(world.at, bad)
        with pytest.raises(errors.DecodeError):
            worlds.named(UNIVERSE, bad)
    index = keys.index_key(world.at)
    for row in [(index, world.raw), (index, b""), (keys.meta_key(world.at), keys.INDEX.pack(world.meta))]:
        with pytest.raises(errors.DecodeError):
            worlds.listed(UNIVERSE, kv.Page([row], more=False, stable=kv.ZERO_STAMP))
