"""Messages as authors write and see them: where one goes, what goes with it, who sent one, and the receipt of one.

A destination is a world's name, for a world of the same universe; or `universe/world`, for one of another universe of
the same store; or `peer:universe/world`, for one of another store that the host knows by this name. A name that has a
slash in it is written with one more in front, if it is of the same universe: `/orders/17`. No name begins with a
slash, so none of these can be taken for another.

What a run records for a message (`Content`) decides its bytes, and with them its id. What most messages do not have is
left out of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from worldline.base import errors, limits
from worldline.kernel import user_values
from worldline.model import ids

SEND: Final = "worldline.send"  # the effect that brings a message to another universe
REPLY: Final = "worldline.reply"  # the effect that brings the answer to a question back there
UNDELIVERABLE: Final = "undeliverable"  # no such world, or it takes no input
NOT_ALLOWED: Final = (
    "not_allowed"  # its universe does not take this from here, or a rule of the sender's own is against it
)
EXPIRED: Final = "expired"  # it was on its way for too long
OVER_QUOTA: Final = "quota_exceeded"  # its universe has all that it may have
RESERVED: Final = errors.ReservedName.code  # its event's name is the runtime's own
OVERLOADED: Final = errors.Overloaded.code  # its universe has its share of that inbox, and has had it for too long
NOT_TAKEN: Final = (UNDELIVERABLE, NOT_ALLOWED, EXPIRED, OVER_QUOTA, RESERVED, OVERLOADED)
_PEER: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Destination(msgspec.Struct, frozen=True):
    """Where a message goes. Without a universe: to a world of the sender's own; `peer` is empty for the same store."""

    world: str
    universe: str = ""
    peer: str = ""

    @property
    def is_near(self) -> bool:
        """Whether the message leaves in the commit of its step."""
        return not self.universe


def destination(text: str) -> Destination:
    """Read a destination. `BadInput` if it is none."""
    # With a slash in front the rest is a name of this universe, whatever slashes are in it.
    if text.startswith("/"):
        return Destination(ids.check_name(text[1:], "a world's name"))
    first, slash, world = text.partition("/")
    if not slash:
        return Destination(ids.check_name(text, "a world's name"))
    peer, colon, universe = first.partition(":")
    if not colon:
        peer, universe = "", first
    if peer:
        check_peer(peer)
    return Destination(ids.check_name(world, "a world's name"), ids.check_name(universe, "a universe's name"), peer)


def check_peer(name: str) -> str:
    """Refuse what cannot be the name by which a host knows another store."""
    if not _PEER.fullmatch(name):
        raise errors.BadInput(f"the name of another store is made of letters, digits, '_', '.' and '-', not {name!r}")
    return name


# --- What a run records ------------------------------------------------------------------------------------------


class Content(msgspec.Struct, frozen=True):
    """A message apart from where it goes: an event of a schema, or with `inbox` anything for an inbox of this name.
    `to`: one run alone takes it.
    """

    name: str
    data: bytes
    to: str = ""
    inbox: bool = False
    headers: dict[str, str] = {}
    correlation: str = ""

    def pack(self) -> bytes:
        parts: list[Any] = [self.name, self.data, self.to]
        # Left out where they say nothing: these bytes decide the message's id.
        if self.inbox or self.headers or self.correlation:
            parts += [self.inbox, self.headers, self.correlation]
        return user_values.dump(parts)

    @property
    def label(self) -> str:
        """What it is, in the journal of its sender."""
        return f"inbox:{self.name}" if self.inbox else self.name


def unpack(params: bytes) -> Content:
    return Content(*user_values.load(list[Any], params))


def content(
    event: object, *, to: str, inbox: str | None, headers: Mapping[str, str] | None, correlation: str | None
) -> Content:
    """What a caller gave, checked: once a run has recorded it, an inbox must be able to take it."""
    to = user_values.text(to, "a run's id")
    if to:
        ids.check_chosen(to, "a run's id")
    if inbox is None:
        name = ids.check_name(user_values.schema_name(type(event)), "an event's name")
    else:
        name = ids.check_name(user_values.text(inbox, "an inbox's name"), "an inbox's name")
        if to:
            raise errors.BadInput("a message for an inbox is for no single run: leave out to=")
    given = (
        "" if correlation is None else ids.check_chosen(user_values.text(correlation, "a correlation"), "a correlation")
    )
    return Content(name, user_values.dump(event), to, inbox is not None, check_headers(headers), given)


def check_headers(given: Mapping[str, str] | None) -> dict[str, str]:
    """Headers: a few short texts by name."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise errors.BadInput(f"headers are texts by name, not {given!r}")
    if len(given) > limits.HEADERS_MAX:
        raise errors.TooLarge("headers", size=len(given), limit=limits.HEADERS_MAX)
    found: dict[str, str] = {}
    size = 0
    for name, value in given.items():
        key = ids.check_name(user_values.text(name, "a header's name"), "a header's name")
        found[key] = user_values.text(value, f"header {key!r}")
        try:
            size += len(key.encode()) + len(found[key].encode())
        except UnicodeEncodeError as error:  # a lone surrogate has no bytes
            raise errors.BadInput(f"header {key!r} must be well-formed text") from error
    if size > limits.HEADERS_BYTES_MAX:
        raise errors.TooLarge("the bytes of headers", size=size, limit=limits.HEADERS_BYTES_MAX)
    return dict(sorted(found.items()))  # the order in which they were given must not decide the message's bytes


# --- What comes back, and who sent -------------------------------------------------------------------------------


class Receipt(msgspec.Struct, frozen=True):
    """That a message is in the inbox of the world that it is for: `id` names it there, `stamp` is its place.

    `already_enqueued`: an earlier attempt had put it there, and this is the stamp that it got then. A message of a dry
    fork goes nowhere: it has no stamp.
    """

    id: str
    stamp: str
    already_enqueued: bool = False


class Sender(msgspec.Struct, frozen=True):
    """Where a message came from: `wl.sender()`. Universe and world by the names that they had when it was sent, and by
    their ids, which stay.
    """

    universe: str
    world: str
    step: int
    id: str
    headers: dict[str, str]
    correlation: str
    universe_id: str
    world_id: str


def receipt_data(message: bytes, stamp: bytes, *, already: bool = False) -> bytes:
    """A receipt, as the outcome of an operation."""
    return user_values.dump([message, stamp, already])


def receipt(data: bytes) -> Receipt:
    """Return the receipt that an outcome holds. What a person or a dry fork has answered instead names no place."""
    found = user_values.load(Any, data) if data else None
    match found:
        case [bytes(message), bytes(stamp), bool(already)]:
            return Receipt(message.hex(), stamp.hex(), already)
        case _:
            return Receipt("", "")


def stamp_before(stamp: bytes, places: int) -> bytes:
    """Return the stamp so many places before another of the same commit; none if that one has none."""
    if len(stamp) != limits.STAMP_BYTES:
        return b""
    # The last four bytes of a stamp number the places within one commit.
    return stamp[:8] + (int.from_bytes(stamp[8:], "big") - places).to_bytes(4, "big")
