"""Replay: running a journal's inputs through the code again, and comparing the results with the journal.

A step is replayed by giving its input to the machine at the recorded times, the logical one and the store's. It must
derive what the journal has: the same entries, the same state digest. The first difference is reported with both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from worldline.base import errors, failures, limits
from worldline.codec import canonical, structs
from worldline.codec.differences import differences, path_text
from worldline.kernel import poison, user_values
from worldline.kernel import step as kernel_step
from worldline.kernel.execution import divergence_report
from worldline.kernel.machine import Blocked, Machine
from worldline.kernel.parts import StepParts
from worldline.model import ids, inbox, journal, payload, step_records
from worldline.model.journal import Kind

_TEXT_CHARACTERS_MAX: Final = 300

Load = Callable[[payload.Payload], bytes]


class CodeDifference(msgspec.Struct, frozen=True):
    """The first difference between code and journal: the height, and what each of them has there. `field`: the first
    field in which these differ, if it can be told.
    """

    height: int
    step: int
    journal: str
    code: str
    field: str = ""

    def __str__(self) -> str:
        said = f"at height {self.height} (step {self.step}):\n  journal: {self.journal}\n  code:    {self.code}"
        return f"{said}\n  field:   {self.field}" if self.field else said


def steps(entries: Sequence[journal.JournalEntry]) -> Iterator[list[journal.JournalEntry]]:
    """Entries, step by step."""
    current: list[journal.JournalEntry] = []
    for entry in entries:
        current.append(entry)
        # Only the last entry of a step has a chain digest.
        if entry.chain:
            yield current
            current = []
    if current:
        raise errors.DecodeError(f"the journal ends inside step {current[0].step}")


def input_of(entries: Sequence[journal.JournalEntry], load: Load) -> step_records.Input:
    """Return the input that a step's first entry records, and whether user code must not get it."""
    first = entries[0]
    if first.kind is Kind.UNDECODABLE_INPUT:
        error, digest = user_values.load(tuple[str, bytes], first.payload)
        return step_records.Input(None, b"", first.stamp, raw_digest=digest, error=error, correlation=first.correlation)
    if first.kind not in journal.INPUTS:
        raise errors.DecodeError(f"height {first.height}: a step cannot begin with {first.kind.name}")
    carried = payload_of(first)
    data = b"" if carried is None else load(carried)
    why, discard = _poison_of(entries)
    return step_records.Input(
        item_of(first),
        data,
        first.stamp,
        poison=why,
        discard=discard,
        erased=erased_of(entries),
        secret=secret_of(entries),
    )


def _poison_of(entries: Sequence[journal.JournalEntry]) -> tuple[str, bool]:
    # It stands right behind the input, or behind the CLOCK entry there.
    behind = next((entry for entry in entries[1:3] if entry.kind is not Kind.CLOCK), None)
    return poison.read(behind.payload) if behind is not None and behind.kind is Kind.POISON else ("", False)


def context_of(entries: Sequence[journal.JournalEntry], address: ids.Address) -> step_records.StepContext:
    """Return the address and the times of a step, from its entries."""
    first = entries[0]
    behind = len(entries) > 1 and entries[1].kind is Kind.CLOCK
    return step_records.StepContext(
        address, first.step, first.time_us, behind_us=user_values.load(int, entries[1].payload) if behind else 0
    )


def item_of(entry: journal.JournalEntry) -> inbox.Item:
    item: inbox.Item = structs.decode(inbox.Item, entry.payload)  # type: ignore[arg-type]
    return item


def payload_of(entry: journal.JournalEntry) -> payload.Payload | None:
    """Return the payload that an input entry carries, if its kind has one."""
    return getattr(item_of(entry), "payload", None)


def blocks_of(entries: Sequence[journal.JournalEntry]) -> dict[str, str]:
    """The runs that a step blocked, and the reports. Whether a run's code fits its record shows when it is rebuilt, and
    that depends on what was in memory: so it is part of what a step is given. Whether an answer fits shows whenever the
    run gets it: that must come out again.
    """
    found = [structs.decode(Blocked, entry.payload) for entry in entries if entry.kind is Kind.RUN_BLOCKED]
    return {each.run: each.report for each in found if not each.unfit}


def erased_of(entries: Sequence[journal.JournalEntry | journal.EntryDraft]) -> tuple[bytes, ...]:
    """The personal values that a step found erased. That is no part of the state: so it is part of what it is given."""
    found = [user_values.load(tuple[bytes, bytes], each.payload) for each in entries if each.kind is Kind.ERASED_READ]
    return tuple(value for _, value in found)


def secret_of(entries: Sequence[journal.JournalEntry | journal.EntryDraft]) -> bytes:
    """What a step drew for the names of questions: no code can derive it."""
    found = next((each.payload for each in entries if each.kind is Kind.SECRET_DRAWN), b"")
    return user_values.load(bytes, found) if found else b""


def again(
    machine: Machine, entries: Sequence[journal.JournalEntry], address: ids.Address, load: Load, parts: StepParts
) -> CodeDifference | None:
    """Replay one step. Returns the first difference, if there is one."""
    return compare(entries, stepped_again(machine, entries, address, load, parts))


def stepped_again(
    machine: Machine, entries: Sequence[journal.JournalEntry], address: ids.Address, load: Load, parts: StepParts
) -> step_records.Stepped:
    """Give a step's input to the machine once more."""
    given = msgspec.structs.replace(input_of(entries, load), blocks=blocks_of(entries))
    machine.begin_replay()
    try:
        return kernel_step.step(machine, given, context_of(entries, address), parts)
    finally:
        machine.end_replay()


def compare(entries: Sequence[journal.JournalEntry], stepped: step_records.Stepped) -> CodeDifference | None:
    """Compare a step with its entries. Equal state digests say that the changes are equal, too."""
    last = entries[-1]
    # The first difference counts: later ones may follow from it.
    for index, entry in enumerate(entries):
        if index >= len(stepped.drafts):
            return CodeDifference(entry.height, entry.step, describe(entry.kind, entry.payload), "nothing")
        draft = stepped.drafts[index]
        if (entry.kind, entry.correlation, entry.payload) != (draft.kind, draft.correlation, draft.payload):
            return CodeDifference(
                entry.height,
                entry.step,
                describe(entry.kind, entry.payload),
                describe(draft.kind, draft.payload),
                _differing(entry, draft),
            )
    if len(stepped.drafts) > len(entries):
        extra = stepped.drafts[len(entries)]
        return CodeDifference(last.height + 1, last.step, "nothing", describe(extra.kind, extra.payload))
    if stepped.state != last.state:
        return CodeDifference(last.height, last.step, f"state {last.state.hex()}", f"state {stepped.state.hex()}")
    return None


def check(
    machine: Machine, entries: Sequence[journal.JournalEntry], address: ids.Address, load: Load, parts: StepParts
) -> None:
    """Replay one step. `Diverged` if there is a difference."""
    difference = again(machine, entries, address, load, parts)
    if difference is not None:
        raise failures.Diverged(f"the code does not do what the journal says, {difference}")


def _differing(entry: journal.JournalEntry, draft: journal.EntryDraft) -> str:
    if entry.kind is not draft.kind:
        return f"kind: {entry.kind.name.lower()} -> {draft.kind.name.lower()}"
    if entry.payload != draft.payload:
        return first_field(entry.payload, draft.payload, names=_NAMES.get(entry.kind, ()))
    return f"correlation: {entry.correlation!r} -> {draft.correlation!r}"


def first_field(before: bytes, after: bytes, *, names: Sequence[str] = ()) -> str:
    """The first field in which two values differ, for people. Values inside of values are looked into. `names`: of the
    fields, if the values are lists.
    """
    found = differences(_opened(before), _opened(after))
    if not found:
        return ""
    field = found[0]
    first, *rest = field.path or ("value",)
    path = (names[first] if isinstance(first, int) and first < len(names) else first, *rest)
    left = "nothing" if field.change == "added" else _cut(repr(field.left))
    right = "nothing" if field.change == "removed" else _cut(repr(field.right))
    return f"{path_text(path)}: {left} -> {right}"


def _opened(value: Any, depth: int = 0) -> Any:
    """A value with the bytes in it decoded, if they hold something that has fields or is text. Bytes in bytes have no
    bound of their own: those too deep inside are left as they are.
    """
    if isinstance(value, bytes):
        if depth > limits.CBOR_DEPTH_MAX:
            return value
        try:
            inner = canonical.decode(value)
        except errors.DecodeError:
            return value
        # A few bytes often decode as a number by chance, so numbers stay bytes.
        return _opened(inner, depth + 1) if isinstance(inner, dict | list | str) else value
    if isinstance(value, list):
        return [_opened(each, depth + 1) for each in value]
    if isinstance(value, dict):
        return {key: _opened(each, depth + 1) for key, each in value.items()}
    return value


_WORK: Final = ("ordinal", "name", "run", "operation", "arguments", "delay_us")
_NAMES: Final[dict[Kind, Sequence[str]]] = {
    Kind.EVENT_RAISED: ("event", "data"),
    Kind.EFFECT_REQUESTED: _WORK,
    Kind.TIMER_SET: _WORK,
    Kind.TIMER_CANCELLED: ("of_step", "ordinal", "name"),
    Kind.EFFECT_CANCELLED: ("of_step", "ordinal", "name"),
    Kind.MESSAGE_SENT: ("ordinal", "to", "event", "data"),
    Kind.RUN_STARTED: ("run", "workflow", "arguments"),
    Kind.RUN_FINISHED: ("run", "status", "result"),
    Kind.HANDLER_FAILED: ("code", "message", "attempts", "data"),
    Kind.ANSWERED: ("ok", "answer"),
    Kind.REVERTED: ("step", "height"),
    Kind.WITNESSED: ("step", "root"),
    Kind.ERASED: ("subject", "values", "number"),
    Kind.ERASED_READ: ("subject", "value"),
}


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARACTERS_MAX else text[:_TEXT_CHARACTERS_MAX] + "..."


def describe(kind: Kind, data: bytes) -> str:
    """Return an entry for people."""
    # Not even a difference may show it: with it, other worlds could name this one's questions.
    if kind is Kind.SECRET_DRAWN:
        return kind.name.lower()
    if kind is Kind.RUN_BLOCKED:
        return f"{kind.name.lower()}: {divergence_report.finding(structs.decode(Blocked, data).report)}"
    try:
        value: Any = canonical.decode(data) if data else None
    except errors.DecodeError:
        value = data.hex()
    return f"{kind.name.lower()} {_cut(repr(value))}"
