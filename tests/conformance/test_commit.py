"""One batch, or one call of several: conflicts, refusals, and that a batch is applied whole or not at all."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from tests.conformance import batches
from tests.conformance.kits import Kit
from worldline.base import errors, limits
from worldline.store import kv


async def test_a_created_key_is_there_and_cannot_be_created_again(kit: Kit) -> None:
    engine = await kit.open()
    assert await batches.get(engine, b"a") is None
    assert await batches.ok(engine, batches.create(b"a", b"1")) == kv.Ok(())
    assert await batches.get(engine, b"a") == b"1"
    assert await batches.conflict(engine, batches.create(b"a", b"2")) == kv.Conflict(((b"a", b"1"),))
    assert await batches.get(engine, b"a") == b"1"


async def test_a_conflict_names_the_failed_keys_only_and_in_key_order(kit: Kit) -> None:
    engine = await kit.open()
    await batches.fill(engine, {b"a": b"A", b"c": b"", b"d": b"D", b"\xff": b"F", b"f": b"6"})
    batch = kv.Batch()
    batch.expect(b"f", b"6")  # holds, not written
    batch.expect(b"\xff", b"G")  # another value, not written
    batch.expect(b"d", b"d")  # another value, written
    batch.put(b"d", b"new")
    batch.expect(b"c", b"C")  # the empty value
    batch.delete(b"c")
    batch.expect(b"b", b"")  # missing, which is not the empty value
    batch.put(b"b", b"new")
    batch.absent(b"a")  # there
    batch.put(b"a", b"new")
    batch.absent(b"e")  # holds
    batch.put(b"e", b"new")
    found = (await batches.conflict(engine, batch)).found
    assert found == ((b"a", b"A"), (b"b", None), (b"c", b""), (b"d", b"D"), (b"\xff", b"F"))


async def test_a_missing_key_and_an_unwritten_expectation_conflict_too(kit: Kit) -> None:
    engine = await kit.open()
    batch = batches.create(b"new", b"1")
    batch.expect(b"epoch", b"7")
    assert await batches.conflict(engine, batch) == kv.Conflict(((b"epoch", None),))
    await batches.ok(engine, batches.create(b"epoch", b"7"))
    await batches.ok(engine, batch)
    assert await batches.get(engine, b"epoch") == b"7"


async def test_nothing_of_a_batch_in_conflict_is_applied(kit: Kit) -> None:
    engine = await kit.open()
    before = {b"k/count": kv.counter_add(None, 5), b"k/delete": b"1", b"k/put": b"2", b"k/range/1": b"3"}
    await batches.fill(engine, before)
    batch = batches.replace(b"k/put", b"2", b"changed")
    batch.expect(b"k/epoch", b"missing")
    batch.delete(b"k/delete")
    batch.delete_range(b"k/range/", b"k/range0")
    batch.add(b"k/count", 1)
    batch.put(b"k/stamped", b"", stamp=batch.append(b"k/log/", b"x"))
    assert await batches.conflict(engine, batch) == kv.Conflict(((b"k/epoch", None),))
    assert await batches.scan(engine, b"k/") == before


async def test_of_batches_on_one_head_in_one_call_exactly_one_wins(kit: Kit) -> None:
    engine = await kit.open()
    await batches.ok(engine, batches.create(b"head", b"0"))
    rivals = []
    for rival in range(5):
        batch = batches.replace(b"head", b"0", b"won by %d" % rival)
        batch.append(b"log/", b"%d" % rival)
        batch.add(b"count", 1)
        rivals.append(batch)
    outcomes = await engine.commit(*rivals)
    [winner] = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, kv.Ok)]
    won = b"won by %d" % winner
    assert await batches.get(engine, b"head") == won
    assert [outcome for outcome in outcomes if not isinstance(outcome, kv.Ok)] == [kv.Conflict(((b"head", won),))] * 4
    assert list((await batches.scan(engine, b"log/")).values()) == [b"%d" % winner]
    assert await batches.counter(engine, b"count") == 1


async def test_of_creators_of_one_key_in_one_call_exactly_one_wins(kit: Kit) -> None:
    engine = await kit.open()
    outcomes = await engine.commit(*(batches.create(b"key", b"%d" % rival) for rival in range(7)))
    [winner] = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, kv.Ok)]
    assert await batches.get(engine, b"key") == b"%d" % winner
    lost = [outcome for outcome in outcomes if isinstance(outcome, kv.Conflict)]
    assert lost == [kv.Conflict(((b"key", b"%d" % winner),))] * 6


async def test_a_later_batch_of_a_call_sees_what_an_earlier_one_wrote(kit: Kit) -> None:
    engine = await kit.open()
    fenced = batches.once("fenced")
    fenced.expect(b"head", b"1")  # moved on by then, and not written by this batch
    first, second = batches.create(b"head", b"1"), batches.replace(b"head", b"1", b"2")
    outcomes = await engine.commit(first, second, fenced, batches.replace(b"head", b"2", b"3"))
    assert outcomes == [kv.Ok(()), kv.Ok(()), kv.Conflict(((b"head", b"2"),)), kv.Ok(())]
    assert await batches.get(engine, b"head") == b"3"
    cleared = kv.Batch()
    cleared.expect(b"head", b"3")
    cleared.delete_range(b"h", b"i")
    outcomes = await engine.commit(cleared, batches.create(b"head", b"again"))
    assert outcomes == [kv.Ok(()), kv.Ok(())]
    assert await batches.get(engine, b"head") == b"again"


async def test_a_fence_in_one_call_stops_what_it_fences(kit: Kit) -> None:
    """Two batches, each of which makes an expectation of the other false: never both."""
    engine = await kit.open()
    await batches.fill(engine, {b"x": b"0", b"y": b"0"})
    left = batches.replace(b"x", b"0", b"1")
    left.expect(b"y", b"0")
    right = batches.replace(b"y", b"0", b"1")
    right.expect(b"x", b"0")
    outcomes = await engine.commit(left, right)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict", "Ok"]
    assert sorted((await batches.scan(engine, b"x") | await batches.scan(engine, b"y")).values()) == [b"0", b"1"]


async def test_many_batches_in_one_call_have_their_outcomes_in_order(kit: Kit) -> None:
    engine = await kit.open()
    taken = range(0, 300, 3)
    await batches.fill(engine, {b"item/%03d" % index: b"taken" for index in taken})
    calls = []
    for index in range(300):
        batch = batches.create(b"item/%03d" % index, b"%d" % index)
        batch.put(b"first/%03d" % index, b"", stamp=batch.append(b"log/", b"%d" % index))
        if index % 2:
            batch.append(b"log/", b"%d again" % index)
        calls.append(batch)
    outcomes = await engine.commit(*calls)
    log = await batches.scan(engine, b"log/")
    first = await batches.scan(engine, b"first/")
    for index, outcome in enumerate(outcomes):
        if index in taken:
            assert outcome == kv.Conflict(((b"item/%03d" % index, b"taken"),))
            continue
        assert isinstance(outcome, kv.Ok)
        logged = [log.pop(b"log/" + stamp) for stamp in outcome.stamps]
        assert logged == [b"%d" % index, b"%d again" % index][: 1 + index % 2]
        assert first.pop(b"first/%03d" % index) == outcome.stamps[0]
    assert not log
    assert not first


async def test_batches_of_one_call_are_applied_in_order_also_if_one_conflicts(kit: Kit) -> None:
    """The first puts what the second expects, and is not applied; the third sees what the second has done."""
    engine = await kit.open()
    await batches.fill(engine, {b"a": b"old"})
    second = batches.create(b"b", b"")
    second.expect(b"a", b"old")
    calls = [batches.replace(b"a", b"other", b"old"), second, batches.create(b"b", b"again")]
    assert await engine.commit(*calls) == [kv.Conflict(((b"a", b"old"),)), kv.Ok(()), kv.Conflict(((b"b", b""),))]
    chain = [batches.replace(b"a", b"old", b"new"), batches.replace(b"a", b"new", b"old")] * 5
    assert await engine.commit(*chain) == [kv.Ok(())] * 10


async def test_a_call_without_batches_has_no_outcomes(kit: Kit) -> None:
    engine = await kit.open()
    assert await engine.commit() == []


async def test_the_same_batch_again_conflicts_and_shows_that_it_was_applied(kit: Kit) -> None:
    engine = await kit.open()
    await batches.fill(engine, {b"head": b"0", b"due": b"1", b"queue/1": b"q", b"epoch": b"4"})
    batch = batches.replace(b"head", b"0", b"digest")
    batch.expect(b"epoch", b"4")
    batch.expect(b"due", b"1")
    batch.delete(b"due")
    batch.expect(b"queue/1", b"q")
    batch.delete_range(b"queue/", b"queue0")
    batch.absent(b"id")
    batch.put(b"id", b"id:", stamp=batch.append(b"log/", b"x"))
    [stamp] = (await batches.ok(engine, batch)).stamps
    again = await batches.conflict(engine, batch)
    assert again.found == ((b"due", None), (b"head", b"digest"), (b"id", b"id:" + stamp), (b"queue/1", None))
    assert kv.applied_before(batch, again)
    assert await batches.scan(engine, b"log/") == {b"log/" + stamp: b"x"}


async def test_the_same_batch_twice_in_one_call_is_applied_once(kit: Kit) -> None:
    engine = await kit.open()
    batch = batches.create(b"id", b"token")
    batch.add(b"count", 1)
    first, second = await engine.commit(batch, batch)
    assert isinstance(first, kv.Ok)
    assert isinstance(second, kv.Conflict)
    assert kv.applied_before(batch, second)
    assert await batches.counter(engine, b"count") == 1


async def test_an_engine_leaves_the_batch_as_it_was(kit: Kit) -> None:
    engine = await kit.open()
    await batches.fill(engine, {b"a": b"1", b"d": b"2"})
    batch = batches.replace(b"a", b"1", b"2")
    batch.delete(b"d")
    batch.add(b"c", 3)
    batch.delete_range(b"r", b"s")
    batch.put(b"s", b"", stamp=batch.append(b"log/", b"x"))
    before = {name: copy.deepcopy(getattr(batch, name)) for name in kv.Batch.__slots__}
    order = {name: list(getattr(batch, name)) for name in kv.Batch.__slots__}
    await batches.ok(engine, batch)
    await batches.conflict(engine, batch)
    assert {name: getattr(batch, name) for name in kv.Batch.__slots__} == before
    assert {name: list(getattr(batch, name)) for name in kv.Batch.__slots__} == order


def _empty(batch: kv.Batch) -> None:
    pass


def _only_writes(batch: kv.Batch) -> None:
    batch.put(b"a", b"2")
    batch.delete(b"b")
    batch.add(b"c", 1)
    batch.append(b"log/", b"x")


def _unwritten_expectation(batch: kv.Batch) -> None:
    batch.expect(b"a", b"1")
    batch.put(b"b", b"2")


def _expectation_only(batch: kv.Batch) -> None:
    batch.expect(b"a", b"1")


def _put_of_the_same_value(batch: kv.Batch) -> None:
    batch.expect(b"a", b"1")
    batch.put(b"a", b"1")


def _counter_as_guard(batch: kv.Batch) -> None:
    batch.expect(b"c", kv.counter_add(None, 1))
    batch.add(b"c", 1)


def _range_beside_the_expectation(batch: kv.Batch) -> None:
    batch.expect(b"b", b"1")
    batch.delete_range(b"a", b"b")


def _absent_of_an_unwritten_key(batch: kv.Batch) -> None:
    batch.absent(b"fresh")
    batch.put(b"fresh", b"1")
    batch.absent(b"other")


def _absent_of_a_deleted_key(batch: kv.Batch) -> None:
    batch.absent(b"fresh")
    batch.delete(b"fresh")


def _absent_of_a_counter(batch: kv.Batch) -> None:
    batch.absent(b"c")
    batch.add(b"c", 1)


def _put_in_deleted_range(batch: kv.Batch) -> None:
    batch.absent(b"m")
    batch.put(b"m", b"1")
    batch.delete_range(b"m", b"n")


def _delete_in_deleted_range(batch: kv.Batch) -> None:
    batch.absent(b"fresh")
    batch.put(b"fresh", b"1")
    batch.delete(b"m")
    batch.delete_range(b"l", b"n")


def _counter_in_deleted_range(batch: kv.Batch) -> None:
    batch.absent(b"fresh")
    batch.put(b"fresh", b"1")
    batch.add(b"m", 1)
    batch.delete_range(b"l", b"n")


def _append_in_deleted_range(batch: kv.Batch) -> None:
    batch.absent(b"fresh")
    batch.put(b"fresh", b"1")
    batch.append(b"m", b"1")
    batch.delete_range(b"m\x00\x00\x00\x00\x00\x00\x00\x01", b"m\x00\x00\x00\x00\x00\x00\x00\x02")


def _empty_range(batch: kv.Batch) -> None:
    batch.absent(b"fresh")
    batch.put(b"fresh", b"1")
    batch.delete_range(b"m", b"m")


def _range_backwards(batch: kv.Batch) -> None:
    batch.absent(b"fresh")
    batch.put(b"fresh", b"1")
    batch.delete_range(b"n", b"m")


def _stamp_of_no_append(batch: kv.Batch) -> None:
    batch.absent(b"fresh")
    batch.put(b"fresh", b"1", stamp=0)


def _stamp_beyond_the_appends(batch: kv.Batch) -> None:
    batch.absent(b"fresh")
    batch.put(b"fresh", b"1", stamp=batch.append(b"log/", b"x") + 1)


def _stamp_below_the_appends(batch: kv.Batch) -> None:
    batch.absent(b"fresh")
    batch.put(b"fresh", b"1", stamp=batch.append(b"log/", b"x") - 1)


def _delta_too_large(batch: kv.Batch) -> None:
    batch.absent(b"fresh")
    batch.put(b"fresh", b"1")
    batch.add(b"c", 2**63 - 1)
    batch.add(b"c", 1)


def _delta_too_small(batch: kv.Batch) -> None:
    batch.absent(b"fresh")
    batch.put(b"fresh", b"1")
    batch.add(b"c", -(2**63) - 1)


def _empty_key(batch: kv.Batch) -> None:
    batch.absent(b"")
    batch.put(b"", b"1")


def _empty_prefix(batch: kv.Batch) -> None:
    batch.absent(b"fresh")
    batch.put(b"fresh", b"1")
    batch.append(b"", b"1")


def _value_too_large(batch: kv.Batch) -> None:
    batch.absent(b"fresh")
    batch.put(b"fresh", bytes(limits.VALUE_BYTES_MAX + 1))


REFUSED: list[tuple[Callable[[kv.Batch], None], type[errors.BadInput]]] = [
    (_empty, errors.BatchRefused),
    (_only_writes, errors.BatchRefused),
    (_unwritten_expectation, errors.BatchRefused),
    (_expectation_only, errors.BatchRefused),
    (_put_of_the_same_value, errors.BatchRefused),
    (_counter_as_guard, errors.BatchRefused),
    (_range_beside_the_expectation, errors.BatchRefused),
    (_absent_of_an_unwritten_key, errors.BatchRefused),
    (_absent_of_a_deleted_key, errors.BatchRefused),
    (_absent_of_a_counter, errors.BatchRefused),
    (_put_in_deleted_range, errors.BatchRefused),
    (_delete_in_deleted_range, errors.BatchRefused),
    (_counter_in_deleted_range, errors.BatchRefused),
    (_append_in_deleted_range, errors.BatchRefused),
    (_empty_range, errors.BatchRefused),
    (_range_backwards, errors.BatchRefused),
    (_stamp_of_no_append, errors.BatchRefused),
    (_stamp_beyond_the_appends, errors.BatchRefused),
    (_stamp_below_the_appends, errors.BatchRefused),
    (_delta_too_large, errors.BatchRefused),
    (_delta_too_small, errors.BatchRefused),
    (_empty_key, errors.BatchRefused),
    (_empty_prefix, errors.BatchRefused),
    (_value_too_large, errors.TooLarge),
]


async def test_a_batch_that_breaks_a_rule_is_refused_with_its_whole_call(kit: Kit) -> None:
    engine = await kit.open()
    await batches.fill(engine, {b"a": b"1", b"b": b"1", b"m": b"1"})
    before = (await engine.read(kv.Range(b"\x00", b"\xff", 1000))).page(0).items
    for build, error in REFUSED:
        bad = kv.Batch()
        build(bad)
        for call in ([bad], [batches.create(b"good", b"1"), bad], [bad, batches.create(b"good", b"1")]):
            with pytest.raises(error):
                await engine.commit(*call)
            assert (await engine.read(kv.Range(b"\x00", b"\xff", 1000))).page(0).items == before, build.__name__
    await batches.ok(engine, batches.create(b"good", b"1"))


async def test_each_kind_of_guard_is_enough(kit: Kit) -> None:
    engine = await kit.open()
    await batches.fill(engine, {b"put": b"1", b"stamp": b"1", b"delete": b"1", b"range": b"1"})
    by_put = batches.replace(b"put", b"1", b"")
    by_stamp = kv.Batch()
    by_stamp.expect(b"stamp", b"1")
    by_stamp.put(b"stamp", b"1", stamp=by_stamp.append(b"log/", b""))
    by_delete = kv.Batch()
    by_delete.expect(b"delete", b"1")
    by_delete.delete(b"delete")
    by_range = kv.Batch()
    by_range.expect(b"range", b"1")
    by_range.delete_range(b"range", b"range\x00")
    for batch in (by_put, by_stamp, by_delete, by_range):
        await batches.ok(engine, batch)
        assert kv.applied_before(batch, await batches.conflict(engine, batch)), batch
