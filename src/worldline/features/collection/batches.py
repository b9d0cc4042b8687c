"""Garbage collection as batches: generations, marks, holds, and what happens to a blob that nothing refers to.

**The rule for publishers.** A batch that publishes a reference to a blob reads the generation first, then puts the
blob, which raises one that is there already to the generation, and expects the generation as it was read
(`universes.expect_generation`). A batch that publishes none pays nothing.

**The rule for removers.** While a mark is under way, nothing is removed from where references stay: frames,
snapshots, segments, lineages, whole worlds. A batch that takes some away expects that there is no mark
(`expect_no_mark`). Inputs are consumed all the time: the step that does so publishes what it keeps of them.

Then a mark may read in any order, and take its time. It begins by raising the generation. What is referred to at that
moment stays where it is until it was read, or is an input; what is published later has the new generation. So a blob
that was not marked, and whose record is of an older generation when the mark has ended, is one that nothing refers to,
and that nothing can refer to any more unless it is put again, which changes its record.

**What happens to it.** `condemn` expects the record, and that no other mark has begun. After a grace, and if another
mark has not found it either, `delete` expects the same record, that it is condemned, and that no hold stands. The
second mark is there for a reference that the first one has not read as it is stored. Re-check and delete are one batch,
so a blob that is put again is never lost, whenever that happens. Its chunks go with the record, its object afterwards:
its name ends in a nonce, so an object of the same bytes that was put meanwhile is another one.

**Grace 0** is safe for everything that is stored: no reference in the store depends on the grace. It is there for
readers that hold no lease: a reader that has read where a state is may find it gone if that state is dropped, condemned
and deleted before it has read on. Such a reader begins again, or says `NotFound`. `MARK_MS` is no safety either: a
collector that is late is not believed (`condemn` expects its generation).

**Holds.** While one stands, nothing is deleted: for a process that copies a store that is in use. It expires, unless it
is renewed, when its time has come by the store's clock and by the age of the universe (`layers/age.py`). The batch that
takes one changes the record that every delete expects.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.features.collection import keyspace as keys
from worldline.keys import cas as cas_keys
from worldline.keys import chunks as chunk_keys
from worldline.keys import universes as universe_keys
from worldline.layers import leases, universes
from worldline.model import blobs, ids
from worldline.model.age import Age
from worldline.store import kv

MARK_MS = 15_000  # a mark that was not renewed for so long may be ended by any process


# --- Marks ------------------------------------------------------------------------------------------------------------


class CollectionState(msgspec.Struct, frozen=True):
    """The generation of a universe and its last collection, as they were read."""

    universe: ids.UniverseId
    generation: blobs.Generation
    generation_raw: bytes | None
    last: blobs.Collection | None
    last_raw: bytes | None

    def is_marking(self, time_us: int) -> bool:
        """Whether a collector is at work. One that has said nothing for long does not count: it may be ended. So does
        one that spoke long ahead of now: the store's clock was set back since.
        """
        return (
            self.generation.marking and self.last is not None and abs(time_us - self.last.renewed_us) < MARK_MS * 1000
        )


def reads(universe: ids.UniverseId) -> tuple[kv.Get, kv.Get]:
    """What `decode` takes."""
    return kv.Get(universe_keys.generation_key(universe)), kv.Get(keys.collection_key(universe))


def decode(universe: ids.UniverseId, generation: bytes | None, last: bytes | None) -> CollectionState:
    found = universe_keys.GENERATION.get(generation)
    return CollectionState(universe, found or blobs.Generation(0), generation, keys.COLLECTION.get(last), last)


def begin(
    batch: kv.Batch,
    state: CollectionState,
    collector: bytes,
    *,
    time_us: int,
    life: leases.HeartbeatRecord | None = None,
) -> CollectionState:
    """Raise the generation: a mark begins, and every earlier collector is overtaken. Guard: the generation. `life`: the
    heartbeat of the process, if it has one.
    """
    # A partial collection left the addresses from here on: this one takes its turn there.
    above = b"" if state.last is None else state.last.above
    worker, incarnation = (b"", b"") if life is None else (life.worker, life.sign.incarnation)
    return _write(
        batch,
        state,
        blobs.Generation(state.generation.number + 1, marking=True),
        blobs.Collection(
            state.generation.number + 1,
            collector,
            time_us,
            time_us,
            above=above,
            worker=worker,
            incarnation=incarnation,
        ),
    )


def has_died(state: CollectionState, heartbeat: bytes | None, *, time_us: int) -> bool:
    """Whether the process whose mark is under way is gone, by the heartbeat that it has named."""
    assert state.last is not None
    life = leases.decode_heartbeat(ids.WorkerId(state.last.worker), heartbeat)
    # A new incarnation under the same worker id is another process: the one that marked is gone all the same.
    return life is None or life.sign.incarnation != state.last.incarnation or not life.alive(time_us)


def renew(batch: kv.Batch, state: CollectionState, *, time_us: int) -> CollectionState:
    """Say that the mark continues. Guard: the record of the collection, in which the time is another."""
    assert state.last is not None
    assert state.generation_raw is not None
    batch.expect(universe_keys.generation_key(state.universe), state.generation_raw)
    # A guard must change with its batch: the same time again would leave the record as it is.
    renewed_us = time_us if time_us != state.last.renewed_us else time_us + 1
    return _write(batch, state, state.generation, msgspec.structs.replace(state.last, renewed_us=renewed_us))


def end(batch: kv.Batch, state: CollectionState, *, time_us: int, above: bytes) -> CollectionState:
    """All that is referred to is marked. `above`: where the next collection begins. Guard: the generation."""
    assert state.last is not None
    assert state.generation.marking
    ended_us = max(1, time_us)
    ended = msgspec.structs.replace(state.last, renewed_us=ended_us, ended_us=ended_us, above=above)
    return _write(batch, state, blobs.Generation(state.generation.number), ended)


def give_up(batch: kv.Batch, state: CollectionState) -> None:
    """End a mark without a result: its own, or one whose collector is gone. Guard: the generation."""
    assert state.generation.marking
    assert state.generation_raw is not None
    key = universe_keys.generation_key(state.universe)
    batch.expect(key, state.generation_raw)
    batch.put(key, universe_keys.GENERATION.pack(blobs.Generation(state.generation.number + 1)))


def expect_no_mark(batch: kv.Batch, state: CollectionState) -> None:
    """For a batch that takes references away from where they stay. The caller has found that none is under way; one
    whose collector is gone is given up first, by a batch of its own.
    """
    assert not state.generation.marking
    universes.expect_generation(batch, state.universe, state.generation_raw)


def _write(
    batch: kv.Batch, state: CollectionState, generation: blobs.Generation, record: blobs.Collection
) -> CollectionState:
    generation_key, key = universe_keys.generation_key(state.universe), keys.collection_key(state.universe)
    generation_raw, raw = universe_keys.GENERATION.pack(generation), keys.COLLECTION.pack(record)
    # Both records are expected, also one that stays: another collector may have changed either since they were read.
    for each, before, after in ((generation_key, state.generation_raw, generation_raw), (key, state.last_raw, raw)):
        if before is None:
            batch.absent(each)
        else:
            batch.expect(each, before)
        if before != after:  # when a mark is renewed, its generation stays
            batch.put(each, after)
    return CollectionState(state.universe, generation, generation_raw, record, raw)


# --- Holds ------------------------------------------------------------------------------------------------------------


class HoldsRecord(msgspec.Struct, frozen=True):
    """The holds of a universe, as they were read."""

    universe: ids.UniverseId
    record: blobs.Holds
    raw: bytes | None

    def standing(self, time_us: int, now: Age) -> list[blobs.Hold]:
        """Those that have not expired, by the store's clock or by the age of the universe."""
        return [
            each
            for each in self.record.holds
            # Both clocks must have passed it: a store's clock that was set forward must not end a hold too early.
            if each.expires_us > time_us or not now.has_passed(0, since_us=each.expires_age_us)
        ]


def get_holds(universe: ids.UniverseId) -> kv.Get:
    return kv.Get(keys.holds_key(universe))


def decode_holds(universe: ids.UniverseId, raw: bytes | None) -> HoldsRecord:
    return HoldsRecord(universe, keys.HOLDS.get(raw) or blobs.Holds(0, []), raw)


def hold(batch: kv.Batch, holds: HoldsRecord, id: bytes, *, what: str, time_us: int, now: Age, ttl_ms: int) -> None:
    """Take a hold under a new id, or renew it: from this commit on nothing is deleted, until it is released or so much
    time has passed. Guard: the record of all holds. Those that have expired go.
    """
    if not 0 < ttl_ms <= limits.HOLD_MS_MAX:
        raise errors.BadInput(f"a hold stands for 1 to {limits.HOLD_MS_MAX} ms, not {ttl_ms}; renew it to keep it")
    wanted = blobs.Hold(
        ids.check_id(id, "the id of a hold"),
        time_us + ttl_ms * 1000,
        what[: limits.HOLD_CHARACTERS_MAX],
        now.age_us + ttl_ms * 1000,
    )
    found = [each for each in holds.standing(time_us, now) if each.id != id]
    if len(found) >= limits.HOLDS_MAX:
        raise errors.TooLarge("the holds of a universe", size=len(found) + 1, limit=limits.HOLDS_MAX)
    _change_holds(batch, holds, [*found, wanted])


def release(batch: kv.Batch, holds: HoldsRecord, id: bytes) -> bool:
    """Give a hold up. Returns whether it was there. Guard: the record of all holds."""
    # Expired holds stay in the list here: the next `hold` removes them.
    found = [each for each in holds.record.holds if each.id != id]
    if len(found) == len(holds.record.holds):
        return False
    _change_holds(batch, holds, found)
    return True


def expect_no_hold(batch: kv.Batch, holds: HoldsRecord) -> None:
    """For a batch that deletes. The caller has found that no hold stands."""
    key = keys.holds_key(holds.universe)
    if holds.raw is not None:
        batch.expect(key, holds.raw)
    # A batch that deletes many blobs comes here for each of them, and may write a key once.
    elif key not in batch.puts:
        batch.absent(key)
        batch.put(key, keys.HOLDS.pack(holds.record))


def _change_holds(batch: kv.Batch, holds: HoldsRecord, new_holds: list[blobs.Hold]) -> None:
    key = keys.holds_key(holds.universe)
    if holds.raw is None:
        batch.absent(key)
    else:
        batch.expect(key, holds.raw)
    # `changes` makes each record another one, so a delete that has read the old one conflicts even if the list is
    # equal.
    batch.put(key, keys.HOLDS.pack(blobs.Holds(holds.record.changes + 1, new_holds)))


# --- Blobs that nothing refers to -------------------------------------------------------------------------------------


class CondemnedRecord(msgspec.Struct, frozen=True):
    """A condemned blob, as it was read."""

    address: bytes
    record: blobs.Condemned
    raw: bytes


def get_condemned(universe: ids.UniverseId, of: bytes) -> kv.Get:
    return kv.Get(keys.condemned_key(universe, of))


def decode_condemned_at(of: bytes, raw: bytes | None) -> CondemnedRecord | None:
    return None if raw is None else CondemnedRecord(of, keys.CONDEMNED.unpack(raw), raw)


def condemned_range(universe: ids.UniverseId, *, above: bytes = b"", count_max: int) -> kv.Range:
    """Condemned blobs in the order of their addresses, those above one."""
    begin, end = keys.condemned(universe)
    if above:
        begin = tuples.successor(keys.condemned_key(universe, above))
    return kv.Range(begin, end, count_max=count_max)


def decode_condemned(universe: ids.UniverseId, page: kv.Page) -> list[CondemnedRecord]:
    return [
        CondemnedRecord(keys.condemned_address(universe, key), keys.CONDEMNED.unpack(raw), raw)
        for key, raw in page.items
    ]


def condemn(batch: kv.Batch, state: CollectionState, of: bytes, raw: bytes, *, since_us: int, age_us: int) -> None:
    """Nothing refers to this blob, whose record is `raw`. Guard: it is not condemned. Expects that the mark which has
    found that is the last one.
    """
    assert state.generation_raw is not None
    assert not state.generation.marking, "the mark has not ended"
    # A collector that is late is not believed: another mark has begun since.
    batch.expect(universe_keys.generation_key(state.universe), state.generation_raw)
    # Put again since, it has another generation in its record, so it is in use.
    batch.expect(cas_keys.blob_key(state.universe, of), raw)
    key = keys.condemned_key(state.universe, of)
    batch.absent(key)
    generation = cas_keys.BLOB.unpack(raw).generation
    # The blob's generation is kept, so that `delete` can tell whether it was put again; the mark, so that it is
    # another.
    batch.put(key, keys.CONDEMNED.pack(blobs.Condemned(generation, since_us, age_us, mark=state.generation.number)))


def spare(batch: kv.Batch, universe: ids.UniverseId, condemned: CondemnedRecord) -> None:
    """It is used again, or gone. Guard: it is condemned, since then."""
    key = keys.condemned_key(universe, condemned.address)
    batch.expect(key, condemned.raw)
    batch.delete(key)


def delete(
    batch: kv.Batch, state: CollectionState, holds: HoldsRecord, condemned: CondemnedRecord, raw: bytes
) -> str | None:
    """Delete a condemned blob whose record is `raw`, with its chunks. Returns the name of its object, if it has one,
    which is to be deleted after the commit. Guard: it is condemned; expects that its record has not changed, and that
    no hold has come. `state`: of the mark that has not found it either.
    """
    universe = holds.universe
    assert condemned.record.mark < state.generation.number, "one mark is not enough"
    record = cas_keys.BLOB.unpack(raw)
    assert record.generation == condemned.record.generation, "it was used again"
    # A hold that was taken since the holds were read has changed their record, and stops this delete.
    expect_no_hold(batch, holds)
    spare(batch, universe, condemned)
    key = cas_keys.blob_key(universe, condemned.address)
    batch.expect(key, raw)
    batch.delete(key)
    if record.chunks is not None:
        # In the same batch, so no record without its chunks can be read.
        batch.delete_range(*chunk_keys.chunks(universe, condemned.address, record.chunks))
    return record.object
