"""Garbage collection as batches: marks that overtake each other, holds, and blobs that are condemned and deleted."""

from __future__ import annotations

import pytest

from tests.layers.scenario import UNIVERSE, Store, ident
from worldline.base import errors, limits
from worldline.features.collection import batches as collection_batches
from worldline.keys import cas as cas_keys
from worldline.keys import chunks as chunk_keys
from worldline.layers import cas, chunks, universes
from worldline.model import blobs
from worldline.model.age import Age
from worldline.store import kv

ONE, TWO = ident("collector", 1), ident("collector", 2)
DATA = b"some bytes"
OF = cas.address(DATA)


AGE = Age()


class Desk:
    def __init__(self) -> None:
        self.store = Store()

    def state(self) -> collection_batches.CollectionState:
        read = self.store.read(*collection_batches.reads(UNIVERSE))
        return collection_batches.decode(UNIVERSE, read.value(0), read.value(1))

    def holds(self) -> collection_batches.HoldsRecord:
        return collection_batches.decode_holds(
            UNIVERSE, self.store.read(collection_batches.get_holds(UNIVERSE)).value(0)
        )

    def commit(self, batch: kv.Batch) -> bool:
        return isinstance(self.store.commit(batch), kv.Ok)

    def begin(
        self, collector: bytes = ONE, state: collection_batches.CollectionState | None = None
    ) -> collection_batches.CollectionState | None:
        batch = kv.Batch()
        made = collection_batches.begin(batch, state or self.state(), collector, time_us=self.store.time_us)
        return made if self.commit(batch) else None

    def end(self, state: collection_batches.CollectionState) -> collection_batches.CollectionState | None:
        batch = kv.Batch()
        made = collection_batches.end(batch, state, time_us=self.store.time_us, above=b"")
        return made if self.commit(batch) else None

    def mark(self) -> collection_batches.CollectionState:
        begun = self.begin()
        assert begun is not None
        ended = self.end(begun)
        assert ended is not None
        return ended

    def put(self, data: bytes = DATA, *, chunked: bool = False) -> bytes:
        """A blob of the present generation. Returns its record."""
        number = self.state().generation.number
        batch = kv.Batch()
        of, nonce = cas.address(data), ident("nonce")
        record = blobs.Blob(len(data), number, chunks=nonce) if chunked else blobs.Blob(len(data), number, inline=data)
        if chunked:
            chunks.put(batch, UNIVERSE, of, nonce, data)
        cas.publish(batch, UNIVERSE, of, record)
        assert self.commit(batch)
        raw = self.raw(of)
        assert raw is not None
        return raw

    def raw(self, of: bytes = OF) -> bytes | None:
        return self.store.value(cas_keys.blob_key(UNIVERSE, of))

    def condemn(self, state: collection_batches.CollectionState, raw: bytes, of: bytes = OF) -> bool:
        batch = kv.Batch()
        collection_batches.condemn(batch, state, of, raw, since_us=self.store.time_us, age_us=1)
        return self.commit(batch)

    def condemned(self) -> list[collection_batches.CondemnedRecord]:
        page = self.store.read(collection_batches.condemned_range(UNIVERSE, count_max=10)).page(0)
        return collection_batches.decode_condemned(UNIVERSE, page)

    def delete(self, raw: bytes, holds: collection_batches.HoldsRecord | None = None) -> bool:
        [found] = self.condemned()
        batch = kv.Batch()
        collection_batches.delete(batch, self.mark(), holds or self.holds(), found, raw)
        return self.commit(batch)

    def touch(self) -> None:
        raw = self.raw()
        assert raw is not None
        batch = kv.Batch()
        assert cas.touch(batch, UNIVERSE, OF, raw, generation=self.state().generation.number)
        assert self.commit(batch)

    def hold(
        self,
        id: bytes = ONE,
        *,
        ttl_ms: int = 1_000,
        holds: collection_batches.HoldsRecord | None = None,
        now: Age = AGE,
    ) -> bool:
        batch = kv.Batch()
        found = holds or self.holds()
        collection_batches.hold(batch, found, id, what="backup", time_us=self.store.time_us, now=now, ttl_ms=ttl_ms)
        return self.commit(batch)


def test_a_mark_begins_is_renewed_and_ends() -> None:
    desk = Desk()
    assert not desk.state().is_marking(desk.store.time_us)
    begun = desk.begin()
    assert begun is not None
    assert desk.state() == begun
    assert (begun.generation, begun.last and begun.last.collector) == (blobs.Generation(1, marking=True), ONE)
    assert begun.is_marking(desk.store.time_us)
    assert not begun.is_marking(desk.store.time_us + collection_batches.MARK_MS * 1000)
    batch = kv.Batch()
    renewed = collection_batches.renew(batch, begun, time_us=desk.store.time_us + 5)
    assert desk.commit(batch)
    assert renewed.is_marking(desk.store.time_us + collection_batches.MARK_MS * 1000)
    ended = desk.end(renewed)
    assert ended is not None
    assert desk.state() == ended
    assert (ended.generation, ended.is_marking(desk.store.time_us)) == (blobs.Generation(1), False)


def test_a_later_collector_overtakes_an_earlier_one() -> None:
    """What the earlier one still writes conflicts: its renewal, its end, and everything it condemns."""
    desk = Desk()
    raw = desk.put()
    before = desk.state()
    first = desk.begin(ONE)
    assert first is not None
    assert desk.begin(TWO, before) is None, "both began at the same generation"
    second = desk.begin(TWO)
    assert second is not None
    batch = kv.Batch()
    collection_batches.renew(batch, first, time_us=desk.store.time_us)
    assert not desk.commit(batch)
    assert desk.end(first) is None
    stale = collection_batches.end(kv.Batch(), first, time_us=1, above=b"")
    assert not desk.condemn(stale, raw)
    ended = desk.end(second)
    assert ended is not None
    assert desk.condemn(ended, raw)


def test_a_mark_whose_collector_is_gone_is_given_up() -> None:
    desk = Desk()
    begun = desk.begin()
    assert begun is not None
    batch = kv.Batch()
    collection_batches.give_up(batch, begun)
    assert desk.commit(batch)
    assert not desk.state().generation.marking
    assert desk.end(begun) is None


def test_who_removes_references_expects_that_there_is_no_mark() -> None:
    desk = Desk()
    for _ in range(2):  # before the first collection, and after one
        state = desk.state()
        batch = kv.Batch()
        collection_batches.expect_no_mark(batch, state)
        universes.expect_generation(batch, UNIVERSE, state.generation_raw)  # who publishes besides
        late = kv.Batch()
        collection_batches.expect_no_mark(late, state)
        for each in (batch, late):
            each.absent(b"key" + bytes([len(each.puts)]))
            each.put(b"key" + bytes([len(each.puts)]), b"")
        assert desk.commit(batch)
        desk.mark()
        assert not desk.commit(late)
        desk.store.erase([key for key in desk.store.everything() if key.startswith(b"key")])


def test_a_publisher_that_read_the_generation_before_a_mark_conflicts() -> None:
    desk = Desk()
    for expected in (None, desk.mark().generation_raw):
        batch = kv.Batch()
        if expected is None:
            desk.store.erase(list(desk.store.everything()))
        universes.expect_generation(batch, UNIVERSE, expected)
        batch.absent(b"reference")
        batch.put(b"reference", b"")
        desk.mark()
        assert not desk.commit(batch)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_condemned_blob_goes_with_its_chunks(chunked: bool) -> None:
    desk = Desk()
    raw = desk.put(chunked=chunked)
    state = desk.mark()
    assert desk.condemn(state, raw)
    assert not desk.condemn(state, raw), "once"
    assert desk.delete(raw)
    assert desk.raw() is None
    assert desk.condemned() == []
    begin, end = chunk_keys.chunks(UNIVERSE, OF, ident("nonce"))
    assert not any(begin <= key < end for key in desk.store.everything())


def test_a_blob_that_is_used_again_is_not_condemned() -> None:
    desk = Desk()
    raw = desk.put()
    state = desk.mark()
    desk.touch()
    assert not desk.condemn(state, raw)


def test_a_condemned_blob_that_is_used_again_is_not_deleted() -> None:
    """The re-check: the record that was condemned is expected by the very batch that deletes it."""
    desk = Desk()
    raw = desk.put()
    assert desk.condemn(desk.mark(), raw)
    desk.touch()
    assert not desk.delete(raw)
    changed = desk.raw()
    assert changed is not None
    with pytest.raises(AssertionError, match="used again"):
        desk.delete(changed)
    [found] = desk.condemned()
    batch = kv.Batch()
    collection_batches.spare(batch, UNIVERSE, found)
    assert desk.commit(batch)
    assert desk.raw() == changed


def test_nothing_is_deleted_while_a_hold_stands() -> None:
    desk = Desk()
    raw = desk.put()
    assert desk.condemn(desk.mark(), raw)
    before = desk.holds()
    assert desk.hold()
    assert not desk.delete(raw, before), "the hold has come since the holds were read"
    soon_us, later = desk.store.time_us + 1_000_000, Age(1_000_001)
    assert [each.what for each in desk.holds().standing(desk.store.time_us, later)] == ["backup"]
    assert [each.what for each in desk.holds().standing(soon_us, Age(1_000_000))] == ["backup"], "the clock lies"
    assert [each.what for each in desk.holds().standing(soon_us, Age(1_000_001, 1))] == ["backup"]
    assert desk.holds().standing(soon_us, later) == [], "expired"
    expired = desk.holds()
    assert desk.hold(ttl_ms=2_000), "renewed"
    assert not desk.delete(raw, expired), "it was renewed since the holds were read"
    batch = kv.Batch()
    assert collection_batches.release(batch, desk.holds(), ONE)
    assert desk.commit(batch)
    assert not collection_batches.release(kv.Batch(), desk.holds(), ONE)
    assert desk.delete(raw)


def test_the_first_hold_ever_stops_a_delete_that_read_no_record() -> None:
    desk = Desk()
    raw = desk.put()
    assert desk.condemn(desk.mark(), raw)
    before = desk.holds()
    assert before.raw is None
    assert desk.hold()
    assert not desk.delete(raw, before)


def test_holds_are_bounded_and_expired_ones_make_room() -> None:
    desk = Desk()
    for number in range(limits.HOLDS_MAX):
        assert desk.hold(ident("hold", number))
    with pytest.raises(errors.TooLarge):
        desk.hold(TWO)
    assert desk.hold(ident("hold", 0)), "a renewal needs no room"
    desk.store.env.advance_us(1_001_000)
    assert desk.hold(TWO, now=Age(1_001_000))
    assert len(desk.holds().record.holds) == 1


@pytest.mark.parametrize("ttl_ms", [0, -1, limits.HOLD_MS_MAX + 1])
def test_a_hold_has_a_bounded_life(ttl_ms: int) -> None:
    desk = Desk()
    with pytest.raises(errors.BadInput, match="renew it"):
        desk.hold(ttl_ms=ttl_ms)
    assert desk.store.everything() == {}
