"""What one step consumes and produces: the contract between the kernel and the roles.

The role reads an input, resolves what it refers to, and calls the kernel; the kernel answers with a `Stepped`, which
the role commits as one batch and only then acts upon. Nothing here knows how either of them works.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from worldline.model import ids, inbox, journal
from worldline.model.change import Change
from worldline.model.personal_records import New
from worldline.model.state_digest import NO_CHANGES
from worldline.model.traces import TracedFailure
from worldline.model.work import WorkKind


class EntropySource(Protocol):
    """Bytes that only this process knows (`envs.Entropy`): the same at every call."""

    def bytes(self) -> bytes: ...


class Input(msgspec.Struct, frozen=True):
    """One inbox item, with the bytes of its payload, wherever they were stored.

    `item` is None for bytes that could not be decoded, or whose step cannot be made; `raw_digest` then says which, and
    `error` why; the caller that waits under `correlation` is told. `poison`: why it must not reach user code, if it
    must not; the step journals that right behind the input. `discard`: besides, what earlier steps left is not done but
    dropped, one thing of it.
    """

    item: inbox.Item | None
    data: bytes
    stamp: bytes = b""
    raw_digest: bytes = b""
    error: str = ""
    blocks: Mapping[str, str] = {}  # of a step that is replayed: the runs that it blocked, and the reports
    trace: str = ""  # where the effect failed that a receipt is of: shown, never journaled
    tried: str = ""  # the attempts at it, if there was more to them than one that succeeded: likewise
    poison: str = ""
    discard: bool = False
    correlation: str = ""  # of what is no item any more
    erased: Collection[bytes] = ()  # of a step that is replayed: the personal values that it found erased
    secret: bytes = b""  # of a step that is replayed: what it drew for the names of questions


class StepContext(msgspec.Struct, frozen=True, gc=False):
    """Where and when a step happens. `time_us` is logical time, already not below the step's before.

    `behind_us`: by how much the store's time is behind that, because the store's clock was ahead before. Due times are
    counted from the store's time, so this is part of the input: a step journals it if it is not 0.
    """

    address: ids.Address
    step: int
    time_us: int
    behind_us: int = 0
    entropy: EntropySource | None = None  # none in a replay: what was drawn then is given with the input

    @property
    def store_us(self) -> int:
        """The store's time of this step."""
        return self.time_us - self.behind_us


class WorkRequest(msgspec.Struct, frozen=True, gc=False):
    """An effect or timer the step asks for. The role turns it into open work."""

    intent: ids.IntentId
    kind: WorkKind
    step: int
    ordinal: int
    name: str
    params: bytes
    opened_us: int
    due_us: int
    deadline_us: int
    correlation: str
    parked: str = ""  # why it waits for a person from the beginning
    correlation_id: str = ""  # of what it was asked for in the course of


class Outgoing(msgspec.Struct, frozen=True):
    """A message to another world, by name or, for a reply, by address. `intent` is answered with a receipt.

    `key`: of a question, what its ticket is made with, by the one that knows which world it is put to.
    """

    intent: ids.IntentId
    to_name: str
    to: ids.Address | None
    message: inbox.Message
    data: bytes
    key: bytes = b""

    def put_to(self, asked: ids.Address) -> inbox.Message:
        """The message as it goes to this world: a question with the ticket that its answer has to show."""
        if not self.key:
            return self.message
        return self.message.vouched(ticket=ids.ticket(self.key, asked))


class Halted(msgspec.Struct, frozen=True):
    """What waits for a person from this step on: a run that is blocked, or, if `effect` is its name, an effect that is
    parked. `runs`: its run, and those that wait for that one. Told to people, never journaled.
    """

    why: str
    runs: tuple[str, ...] = ()
    effect: str = ""
    intent: bytes = b""

    @property
    def run(self) -> str:
        """The run that it is of; empty for what a flow domain requires."""
        return self.runs[0] if self.runs else ""


class BuriedEvent(msgspec.Struct, frozen=True):
    """An event that becomes a dead letter, with the bytes of its payload."""

    event: inbox.InboxEvent
    data: bytes


class Stepped(msgspec.Struct, frozen=True):
    """Everything a step derived, in order. `dead` says why the input was not taken, if it was not; `letter` is what
    becomes a dead letter then, if it is not the input itself.
    """

    drafts: list[journal.EntryDraft]
    state: bytes
    wanted: list[WorkRequest] = []
    closed: list[ids.IntentId] = []  # answered: the answer was this step's input
    cancelled: list[WorkRequest] = []
    outgoing: list[Outgoing] = []
    dead: str = ""
    letter: BuriedEvent | None = None
    changes: list[Change] = []  # of the state's rows, in the order of `worldline.model.change`
    covered: bytes = NO_CHANGES  # what the chain covers of them: `state_digest.changes_digest`
    plain: bytes = b""  # the changes as they may be stored, if no more is to be said of them: `state_digest.digests`
    traces: list[TracedFailure] = []  # where user code failed: no part of the history, and none in a replay
    sealed: list[New] = []  # personal values, kept apart
    halted: list[Halted] = []
    warnings: Sequence[str] = ()  # for the host's log: no part of the history
