"""The inbox: unread items, which of them other universes have brought, the ids already seen, and dead letters.

Per what:      world
Changes:       an item never; it is deleted by the step that consumes it
Keys:          (UNIVERSE, u, WORLD, w, INBOX, stamp)    -> Item
               (UNIVERSE, u, WORLD, w, SEEN, 0, id)     -> Seen, then the item's stamp; ids made by us, time-ordered
               (UNIVERSE, u, WORLD, w, SEEN, 1, UTF-8)  -> the same; ids chosen by clients
               (UNIVERSE, u, WORLD, w, SEEN, 2, sha256) -> the same; ids chosen by clients, longer than 64 bytes
               (UNIVERSE, u, WORLD, w, DEAD, stamp)     -> Dead
               (UNIVERSE, u, WORLD, w, BROUGHT, sender's universe, sender's world, message) -> Brought
Present:       an item, and that it was brought, until consumed; an id until the dedupe window has passed; a dead
               letter until retried or dropped
"""

from __future__ import annotations

from worldline.base import errors, limits
from worldline.codec import digest, tuples
from worldline.keys import space
from worldline.model import ids, inbox

_INBOX = space.part(space.InWorld.INBOX)
_SEEN = space.part(space.InWorld.SEEN)
_DEAD = space.part(space.InWorld.DEAD)
_BROUGHT = space.part(space.InWorld.BROUGHT)
_STAMP = b"\x33"  # the tuple layer's type code of a stamp, which the engine completes
_MADE = 0
_CHOSEN = 1
_HASHED = 2

ITEM: space.ValueCodec[inbox.Item] = space.ValueCodec(space.ValueKind.INBOX, inbox.Item)  # type: ignore[arg-type]
SEEN = space.ValueCodec(space.ValueKind.SEEN, inbox.SeenId)
DEAD = space.ValueCodec(space.ValueKind.DEAD, inbox.DeadItem)
BROUGHT = space.ValueCodec(space.ValueKind.BROUGHT, inbox.Brought)


def item_prefix(at: ids.Address) -> bytes:
    """What an append takes; the engine's stamp completes the key."""
    return space.world(at) + _INBOX + _STAMP


def item_key(at: ids.Address, stamp: bytes) -> bytes:
    assert len(stamp) == limits.STAMP_BYTES
    return item_prefix(at) + stamp


def items(at: ids.Address, *, start: bytes = b"") -> tuple[bytes, bytes]:
    """Unread items, from this stamp on."""
    assert len(start) <= limits.STAMP_BYTES
    prefix = item_prefix(at)
    return prefix + start, tuples.prefix_range(prefix)[1]


def stamp_of(key: bytes) -> bytes:
    """The stamp of an item or a dead letter. Looks at the key's end alone: whose it is, the range says it came from."""
    if len(key) <= limits.STAMP_BYTES or key[-limits.STAMP_BYTES - 1 :][:1] != _STAMP:
        raise errors.DecodeError("not a stamped key")
    return key[-limits.STAMP_BYTES :]


def seen_key(at: ids.Address, client_id: bytes | str) -> bytes:
    """Sixteen bytes are an id we made; text is one a client chose. Long text is hashed, apart from short text."""
    if isinstance(client_id, bytes):
        return space.world(at) + _SEEN + tuples.pack((_MADE, tuples.Uuid(ids.check_id(client_id, "a client id"))))
    if not client_id:
        raise errors.BadInput("a client id must not be empty")
    # No text raises here, and different texts have different bytes: whether it is well-formed is asked elsewhere.
    name = client_id.encode("utf-8", "surrogatepass")
    # A number of its own for digests: a short text that looks like one is another key.
    if len(name) > limits.CLIENT_ID_BYTES_MAX:
        return space.world(at) + _SEEN + tuples.pack((_HASHED, digest.sha256(name)))
    return space.world(at) + _SEEN + tuples.pack((_CHOSEN, name))


def seen_prefix(at: ids.Address) -> bytes:
    """What the keys of all ids that were seen begin with."""
    return space.world(at) + _SEEN


def seen_made(at: ids.Address) -> tuple[bytes, bytes]:
    """The records of ids made by us, oldest id first."""
    return tuples.prefix_range(space.world(at) + _SEEN + tuples.pack((_MADE,)))


def seen_made_before(at: ids.Address, client_id: bytes) -> tuple[bytes, bytes]:
    """The ids made by us that sort below this one."""
    return seen_made(at)[0], seen_key(at, client_id)


def seen_chosen(at: ids.Address) -> tuple[bytes, bytes]:
    """The records of ids that clients chose, short and hashed."""
    prefix = space.world(at) + _SEEN
    return prefix + tuples.pack((_CHOSEN,)), tuples.prefix_range(prefix + tuples.pack((_HASHED,)))[1]


def dead_prefix(at: ids.Address) -> bytes:
    """What an append takes, as that of an item."""
    return space.world(at) + _DEAD + _STAMP


def dead_key(at: ids.Address, stamp: bytes) -> bytes:
    assert len(stamp) == limits.STAMP_BYTES
    return dead_prefix(at) + stamp


def dead(at: ids.Address) -> tuple[bytes, bytes]:
    return tuples.prefix_range(dead_prefix(at))


def brought_key(at: ids.Address, sender: ids.Address, message: bytes) -> bytes:
    """By what a message says of itself, so that the step that takes it finds the key without a read."""
    return brought_prefix(at, sender.universe) + tuples.pack(
        (tuples.Uuid(sender.world), tuples.Uuid(ids.check_id(message, "a message id")))
    )


def brought_prefix(at: ids.Address, universe: ids.UniverseId) -> bytes:
    """What the keys of the messages that one universe has brought begin with."""
    return space.world(at) + _BROUGHT + tuples.pack((tuples.Uuid(ids.check_id(universe, "a universe id")),))


def brought(at: ids.Address) -> tuple[bytes, bytes]:
    """Unread messages of other universes, by sender."""
    return tuples.prefix_range(space.world(at) + _BROUGHT)
