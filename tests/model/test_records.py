"""What the records themselves refuse, and the numbers that are stored. Their bytes are in `tests/keys`."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable

import pytest

from worldline.base import errors, limits
from worldline.codec import canonical
from worldline.model import blobs, cell_rows, inbox, journal, payload, snapshots, work, world_records

DIGEST = bytes(range(32))
Status = world_records.Status


def entry(**changed: object) -> journal.JournalEntry:
    fields: dict[str, object] = {"height": 1, "step": 1, "kind": journal.Kind.EVENT, "time_us": 0, "payload": b""}
    return journal.JournalEntry(**{**fields, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "build",
    [
        lambda: payload.Payload(),
        lambda: payload.Payload(inline=b"a", ref=DIGEST, size=1),
        lambda: payload.Payload(inline=b"a", size=2),
        lambda: payload.Payload(inline=b"a"),
        lambda: payload.Payload(ref=DIGEST[:-1], size=1),
        lambda: payload.Payload(ref=DIGEST, size=-1),
        lambda: blobs.Blob(1, 0),
        lambda: blobs.Blob(1, 0, inline=b"a", object="name"),
        lambda: blobs.Blob(2, 0, inline=b"a"),
        lambda: blobs.Blob(-1, 0, object="name"),
        lambda: blobs.Blob(1, -1, object="name"),
        lambda: entry(height=0),
        lambda: entry(step=0),
        lambda: entry(chain=b"short"),
        lambda: entry(state=bytes(33)),
        lambda: entry(stamp=bytes(11)),
        lambda: entry(blob=bytes(31)),
        lambda: entry(blob=DIGEST, payload=b"both"),
        lambda: journal.Head(-1, 0, DIGEST, DIGEST, 0),
        lambda: journal.Head(2, 1, DIGEST, DIGEST, 0),
        lambda: journal.Head(1, 1, b"", DIGEST, 0),
        lambda: journal.Head(1, 1, DIGEST, DIGEST[1:], 0),
        lambda: snapshots.StateSnapshot(-1, 0, DIGEST, DIGEST, 0, b"", 0),
        lambda: snapshots.StateSnapshot(2, 1, DIGEST, DIGEST, 0, b"", 0),
        lambda: snapshots.StateSnapshot(1, 1, DIGEST[1:], DIGEST, 0, b"", 0),
        lambda: snapshots.StateSnapshot(1, 1, DIGEST, b"", 0, b"", 0),
        lambda: snapshots.StateSnapshot(1, 1, DIGEST, DIGEST, -1, b"", 0),
        lambda: snapshots.StateSnapshot(1, 1, DIGEST, DIGEST, 0, b"", 0, -1),
        lambda: inbox.SeenId(b"short", 0),
        lambda: world_records.Schema(0, 0),
        lambda: world_records.Schema(1, -1),
    ],
)
def test_records_that_cannot_be_are_refused(build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        build()


def test_records_at_the_edge_of_what_can_be() -> None:
    assert entry(stamp=bytes(12), chain=DIGEST, state=DIGEST).step == 1
    assert journal.Head(1, 1, DIGEST, DIGEST, 0).height == 1
    assert snapshots.StateSnapshot(0, 0, DIGEST, DIGEST, 0, b"", 0).step == 0
    assert world_records.Schema(1, 0).minor == 0
    assert blobs.Blob(0, 0, inline=b"").inline == b""


def test_inline_payloads_are_bounded_and_references_are_not() -> None:
    most = bytes(limits.INLINE_BYTES_MAX)
    assert payload.inline(most) == payload.Payload(inline=most, size=len(most))
    assert payload.reference(DIGEST, size=1 << 40) == payload.Payload(ref=DIGEST, size=1 << 40)
    with pytest.raises(errors.TooLarge, match="inline payload is 16385 bytes; the limit is 16384"):
        payload.inline(most + b"x")


def test_the_empty_payload_is_a_canonical_null() -> None:
    assert payload.EMPTY.inline == canonical.encode(None)


def test_a_payload_too_large_for_an_entry_has_an_address() -> None:
    most = bytes(limits.INLINE_BYTES_MAX)
    assert journal.blob_of(most) == b""
    assert journal.blob_of(most + b"x") == hashlib.sha256(most + b"x").digest()
    assert entry(blob=DIGEST).payload == b""


def test_the_journal_begins_with_nothing() -> None:
    assert journal.Head(0, 0, bytes(32), bytes(32), 0) == journal.GENESIS


NUMBERS: dict[type[enum.IntEnum], dict[str, int]] = {
    cell_rows.CellKind: {"REDUCER": 0, "DOMAIN": 1},
    journal.Kind: {
        "EVENT": 1,
        "EFFECT_RESULT": 2,
        "TIMER_FIRED": 3,
        "MESSAGE": 4,
        "CONTROL": 5,
        "EVENT_RAISED": 32,
        "EFFECT_REQUESTED": 33,
        "TIMER_SET": 34,
        "TIMER_CANCELLED": 35,
        "MESSAGE_SENT": 36,
        "RUN_STARTED": 37,
        "RUN_FINISHED": 38,
        "HANDLER_FAILED": 39,
        "UNDECODABLE_INPUT": 40,
        "LATE_ANSWER": 41,
        "SNAPSHOT": 42,
        "BASELINE": 43,
        "PROGRAM_CHANGED": 44,
        "ANSWERED": 45,
        "EFFECT_CANCELLED": 46,
        "CLOCK": 47,
        "RUN_BLOCKED": 48,
        "POISON": 49,
        "SCRIPTED": 50,
        "REVERTED": 51,
        "QUESTION_CANCELLED": 52,
        "WITNESSED": 53,
        "ERASED": 54,
        "ERASED_READ": 55,
        "SECRET_DRAWN": 60,
    },
    inbox.ReceiptStatus: {"OK": 1, "ERROR": 2, "TIMEOUT": 3, "CANCELLED": 4},
    inbox.MessageMode: {"TYPED": 1, "INBOX": 2},
    inbox.Reply: {"NONE": 0, "MESSAGE": 1, "RECEIPT": 2},
    work.WorkKind: {"EFFECT": 1, "TIMER": 2, "MESSAGE": 3},
    work.WorkState: {"WAITING": 1, "CLAIMED": 2, "PARKED": 3, "SETTLED": 4, "SENT": 5},
    world_records.Status: {"ACTIVE": 1, "PAUSED": 2, "ARCHIVED": 3, "DELETED": 4},
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_stored_numbers_stand(kind: type[enum.IntEnum]) -> None:
    assert {name: int(member) for name, member in kind.__members__.items()} == NUMBERS[kind]


def test_the_tags_of_inbox_items_stand() -> None:
    tags = {item: item.__struct_config__.tag for item in inbox.Item.__args__}
    assert tags == {
        inbox.InboxEvent: 1,
        inbox.EffectReceipt: 2,
        inbox.TimerFired: 3,
        inbox.Message: 4,
        inbox.Control: 5,
        inbox.Vouched: 6,
        inbox.CorrelatedEvent: 7,
        inbox.CorrelatedReceipt: 8,
        inbox.SignedReceipt: 9,
    }


def test_inputs_are_the_kinds_below_32() -> None:
    assert list(journal.INPUTS) == [kind for kind in journal.Kind if kind < 32]


def test_status_transitions() -> None:
    """From each status, where it may go; deleted is the end."""
    assert {before: {*after} for before, after in world_records.TRANSITIONS.items()} == {
        Status.ACTIVE: {Status.PAUSED, Status.ARCHIVED, Status.DELETED},
        Status.PAUSED: {Status.ACTIVE, Status.ARCHIVED, Status.DELETED},
        Status.ARCHIVED: {Status.ACTIVE, Status.PAUSED, Status.DELETED},
        Status.DELETED: set(),
    }
    assert world_records.TAKES_INPUT == (Status.ACTIVE, Status.PAUSED)
