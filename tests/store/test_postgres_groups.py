"""Which batches share a statement, without a server: the queue, and how a group is written down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.conformance import batches
from worldline.base import errors
from worldline.store import kv
from worldline.store.postgres import groups, sql


def _batch(name: str, *steps: tuple[str, bytes]) -> kv.Batch:
    """A batch with a guard of its own, and these steps."""
    batch = batches.once(name)
    for verb, key in steps:
        match verb:
            case "put":
                batch.put(key, b"")
            case "delete":
                batch.delete(key)
            case "add":
                batch.add(key, 1)
            case "append":
                batch.append(key, b"")
            case "expect":
                batch.expect(key, b"")
            case "create":
                batch.absent(key)
                batch.put(key, b"")
            case _:
                assert verb == "sweep"
                batch.delete_range(key, batches.after(key))
    return batch


async def _entries(*made: kv.Batch) -> list[groups.WaitingBatch]:
    loop = asyncio.get_running_loop()
    return [groups.WaitingBatch(batch, loop.create_future()) for batch in made]


def _queue(*, batches_max: int = 100, bytes_max: int = 1 << 20, scan_max: int = 100) -> groups.BatchQueue:
    return groups.BatchQueue(batches_max=batches_max, bytes_max=bytes_max, scan_max=scan_max)


Step = tuple[str, bytes]
MEETINGS: list[tuple[Step, Step, bool]] = [
    (("put", b"k"), ("put", b"k"), True),
    (("put", b"k"), ("delete", b"k"), True),
    (("put", b"k"), ("add", b"k"), True),
    (("put", b"k"), ("create", b"k"), True),
    (("put", b"k"), ("expect", b"k"), True),
    (("delete", b"k"), ("expect", b"k"), True),
    (("add", b"k"), ("add", b"k"), True),
    (("create", b"k"), ("create", b"k"), True),
    (("expect", b"k"), ("expect", b"k"), False),
    (("put", b"k"), ("put", b"l"), False),
    (("append", b"k"), ("append", b"k"), False),
    (("append", b"k"), ("put", b"k"), False),
    (("sweep", b"k"), ("put", b"k"), True),
    (("sweep", b"k"), ("put", b"kz"), True),
    (("sweep", b"k"), ("put", b"l"), False),
    (("sweep", b"k"), ("put", b"j\xff"), False),
    (("sweep", b"k"), ("expect", b"ka"), True),
    (("sweep", b"k"), ("append", b"k"), True),
    (("sweep", b"k"), ("append", b"k/log"), True),
    (("sweep", b"k/log"), ("append", b"k/"), True),
    (("sweep", b"k"), ("append", b"l"), False),
    (("sweep", b"k"), ("append", b"j"), False),
    (("sweep", b"k"), ("sweep", b"k"), True),
    (("sweep", b"k"), ("sweep", b"ka"), True),
    (("sweep", b"k"), ("sweep", b"l"), False),
]


@pytest.mark.parametrize(("left", "right", "meet"), MEETINGS)
async def test_batches_that_meet_do_not_share_a_statement(left: Step, right: Step, meet: bool) -> None:
    for first, second in ((left, right), (right, left)):
        queue = _queue()
        one, two = await _entries(_batch("1", first), _batch("2", second))
        queue.add([one, two])
        group = queue.take()
        assert group == ([one] if meet else [one, two])
        if meet:
            assert queue.take() == [], "it meets one that is under way"
            queue.release(group)
            group = queue.take()
            assert group == [two]
        queue.release(group)
        assert not queue


async def test_nobody_is_overtaken_by_what_it_meets() -> None:
    queue = _queue()
    a, b, c, d = await _entries(
        _batch("a", ("put", b"x")),
        _batch("b", ("put", b"x"), ("put", b"y")),
        _batch("c", ("put", b"y")),  # meets b, which waits before it, and nothing under way
        _batch("d", ("put", b"z")),
    )
    queue.add([a, b, c, d])
    first = queue.take()
    assert first == [a, d]
    assert queue.take() == []
    queue.release(first)
    second = queue.take()
    assert second == [b]
    queue.release(second)
    assert queue.take() == [c]


async def test_a_group_stops_at_its_bounds_and_takes_at_least_one() -> None:
    entries = await _entries(*(_batch(str(index), ("put", b"k/%d" % index)) for index in range(10)))
    queue = _queue(batches_max=4)
    queue.add(entries)
    assert [len(queue.take()) for _ in range(4)] == [4, 4, 2, 0]
    size = entries[0].size
    queue = _queue(bytes_max=3 * size)
    queue.add(entries)
    assert [len(queue.take()) for _ in range(5)] == [3, 3, 3, 1, 0]
    queue = _queue(bytes_max=1)
    queue.add(entries)
    assert [len(queue.take()) for _ in range(11)] == [1] * 10 + [0]


async def test_a_scan_for_what_may_pass_is_bounded() -> None:
    hot = await _entries(*(_batch(str(index), ("put", b"hot")) for index in range(10)))
    [cold] = await _entries(_batch("cold", ("put", b"cold")))
    queue = _queue(scan_max=5)
    queue.add([*hot, cold])
    order: list[groups.WaitingBatch] = []
    while queue:
        group = queue.take()
        order += group
        queue.release(group)
    assert order.index(cold) == 7, "seen only once five places from the front"
    assert [entry for entry in order if entry is not cold] == hot


async def test_a_caller_that_went_away_is_left_out() -> None:
    entries = await _entries(*(_batch(str(index)) for index in range(3)))
    queue = _queue()
    queue.add(entries)
    entries[1].answer.cancel()
    assert queue.take() == [entries[0], entries[2]]
    entries[0].answer.cancel()
    entries[0].resolve(kv.Ok())
    entries[2].resolve(kv.Ok())
    assert entries[2].answer.result() == kv.Ok()


keys = st.sampled_from([b"a", b"b", b"c", b"aa", b"ab", b"b1"])
verbs = st.sampled_from(["put", "delete", "add", "append", "expect", "create", "sweep"])


def _made(name: int, steps: list[Step]) -> kv.Batch | None:
    try:
        batch = _batch(str(name), *steps)
        kv.check(batch)
    except errors.BatchRefused:
        return None
    return batch


@hypothesis.given(
    st.lists(st.lists(st.tuples(verbs, keys), max_size=3), min_size=1, max_size=12),
    st.lists(st.booleans(), max_size=40),
)
@hypothesis.settings(max_examples=150)
def test_every_batch_is_served_once_and_in_the_order_of_those_it_meets(
    plans: list[list[Step]], turns: list[bool]
) -> None:
    async def run() -> None:
        made = [batch for name, steps in enumerate(plans) if (batch := _made(name, steps)) is not None]
        entries = await _entries(*made)
        queue = _queue(batches_max=3)
        queue.add(entries)
        running: list[list[groups.WaitingBatch]] = []
        served: list[groups.WaitingBatch] = []
        for take in [*turns, *([True, False] * (len(entries) + 1))]:
            if take and (group := queue.take()):
                for entry in group:
                    others = [one for each in [*running, group] for one in each if one is not entry]
                    assert not any(_touch(entry.batch, one.batch) for one in others), "two that meet at once"
                running.append(group)
                served += group
            elif not take and running:
                queue.release(running.pop(0))
        assert sorted(map(entries.index, served)) == list(range(len(entries)))
        for index, entry in enumerate(served):
            later = served[index + 1 :]
            assert not [
                one for one in later if entries.index(one) < entries.index(entry) and _touch(entry.batch, one.batch)
            ]

    asyncio.run(run())


def _touch(left: kv.Batch, right: kv.Batch) -> bool:
    """The rule, written out slowly."""
    return _writes(left, right) or _writes(right, left)


def _writes(left: kv.Batch, right: kv.Batch) -> bool:
    """Whether `left` writes something that `right` writes or expects."""
    mine: Callable[[bytes], bool] = lambda key: (  # noqa: E731
        key in left.puts or key in left.deletes or key in left.counts or any(a <= key < b for a, b in left.ranges)
    )
    if any(mine(key) for key in [*right.puts, *right.deletes, *right.counts, *right.expects]):
        return True
    stamped = [append.prefix + bytes([byte]) * 12 for append in right.appends for byte in (0, 0xFF)]
    if any(a <= key < b for key in stamped for a, b in left.ranges):
        return True
    return any(a < d and c < b for a, b in left.ranges for c, d in right.ranges)


async def test_a_group_is_written_down_column_by_column() -> None:
    first = kv.Batch()
    first.expect(b"epoch", b"7")
    first.expect(b"head", b"1")
    first.put(b"head", b"2")
    first.delete(b"inbox/2")
    first.delete(b"inbox/1")
    first.append(b"log/", b"x")
    first.put(b"at", b"@", stamp=first.append(b"log/", b"y"))
    second = kv.Batch()
    second.absent(b"id")
    second.put(b"id", b"token", stamp=second.append(b"inbox/", b"z"))
    second.expect(b"epoch", b"7")
    second.add(b"count", -1)
    second.delete_range(b"r/5", b"r/9")
    second.delete_range(b"r/1", b"r/6")
    entries = await _entries(first, second)
    names = [name for name, _ in sql.COMMIT_PARAMETERS]
    columns = dict(zip(names, groups.encode(40, entries, hasty=True), strict=True))
    assert columns == {
        "base": 40,
        "lock_keys": [b"at", b"count", b"epoch", b"head", b"inbox/1", b"inbox/2", b"r/1", b"r/9"],
        "run_ends": [2, 3, 6, 8],
        "run_kinds": [sql.RUN_WRITE, sql.RUN_SHARE, sql.RUN_WRITE, sql.RUN_RANGE],
        "expect_keys": [b"epoch", b"head", b"id", b"epoch"],
        "expect_values": [b"7", b"1", None, b"7"],
        "expect_batches": [0, 0, 1, 1],
        "insert_keys": [b"id", b"inbox/", b"log/", b"log/"],
        "insert_values": [b"token", b"z", b"x", b"y"],
        "insert_key_stamps": [None, 2, 0, 1],
        "insert_value_stamps": [2, None, None, None],
        "insert_batches": [1, 1, 0, 0],
        "put_keys": [b"at", b"head"],
        "put_values": [b"@", b"2"],
        "put_value_stamps": [1, None],
        "put_batches": [0, 0],
        "count_keys": [b"count"],
        "count_values": [kv.counter_add(None, -1)],
        "count_batches": [1],
        "delete_keys": None,
        "delete_firsts": [5],
        "delete_lasts": [6],
        "delete_batches": [0],
        "range_begins": [b"r/1"],
        "range_ends": [b"r/9"],
        "range_batches": [1],
    }


DELETED: list[tuple[list[Step], list[bytes]]] = [
    ([("delete", b"a"), ("delete", b"c"), ("put", b"b")], [b"a", b"c"]),
    ([("delete", b"d"), ("delete", b"c"), ("put", b"e"), ("put", b"a")], [b"cd"]),
    ([("delete", b"a"), ("sweep", b"b"), ("delete", b"c"), ("delete", b"d")], [b"a", b"c", b"d"]),
    ([("delete", b"a"), ("expect", b"b"), ("delete", b"c"), ("delete", b"d"), ("delete", b"e")], [b"a", b"cde"]),
]


@pytest.mark.parametrize(("steps", "expected"), DELETED)
async def test_deletes_are_parts_of_the_locked_keys(steps: list[Step], expected: list[bytes]) -> None:
    """Cut where another key stands between; the end of a swept range may look like the next key."""
    names = [name for name, _ in sql.COMMIT_PARAMETERS]
    columns = dict(zip(names, groups.encode(0, await _entries(_batch("z", *steps)), hasty=True), strict=True))
    assert sql.RUN_DELETE not in columns["run_kinds"], "too few to hurry"
    parts = zip(columns["delete_firsts"], columns["delete_lasts"], strict=True)
    assert [b"".join(columns["lock_keys"][first - 1 : last]) for first, last in parts] == expected


async def test_a_group_of_too_many_runs_is_locked_as_one() -> None:
    """What is expected is locked like what is written then, and the deleted keys are named again."""
    names = [name for name, _ in sql.COMMIT_PARAMETERS]
    for count, many in ((groups.RUNS_MAX // 2, False), (groups.RUNS_MAX, True)):
        made = []
        for index in range(count):
            steps = [("expect", b"k/%03d/2" % index), ("delete", b"k/%03d/3" % index), ("put", b"k/%03d/4" % index)]
            made.append(_batch(f"m{index:03d}", *steps, ("expect", b"a")))
        columns = dict(zip(names, groups.encode(0, await _entries(*made), hasty=True), strict=True))
        keys = [b"a"] + [b"k/%03d/%d" % (index, place) for index in range(count) for place in (2, 3, 4)]
        assert columns["lock_keys"] == keys
        assert (columns["run_kinds"] == [sql.RUN_WRITE]) == many
        assert (sql.RUN_SHARE in columns["run_kinds"]) != many
        assert columns["delete_keys"] == [b"k/%03d/3" % index for index in range(count)]
        assert columns["delete_batches"] == list(range(count))
        assert columns["delete_firsts"] is None


MANY = [("delete", b"m/%02d" % index) for index in range(groups.BLOCK_MIN)]
HASTY: dict[str, tuple[list[list[Step]], list[int]]] = {
    "alone": ([MANY], [sql.RUN_DELETE]),
    "too few": ([MANY[1:]], [sql.RUN_WRITE]),
    "before and behind": ([[*MANY, ("put", b"l"), ("put", b"n")]], [sql.RUN_WRITE, sql.RUN_DELETE, sql.RUN_WRITE]),
    "a put between": ([[*MANY, ("put", b"m/001")]], [sql.RUN_WRITE]),
    "an expected one between": ([[*MANY, ("expect", b"m/001")]], [sql.RUN_WRITE, sql.RUN_SHARE, sql.RUN_WRITE]),
    "one of them is expected": ([[*MANY, ("expect", b"m/03")]], [sql.RUN_WRITE]),
    "a range between": ([[*MANY, ("sweep", b"m/001")]], [sql.RUN_WRITE, sql.RUN_RANGE, sql.RUN_WRITE]),
    "two blocks": ([MANY, [(verb, b"n" + key) for verb, key in MANY]], [sql.RUN_DELETE, sql.RUN_DELETE]),
    "two that mix": ([MANY, [(verb, key + b"x") for verb, key in MANY]], [sql.RUN_WRITE]),
    "somebody else between": ([MANY, [("put", b"m/001")]], [sql.RUN_WRITE]),
    "somebody else beside": ([MANY, [("put", b"m")]], [sql.RUN_WRITE, sql.RUN_DELETE]),
}


@pytest.mark.parametrize("name", HASTY)
async def test_long_runs_of_deletes_are_runs_of_their_own(name: str) -> None:
    """If nothing stands between them; all else is deleted after the locks. Either way all keys are in order."""
    plans, expected = HASTY[name]
    made = [_batch(str(index), *steps) for index, steps in enumerate(plans)]
    names = [each for each, _ in sql.COMMIT_PARAMETERS]
    entries = await _entries(*made)
    for hasty in (True, False):
        columns = dict(zip(names, groups.encode(0, entries, hasty=hasty), strict=True))
        keys, kinds = columns["lock_keys"], columns["run_kinds"]
        assert keys == sorted(keys)
        assert columns["run_ends"][-1] == len(keys)
        if hasty:
            assert kinds == expected
        late = [
            keys[a - 1 : b] for a, b in zip(columns["delete_firsts"] or [], columns["delete_lasts"] or [], strict=True)
        ]
        bounds = [0, *columns["run_ends"]]
        early = [keys[bounds[run] : bounds[run + 1]] for run, kind in enumerate(kinds) if kind == sql.RUN_DELETE]
        assert sorted(key for some in [*late, *early] for key in some) == sorted(
            key for one in made for key in one.deletes
        )
        assert hasty or not early


async def test_outcomes_are_read_from_the_row() -> None:
    made = [_batch("0", ("append", b"l")), _batch("1"), _batch("2", ("append", b"l"), ("append", b"l")), _batch("3")]
    entries = await _entries(*made)
    row = (9, [1, 3, 1], [b"z", b"y", b"a"], [None, b"", b"1"])
    answers = groups.decode(entries, row)
    assert answers[0] == kv.Ok((kv.stamp(9, 0),))
    assert answers[1] == kv.Conflict(((b"a", b"1"), (b"z", None)))
    assert answers[2] == kv.Ok((kv.stamp(9, 1), kv.stamp(9, 2)))
    assert answers[3] == kv.Conflict(((b"y", b""),))
    assert groups.decode(entries, (9, None, None, None))[1] == kv.Ok()
