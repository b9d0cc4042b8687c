"""The checker is checked: what can be explained is, what was tampered with is found, and both ways agree."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import hypothesis
import msgspec
import pytest
from hypothesis import strategies

from tests.chaos import linearizability
from tests.chaos.linearizability import End, Kind, Op, Wrong

OPS = 300
CLIENTS = 4
UNKNOWN_SHARE = 0.03

Told = tuple[list[Op], list[str]]


def told(seed: int, *, count: int = OPS, clients: int = CLIENTS) -> Told:
    """A history of clients that really met one account, and the order in which it took what they did."""
    draws = random.Random(seed)
    free = dict.fromkeys(range(clients), 0)  # when each may begin its next
    ops: list[Op] = []
    taken: list[tuple[int, str]] = []
    for number in range(count):
        client = draws.randrange(clients)
        begun = free[client] + draws.randint(1, 20)
        at = begun + draws.randint(1, 50)
        answered = at + draws.randint(1, 50)
        free[client] = answered
        [kind] = draws.choices(list(Kind), [4, 2, 3])
        ops.append(Op(f"{client}-{number}", kind, draws.randint(1, 10_000), begun, answered, End.OK))
        taken.append((at, ops[-1].id))
    order = [id for _, id in sorted(taken)]
    return _with_ends(ops, order, draws)


def _with_ends(ops: list[Op], order: list[str], draws: random.Random) -> Told:
    """Let them be answered as the account did, but for some whose answers were lost, and which may not be there."""
    known = {op.id: op for op in ops}
    lost = {op.id: draws.random() < 0.5 for op in ops if draws.random() < UNKNOWN_SHARE}
    order = [id for id in order if lost.get(id, True)]
    values: dict[str, int] = {}
    total = 0
    for id in order:
        total = values[id] = known[id].after(total)
    ended = [
        msgspec.structs.replace(op, end=End.UNKNOWN, answered=linearizability.NEVER)
        if op.id in lost
        else msgspec.structs.replace(op, value=None if op.kind is Kind.ADD else values[op.id])
        for op in ops
    ]
    return ended, order


def wrongs(ops: list[Op], order: list[str]) -> list[Wrong]:
    return [problem.wrong for problem in linearizability.problems(ops, order)]


def explained(ops: list[Op]) -> bool:
    verdict = linearizability.search(ops)
    assert verdict.decided
    if verdict.order is not None:
        assert wrongs(ops, verdict.order) == []
    return verdict.order is not None


@pytest.mark.parametrize("seed", range(20))
def test_what_happened_can_be_explained(seed: int) -> None:
    ops, order = told(seed)
    assert wrongs(ops, order) == []
    assert explained(ops)


# --- By hand ------------------------------------------------------------------------------------------------------


def add(id: str, begun: int, answered: int, amount: int = 1) -> Op:
    return Op(id, Kind.ADD, amount, begun, answered, End.OK)


def total(id: str, begun: int, answered: int, value: int) -> Op:
    return Op(id, Kind.TOTAL, 0, begun, answered, End.OK, value)


def withdraw(id: str, begun: int, answered: int, amount: int, value: int) -> Op:
    return Op(id, Kind.WITHDRAW, amount, begun, answered, End.OK, value)


def unknown(op: Op) -> Op:
    return msgspec.structs.replace(op, answered=linearizability.NEVER, end=End.UNKNOWN, value=None)


def failed(op: Op) -> Op:
    return msgspec.structs.replace(op, end=End.FAILED, value=None)


EXPLAINED = {
    "nothing": [],
    "one after the other": [add("a", 1, 2), total("b", 3, 4, 1)],
    "side by side, seen": [add("a", 1, 10), total("b", 2, 9, 1)],
    "side by side, not seen": [add("a", 1, 10), total("b", 2, 9, 0)],
    "begun when the other was answered": [add("a", 1, 2), total("b", 2, 3, 0)],
    "unknown and seen late": [unknown(add("a", 1, 2)), total("b", 3, 4, 0), total("c", 5, 6, 1)],
    "unknown and never seen": [unknown(add("a", 1, 2)), total("b", 3, 4, 0)],
    "unknown withdrawal seen": [add("a", 1, 2, 9), unknown(withdraw("b", 3, 4, 5, 4)), total("c", 5, 6, 4)],
    "failed": [failed(add("a", 1, 2)), total("b", 3, 4, 0)],
    "withdrawn twice": [withdraw("a", 1, 10, 5, -12), withdraw("b", 2, 9, 7, -7)],
}
UNEXPLAINED = {
    "not seen": [add("a", 1, 2), total("b", 3, 4, 0)],
    "twice": [add("a", 1, 2), total("b", 3, 4, 2)],
    "back again": [unknown(add("a", 1, 2)), total("b", 3, 4, 1), total("c", 5, 6, 0)],
    "before it was begun": [total("a", 1, 2, 1), unknown(add("b", 3, 4))],
    "failed and seen": [failed(add("a", 1, 2)), total("b", 3, 4, 1)],
    "taken twice": [add("a", 1, 2, 9), withdraw("b", 3, 4, 5, -1)],
    "each after the other": [withdraw("a", 1, 10, 5, -12), withdraw("b", 2, 9, 7, -12)],
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_by_hand_explained(name: str) -> None:
    assert explained(EXPLAINED[name])


@pytest.mark.parametrize("name", UNEXPLAINED)
def test_by_hand_not_explained(name: str) -> None:
    assert not explained(UNEXPLAINED[name])


def test_what_it_was_stuck_at_is_told() -> None:
    ops = [add("a", 1, 2), total("b", 3, 4, 1), total("c", 5, 6, 7)]
    verdict = linearizability.search(ops)
    assert [op.id for op in verdict.stuck] == ["c"]
    assert verdict.total == 1


def test_it_gives_up_undecided() -> None:
    verdict = linearizability.search(told(1)[0], states_max=10)
    assert verdict.order is None
    assert not verdict.decided
    assert verdict.states == 10


# --- Tampering ----------------------------------------------------------------------------------------------------


def swapped(ops: list[Op], order: list[str]) -> Told:
    """Two that followed each other are taken the other way round."""
    known = {op.id: op for op in ops}
    pairs = enumerate(itertools.pairwise(order))
    at = next(at for at, (first, second) in pairs if known[first].answered < known[second].begun)
    return ops, [*order[:at], order[at + 1], order[at], *order[at + 2 :]]


def doubled(ops: list[Op], order: list[str]) -> Told:
    at = _place(ops, order, Kind.ADD)
    return ops, [*order[: at + 20], order[at], *order[at + 20 :]]


def dropped(ops: list[Op], order: list[str]) -> Told:
    at = _place(ops, order, Kind.ADD)
    return ops, order[:at] + order[at + 1 :]


def never_begun(ops: list[Op], order: list[str]) -> Told:
    gone = order[_place(ops, order, Kind.WITHDRAW)]
    return [op for op in ops if op.id != gone], order


def said_to_have_failed(ops: list[Op], order: list[str]) -> Told:
    id = order[_place(ops, order, Kind.ADD)]
    return [failed(op) if op.id == id else op for op in ops], order


def stale(ops: list[Op], order: list[str]) -> Told:
    """The last question does not see an addition that was answered before it."""
    asked = max((op for op in ops if op.kind is Kind.TOTAL and op.end is End.OK), key=lambda op: op.begun)
    missed = next(op for op in ops if op.kind is Kind.ADD and op.answered < asked.begun)
    assert asked.value is not None
    wrong = msgspec.structs.replace(asked, value=asked.value - missed.amount)
    return [wrong if op is asked else op for op in ops], order


def _place(ops: list[Op], order: list[str], kind: Kind) -> int:
    """Of the first of this kind that was answered."""
    known = {op.id: op for op in ops}
    return next(at for at, id in enumerate(order) if known[id].kind is kind and known[id].end is End.OK)


TAMPERED: list[tuple[Callable[[list[Op], list[str]], Told], Wrong]] = [
    (swapped, Wrong.REORDERED),
    (doubled, Wrong.TWICE),
    (dropped, Wrong.LOST),
    (never_begun, Wrong.FOREIGN),
    (said_to_have_failed, Wrong.NOT_FAILED),
    (stale, Wrong.STALE),
]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("tamper", "wrong"), TAMPERED)
def test_tampering_is_found(tamper: Callable[[list[Op], list[str]], Told], wrong: Wrong, seed: int) -> None:
    assert wrong in wrongs(*tamper(*told(seed)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("tamper", [never_begun, said_to_have_failed, stale])
def test_tampering_is_seen_by_clients(tamper: Callable[[list[Op], list[str]], Told], seed: int) -> None:
    """These change what clients have seen; the others only what the journal says."""
    ops, _ = tamper(*told(seed, clients=2))
    assert not explained(ops)


@pytest.mark.parametrize("tamper", [swapped, doubled, dropped])
def test_an_account_that_did_so_is_seen_through(tamper: Callable[[list[Op], list[str]], Told]) -> None:
    """One client asks after each addition. The account takes additions wrongly and answers truthfully by that."""
    ops: list[Op] = []
    for begun in range(0, 400, 4):
        ops += [add(f"add {begun}", begun, begun + 1, begun + 1), total(f"total {begun}", begun + 2, begun + 3, 0)]
    _, order = tamper(ops, [op.id for op in ops])
    known = {op.id: op for op in ops}
    values: dict[str, int] = {}
    now = 0
    for id in order:
        now = values[id] = known[id].after(now)
    seen = [msgspec.structs.replace(op, value=values[op.id]) if op.kind is Kind.TOTAL else op for op in ops]
    assert not explained(seen)


# --- Both ways agree ----------------------------------------------------------------------------------------------


@strategies.composite
def any_history(draw: strategies.DrawFn) -> list[Op]:
    """Few operations with small numbers, answered by chance: about half can be explained."""
    ops = []
    for number in range(draw(strategies.integers(1, 5))):
        kind = draw(strategies.sampled_from(list(Kind)))
        begun = draw(strategies.integers(0, 6))
        answered = begun + draw(strategies.integers(1, 4))
        op = Op(f"{number}", kind, draw(strategies.integers(1, 2)), begun, answered, End.OK)
        end = draw(strategies.sampled_from([End.OK, End.OK, End.OK, End.UNKNOWN, End.FAILED]))
        if end is End.OK and kind is not Kind.ADD:
            op = msgspec.structs.replace(op, value=draw(strategies.integers(-2, 3)))
        ops.append(unknown(op) if end is End.UNKNOWN else failed(op) if end is End.FAILED else op)
    return ops


@hypothesis.settings(max_examples=400)
@hypothesis.given(any_history())
def test_the_search_finds_an_order_if_and_only_if_there_is_one(ops: list[Op]) -> None:
    assert explained(ops) == any(not wrongs(ops, order) for order in _orders([op.id for op in ops]))


def _orders(left: list[str]) -> list[list[str]]:
    """Every order of any of them."""
    return [[], *([id, *rest] for id in left for rest in _orders([other for other in left if other != id]))]
