"""The account of what clients did: when an order is wrong, and when something was taken twice."""

from __future__ import annotations

import pytest

from tests.campaign.load import programs
from worldline.codec import digest, structs
from worldline.kernel import control_commands, user_values
from worldline.model import inbox, journal, payload
from worldline.model.journal import Kind
from worldline.sim.load.history import ClientOp, History

FIRST, SECOND = ClientOp("first", "add", "counter-0", 1), ClientOp("second", "add", "counter-0", 1)


class Told:
    """A history at a clock that each look moves on, and what it found broken."""

    def __init__(self) -> None:
        self.now_us = 0
        self.broken: list[str] = []
        self.history = History(self._time, broken=lambda invariant, _: self.broken.append(invariant))

    def _time(self) -> int:
        self.now_us += 1
        return self.now_us

    def begin(self, op: ClientOp, note: str = "") -> None:
        self.history.begin(op)
        self.history.sends(op, programs.Add(op.id, op.amount, note))

    def take(self, op: ClientOp, note: str = "", *, named: bool = False) -> None:
        """The world journals what the operation sent, as it is or by its digest."""
        data = user_values.dump(programs.Add(op.id, op.amount, note))
        carried = payload.reference(digest.sha256(data), size=len(data)) if named else payload.inline(data)
        raw = structs.encode(inbox.InboxEvent(user_values.schema_name(programs.Add), carried))
        blob = journal.blob_of(raw)
        self.history.look(journal.JournalEntry(1, 1, Kind.EVENT, 0, b"" if blob else raw, blob=blob))


@pytest.mark.parametrize("acked", [False, True])
def test_what_was_acked_before_another_began_is_taken_first(acked: bool) -> None:
    told = Told()
    told.begin(FIRST)
    if acked:
        told.history.acked(FIRST)
    told.begin(SECOND)
    told.take(SECOND)
    told.take(FIRST)
    assert told.broken == (["ORDER"] if acked else [])


def test_operations_on_other_worlds_and_those_side_by_side_have_no_order() -> None:
    told = Told()
    told.begin(ClientOp("elsewhere", "add", "counter-1", 1))
    told.history.acked(ClientOp("elsewhere", "add", "counter-1", 1))
    told.begin(FIRST)
    told.begin(SECOND)
    told.history.acked(FIRST)
    told.take(SECOND)
    told.take(FIRST)
    assert told.broken == []


def test_the_first_beginning_and_the_first_ack_count() -> None:
    """A client that died and begins again may have been successful the first time."""
    told = Told()
    told.begin(SECOND)
    told.begin(FIRST)
    told.history.acked(FIRST)
    told.begin(SECOND)
    told.take(SECOND)
    told.take(FIRST)
    assert told.broken == []


@pytest.mark.parametrize(("note", "named"), [("", False), ("", True), ("x" * 16_300, False)])
def test_an_input_is_known_by_what_it_carries_and_counts_once(note: str, named: bool) -> None:
    told = Told()
    told.begin(FIRST, note)
    told.take(FIRST, note, named=named)
    assert told.broken == []
    told.take(FIRST, note, named=named)
    assert told.broken == ["ONCE"]


def test_a_run_may_be_asked_for_again() -> None:
    told = Told()
    told.history.begin(FIRST)
    start = structs.encode(control_commands.StartRun(FIRST.id, "tally", b"", bytes(16), named=True))
    raw = structs.encode(inbox.Control(control_commands.RUN, payload.inline(start)))
    for height in (1, 2):
        told.history.look(journal.JournalEntry(height, height, Kind.CONTROL, 0, raw))
    assert told.broken == []
