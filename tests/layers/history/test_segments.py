"""Segments: any steps into a body and back, each height from one place, and whatever is damaged is found."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.layers import scenario
from tests.layers.histories import AT, History, histories
from worldline.base import errors, limits
from worldline.codec import canonical, delta, digest
from worldline.keys import journal as journal_keys
from worldline.keys import segments as keys
from worldline.layers.history import history_line, segment_body, step_reader
from worldline.model import change as model
from worldline.model import journal, state_digest
from worldline.model.change import Row
from worldline.model.journal import Segment
from worldline.model.rows import Rows
from worldline.store import kv


def packed(
    steps: list[step_reader.StoredStep],
    blobs: dict[bytes, bytes],
    *,
    head: journal.Head = journal.GENESIS,
    with_changes: bool = False,
) -> tuple[Segment, bytes]:
    """A segment of these steps, which follow a head."""
    writer = segment_body.SegmentBuilder(above=head.height, step=head.step, chain=head.chain, with_changes=with_changes)
    for each in steps:
        covered = step_reader.covered(each, blobs)
        writer.add(segment_body.SegmentStep(each.step, each.height, each.data, covered, each.changes))
        head = step_reader.link(head, each, covered)
    body = writer.body()
    first, last = steps[0], steps[-1]
    return record_of(first, last, body, with_changes=with_changes), body


def record_of(
    first: step_reader.StoredStep, last: step_reader.StoredStep, body: bytes, *, with_changes: bool
) -> Segment:
    address = digest.sha256(body)
    return Segment(first.first_height, last.height, first.step, last.step, address, len(body), with_changes)


def resealed(record: Segment, body: bytes) -> Segment:
    """A record that names other bytes: what is wrong with them is not their sha256."""
    return Segment(
        record.first_height,
        record.last_height,
        record.first_step,
        record.last_step,
        digest.sha256(body),
        len(body),
        record.changes,
    )


def small() -> tuple[History, list[step_reader.StoredStep]]:
    made = History()
    made.commit(([b"one"], [model.put(b"k", Row(b"v1"))]))
    made.commit(([b"two", b"three"], []), ([b"four"], [model.put(b"k", Row(b"v2", b"p"))]))
    return made, made.read()[2]


def test_golden() -> None:
    """The index and the blocks, byte by byte; compressors may differ, so what was compressed is compared."""
    made, steps = small()
    record, body = packed(steps, {})
    assert (record.first_height, record.last_height, record.first_step, record.last_step) == (1, 4, 1, 3)
    length = int.from_bytes(body[1:5], "big")
    index = canonical.decode(body[5 : 5 + length])
    assert body[:1] == b"\x01"
    assert index == [bytes(32), 1, 1, 0, 4, 3, len(body) - 5 - length, 381]
    raw = delta.unpack(body[5 + length :], length=381)
    assert raw[:8].hex() == "00000004" + "00000003"
    data = [each for step in steps for each in step.data]
    covered = [state_digest.changes_digest(changes) for _, changes in made.steps]
    assert raw[8:] == b"".join(len(each).to_bytes(4, "big") + each for each in data) + b"".join(covered)
    assert digest.sha256(raw).hex() == "8f039be0fae3e375baa2e7939f960834b71be634325a00872aea4d196c5352dc"
    with_changes, body = packed(steps, {}, with_changes=True)
    [block] = segment_body.Body(AT, with_changes, body).blocks(above=0)
    assert block.changes == [each.changes for each in steps]


def test_golden_body_is_read() -> None:
    """One that was made before."""
    body = bytes.fromhex(
        "010000002e8858200000000000000000000000000000000000000000000000000000000000000000010100040319015f1901"
        "7d28b52ffd607d00ad0a0024140000000400000003000000518a0101182005436f6e65406058208fa66a4510ec5e729977e0"
        "fbab119b8ac7c4094a21ff4594fafda56db1c63a0c58202cf218b2cc2c4e03850bb21b1705bee4242ca6999993874deb0c62"
        "01b4db73b8400000000f8a020274776f40604040538a03457468726595582252504010720a424cb87719cebe2cb0f9d96074"
        "4f92cdb316f9c7fceba4528a040318200544666f7572b788f539b3fe44fdec656ac3c25efaf6e7ce55e316465498f59669dc"
        "876ffe4c582000130261ffc52c048becb8051f70e7c87f02fb3786f38a71202dece784e688f240fd7c48c39db39ea3ea85f6"
        "89b4bb22107e19d4f545f3453a3c9530eda80fc4532a9f8be589bb9cdfe20d16169b4dfa294b69b5e295308eaed9b3fae425"
        "00eafd7eafde52d197a4f82d99735d0cc99e51161d4c1e8dea7e450be1ab7eedcc7e280600431309103c6d280d76d8ac91d8"
        "8acd"
    )
    [block] = segment_body.Body(AT, Segment(1, 4, 1, 3, digest.sha256(body), len(body), False), body).blocks(above=0)
    assert block.entries == [each for step in small()[1] for each in step.data]


@settings(max_examples=40)
@given(histories(), st.data())
def test_any_steps_are_read_back(made: History, data: st.DataObject) -> None:
    """Frames up to a step, then a segment of them; what is above stays in frames. The same steps come out, and the same
    digests; with changes the same rows.
    """
    _, _, steps = made.read()
    needed = {of: made.blobs[of] for each in steps for of in step_reader.needed(each)}
    ends = [journal_keys.frame_place(AT, key)[0] for key, _ in made.items]
    cut = data.draw(st.sampled_from([each for each in ends if any(step.height == each for step in steps)]))
    with_changes = data.draw(st.booleans())
    record, body = packed([each for each in steps if each.height <= cut], needed, with_changes=with_changes)
    found = read(made, record, body, above=0)
    assert [each.data for each in found] == [each.data for each in steps]
    assert [step_reader.covered(each, needed) for each in found] == [
        step_reader.covered(each, needed) for each in steps
    ]
    assert [bool(each.dropped) for each in found] == [each.height <= cut and not with_changes for each in found]
    if with_changes:
        rows = Rows()
        assert step_reader.fold(journal.GENESIS, found, rows, needed) == made.head
        assert list(rows.items()) == list(made.rows.items())
    else:
        with pytest.raises(errors.NotRetained, match=f"height {found[0].height}: "):
            step_reader.fold(journal.GENESIS, found, Rows(), needed)
    start = data.draw(st.sampled_from([0, *(each.height for each in steps)]))
    assert [each.data for each in read(made, record, body, above=start)] == [
        each.data for each in steps if each.height > start
    ]


def read(made: History, record: Segment, body: bytes, *, above: int) -> list[step_reader.StoredStep]:
    """As the store is behind a compaction: the frames of the segment are gone."""
    items = [each for each in made.items if journal_keys.frame_place(AT, each[0])[0] > record.last_height]
    index = [(keys.segment_key(AT, record.last_height), keys.SEGMENT.pack(record))]
    reader = step_reader.StepReader(history_line.HistoryLine(AT), above=above)
    found: list[step_reader.StoredStep] = []
    while True:
        page, wanted = _page(index, reader.wanted_segment()), reader.wanted()
        covering = reader.covering(page)
        if isinstance(covering, Segment):
            found += reader.take(segment_body.Body(AT, covering, body).blocks(above=reader.height))
            continue
        frames = [each for each in items if wanted.begin <= each[0] < wanted.end][:1]
        if not frames:
            reader.check_end()
            return [
                each.with_changes(made.blobs[step_reader.needed(each)[0]]) if step_reader.is_apart(each) else each
                for each in found
            ]
        found += reader.take(frames)


def _page(items: list[tuple[bytes, bytes]], wanted: kv.Range) -> kv.Page:
    found = [each for each in items if wanted.begin <= each[0] < wanted.end]
    return kv.Page(found[: wanted.count_max], more=len(found) > wanted.count_max, stable=kv.ZERO_STAMP)


def test_frames_that_go_while_they_are_read() -> None:
    """Between two pages, in the middle of a step and of a frame's parts: what was read of the step is forgotten, and
    comes from the segment.
    """
    made = History()
    made.commit(([b"first"], []))
    made.commit(([bytes(15_000)] * 9, [model.put(bytes([each]), Row(bytes(15_000))) for each in range(9)]))
    made.commit(([b"last"], []))
    _, _, steps = made.read()
    record, body = packed(steps[:2], made.blobs)
    page = _page([(keys.segment_key(AT, record.last_height), keys.SEGMENT.pack(record))], kv.Range(b"\x00", b"\xff"))
    for count in range(1, len(made.items) - 1):
        reader = step_reader.StepReader(history_line.HistoryLine(AT), above=0)
        found = reader.take(made.items[:count])
        covering = reader.covering(page)
        assert covering == record
        found += reader.take(segment_body.Body(AT, record, body).blocks(above=reader.height))
        assert reader.covering(_page([], kv.Range(b"\x00", b"\xff"))) is None
        found += reader.take(made.items[-1:])
        reader.check_end()
        assert [each.data for each in found] == [each.data for each in steps], count


def test_every_flipped_byte_is_found() -> None:
    """By the sha256; and if that is made to fit, by the index, the block, or the chain."""
    _, steps = small()
    record, body = packed(steps, {})
    for position in range(len(body)):
        flipped = scenario.flipped(body, at=position)
        with pytest.raises(errors.DigestMismatch, match="the segment up to height 4"):
            segment_body.Body(AT, record, flipped)
        with pytest.raises(errors.Corrupt):
            _checked(resealed(record, flipped), flipped)
    for end in range(len(body)):
        with pytest.raises(errors.Corrupt):
            _checked(resealed(record, body[:end]) if end else record, body[:end])
    with pytest.raises(errors.Corrupt):
        _checked(resealed(record, body + b"\x00"), body + b"\x00")
    assert _checked(record, body) == steps[-1].head()


def _checked(record: Segment, body: bytes) -> journal.Head:
    """As it is checked before it is indexed."""
    opened = segment_body.Body(AT, record, body)
    reader = step_reader.StepReader(history_line.HistoryLine(AT), above=0)
    head = journal.Head(0, 0, opened.chain, bytes(32), 0)
    if opened.chain != journal.GENESIS.chain:
        raise errors.DecodeError("it follows another history")
    for each in reader.take(opened.blocks(above=0)):
        head = step_reader.link(head, each, step_reader.covered(each, {}))
    return head


@pytest.mark.parametrize(
    "other",
    [(2, 4, 1, 3), (1, 5, 1, 3), (1, 4, 2, 3), (1, 4, 1, 4)],
)
def test_a_record_of_another_range_is_refused(other: tuple[int, int, int, int]) -> None:
    record, body = packed(small()[1], {})
    with pytest.raises(errors.DecodeError, match="is not what its record says"):
        segment_body.Body(AT, Segment(*other, record.digest, record.size, False), body)
    with pytest.raises(errors.DecodeError, match="is not what its record says"):
        segment_body.Body(AT, Segment(1, 4, 1, 3, record.digest, record.size, True), body)
    with pytest.raises(errors.DecodeError, match="bytes; its record says 7"):
        segment_body.Body(AT, Segment(1, 4, 1, 3, record.digest, 7, False), body)


def test_a_misfiled_record_is_refused() -> None:
    record, _ = packed(small()[1], {})
    page = _page([(keys.segment_key(AT, 5), keys.SEGMENT.pack(record))], kv.Range(b"\x00", b"\xff"))
    with pytest.raises(errors.DecodeError, match="filed elsewhere"):
        step_reader.covering(AT, page, above=0)


@pytest.mark.parametrize(
    "fields",
    [(0, 4, 1, 3), (5, 4, 1, 3), (1, 4, 0, 3), (1, 4, 4, 3), (1, 2, 1, 3)],
)
def test_records_that_cannot_be(fields: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"count from 1|at least one"):
        Segment(*fields, bytes(32), 1, False)
    with pytest.raises(ValueError, match="32 bytes"):
        Segment(1, 4, 1, 3, b"", 1, False)
    with pytest.raises(ValueError, match="not empty"):
        Segment(1, 4, 1, 3, bytes(32), 0, False)


def test_one_step_is_had_without_decoding_all() -> None:
    made = History()
    for number in range(60):
        made.commit(([digest.sha256(bytes([number])) * 500], []))
    _, _, steps = made.read()
    record, body = packed(steps, {})
    opened = segment_body.Body(AT, record, body)
    assert len(opened.places) == 4
    assert all(each.length < limits.SEGMENT_BLOCK_BYTES + 20_000 for each in opened.places)
    block = next(opened.blocks(above=40))
    assert (block.first_height, block.last_height) == (35, 51)
