"""Whether what clients saw of one account can be explained by its operations having been made one after the other.

A history is a list of operations, each with the times at which it was begun and answered, on one clock. An operation
takes effect at one instant between the two. One without an answer (its process was killed, or was told that the outcome
is uncertain) takes effect at any time after its beginning, or never. One that certainly failed has no effect.

* `search` looks for such instants with the clients' knowledge alone, after Wing & Gong: it tries every operation that
  may be the next, and never the same state twice. A state is the operations that are done, and the total.
* `problems` is given the order in which the account has really taken them, which is in its journal, and says what is
  wrong with it. An order without problems is one that `search` could have found.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import msgspec

NEVER = 2**63
STATES_MAX = 300_000


class Kind(enum.StrEnum):
    ADD = "add"
    WITHDRAW = "withdraw"
    TOTAL = "total"


class End(enum.StrEnum):
    OK = "ok"
    FAILED = "failed"  # certainly without effect
    UNKNOWN = "unknown"


class Op(msgspec.Struct, frozen=True):
    """One operation. `value` is the total that it was answered with; an addition is answered with nothing."""

    id: str
    kind: Kind
    amount: int
    begun: int
    answered: int = NEVER
    end: End = End.UNKNOWN
    value: int | None = None

    def after(self, total: int) -> int:
        """The total once it has taken effect."""
        match self.kind:
            case Kind.ADD:
                return total + self.amount
            case Kind.WITHDRAW:
                return total - self.amount
            case _:
                return total

    def allows(self, total: int) -> bool:
        """Whether it may have been answered as it was, with this total before it."""
        return self.value is None or self.value == self.after(total)


class Wrong(enum.StrEnum):
    LOST = "lost"  # answered, and not taken
    TWICE = "twice"
    NOT_FAILED = "not failed"  # said to be without effect, and taken
    FOREIGN = "foreign"  # taken, and never begun
    REORDERED = "reordered"  # taken before one that was answered before it was begun
    STALE = "stale"  # answered with another total than it met


class Problem(msgspec.Struct, frozen=True):
    wrong: Wrong
    op: str
    what: str


# --- With the journal ---------------------------------------------------------------------------------------------


def problems(ops: Sequence[Op], taken: Sequence[str]) -> list[Problem]:
    """What is wrong with the order in which the account has taken operations, as ids."""
    known = {op.id: op for op in ops}
    assert len(known) == len(ops), "an id is used once"
    found = list(_miscounted(known, taken))
    order = [known[id] for id in taken if id in known]
    return found + list(_reordered(order)) + list(_stale(order))


def _miscounted(known: dict[str, Op], taken: Sequence[str]) -> Iterator[Problem]:
    places: dict[str, list[int]] = {}
    for place, id in enumerate(taken):
        places.setdefault(id, []).append(place)
    for id, at in places.items():
        if id not in known:
            yield Problem(Wrong.FOREIGN, id, f"taken at {at}")
        elif known[id].end is End.FAILED:
            yield Problem(Wrong.NOT_FAILED, id, f"taken at {at}: {known[id]}")
        if len(at) > 1:
            yield Problem(Wrong.TWICE, id, f"taken at {at}: {known.get(id)}")
    for op in known.values():
        if op.end is End.OK and op.id not in places:
            yield Problem(Wrong.LOST, op.id, str(op))


def _reordered(order: list[Op]) -> Iterator[Problem]:
    """From the last to the first, with the earliest answer among those that were taken later."""
    first: Op | None = None
    for op in reversed(order):
        if first is not None and first.answered < op.begun:
            yield Problem(Wrong.REORDERED, op.id, f"{op} was taken before {first}")
        if op.end is End.OK and (first is None or op.answered < first.answered):
            first = op


def _stale(order: list[Op]) -> Iterator[Problem]:
    total = 0
    for op in order:
        if op.end is End.OK and not op.allows(total):
            yield Problem(Wrong.STALE, op.id, f"{op} met {total}")
        total = op.after(total)


# --- Without ------------------------------------------------------------------------------------------------------


class Verdict(msgspec.Struct, frozen=True):
    """`order`: the ids in an order that explains everything, or None. Then `stuck` are the operations of which none
    could be the next after the longest order that explains a part, and `total` is what they would have met.
    """

    order: list[str] | None
    states: int
    decided: bool = True
    stuck: list[Op] = []
    total: int = 0


class _State(msgspec.Struct, frozen=True):
    """The certain operations below `low` are done, and those `above` it whose bit is set; so are some `uncertain`."""

    low: int
    above: int
    uncertain: int
    total: int


class _Frame(msgspec.Struct):
    state: _State
    untried: list[int]  # the last is tried first
    chosen: int = -1


def search(ops: Sequence[Op], *, states_max: int = STATES_MAX) -> Verdict:
    """Depth first. It gives up undecided after so many states."""
    return _Search(ops).run(states_max)


class _Search:
    """Operations are numbered: the certain ones by their beginning, then the uncertain ones."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._certain = sorted((op for op in ops if op.end is End.OK), key=lambda op: op.begun)
        self._uncertain = [op for op in ops if op.end is End.UNKNOWN]
        self._ops = self._certain + self._uncertain

    def run(self, states_max: int) -> Verdict:
        start = _State(0, 0, 0, 0)
        frames = [_Frame(start, self._next(start))]
        seen = {start}
        best, best_done = start, -1
        while frames:
            frame = frames[-1]
            if frame.state.low == len(self._certain):
                return Verdict([self._ops[each.chosen].id for each in frames[:-1]], len(seen))
            done = frame.state.low + frame.state.above.bit_count()
            if done > best_done:
                best, best_done = frame.state, done
            if not frame.untried:
                frames.pop()
                continue
            frame.chosen = frame.untried.pop()
            state = self._with(frame.state, frame.chosen)
            if state not in seen:
                if len(seen) >= states_max:
                    return self._stuck(best, len(seen), decided=False)
                seen.add(state)
                frames.append(_Frame(state, self._next(state)))
        return self._stuck(best, len(seen), decided=True)

    def _stuck(self, state: _State, states: int, *, decided: bool) -> Verdict:
        return Verdict(None, states, decided, [self._ops[number] for number in self._possible(state)], state.total)

    def _next(self, state: _State) -> list[int]:
        """What may take effect next, the likeliest last."""
        found = [number for number in self._possible(state) if self._ops[number].allows(state.total)]
        for number in found:
            op = self._ops[number]
            if op.kind is Kind.TOTAL and op.end is End.OK:
                return [number]  # it changes nothing, so if it may be now, nothing is gained by trying it later
        return sorted(found, key=lambda number: self._ops[number].answered, reverse=True)

    def _possible(self, state: _State) -> list[int]:
        """What is not done, and was begun before everything else that is not done was answered."""
        begun: list[int] = []
        until = NEVER
        for number in range(state.low, len(self._certain)):
            if state.above >> (number - state.low) & 1:
                continue
            op = self._certain[number]
            if op.begun > until:
                break
            begun.append(number)
            until = min(until, op.answered)
        begun += [
            len(self._certain) + index for index in range(len(self._uncertain)) if not state.uncertain >> index & 1
        ]
        return [number for number in begun if self._ops[number].begun <= until]

    def _with(self, state: _State, number: int) -> _State:
        total = self._ops[number].after(state.total)
        if number >= len(self._certain):
            return _State(state.low, state.above, state.uncertain | 1 << (number - len(self._certain)), total)
        low, above = state.low, state.above | 1 << (number - state.low)
        while above & 1:
            low, above = low + 1, above >> 1
        return _State(low, above, state.uncertain, total)
