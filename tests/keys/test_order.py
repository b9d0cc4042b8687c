"""Keys sort as what they are made of, and stay inside their universe."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldline.base import env as envs
from worldline.base import limits
from worldline.codec import tuples
from worldline.features.collection import keyspace as collection_keyspace
from worldline.features.quotas import keyspace as quota_keyspace
from worldline.keys import (
    cas,
    chunks,
    inbox,
    journal,
    leases,
    personal_records,
    personal_subjects,
    ready,
    snapshots,
    space,
    traces,
    trial,
    universe_settings,
    universes,
    work,
    worlds,
)
from worldline.model import ids

quick = settings(deadline=None, derandomize=True, max_examples=80)

identities = st.binary(min_size=limits.ID_BYTES, max_size=limits.ID_BYTES)
addresses = st.builds(lambda u, w: ids.Address(ids.UniverseId(u), ids.WorldId(w)), identities, identities)
stamps = st.binary(min_size=limits.STAMP_BYTES, max_size=limits.STAMP_BYTES)
# Around the places where the encoding changes its length.
numbers = st.one_of(
    st.integers(0, 2**64 - 1),
    st.builds(lambda bits, off: max(0, (1 << bits) + off), st.integers(0, 63), st.integers(-2, 2)),
)
names = st.text(st.characters(min_codepoint=33, max_codepoint=0x10FFFF, exclude_categories=["C", "Z"]), min_size=1)
names = names.filter(lambda name: len(name.encode()) <= limits.NAME_BYTES_MAX and name.strip("/") == name)

AT = ids.Address(ids.UniverseId(b"U" * 16), ids.WorldId(b"W" * 16))
INTENT = ids.IntentId(b"I" * 16)

SORTED: list[tuple[str, st.SearchStrategy[Any], Callable[[Any], bytes]]] = [
    ("frames by last height", numbers.filter(bool), lambda height: journal.frame_key(AT, height)),
    ("snapshots by step", numbers, lambda step: snapshots.snapshot_key(AT, step)),
    ("items by stamp", stamps, lambda stamp: inbox.item_key(AT, stamp)),
    ("dead letters by stamp", stamps, lambda stamp: inbox.dead_key(AT, stamp)),
    ("made ids by their bytes", identities, lambda made: inbox.seen_key(AT, made)),
    (
        "hints by priority, oldest first",
        st.tuples(numbers, stamps),
        lambda it: ready.hint_key(in_world(bytes(16)).universe, it[0], it[1]),
    ),
    (
        "due work by time, world, intent",
        st.tuples(numbers, identities, identities),
        lambda it: work.due_key(in_world(it[1]), ids.IntentId(it[2]), queue="q", due_us=it[0]),
    ),
    ("worlds by id", identities, lambda world: worlds.index_key(in_world(world))),
    ("worlds by name", names.map(str.encode), lambda name: worlds.name_key(AT.universe, name.decode())),
    ("universes by name", names.map(str.encode), lambda name: universes.name_key(name.decode())),
]


def in_world(world: bytes) -> ids.Address:
    return ids.Address(AT.universe, ids.WorldId(world))


@pytest.mark.parametrize(("name", "parts", "build"), SORTED, ids=[row[0] for row in SORTED])
def test_keys_sort_as_their_parts(name: str, parts: st.SearchStrategy[Any], build: Callable[[Any], bytes]) -> None:
    @quick
    @given(st.lists(parts, min_size=2, max_size=8))
    def check(drawn: Sequence[Any]) -> None:
        assert sorted(drawn) == sorted(drawn, key=build)

    check()


def test_made_ids_sort_by_time() -> None:
    env = envs.FixedEnv()
    made = []
    for _ in range(50):
        made.append(envs.new_id(env))
        env.advance_us(1_000)
    assert sorted(made, key=lambda each: inbox.seen_key(AT, each)) == made


@quick
@given(addresses, numbers.filter(bool), numbers, stamps, identities, numbers, names)
def test_every_parser_gives_back_what_was_built(
    at: ids.Address, height: int, step: int, stamp: bytes, other: bytes, due_us: int, queue: str
) -> None:
    intent, worker = ids.IntentId(other), ids.WorkerId(other)
    assert journal.frame_height(at, journal.frame_key(at, height)) == height
    assert snapshots.snapshot_step(at, snapshots.snapshot_key(at, step)) == step
    assert inbox.stamp_of(inbox.item_key(at, stamp)) == stamp
    assert inbox.stamp_of(inbox.dead_key(at, stamp)) == stamp
    assert worlds.index_world(at.universe, worlds.index_key(at)) == at.world
    assert work.open_intent(at, work.open_key(at, intent)) == intent
    assert work.open_address(at.universe, work.open_key(at, intent)) == (at, intent)
    assert worlds.name_of(at.universe, worlds.name_key(at.universe, queue)) == queue
    assert universes.name_of(universes.name_key(queue)) == queue
    key = work.due_key(at, intent, queue=queue, due_us=due_us)
    assert work.pointer(at.universe, key) == work.Pointer(queue, due_us, at, intent)
    assert ready.hint_world(ready.hint_value(at.world)) == at.world
    assert leases.held_address(worker, leases.held_key(worker, at)) == at
    assert leases.worker_of(leases.worker_key(worker)) == worker


def keys_of(at: ids.Address, *, name: str, number: int, other: bytes) -> dict[str, bytes]:
    """Every key that a universe can hold."""
    intent = ids.IntentId(other)
    stamp = other[: limits.STAMP_BYTES]
    return {
        "universe meta": universes.meta_key(at.universe),
        "generation": universes.generation_key(at.universe),
        "name": worlds.name_key(at.universe, name),
        "index": worlds.index_key(at),
        "blob": cas.blob_key(at.universe, other * 2),
        "chunk": chunks.chunk_key(at.universe, other * 2, other, number),
        "grants": universes.grants_key(at.universe),
        "grant change": universes.grant_log_key(at.universe, stamp),
        "quotas": quota_keyspace.quotas_key(at.universe),
        "settings": universe_settings.settings_key(at.universe),
        "usage": quota_keyspace.usage_key(at.universe),
        "quota change": quota_keyspace.log_key(at.universe, stamp),
        "upload": chunks.upload_key(at.universe, other * 2, other),
        "collection": collection_keyspace.collection_key(at.universe),
        "holds": collection_keyspace.holds_key(at.universe),
        "condemned": collection_keyspace.condemned_key(at.universe, other * 2),
        "personal value": personal_records.value_key(at, other, other),
        "subject": personal_subjects.subject_key(at, other),
        "erased value": personal_subjects.value_key(at, other, other),
        "open": work.open_key(at, intent),
        "due": work.due_key(at, intent, queue=name, due_us=number),
        "hint": ready.hint_key(at.universe, number, stamp),
        "meta": worlds.meta_key(at),
        "epoch": leases.epoch_key(at),
        "holder": leases.holder_key(at),
        "assignment": leases.assignment_key(at),
        "trial": trial.trial_key(at),
        "head": journal.head_key(at),
        "frame": journal.frame_key(at, number + 1),
        "baseline": snapshots.baseline_key(at),
        "snapshot": snapshots.snapshot_key(at, number),
        "item": inbox.item_key(at, stamp),
        "made": inbox.seen_key(at, other),
        "chosen": inbox.seen_key(at, name),
        "hashed": inbox.seen_key(at, name * 65),
        "dead": inbox.dead_key(at, stamp),
        "trace": traces.trace_key(at, number + 1),
    }


everything = st.builds(
    lambda at, name, number, other: keys_of(at, name=name, number=number, other=other),
    addresses,
    names,
    st.integers(0, 2**64 - 2),
    identities,
)


@quick
@given(addresses, addresses, names, st.integers(0, 2**64 - 2), identities)
def test_a_universe_keeps_to_itself(a: ids.Address, b: ids.Address, name: str, number: int, other: bytes) -> None:
    inside = tuples.prefix_range(space.universe(a.universe))
    for what, key in keys_of(a, name=name, number=number, other=other).items():
        assert inside[0] < key < inside[1], what
        if a.universe != b.universe:
            assert not key.startswith(space.universe(b.universe)), what
        if a != b:
            assert not key.startswith(space.world(b)), what


@quick
@given(st.lists(everything, min_size=1, max_size=4))
def test_no_key_is_another_kind_of_key(drawn: list[dict[str, bytes]]) -> None:
    kinds: dict[bytes, str] = {}
    for keys in drawn:
        for what, key in keys.items():
            assert kinds.setdefault(key, what) == what
    in_order = sorted(kinds)
    for first, second in itertools.pairwise(in_order):
        assert not second.startswith(first), (kinds[first], kinds[second])


@quick
@given(st.lists(numbers.filter(bool), min_size=1, max_size=12, unique=True), st.integers(0, 2**64 - 2))
def test_frames_above_a_height_are_those_that_end_there_or_later(lasts: list[int], above: int) -> None:
    begin, end = journal.frames(AT, above=above)
    inside = [last for last in sorted(lasts) if begin <= journal.frame_key(AT, last) < end]
    assert inside == [last for last in sorted(lasts) if last > above]


@quick
@given(st.lists(numbers, min_size=1, max_size=12, unique=True), st.integers(0, 2**64 - 2))
def test_bounds_of_steps_and_due_times_include_what_they_name(values: list[int], bound: int) -> None:
    up_to = snapshots.snapshots(AT, up_to=bound)
    due = work.due_until(AT.universe, queue="q", until_us=bound)
    for value in values:
        assert (up_to[0] <= snapshots.snapshot_key(AT, value) < up_to[1]) == (value <= bound)
        key = work.due_key(AT, INTENT, queue="q", due_us=value)
        assert (due[0] <= key < due[1]) == (value <= bound)
        other = work.due_key(AT, INTENT, queue="r", due_us=value)
        assert not due[0] <= other < due[1]


@quick
@given(st.lists(identities, min_size=1, max_size=12), identities, names)
def test_made_ids_before_one_are_those_that_sort_below_it(made: list[bytes], bound: bytes, chosen: str) -> None:
    begin, end = inbox.seen_made_before(AT, bound)
    for each in made:
        assert (begin <= inbox.seen_key(AT, each) < end) == (each < bound)
    for text in (chosen, chosen * 65):
        assert not begin <= inbox.seen_key(AT, text) < end
        assert inbox.seen_chosen(AT)[0] <= inbox.seen_key(AT, text) < inbox.seen_chosen(AT)[1]
