"""The store as it was at one moment: every read of a frozen state sees what was there when it was taken."""

from __future__ import annotations

import pytest

from tests.conformance import batches
from tests.conformance.kits import Kit
from worldline.base import errors
from worldline.store import kv


async def _rewrite(engine: kv.Engine, before: bytes, after: bytes) -> None:
    batch = kv.Batch()
    batch.expect(b"a", before)
    batch.put(b"a", after)
    batch.delete(b"c")
    batch.append(b"q/", after)
    batch.put(b"new" + after, after)
    [outcome] = await engine.commit(batch)
    assert isinstance(outcome, kv.Ok)


async def test_what_is_written_later_is_not_seen(kit: Kit) -> None:
    engine, other = await kit.open(), await kit.open()
    await batches.fill(engine, {b"a": b"0", b"b": b"0", b"c": b"0"})
    frozen = await kv.freeze(engine)
    for number in range(5):
        await _rewrite(other if number % 2 else engine, b"%d" % number, b"%d" % (number + 1))
        found = await frozen.read(kv.Get(b"a"), kv.Range(b"a", b"z"), kv.Range(b"a", b"z", count_max=1, reverse=True))
        assert found.value(0) == b"0"
        assert found.page(1).items == [(b"a", b"0"), (b"b", b"0"), (b"c", b"0")]
        assert found.page(2).items == [(b"c", b"0")]
    later = await kv.freeze(engine)
    assert (await later.read(kv.Get(b"a"))).value(0) == b"5"
    assert len((await later.read(kv.Range(b"q/", b"q0"))).page(0).items) == 5
    await later.close()
    await frozen.close()
    await frozen.close()
    assert (await engine.read(kv.Get(b"a"))).value(0) == b"5"


async def test_pages_of_a_frozen_state_go_on_where_the_last_one_ended(kit: Kit) -> None:
    engine = await kit.open()
    await batches.fill(engine, {b"k/%03d" % number: b"x" * 100 for number in range(60)})
    frozen = await kv.freeze(engine)
    batch = kv.Batch()
    batch.expect(b"k/000", b"x" * 100)
    batch.delete(b"k/000")
    batch.delete_range(b"k/001", b"l")
    assert isinstance((await engine.commit(batch))[0], kv.Ok)
    begin, seen, more = b"k/", [], True
    while more:
        page = (await frozen.read(kv.Range(begin, b"l", count_max=7))).page(0)
        seen += [key for key, _ in page.items]
        begin, more = page.items[-1][0] + b"\x00", page.more
    assert seen == [b"k/%03d" % number for number in range(60)]
    await frozen.close()


async def test_an_engine_that_is_closed_is_not_frozen(kit: Kit) -> None:
    engine = await kit.open()
    await engine.close()
    with pytest.raises(errors.StoreUnavailable):
        await kv.freeze(engine)


async def test_an_engine_that_cannot_says_so(kit: Kit) -> None:
    class Plain:
        pass

    with pytest.raises(errors.BadInput, match="cannot keep the store"):
        await kv.freeze(Plain())  # type: ignore[arg-type]


async def _appended(engine: kv.Engine, name: int) -> kv.Stamp:
    batch = batches.once(name)
    batch.append(b"q/", b"")
    [stamp] = (await batches.ok(engine, batch)).stamps
    return stamp


async def test_stamps_go_on_above_those_of_another_store(kit: Kit) -> None:
    engine = await kit.open()
    first = await _appended(engine, 1)
    above = kv.stamp(kv.stamp_version(first) + 10**15, 7)
    await kv.raise_stamps(engine, above)
    second = await _appended(engine, 2)
    assert second > above
    await kv.raise_stamps(engine, first)
    third = await _appended(engine, 3)
    assert third > second
    page = (await engine.read(kv.Range(b"q/", b"q0"))).page(0)
    assert [key[2:] for key, _ in page.items] == [first, second, third]
    assert page.stable > above
    other = await kit.open()
    assert await _appended(other, 4) > third
    with pytest.raises(errors.BadInput, match="stamps of another store"):
        await kv.raise_stamps(object(), above)  # type: ignore[arg-type]
