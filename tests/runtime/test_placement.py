"""Placement is pure: the same for everybody who sees the same, within capacity, and it moves no more than it must."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import worldline as wl
from worldline.base import errors, limits
from worldline.codec import digest
from worldline.model import ids
from worldline.model.world_records import Status, WorldMeta
from worldline.runtime import placement, worker_labels
from worldline.runtime.placement import Active, Choice, Site

U = ids.UniverseId(bytes(16))


def worker(number: int) -> ids.WorkerId:
    return ids.WorkerId(digest.sha256(b"worker %d" % number)[:16])


def address(number: int) -> ids.Address:
    return ids.Address(U, ids.WorldId(digest.sha256(b"world %d" % number)[:16]))


def site_of(number: int, capacity: int, labels: dict[str, str]) -> Site:
    """A worker that serves all universes."""
    return Site(worker(number), capacity, {"universe": "*", **labels})


def sites(count: int, *, capacity: int = 10_000, labels: dict[str, str] | None = None) -> list[Site]:
    return [site_of(number, capacity, labels or {}) for number in range(count)]


def worlds(count: int, *, holder: int | None = None, assigned: int | None = None) -> list[Active]:
    return [
        Active(
            address(number),
            {},
            None if holder is None else worker(holder),
            None if assigned is None else worker(assigned),
        )
        for number in range(count)
    ]


def carry_out(active: list[Active], choices: list[Choice], *, taken: bool = True) -> list[Active]:
    """The worlds after these choices were written, and after the workers have done what they say."""
    chosen = {choice.at: choice.to for choice in choices}
    after = []
    for each in active:
        to = chosen.get(each.at, each.assigned)
        holder = to if taken and to is not None else each.holder
        after.append(msgspec.structs.replace(each, assigned=to, holder=holder))
    return after


def settle(active: list[Active], where: list[Site], *, moves_max: int = 1_000) -> tuple[list[Active], int]:
    """Turn after turn until nothing changes. Returns how many choices that took."""
    count = 0
    for _ in range(200):
        choices = placement.choose(active, where, moves_max=moves_max)
        if not choices:
            return active, count
        count += len(choices)
        active = carry_out(active, choices)
    raise AssertionError("it never settles")


def loads(active: list[Active]) -> list[int]:
    return sorted(Counter(each.assigned for each in active).values())


# --- Who wins --------------------------------------------------------------------------------------------------


def test_the_score_is_what_it_is() -> None:
    """Others that place worlds must come to the same result, whatever their release."""
    assert placement.score(worker(0), address(0).world).hex() == (
        "474bd78e569b006db4fae396c0a16b36a8e4645b216bdf6e84b0dac5f0897132"
    )
    assert placement.score(worker(0), address(0).world) != placement.score(worker(1), address(0).world)


def test_worlds_spread_over_workers_and_each_goes_to_its_winner() -> None:
    where = sites(4)
    choices = placement.choose(worlds(1_000), where, moves_max=0)
    assert len(choices) == 1_000
    assert {choice.reason for choice in choices} == {"placed"}
    for choice in choices:
        assert choice.to == max((site.worker for site in where), key=lambda one: placement.score(one, choice.at.world))
    assert min(Counter(choice.to for choice in choices).values()) > 150


def test_the_order_of_what_is_seen_does_not_matter() -> None:
    active, where = worlds(50), sites(3, capacity=20)
    there = placement.choose(active, where, moves_max=9)
    assert placement.choose(active[::-1], where[::-1], moves_max=9) == there


def test_only_the_worlds_of_the_one_that_left_go_elsewhere() -> None:
    placed, _ = settle(worlds(300), sites(4))
    left = [msgspec.structs.replace(each, holder=each.assigned) for each in placed]
    choices = placement.choose(left, sites(3), moves_max=0)
    orphans = {each.at for each in placed if each.assigned == worker(3)}
    assert {choice.at for choice in choices} == orphans
    assert {choice.reason for choice in choices} == {"moved"}


def test_one_that_holds_a_world_may_keep_it() -> None:
    """No churn: that somebody was quicker than the orchestrator is no reason to move a world."""
    choices = placement.choose(worlds(10, holder=0), sites(1), moves_max=100)
    assert [(choice.to, choice.reason) for choice in choices] == [(worker(0), "held")] * 10
    assert placement.choose(worlds(10, holder=0, assigned=0), sites(1), moves_max=100) == []


# --- Capacity --------------------------------------------------------------------------------------------------


def test_nobody_gets_more_than_it_can_hold_and_the_rest_is_for_anybody() -> None:
    choices = placement.choose(worlds(25), sites(2, capacity=10), moves_max=0)
    assert Counter(choice.to for choice in choices) == {worker(0): 10, worker(1): 10}


def test_worlds_that_were_not_looked_at_count() -> None:
    full = {worker(0): 10}
    choices = placement.choose(worlds(5), sites(2, capacity=10), moves_max=0, besides=full)
    assert {choice.to for choice in choices} == {worker(1)}
    even = placement.choose(worlds(10, holder=0, assigned=0), sites(2), moves_max=9, besides={worker(1): 10})
    assert even == []


def test_a_dangling_assignment_is_taken_away_if_nobody_has_room() -> None:
    gone = worlds(1, assigned=7)
    assert placement.choose(gone, [], moves_max=0) == [Choice(address(0), None, "nowhere to go")]


# --- Needs -----------------------------------------------------------------------------------------------------


def meta(**labels: str) -> WorldMeta:
    named = {name.replace("__", ":"): value for name, value in labels.items()}
    return WorldMeta("w", "greeter", bytes(32), Status.ACTIVE, named, 0)


@pytest.mark.parametrize(
    ("world", "labels", "unmet"),
    [
        (meta(), {"program:greeter": ""}, None),
        (meta(), {"program:other": ""}, "program:greeter"),
        (meta(pin="a"), {"program:greeter": "", "name": "a"}, None),
        (meta(pin="a"), {"program:greeter": "", "name": "b"}, "name=a"),
        (meta(pin=""), {"program:greeter": "", "name": "b"}, None),
        (meta(needs__zone="eu"), {"program:greeter": "", "zone": "eu"}, None),
        (meta(needs__zone="eu"), {"program:greeter": "", "zone": "us"}, "zone=eu"),
        (meta(needs__zone="eu"), {"program:greeter": ""}, "zone=eu"),
        (meta(needs__gpu=""), {"program:greeter": "", "gpu": "a100"}, None),
        (meta(needs__gpu=""), {"program:greeter": ""}, "gpu"),
        (meta(zone="eu"), {"program:greeter": ""}, None),
    ],
)
def test_what_a_world_needs(world: WorldMeta, labels: dict[str, str], unmet: str | None) -> None:
    assert worker_labels.unmet(worker_labels.needs_of(world), labels) == unmet


def test_labels_of_a_worker() -> None:
    said = placement.labels_of({"zone": "eu"}, universes=U.hex(), programs={"a": b"\x01" * 32, "b": b"\x02" * 32})
    assert said == {"zone": "eu", "universe": U.hex(), "program:a": "01" * 8, "program:b": "02" * 8}
    assert list(placement.programs_of(said)) == ["a", "b"]
    assert [name for name in said if placement.reserved(name)] == ["universe", "program:a", "program:b"]
    assert placement.reserved("name")


async def test_a_worker_with_too_many_programs_is_refused_at_its_start() -> None:
    """Its life sign could not be written, now or ever."""
    programs = [wl.Program(f"program-{number}") for number in range(2_000)]
    with pytest.raises(errors.TooLarge, match=f"of 2000 programs is .* the limit is {limits.WORKER_LABELS_BYTES_MAX}"):
        async with wl.open("memory://", host=programs):
            pass
    async with wl.open("memory://", host=programs[:900]) as universe:
        assert universe._connection.host is not None
        universe._connection.host.check()


def test_a_world_whose_needs_have_changed_moves_to_one_that_meets_them() -> None:
    where = [site_of(0, 10, {"zone": "eu"}), site_of(1, 10, {"zone": "us"})]
    world = Active(address(0), {"zone": "us"}, worker(0), worker(0))
    assert placement.choose([world], where, moves_max=0) == [Choice(address(0), worker(1), "moved")]
    assert placement.choose([world], where[:1], moves_max=0) == [Choice(address(0), None, "nowhere to go")]


# --- Balance ---------------------------------------------------------------------------------------------------


def test_a_worker_that_joins_gets_its_share_in_small_steps() -> None:
    active = worlds(300, holder=0, assigned=0)
    first = placement.choose(active, sites(2), moves_max=16)
    assert [(choice.to, choice.reason) for choice in first] == [(worker(1), "balance")] * 16
    placed, moves = settle(active, sites(2), moves_max=16)
    assert 120 <= loads(placed)[0] <= 150
    assert moves == loads(placed)[0], "each moved once"


def test_those_that_nobody_has_in_memory_move_first_then_the_quiet_ones() -> None:
    kinds = [
        msgspec.structs.replace(each, holder=None if number % 3 == 0 else worker(0), quiet=number % 3 < 2)
        for number, each in enumerate(worlds(90, holder=0, assigned=0))
    ]
    by_address = {each.at: each for each in kinds}
    choices = placement.choose(kinds, sites(2), moves_max=40)
    seen = [by_address[choice.at] for choice in choices]
    order = [(each.holder is not None, not each.quiet) for each in seen]
    assert order == sorted(order)
    assert order[0] == (False, False)
    assert order[-1] == (True, True)


def test_a_world_that_is_on_its_way_is_left_alone() -> None:
    moving = [msgspec.structs.replace(each, assigned=worker(1)) for each in worlds(50, holder=0)]
    assert placement.choose(moving, sites(2), moves_max=100) == []


def test_shares_follow_capacity() -> None:
    where = [site_of(0, 300, {}), site_of(1, 100, {})]
    placed, _ = settle(worlds(200, holder=1, assigned=1), where)
    assert Counter(each.assigned for each in placed)[worker(1)] < 100
    assert placement.choose(worlds(3, holder=0, assigned=0), where, moves_max=100) == [], "three of 300 are few"


def test_for_balance_a_world_moves_only_to_the_same_code() -> None:
    needs = {"program:p": ""}
    active = [msgspec.structs.replace(each, needs=needs) for each in worlds(20, holder=0, assigned=0)]
    old, same, new = [site_of(n, 100, {"program:p": code}) for n, code in enumerate(["1", "1", "2"])]
    assert placement.choose(active, [old, new], moves_max=100) == []
    assert {choice.to for choice in placement.choose(active, [old, same], moves_max=100)} == {same.worker}
    gone = placement.choose(active, [new], moves_max=0)
    assert [choice.to for choice in gone] == [new.worker] * 20, "better under other code than not at all"


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 4), st.booleans()), max_size=40),
    st.lists(st.integers(1, 12), min_size=1, max_size=5),
    st.integers(0, 6),
)
def test_it_always_settles_within_capacity(
    said: list[tuple[int, int, bool]], capacities: list[int], moves_max: int
) -> None:
    """Whatever it begins with: after a while nothing changes, and nobody was given more than it had room for."""
    where = [site_of(number, capacity, {}) for number, capacity in enumerate(capacities)]
    active = [
        Active(address(number), {}, worker(held) if held < 4 else None, None if to < 0 else worker(to), quiet)
        for number, (held, to, quiet) in enumerate(said)
    ]
    before = Counter(_home(each, where) for each in active)
    placed, _ = settle(active, where, moves_max=moves_max)
    after = Counter(each.assigned for each in placed)
    for site in where:
        assert after[site.worker] <= max(site.capacity, before[site.worker])


def _home(each: Active, where: list[Site]) -> ids.WorkerId | None:
    known = [site.worker for site in where]
    return next((one for one in (each.assigned, each.holder) if one in known), None)


def test_a_world_goes_to_its_own_code_while_a_worker_has_it() -> None:
    needs = {"program:p": ""}
    active = [msgspec.structs.replace(each, needs=needs, code="1") for each in worlds(20)]
    old, new = [site_of(n, 100, {"program:p": code}) for n, code in enumerate(["1", "2"])]
    assert {choice.to for choice in placement.choose(active, [old, new], moves_max=0)} == {old.worker}
    assert {choice.to for choice in placement.choose(active, [new], moves_max=0)} == {new.worker}


def test_a_world_goes_only_to_workers_that_serve_its_universe() -> None:
    other = ids.UniverseId(b"\x07" * 16)
    both = f"{other.hex()},{U.hex()}"
    where = [Site(worker(0), 100, {"universe": other.hex()}), Site(worker(1), 100, {"universe": both})]
    choices = placement.choose(worlds(20), where, moves_max=100)
    assert {choice.to for choice in choices} == {worker(1)}
    assert placement.choose(worlds(3), where[:1], moves_max=100) == []
    assert [worker_labels.serves(each.labels, U) for each in where] == [False, True]
    assert worker_labels.serves({"universe": "*"}, other)
    assert not worker_labels.serves({}, U)
