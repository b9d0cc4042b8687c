from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.layers import scenario
from worldline.base import errors
from worldline.codec import digest
from worldline.keys import snapshots as keys
from worldline.layers import snapshots
from worldline.model import journal
from worldline.model import snapshots as snapshot
from worldline.store import kv, transact

AT = scenario.address()


def taken_at(step: int, *, seed: bytes = b"") -> snapshot.StateSnapshot:
    """A snapshot of the given step in a history of its own; two entries a step."""
    chain = digest.hash_parts(b"test", seed, bytes([step]))
    head = journal.Head(step, 2 * step, chain, chain, 1_000 + step) if step else journal.GENESIS
    root = digest.hash_parts(b"root", seed, bytes([step]))
    return snapshots.at_head(head, root=root, size=10 * step, program_hash=b"hash")


class Desk:
    """A world with snapshots."""

    def __init__(self) -> None:
        self.store = scenario.Store()
        self.store.create_world()

    def save(self, taken: snapshot.StateSnapshot) -> kv.Outcome:
        batch = kv.Batch()
        saved = snapshots.save(batch, AT, taken)
        assert saved == snapshots.StoredSnapshot(taken, keys.SNAPSHOT.pack(taken))
        return self.store.commit(batch)

    def saved(self, *, up_to: int, count_max: int = 100) -> list[snapshots.StoredSnapshot]:
        page = self.store.read(snapshots.latest_range(AT, up_to=up_to, count_max=count_max)).page(0)
        return snapshots.decode(AT, page)

    def baseline_raw(self) -> bytes:
        raw = self.store.read(snapshots.get_baseline(AT)).value(0)
        assert raw is not None
        return raw

    def baseline(self) -> snapshot.StateSnapshot:
        return snapshots.decode_baseline(self.baseline_raw())

    def promote(self, to: snapshots.StoredSnapshot, *, before_raw: bytes | None = None) -> kv.Outcome:
        batch = kv.Batch()
        snapshots.promote(batch, AT, before_raw=before_raw or self.baseline_raw(), to=to)
        return self.store.commit(batch)


class SnapshotsMachine(RuleBasedStateMachine):
    """Snapshots against a dict of them and the baseline's step."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.records = {0: self.desk.baseline()}
        self.baseline = 0
        self.dropped: list[snapshots.StoredSnapshot] = []
        self.stale_raws = [self.desk.baseline_raw()]

    @rule(step=st.integers(0, 6), seed=st.sampled_from([b"", b"another"]))
    def save(self, step: int, seed: bytes) -> None:
        outcome = self.desk.save(taken_at(step, seed=seed))
        assert isinstance(outcome, kv.Ok) == (step not in self.records)
        self.records.setdefault(step, taken_at(step, seed=seed))

    @rule(step=st.integers(0, 6))
    def promote_saved(self, step: int) -> None:
        found = [saved for saved in self.desk.saved(up_to=step, count_max=1) if saved.record.step == step]
        assert bool(found) == (step in self.records)
        if found:
            self._promote(found[0])

    @rule(step=st.integers(0, 6))
    def save_and_promote_at_once(self, step: int) -> None:
        if step <= self.baseline:
            return
        batch = kv.Batch()
        saved = snapshots.save(batch, AT, taken_at(step))
        snapshots.promote(batch, AT, before_raw=self.desk.baseline_raw(), to=saved)
        if isinstance(self.desk.store.commit(batch), kv.Ok):
            assert step not in self.records
            self.records[step] = saved.record
            self._promoted(step)
        else:
            assert step in self.records

    @rule(step=st.integers(1, 6))
    def drop(self, step: int) -> None:
        """What retention will do: to any snapshot but the baseline."""
        if step in self.records and step != self.baseline:
            self.dropped.append(self.desk.saved(up_to=step, count_max=1)[0])
            self.desk.store.erase([keys.snapshot_key(AT, step)])
            del self.records[step]

    @precondition(lambda self: self.dropped)
    @rule(data=st.data())
    def promote_dropped(self, data: st.DataObject) -> None:
        """A snapshot that is gone, or was saved anew with other content, cannot become the baseline."""
        gone = data.draw(st.sampled_from(self.dropped))
        if gone.record.step > self.baseline and self.records.get(gone.record.step) != gone.record:
            outcome = self.desk.promote(gone)
            assert isinstance(outcome, kv.Conflict)
            assert [key for key, _ in outcome.found] == [keys.snapshot_key(AT, gone.record.step)]

    @precondition(lambda self: self.baseline > 0)
    @rule(data=st.data())
    def promote_with_a_stale_baseline(self, data: st.DataObject) -> None:
        stale = data.draw(st.sampled_from(self.stale_raws[:-1]))
        self.save(7, b"")
        if self.baseline < 7:
            assert isinstance(self.desk.promote(self.desk.saved(up_to=7)[0], before_raw=stale), kv.Conflict)

    @rule(up_to=st.integers(-1, 7), count_max=st.integers(1, 4))
    def latest(self, up_to: int, count_max: int) -> None:
        expected = [self.records[step] for step in sorted(self.records, reverse=True) if step <= up_to]
        assert [saved.record for saved in self.desk.saved(up_to=up_to, count_max=count_max)] == expected[:count_max]

    @invariant()
    def the_baseline_is_a_snapshot_that_is_there(self) -> None:
        assert self.desk.baseline() == self.records[self.baseline]

    def _promote(self, saved: snapshots.StoredSnapshot) -> None:
        if saved.record.step <= self.baseline:
            with pytest.raises(errors.BadInput, match="cannot move back"):
                self.desk.promote(saved)
        else:
            assert isinstance(self.desk.promote(saved), kv.Ok)
            self._promoted(saved.record.step)

    def _promoted(self, step: int) -> None:
        assert step > self.baseline
        self.baseline = step
        self.stale_raws.append(self.desk.baseline_raw())


TestSnapshotsMachine = SnapshotsMachine.TestCase
TestSnapshotsMachine.settings = settings(max_examples=60, stateful_step_count=30)


def test_every_world_has_a_baseline_from_birth() -> None:
    desk = Desk()
    assert (desk.baseline().step, desk.baseline().height) == (0, 0)
    assert desk.saved(up_to=0) == [snapshots.StoredSnapshot(desk.baseline(), keys.SNAPSHOT.pack(desk.baseline()))]


def test_a_world_that_does_not_exist_has_none() -> None:
    with pytest.raises(errors.NotFound):
        snapshots.decode_baseline(None)


def test_a_snapshot_stands_where_the_head_stood() -> None:
    head = journal.Head(3, 7, bytes(range(32)), bytes(32), 99)
    taken = snapshots.at_head(head, root=bytes(range(1, 33)), size=5, program_hash=b"hash")
    assert taken == snapshot.StateSnapshot(3, 7, bytes(range(32)), bytes(range(1, 33)), 5, b"hash", 99)
    assert snapshots.head_of(taken, state=bytes(32)) == head


def test_a_snapshot_is_saved_only_once() -> None:
    desk = Desk()
    assert isinstance(desk.save(taken_at(2)), kv.Ok)
    before = desk.store.everything()
    for again in (taken_at(2), taken_at(2, seed=b"another")):
        assert isinstance(desk.save(again), kv.Conflict)
        assert desk.store.everything() == before


def test_a_batch_that_saves_one_snapshot_cannot_promote_another_of_that_step() -> None:
    batch = kv.Batch()
    snapshots.save(batch, AT, taken_at(2))
    other = taken_at(2, seed=b"another")
    with pytest.raises(AssertionError, match="another snapshot of that step"):
        snapshots.promote(
            batch, AT, before_raw=Desk().baseline_raw(), to=snapshots.StoredSnapshot(other, keys.SNAPSHOT.pack(other))
        )


def test_a_recorded_snapshot_is_expected_as_it_was_read() -> None:
    """Not as this release would pack it: a record from before a field was added has other bytes."""
    desk = Desk()
    desk.save(taken_at(2))
    [saved] = desk.saved(up_to=2, count_max=1)
    batch = kv.Batch()
    snapshots.promote(
        batch, AT, before_raw=desk.baseline_raw(), to=snapshots.StoredSnapshot(saved.record, b"older bytes")
    )
    assert batch.expects[keys.snapshot_key(AT, 2)] == b"older bytes"


@pytest.mark.parametrize("plan", [["lost"], ["applied"], ["late"]])
def test_lost_answers_save_and_promote_once(plan: list[str]) -> None:
    desk = Desk()
    unsure = scenario.Unsure(desk.store.engine, plan)
    batch = kv.Batch()
    saved = snapshots.save(batch, AT, taken_at(4))
    snapshots.promote(batch, AT, before_raw=desk.baseline_raw(), to=saved)
    [outcome] = scenario.now(transact.commit(unsure, desk.store.env, batch))
    assert isinstance(outcome, kv.Ok)
    assert desk.baseline() == taken_at(4)


def test_damage_is_noticed() -> None:
    desk = Desk()
    desk.save(taken_at(2))
    [saved] = desk.saved(up_to=2, count_max=1)
    key = keys.snapshot_key(AT, 2)
    wrong = [
        (key, scenario.flipped(saved.raw)),
        (key, saved.raw[:-1]),
        (key, desk.baseline_raw()),
        (keys.snapshot_key(AT, 3), saved.raw),
        (keys.snapshot_key(scenario.address(1), 2), saved.raw),
        (keys.baseline_key(AT), saved.raw),
    ]
    for row in wrong:
        with pytest.raises(errors.DecodeError):
            snapshots.decode(AT, kv.Page([row], more=False, stable=kv.ZERO_STAMP))
    with pytest.raises(errors.DecodeError):
        snapshots.decode_baseline(saved.raw)
