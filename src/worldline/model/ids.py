"""Distinct id types, all of them bytes underneath, and how derived ids are made.

Ids are 16 bytes, digests 32. Types keep a world's id from being passed where a universe's is meant; `Address` pairs
the two, because a world id alone names nothing.
"""

from __future__ import annotations

import functools
import re
import struct
from hashlib import sha256
from typing import Final, NewType

import msgspec

from worldline.base import errors, limits
from worldline.codec import digest

UniverseId = NewType("UniverseId", bytes)
WorldId = NewType("WorldId", bytes)
WorkerId = NewType("WorkerId", bytes)
Incarnation = NewType("Incarnation", bytes)  # one life of a worker process
IntentId = NewType("IntentId", bytes)
Token = NewType("Token", bytes)  # one claim of an intent
Digest = NewType("Digest", bytes)

# `digest.hash_parts`, as far as it is known before: the domain, and the lengths of ids, step and ordinal.
_ID_BYTES: Final = limits.ID_BYTES
_ID_LENGTH: Final = digest.counted(bytes(limits.ID_BYTES))[: digest.LENGTH_BYTES]
_INTENT: Final = digest.counted(b"intent") + _ID_LENGTH
_WHEN: Final = struct.Struct(">QQQI")

_WHOLE_ID: Final = re.compile(rf"[0-9a-f]{{{2 * limits.ID_BYTES}}}")

MESSAGE_PREFIX = "message:"  # of the ids under which messages from other worlds are taken
ENVELOPE: Final = "Envelope"  # the event that a message for an inbox is taken as
# What means something to the runtime: answers of worlds (`worldline/reply`), effects that every host performs
# (`worldline.send`), what grants call a message for an inbox (`inbox:orders`), ids of messages.
_SYSTEM: Final = ("worldline/", "worldline.", "inbox:", MESSAGE_PREFIX)


class Address(msgspec.Struct, frozen=True, order=True):
    """Where a world is: its universe and its id there."""

    universe: UniverseId
    world: WorldId


def address_by_id(universe: UniverseId, text: str) -> Address | None:
    """The world that a whole id names; None if this is none. A deleted one has nothing else to be named by."""
    return Address(universe, WorldId(bytes.fromhex(text))) if _WHOLE_ID.fullmatch(text) else None


def check_id(value: bytes, what: str) -> bytes:
    if len(value) != limits.ID_BYTES:
        raise errors.BadInput(f"{what} must be {limits.ID_BYTES} bytes, not {len(value)}")
    return value


def check_name(name: str, what: str) -> str:
    """A name people choose: 1 to 128 bytes of UTF-8, printable, no blank and no slash at either end."""
    _check_text(name, what)
    # Measured before it is known to be printable, so a lone surrogate must not raise here.
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > limits.NAME_BYTES_MAX:
        raise errors.TooLarge(what, size=size, limit=limits.NAME_BYTES_MAX)
    if not name or not name.isprintable() or name != name.strip() or name.startswith("/") or name.endswith("/"):
        raise errors.BadInput(f"{what} must be printable text without blanks or slashes at its ends, not {name!r}")
    return name


def check_correlation(text: str | None) -> str:
    """What a caller calls what an input belongs to; nothing if it says nothing."""
    return "" if text is None else check_chosen(text, "a correlation")


def check_chosen(text: str, what: str) -> str:
    """An id that a client chose: any text that is not empty, up to a bound."""
    _check_text(text, what)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise errors.BadInput(f"{what} must be well-formed text, not {text[:40]!r}") from error
    if size > limits.CHOSEN_ID_BYTES_MAX:
        raise errors.BadInput(
            f"{what} may have {limits.CHOSEN_ID_BYTES_MAX} bytes, not {size}; use a hash of what it is made from"
        )
    if not text:
        raise errors.BadInput(f"{what} must not be empty; leave it out if there is none")
    return text


def check_client_id(text: str) -> str:
    """The id under which a client's input is taken once. Those of messages between worlds are not for clients."""
    _check_text(text, "an id")
    if text.startswith(MESSAGE_PREFIX):
        raise errors.BadInput(f"an id must not begin with {MESSAGE_PREFIX!r}: messages between worlds have such ids")
    return check_chosen(text, "an id")


@functools.lru_cache(maxsize=1024)  # asked for with every input, of few names
def check_event_name(name: str) -> str:
    """The name of an event that a client or a world sends. Every door asks here, so that what the runtime itself says
    by an event of such a name cannot be said by others. `ReservedName` if it is the runtime's own.
    """
    if name.startswith(_SYSTEM) or name == ENVELOPE:
        raise errors.ReservedName(name)
    return name


def _check_text(value: object, what: str) -> None:
    if not isinstance(value, str):
        raise errors.BadInput(f"{what} must be text, not {value!r}")


def intent_id(address: Address, *, step: int, ordinal: int, kind: str, params: bytes) -> IntentId:
    """The name an effect or timer leaves its world under, and the idempotency key offered outside.

    The first 16 bytes of a sha256. Universe, world and step are in it, so that a fork and its parent, running the same
    code, never share one.
    """
    assert step > 0
    assert ordinal >= 0
    universe, world = address.universe, address.world
    assert len(universe) == len(world) == _ID_BYTES
    # 8 and 4 are the lengths of step and ordinal, as `hash_parts` writes them before each part.
    where, when = _INTENT + universe + _ID_LENGTH + world, _WHEN.pack(8, step, 4, ordinal)
    counted = digest.counted
    return IntentId(sha256(where + when + counted(kind.encode()) + counted(params)).digest()[:_ID_BYTES])


def question_id(intent: IntentId, secret: bytes) -> IntentId:
    """The name of a question: of the intent's name, which others can compute, and a secret, which they cannot."""
    return IntentId(digest.hash_parts(b"question", secret, intent)[:_ID_BYTES])


def question_key(question: IntentId, secret: bytes) -> bytes:
    """What the ticket of a question is made with. It does not leave the process."""
    return digest.hash_parts(b"question-key", secret, question)


def ticket(key: bytes, asked: Address) -> bytes:
    """What the answer to a question has to show, if this world was asked."""
    return digest.hash_parts(b"ticket", key, asked.universe, asked.world)[:_ID_BYTES]
