"""Replay: running a journal's inputs through the code again, and comparing everything that comes out.

A step is replayed by giving its input to the machine at the recorded times, the logical one and the store's. What it
derives must be what the journal has: the same entries, the same state digest. The first difference is reported with
both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from worldline.base import errors, failures
from worldline.codec import canonical, structs
from worldline.kernel import values
from worldline.kernel.machine import Machine
from worldline.model import ids, inbox, journal, payload, step
from worldline.model.journal import Kind

Load = Callable[[payload.Payload], bytes]


class Difference(msgspec.Struct, frozen=True):
    """Where code and journal part: the height, and what each of them has there."""

    height: int
    step: int
    journal: str
    code: str

    def __str__(self) -> str:
        return f"at height {self.height} (step {self.step}):\n  journal: {self.journal}\n  code:    {self.code}"


def steps(entries: Sequence[journal.Entry]) -> Iterator[list[journal.Entry]]:
    """Entries, step by step."""
    current: list[journal.Entry] = []
    for entry in entries:
        current.append(entry)
        if entry.chain:
            yield current
            current = []
    if current:
        raise errors.DecodeError(f"the journal ends inside step {current[0].step}")


def input_of(first: journal.Entry, load: Load) -> step.Input:
    """The input that a step's first entry records."""
    if first.kind is Kind.UNDECODABLE_INPUT:
        error, digest = values.load(tuple[str, bytes], first.payload)
        return step.Input(None, b"", first.stamp, raw_digest=digest, error=error)
    if first.kind not in journal.INPUTS:
        raise errors.DecodeError(f"height {first.height}: a step cannot begin with {first.kind.name}")
    carried = payload_of(first)
    return step.Input(item_of(first), b"" if carried is None else load(carried), first.stamp)


def context_of(entries: Sequence[journal.Entry], address: ids.Address) -> step.Context:
    """Where and when a step happened, by its entries."""
    first = entries[0]
    behind = len(entries) > 1 and entries[1].kind is Kind.CLOCK
    return step.Context(
        address, first.step, first.time_us, behind_us=values.load(int, entries[1].payload) if behind else 0
    )


def item_of(entry: journal.Entry) -> inbox.Item:
    item: inbox.Item = structs.decode(inbox.Item, entry.payload)  # type: ignore[arg-type]
    return item


def payload_of(entry: journal.Entry) -> payload.Payload | None:
    """The payload that an input entry carries, if its kind has one."""
    return getattr(item_of(entry), "payload", None)


def again(machine: Machine, entries: Sequence[journal.Entry], address: ids.Address, load: Load) -> Difference | None:
    """Replay one step. Returns the first difference, if there is one."""
    first, last = entries[0], entries[-1]
    machine.replaying = True
    try:
        stepped = machine.step(input_of(first, load), context_of(entries, address))
    finally:
        machine.replaying = False
    return compare(entries, stepped, last)


def compare(entries: Sequence[journal.Entry], stepped: step.Stepped, last: journal.Entry) -> Difference | None:
    for index, entry in enumerate(entries):
        if index >= len(stepped.drafts):
            return Difference(entry.height, entry.step, describe(entry.kind, entry.payload), "nothing")
        draft = stepped.drafts[index]
        if (entry.kind, entry.correlation, entry.payload) != (draft.kind, draft.correlation, draft.payload):
            return Difference(
                entry.height, entry.step, describe(entry.kind, entry.payload), describe(draft.kind, draft.payload)
            )
    if len(stepped.drafts) > len(entries):
        extra = stepped.drafts[len(entries)]
        return Difference(last.height + 1, last.step, "nothing", describe(extra.kind, extra.payload))
    if stepped.state != last.state:
        return Difference(last.height, last.step, f"state {last.state.hex()}", f"state {stepped.state.hex()}")
    return None


def check(machine: Machine, entries: Sequence[journal.Entry], address: ids.Address, load: Load) -> None:
    """Replay one step that must come out the same. `Diverged` otherwise."""
    difference = again(machine, entries, address, load)
    if difference is not None:
        raise failures.Diverged(f"the code does not do what the journal says, {difference}")


def describe(kind: Kind, data: bytes) -> str:
    """An entry for people."""
    try:
        value: Any = canonical.decode(data) if data else None
    except errors.DecodeError:
        value = data.hex()
    text = repr(value)
    return f"{kind.name.lower()} {text if len(text) <= 300 else text[:300] + '...'}"
