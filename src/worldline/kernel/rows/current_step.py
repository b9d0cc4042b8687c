"""What the current step has derived so far, and how much more it may."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from worldline.base import errors, limits
from worldline.model import ids, inbox, journal
from worldline.model import step_records as steps
from worldline.model.journal import Kind
from worldline.model.personal_records import New
from worldline.model.traces import TracedFailure

ENTRY_BYTES = 64  # of an entry without payload, about
_INLINE_BYTES_MAX = limits.INLINE_BYTES_MAX
_FULL_BYTES = limits.STEP_BYTES_MAX // 2
EVENTS_BYTES_MAX = limits.STEP_BYTES_MAX * 3 // 4  # of a step, from which on no event is raised
WARNINGS_MAX = 8  # that a step leaves for the log


class Sealing:
    """The personal values of the current step."""

    __slots__ = ("bytes", "count", "missed", "new")

    def __init__(self) -> None:
        self.new: list[New] = []  # to be kept apart
        self.missed: dict[bytes, None] = {}  # that it found erased
        self.count = self.bytes = 0

    def write(self, size: int) -> int:
        """Return the number of the next value that the step writes."""
        self.count += 1
        self.bytes += size
        return self.count

    def miss(self, value: bytes) -> bool:
        """Note that a value is gone. Returns whether that is new."""
        is_new = value not in self.missed
        self.missed[value] = None
        return is_new


class CurrentStep:
    """What the current step has derived so far."""

    __slots__ = (
        "bytes",
        "cancelled",
        "closed",
        "closed_early",
        "context",
        "correlation_id",
        "counters",
        "drafts",
        "dropped",
        "events",
        "given_blocks",
        "given_erased",
        "given_secret",
        "half_done",
        "halted",
        "ordinal",
        "outgoing",
        "overflowed",
        "patient",
        "personal",
        "raised",
        "ready",
        "reverted",
        "sender",
        "traces",
        "turns",
        "wanted",
        "warnings",
    )

    def __init__(
        self,
        context: steps.StepContext,
        given_blocks: Mapping[str, str],
        given_erased: Collection[bytes] = (),
        given_secret: bytes = b"",
    ) -> None:
        self.context = context
        self.given_blocks = given_blocks  # of a step that is replayed: the runs it blocks, and their reports
        self.given_erased = given_erased  # likewise: the personal values that it found erased
        self.given_secret = given_secret  # likewise: what it drew for the names of questions
        self.correlation_id = ""  # of its input, if that has one
        self.drafts: list[journal.EntryDraft] = []
        self.wanted: list[steps.WorkRequest] = []
        self.closed: list[ids.IntentId] = []
        self.cancelled: list[steps.WorkRequest] = []
        self.outgoing: list[steps.Outgoing] = []
        self.raised: deque[tuple[str, bytes]] = deque()
        self.ready: deque[str] = deque()
        self.traces: list[TracedFailure] = []  # where user code failed
        self.halted: list[steps.Halted] = []  # what waits for a person from here on
        self.warnings: tuple[str, ...] = ()  # for the host's log
        self.patient: list[str] = []  # runs that continue when no other can
        self.counters: dict[tuple[str, str], int] = {}  # of the handlers' draws
        self.personal: Sealing | None = None  # values that can be erased, if the step has any
        self.ordinal = 0
        self.events = 0
        self.overflowed = False
        self.turns = 0
        self.closed_early = False
        self.bytes = 0
        self.sender: inbox.Message | None = None  # of the message whose handlers run
        self.reverted = False  # the state is an older one: what was open there is settled from the next step on
        self.dropped: errors.CannotStep | None = None  # why nothing of this step may be journaled
        self.half_done = 0  # changes that have begun; an exception inside one, of a full stack for example, leaves it

    @property
    def full(self) -> bool:
        """Whether what can wait continues in the next step. The rest of the bytes are for what cannot."""
        return (
            self.bytes > _FULL_BYTES
            or len(self.drafts) >= limits.STEP_ENTRIES_MAX
            or self.turns >= limits.STEP_TURNS_MAX
            or self.closed_early
        )

    def close(self) -> None:
        """Let what can wait continue in the next step, though there is room."""
        self.closed_early = True

    def is_full_with(self, size: int) -> bool:
        """Return whether it would be full with so many bytes more."""
        return self.full or self.bytes + size > _FULL_BYTES

    @property
    def has_room(self) -> bool:
        """Whether this step may ask for another effect, timer or run."""
        return len(self.wanted) < limits.STEP_EFFECTS_MAX and not self.full

    def draft(self, kind: Kind, data: bytes, *, stamp: bytes = b"", correlation: str = "") -> None:
        # A payload that is too large for an entry is stored apart, and only named in it.
        size = len(data)
        self.bytes += ENTRY_BYTES + len(correlation) + (size if size <= _INLINE_BYTES_MAX else 0)
        self.drafts.append(journal.EntryDraft(kind, data, stamp, correlation))

    def drop(self, why: errors.CannotStep) -> None:
        """Note why nothing of this step may be journaled."""
        self.dropped = why

    def warn(self, text: str) -> None:
        """Let the host's log say this when the step is durable. Nothing of it is journaled."""
        # Bounded, because one step could otherwise fill the log.
        if len(self.warnings) < WARNINGS_MAX:
            self.warnings = (*self.warnings, text)

    def begin_change(self) -> None:
        """From here to `end_change` the state is inconsistent: if an exception comes between, the step is dropped."""
        self.half_done += 1

    def end_change(self) -> None:
        self.half_done -= 1

    def count_bytes(self, size: int) -> None:
        """A row of this size is written, of which no entry has the content. A large one is stored apart."""
        self.bytes += min(_INLINE_BYTES_MAX, size)

    def sent_by(self, message: inbox.Message | None) -> None:
        """Set the message that the handlers take which run now; None: what they take was not sent by a world."""
        self.sender = message

    def correlated(self, correlation_id: str) -> None:
        """Set the correlation id of what the step does from here on."""
        self.correlation_id = correlation_id

    def go_back(self) -> None:
        """Note that the state becomes an older one."""
        self.reverted = True

    def take_turn(self) -> None:
        """Count one more resumption of a run."""
        self.turns += 1

    def next_event(self) -> bool:
        """Count an event that was raised. False if the step has no room for it."""
        self.events += 1
        return self.events <= limits.STEP_EVENTS_MAX and self.bytes <= EVENTS_BYTES_MAX

    def overflow(self) -> bool:
        """Note that an event was not raised. True the first time."""
        first = not self.overflowed
        self.overflowed = True
        return first

    def with_personal(self) -> Sealing:
        """Return the personal values of the step, which writes or reads one."""
        if self.personal is None:
            self.personal = Sealing()
        return self.personal

    def next_key(self) -> tuple[int, int]:
        # These two name the work outside of the world, so no ordinal comes twice in a step.
        """Return the step and the ordinal that name the next open work."""
        key = (self.context.step, self.ordinal)
        self.ordinal += 1
        return key
