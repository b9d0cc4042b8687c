"""The journal's vocabulary: entries, their kinds, the head that names the last of them, and the index of segments."""

from __future__ import annotations

import enum

import msgspec

from worldline.base import limits
from worldline.codec import digest


class Kind(enum.IntEnum):
    """What an entry records. Numbers are stored and never reused; below 32: inputs; from 32 on: what a step derives."""

    EVENT = 1
    EFFECT_RESULT = 2
    TIMER_FIRED = 3
    MESSAGE = 4
    CONTROL = 5

    EVENT_RAISED = 32
    EFFECT_REQUESTED = 33
    TIMER_SET = 34
    TIMER_CANCELLED = 35
    MESSAGE_SENT = 36
    RUN_STARTED = 37
    RUN_FINISHED = 38
    HANDLER_FAILED = 39
    UNDECODABLE_INPUT = 40
    LATE_ANSWER = 41
    SNAPSHOT = 42  # this and the next are reserved: saving a state is no part of a world's history
    BASELINE = 43
    PROGRAM_CHANGED = 44
    ANSWERED = 45
    EFFECT_CANCELLED = 46
    CLOCK = 47  # right behind the input: how far the store's time of this step was behind its logical time
    RUN_BLOCKED = 48  # [run, report, unfit]: its code does not fit its record, or an answer; `kernel/machine.py`
    POISON = 49  # right behind the input, or its CLOCK: why this step runs no user code
    SCRIPTED = 50  # [run, operation, kind, name, params, status, data]: a fork answers it, by script or as dropped
    REVERTED = 51  # [step, height]: the state is what it was then
    QUESTION_CANCELLED = 52  # [step, ordinal, name]: no run waits for the answer any more
    WITNESSED = 53  # [step, root]: the root of the state at the end of that step, the one before; `features/forks/pure`
    ERASED = 54  # [subject, values, number]: personal values were erased; none named: all of the subject's
    ERASED_READ = 55  # [subject, value]: this step read a personal value that was erased
    SECRET_DRAWN = 60  # what the names of the world's questions are made with from here on; no other world can read it


INPUTS = (Kind.EVENT, Kind.EFFECT_RESULT, Kind.TIMER_FIRED, Kind.MESSAGE, Kind.CONTROL)


_DIGEST_BYTES = limits.DIGEST_BYTES
_DIGEST_SIZES = (0, limits.DIGEST_BYTES)
_STAMP_SIZES = (0, limits.STAMP_BYTES)


class EntryDraft(msgspec.Struct, frozen=True, gc=False):
    """An entry before it has a height: what the step says happened."""

    kind: Kind
    payload: bytes
    stamp: bytes = b""
    correlation: str = ""


class JournalEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One journal record. `chain` and `state` are set on the last entry of a step and empty on the others.

    The chain is made of these bytes and is recomputed from the decoded record, so this record never gets another field:
    what is new goes into the payload.
    """

    height: int
    step: int
    kind: Kind
    time_us: int
    payload: bytes
    stamp: bytes = b""
    correlation: str = ""
    state: bytes = b""
    chain: bytes = b""
    blob: bytes = b""  # the sha256 of a payload too large to stand here; `payload` is empty then

    def __post_init__(self) -> None:
        if self.height < 1 or self.step < 1:
            raise ValueError("heights and steps count from 1")
        if len(self.chain) not in _DIGEST_SIZES or len(self.state) not in _DIGEST_SIZES:
            raise ValueError("a digest has 32 bytes")
        if len(self.stamp) not in _STAMP_SIZES:
            raise ValueError("a stamp has 12 bytes")
        if self.blob and (self.payload or len(self.blob) != _DIGEST_BYTES):
            raise ValueError("a payload stands here or is named by a sha256")


def blob_of(data: bytes) -> bytes:
    """The address of a payload that is too large for an entry; nothing for one that fits."""
    return digest.sha256(data) if len(data) > limits.INLINE_BYTES_MAX else b""


class Head(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The last step's end. The chain digest in it makes every head's bytes unique to one history."""

    step: int
    height: int
    chain: bytes
    state: bytes
    time_us: int

    def __post_init__(self) -> None:
        if not 0 <= self.step <= self.height:
            raise ValueError("a step has at least one entry, and both count from 0 at a head")
        if not len(self.chain) == len(self.state) == _DIGEST_BYTES:
            raise ValueError("a digest has 32 bytes")


GENESIS = Head(step=0, height=0, chain=bytes(limits.DIGEST_BYTES), state=bytes(limits.DIGEST_BYTES), time_us=0)


class Segment(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The entries of the heights `first_height` to `last_height`, under the sha256 of the body that holds them.

    `changes`: whether the body has what the steps changed, too, and not only the digests of it. `age_us`: how old the
    universe was when it was written.
    """

    first_height: int
    last_height: int
    first_step: int
    last_step: int
    digest: bytes
    size: int
    changes: bool
    age_us: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.first_height <= self.last_height or not 1 <= self.first_step <= self.last_step:
            raise ValueError("heights and steps count from 1, and a segment has at least one of each")
        if self.last_step - self.first_step > self.last_height - self.first_height:
            raise ValueError("a step has at least one entry")
        if len(self.digest) != limits.DIGEST_BYTES:
            raise ValueError("a digest has 32 bytes")
        if self.size < 1:
            raise ValueError("a body is not empty")


class DroppedEntries(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The entries from `first_height` on, up to the head `end`, are not kept any more. The chain goes on from there."""

    first_height: int
    end: Head

    def __post_init__(self) -> None:
        if not 1 <= self.first_height <= self.end.height:
            raise ValueError("heights count from 1, and at least one entry was dropped")

    @property
    def last_height(self) -> int:
        return self.end.height

    @property
    def last_step(self) -> int:
        return self.end.step

    @property
    def changes(self) -> bool:
        """As of a segment: nothing of it is kept."""
        return False
