"""Every place where a reference can stand keeps what it refers to, and a collection that forgets the place takes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.features.collection import collecting
from tests.layers import scenario
from tests.layers.histories import LARGE, History, noise
from tests.layers.history.test_segments import packed
from tests.layers.scenario import UNIVERSE, Store, address
from worldline.base import limits
from worldline.codec import digest, frame
from worldline.features.collection import batches as collection_batches
from worldline.features.collection import mark_phase as markers
from worldline.features.collection import references
from worldline.features.collection.address_set import Marked
from worldline.features.collection.mark_phase import Marker, Plain, Unreadable
from worldline.keys import cas as cas_keys
from worldline.keys import inbox as inbox_keys
from worldline.keys import journal as journal_keys
from worldline.keys import keyspace_table, space
from worldline.keys import lineage as lineage_keys
from worldline.keys import segments as segment_keys
from worldline.keys import snapshots as snapshot_keys
from worldline.keys import work as work_keys
from worldline.layers import blobs as blob_layer
from worldline.layers.history import saved_state
from worldline.model import change as model
from worldline.model import ids, inbox, payload, snapshots, work, world_records
from worldline.model.change import Row
from worldline.store.objects import memory_objects as objects_memory

AT = address()
STAMP = bytes(limits.STAMP_BYTES)


class Desk:
    """A world that has nothing yet, and blobs."""

    def __init__(self, *, chunked: bool = False) -> None:
        self.store = Store()
        kept = limits.CHUNKED_BYTES_MAX if chunked else 0
        objects = objects_memory.MemoryObjects(self.store.env)
        self.blobs = blob_layer.Blobs(self.store.engine, objects, self.store.env, UNIVERSE, in_store_bytes_max=kept)
        self.store.set(space.world(AT) + b"\x15\x01", b"a world")  # any key of it

    async def collect(self, *forgotten: str) -> None:
        kept = [each for each in references.PLACES if each.name not in forgotten]
        await collecting.collect(self.store.engine, self.store.env, self.blobs, UNIVERSE, places=kept)

    async def has(self, kept: Sequence[bytes]) -> list[bool]:
        return [await self.blobs.has(each) for each in kept]

    async def put_all(self, bodies: list[bytes]) -> list[bytes]:
        return [await self.blobs.put(each) for each in bodies]

    async def state(self) -> tuple[bytes, list[bytes]]:
        """A saved state with branches, leaves and a large row: its root, and all it consists of."""
        rows = [(b"\x01key %d" % number, Row(noise(900, number))) for number in range(300)]
        written = saved_state.whole(bytes(32), [*rows, (b"\x01large", Row(noise(LARGE)))])
        assert len(written.blobs) > 10
        return written.root, await self.put_all(written.blobs)


async def _inbox(desk: Desk) -> list[bytes]:
    of = await desk.blobs.put(noise(LARGE))
    item = inbox.InboxEvent("e", payload.reference(of, size=LARGE))
    desk.store.set(inbox_keys.item_key(AT, STAMP), inbox_keys.ITEM.pack(item))
    return [of]


async def _dead(desk: Desk) -> list[bytes]:
    of = await desk.blobs.put(noise(LARGE))
    item = inbox_keys.ITEM.pack(inbox.InboxEvent("e", payload.reference(of, size=LARGE)))
    desk.store.set(inbox_keys.dead_key(AT, STAMP), inbox_keys.DEAD.pack(inbox.DeadItem(item, "", 1, 1)))
    return [of]


async def _open(desk: Desk) -> list[bytes]:
    of = await desk.blobs.put(noise(LARGE))
    params = payload.reference(of, size=LARGE)
    record = work.Work(work.WorkKind.EFFECT, work.WorkState.PARKED, "q", 0, "n", params, 1, 0, 1, 1)
    intent = ids.IntentId(scenario.ident("intent"))
    desk.store.set(work_keys.open_key(AT, intent), work_keys.WORK.pack(record))
    return [of]


async def _script(desk: Desk) -> list[bytes]:
    of = await desk.blobs.put(b"a script")
    section = world_records.Section(AT.world, 1, 1)
    lineage = world_records.Lineage(
        AT.world, "p", 1, 1, [section], world_records.ForkPolicy.DROP, False, 1, bytes(32), of
    )
    desk.store.set(lineage_keys.lineage_key(AT), lineage_keys.LINEAGE.pack(lineage))
    return [of]


def _steps(*, apart: bool = True) -> History:
    """A payload apart; rows as images, slots and deltas apart; changes that a frame has no room for, and some that are
    a blob as a whole.
    """
    made = History(AT)
    large = noise(LARGE, 1)
    made.commit(([large], [model.put(b"row", Row(noise(100_000, 2)))]))
    other = noise(50_000, 2) + noise(50_000, 3)
    made.commit(([b"in"], [model.put(b"row", Row(other), base=noise(100_000, 2))]))
    made.commit(([b"in"], [model.put(b"slot", Row(b"<" + noise(LARGE, 4) + b">"), slot=(1, 1 + LARGE))]))
    made.commit(([b"in"], [model.put(b"k%d" % number, Row(noise(15_000, number))) for number in range(10)]))
    if apart:
        made.commit(([b"in"], [model.put(b"m%d" % number, Row(noise(15_000, number + 50))) for number in range(40)]))
    return made


async def _journal(desk: Desk) -> list[bytes]:
    made = _steps()
    for key, raw in made.items:
        desk.store.set(key, raw)
    return await desk.put_all(list(made.blobs.values()))


async def _segments(desk: Desk) -> list[bytes]:
    """Changes that were a blob as a whole stand in the segment itself."""
    made = _steps(apart=False)
    record, body = packed(made.read()[2], made.blobs, with_changes=True)
    desk.store.set(segment_keys.segment_key(AT, record.last_height), segment_keys.SEGMENT.pack(record))
    return await desk.put_all([body, *made.blobs.values()])


async def _baseline(desk: Desk) -> list[bytes]:
    root, kept = await desk.state()
    taken = snapshots.StateSnapshot(0, 0, bytes(32), root, 1, b"", 0)
    desk.store.set(snapshot_keys.baseline_key(AT), snapshot_keys.BASELINE.pack(taken))
    return kept


async def _snapshot(desk: Desk) -> list[bytes]:
    root, kept = await desk.state()
    taken = snapshots.StateSnapshot(3, 3, bytes(32), root, 1, b"", 0)
    desk.store.set(snapshot_keys.snapshot_key(AT, 3), snapshot_keys.SNAPSHOT.pack(taken))
    return kept


KEPT: dict[str, Callable[[Desk], Awaitable[list[bytes]]]] = {
    "inbox": _inbox,
    "dead letters": _dead,
    "open work": _open,
    "scripts of forks": _script,
    "journal": _journal,
    "baselines": _baseline,
    "snapshots": _snapshot,
    "segments": _segments,
}


def test_every_place_has_a_test_here() -> None:
    """The table of keyspaces says which refer to blobs."""
    assert {each.name for each in references.PLACES} == {*keyspace_table.REFERRING} == {*KEPT}


@pytest.mark.parametrize("chunked", [False, True], ids=["objects", "chunks"])
@pytest.mark.parametrize("place", [each.name for each in references.PLACES])
async def test_a_place_keeps_what_it_refers_to(place: str, chunked: bool) -> None:
    desk = Desk(chunked=chunked)
    garbage = await desk.blobs.put(noise(LARGE, 99))
    kept = await KEPT[place](desk)
    for _ in range(2):
        await desk.collect()
        assert all(await desk.has(kept))
    assert await desk.has([garbage]) == [False]
    for of in kept:
        digest.check(await desk.blobs.get(of), of, "what is kept")


@pytest.mark.parametrize("place", [each.name for each in references.PLACES])
async def test_a_place_that_is_forgotten_loses_it(place: str) -> None:
    desk = Desk()
    kept = await KEPT[place](desk)
    await desk.collect(place)
    assert await desk.has(kept) == [False] * len(kept)


async def test_small_pages_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames and their parts may stand on different pages, and every world is found."""
    monkeypatch.setattr(markers, "FIRST_BYTES", 1)
    monkeypatch.setattr(markers, "PAGE_BYTES", 1)
    monkeypatch.setattr(markers, "NODES_AT_ONCE", 1)
    desk = Desk()
    for number in range(1, 4):
        desk.store.set(space.world(address(number)) + b"\x15\x01", b"another world")
    kept = [of for build in KEPT.values() for of in await build(desk)]
    await desk.collect()
    assert all(await desk.has(kept))


async def test_what_cannot_be_read_ends_the_collection_and_nothing_goes() -> None:
    for place in references.PLACES:
        if place.name in ("inbox", "dead letters"):
            continue  # an item that is none refers to nothing
        desk = Desk()
        kept = await KEPT[place.name](desk)
        garbage = await desk.blobs.put(noise(LARGE, 99))
        begin, end = place.range(AT)
        [(key, raw), *_] = desk.store.under(begin, end)
        desk.store.set(key, scenario.flipped(raw))
        with pytest.raises(Unreadable, match=place.name):
            await desk.collect()
        assert all(await desk.has([*kept, garbage]))
        read = desk.store.read(*collection_batches.reads(UNIVERSE))
        assert not collection_batches.decode(UNIVERSE, read.value(0), read.value(1)).generation.marking, (
            "it was given up"
        )


@pytest.mark.parametrize("place", ["journal", "baselines", "segments"])
async def test_a_blob_that_may_refer_to_others_and_is_gone_ends_it_too(place: str) -> None:
    desk = Desk()
    kept = await KEPT[place](desk)
    noted = await collecting.reachable(desk.store.engine, desk.blobs, UNIVERSE)
    assert {*kept} <= {*noted}
    desk.store.erase([key for key, _ in desk.store.under(*_records())])
    with pytest.raises(Unreadable):
        await desk.collect()


async def test_changes_of_a_step_that_were_read_wrong_end_it() -> None:
    """One bit, under a checksum that is right: the address that it makes may be one that nothing has, and what the step
    really refers to would be garbage.
    """
    desk = Desk()
    await KEPT["journal"](desk)
    known = await collecting.reachable(desk.store.engine, desk.blobs, UNIVERSE)
    ended = went_on = 0
    for key, raw in desk.store.under(*journal_keys.frames(AT)):
        read = journal_keys.unpack_frame(raw)
        for place in range(len(raw) - len(read.changes), len(raw), 101):
            damaged = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
            desk.store.set(key, frame.wrap(space.ValueKind.JOURNAL, damaged[frame.OVERHEAD_BYTES :]))
            try:
                found = await collecting.reachable(desk.store.engine, desk.blobs, UNIVERSE)
            except Unreadable:
                ended += 1
            else:  # a difference to the row before, which no reference stands in
                assert found == known
                went_on += 1
        desk.store.set(key, raw)
    assert ended > went_on


def _records() -> tuple[bytes, bytes]:
    return cas_keys.blobs(UNIVERSE)


async def test_letters_and_items_that_are_none_refer_to_nothing() -> None:
    desk = Desk()
    desk.store.set(inbox_keys.item_key(AT, STAMP), b"no item")
    desk.store.set(inbox_keys.dead_key(AT, STAMP), inbox_keys.DEAD.pack(inbox.DeadItem(b"no item", "", 1, 1)))
    await desk.collect()


async def test_a_segment_that_refers_to_nothing_is_read_once() -> None:
    desk = Desk()
    made = History(AT)
    made.commit(([b"in"], []))
    record, body = packed(made.read()[2], {})
    desk.store.set(segment_keys.segment_key(AT, record.last_height), segment_keys.SEGMENT.pack(record))
    of = await desk.blobs.put(body)
    plain = Plain()
    for known in (False, True):
        assert (of in plain) == known
        marker = Marker(desk.store.engine, desk.blobs, UNIVERSE, Marked(), plain=plain)
        while not await marker.turn():
            pass
        assert of in marker.marked
    desk.store.erase([key for key, _ in desk.store.under(*_records())])
    marker = Marker(desk.store.engine, desk.blobs, UNIVERSE, Marked(), plain=plain)
    while not await marker.turn():
        pass


def test_marked_addresses_in_little_room() -> None:
    """With room for a few, the upper halves of the addresses are left to later collections, which judge them."""
    addresses = [digest.sha256(b"%d" % number) for number in range(2_000)]
    judged: dict[bytes, None] = {}
    above, rounds = b"", 0
    while not rounds or above:
        marked = Marked(above=above, most=100)
        for each in addresses[::2]:
            marked.add(each)
        assert len(marked) < 100
        for index, each in enumerate(addresses):
            if marked.judges(each):
                assert each not in judged
                judged[each] = None
                assert (each in marked) == (index % 2 == 0)
        rounds += 1
        above = marked.above
    assert len(judged) == len(addresses)
    assert rounds > 10


def test_marked_addresses_are_known_after_the_first_time() -> None:
    marked = Marked()
    addresses = [digest.sha256(b"%d" % number) for number in range(20_000)] + [bytes(32), b"\x00" * 8 + b"x" * 24]
    assert [marked.add(each) for each in addresses].count(True) == 20_001, "the last two begin alike"
    assert not any(marked.add(each) for each in addresses)
    assert len(marked) == 20_001
    assert digest.sha256(b"other") not in marked


async def test_a_collection_that_judges_a_part_leaves_the_rest_to_the_next() -> None:
    desk = Desk()
    kept = await KEPT["baselines"](desk)
    garbage = [await desk.blobs.put(b"garbage %d" % number) for number in range(100)]
    rounds = 0
    while any(await desk.has(garbage)):
        report = await collecting.collect(desk.store.engine, desk.store.env, desk.blobs, UNIVERSE, marked_max=20)
        assert report.partial
        rounds += 1
        assert rounds < 100
    assert rounds > 1
    assert all(await desk.has(kept))
