"""What may enter a world. Everything does so through the inbox, as one of these."""

from __future__ import annotations

import enum

import msgspec

from worldline.base import limits
from worldline.model.payload import Payload


class ReceiptStatus(enum.IntEnum):
    OK = 1
    ERROR = 2
    TIMEOUT = 3
    CANCELLED = 4


class MessageMode(enum.IntEnum):
    TYPED = 1  # the destination takes it as an event of the named schema
    INBOX = 2  # the destination takes it as an envelope, addressed to a named inbox


class Reply(enum.IntEnum):
    """Whether the sender of a message waits for an answer, and how that gets to it."""

    NONE = 0
    MESSAGE = 1  # as a message, in the commit of the step that answers
    RECEIPT = 2  # as the receipt of the effect that has sent the question, delivered by an effect


class InboxEvent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1, gc=False):
    schema: str
    payload: Payload
    to: str = ""  # a run, or a key; empty: every handler of the schema
    correlation: str = ""


class CorrelatedEvent(InboxEvent, frozen=True, array_like=True, forbid_unknown_fields=True, tag=7, gc=False):
    """An event with what its sender calls what it belongs to: an order, a request. `correlation` is something else: the
    caller that waits for an answer.
    """

    correlation_id: str = ""


class EffectReceipt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2, gc=False):
    intent: bytes
    status: ReceiptStatus
    payload: Payload
    attempt: int
    correlation: str = ""


class CorrelatedReceipt(EffectReceipt, frozen=True, array_like=True, forbid_unknown_fields=True, tag=8, gc=False):
    """A receipt of an effect that was asked for in the course of something that has a correlation id."""

    correlation_id: str = ""


class SignedReceipt(CorrelatedReceipt, frozen=True, array_like=True, forbid_unknown_fields=True, tag=9, gc=False):
    """A receipt that the process which performed the effect has signed: its public key, and the signature
    (`features/receipts/receipt_signature.py`).
    """

    key: bytes = b""
    signature: bytes = b""

    def __post_init__(self) -> None:
        if len(self.key) != limits.PUBLIC_KEY_BYTES or len(self.signature) != limits.SIGNATURE_BYTES:
            raise ValueError("a public key has 32 bytes, a signature 64")


class TimerFired(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3, gc=False):
    intent: bytes
    due_us: int
    correlation: str = ""


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """From another world. `message` is the id under which the destination recognises a repeat.

    `universe` and `world` are the sender's names, as they were when it was sent: a repeat may have others.
    """

    message: bytes
    from_universe: bytes
    from_world: bytes
    from_step: int
    mode: MessageMode
    name: str  # schema of a typed message, inbox name of an enveloped one
    payload: Payload
    headers: dict[str, str] = {}
    correlation: str = ""
    to: str = ""  # a run; empty: every handler and run that takes it
    reply: Reply = Reply.NONE
    universe: str = ""
    world: str = ""

    def vouched(self, *, ticket: bytes = b"", from_file: bool = False) -> Vouched:
        """The same with what the door says of it."""
        fields = {name: getattr(self, name) for name in Message.__struct_fields__}
        return Vouched(**fields, ticket=ticket, from_file=from_file)


class Vouched(Message, frozen=True, array_like=True, forbid_unknown_fields=True, tag=6):
    """A message with what the door that it came through says of it: the sender has no part in this.

    `ticket`: of a question, what its answer has to show; of an answer, what it shows. Only the world that was asked has
    been given it, and for another one it would be another. `from_file`: it was unread in a world file, so who sent it
    is what the file says, and is not believed.
    """

    ticket: bytes = b""
    from_file: bool = False

    def __post_init__(self) -> None:
        if len(self.ticket) not in (0, limits.ID_BYTES):
            raise ValueError("a ticket has 16 bytes")


class Control(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5, gc=False):
    command: str
    payload: Payload
    correlation: str = ""


Item = (
    InboxEvent
    | EffectReceipt
    | TimerFired
    | Message
    | Control
    | Vouched
    | CorrelatedEvent
    | CorrelatedReceipt
    | SignedReceipt
)


def correlation_id_of(item: Item | None) -> str:
    """The correlation id of an input, if it has one. A message has its sender's, unless that is its own id."""
    if isinstance(item, CorrelatedEvent | CorrelatedReceipt):
        return item.correlation_id
    if isinstance(item, Message) and item.correlation != item.message.hex():
        return item.correlation
    return ""


class SeenId(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """That a client id was used, for what (sha256 of the item's stored value), and when.

    `age_us`: the age of the universe when a janitor came across it; 0: none has. The stored value ends in the item's
    stamp.
    """

    digest: bytes
    time_us: int
    age_us: int = 0

    def __post_init__(self) -> None:
        if len(self.digest) != limits.DIGEST_BYTES:
            raise ValueError("a digest has 32 bytes")


class Brought(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """That a message from another universe is unread, and how large it is: its item, and what that refers to."""

    size: int


class DeadItem(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An item the world could not take. `item` is the inbox value as it stood, decodable or not."""

    item: bytes
    reason: str
    step: int
    time_us: int
