"""The cell of a flow domain, as it is kept: the snapshot, the intents that wait for the one on its way, who is to be
told of their ends, and what the last ones with a chosen id came to.
"""

from __future__ import annotations

from typing import Any

import msgspec

from worldline.base import errors, limits
from worldline.codec import canonical, digest
from worldline.kernel.flow import faults, snapshots, values
from worldline.model import inbox, payload
from worldline.model.inbox import MessageMode, Reply


class Owed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Who waits for the end of an intent: a caller, by its correlation, or a world that has asked."""

    correlation: str = ""
    universe: bytes = b""
    world: bytes = b""
    message: bytes = b""
    reply: int = 0

    def question(self) -> inbox.Message:
        """What of the question a reply needs."""
        return inbox.Message(
            self.message, self.universe, self.world, 0, MessageMode.TYPED, "", payload.EMPTY, {},
            reply=Reply(self.reply),
        )  # fmt: skip

    @property
    def waits(self) -> bool:
        return bool(self.correlation or self.message)


class Waiting(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An intent that waits for its turn. `input` has one value, or none."""

    id: str
    action: str
    named: bool
    input: list[Any]

    def intent(self) -> snapshots.Intent:
        return snapshots.Intent(self.action, self.id, self.input[0] if self.input else values.MISSING)


class Done(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An intent that has ended, and what became of it."""

    id: str
    body: bytes
    status: str
    error: dict[str, Any] | None


class Kept(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """All of a cell. `named`: the bodies of intents under way whose ids their callers chose. `asked`: of the questions
    of other worlds that are not answered yet, the world that was asked: a fork answers none that was put to its parent.
    """

    snapshot: dict[str, Any] = {}
    queue: list[Waiting] = []
    owed: dict[str, list[Owed]] = {}
    named: dict[str, bytes] = {}
    done: list[Done] = []
    fatal: str = ""
    blocked: str = ""
    asked: dict[str, bytes] = {}


def encode(kept: Kept, head: snapshots.Snapshot, *, spare: bool = False) -> bytes:
    """`TooLarge` or `EncodeError` for what no cell may hold. `spare`: what is kept free for errors may be used."""
    made = msgspec.structs.replace(kept, snapshot=snapshots.plain(head))
    data = canonical.encode(msgspec.to_builtins(made, builtin_types=(bytes,)))
    limit = limits.FLOW_CELL_BYTES_MAX + (limits.FLOW_CELL_SPARE_BYTES if spare else 0)
    if len(data) > limit:
        raise errors.TooLarge("the cell of a flow domain", size=len(data), limit=limit)
    return data


def decode(data: bytes) -> tuple[Kept, snapshots.Snapshot]:
    """`DecodeError` for what is no such cell."""
    try:
        kept = msgspec.convert(canonical.decode(data), Kept, builtin_types=(bytes,))
        return kept, snapshots.decoded(kept.snapshot)
    except (msgspec.ValidationError, faults.NotJson) as error:
        raise errors.DecodeError(f"this is no cell of a flow domain: {error}") from error


def body_of(action: str, given: list[Any]) -> bytes:
    """What must be the same if the id of an intent is."""
    return digest.hash_parts(b"intent", action.encode(), canonical.encode(given))
