"""A fork that lives what its parent lived: it gets the same inputs, at the same times, and the answers that the parent
got to the same questions.

Work has another name in a fork, so answers are given to the operation that they answered: the same one of the same run,
or the timer of the same schedule. A dry fork's messages are answered at once; the parent's receipts for them are left
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from worldline.codec import canonical, structs
from worldline.kernel import control_commands, event_dispatch, replay, run_repair
from worldline.kernel.machine import Machine
from worldline.kernel.part_inputs import FORKED, ForkBeginning
from worldline.kernel.rows.row_records import Pending
from worldline.model import ids, inbox, journal, payload
from worldline.model.inbox import ReceiptStatus
from worldline.model.world_records import ForkPolicy
from worldline.testing.life import Life

Name = tuple[Any, ...]  # of open work, the same in a world and its forks

_NAMING: dict[str, Any] = {  # the commands that name open work by its id
    control_commands.GIVE_UP: control_commands.GiveUp,
    control_commands.PARK: control_commands.ParkEffect,
    control_commands.RETRY: control_commands.RetryEffect,
    run_repair.ANSWER_EFFECT: run_repair.AnswerEffect,
}


class Lived(msgspec.Struct, frozen=True):
    """What a world has lived since its baseline: the entries of each step, and the names of all work that it had."""

    steps: list[list[journal.JournalEntry]]
    names: dict[bytes, Name]


def lived(life: Life) -> Lived:
    """`Diverged` if the journal does not come out the same again."""
    made = Lived([], {})
    for entries, machine in life.replayed():
        made.steps.append(entries)
        for pending in machine.work.open.values():
            # Each step is looked at: work that is opened and answered later is open only between the two.
            made.names.setdefault(machine.work.wanted_again(pending, life.at).intent, _name(pending))
    return made


def follow(fork: Life, parent: Life, what: Lived) -> bool:
    """Let a fork begin, and live through what its parent did above. False if it cannot be compared: a message could not
    be delivered, of which a dry fork does not hear.
    """
    same, start = True, fork.head
    owner = fork.line.sections[-1].world
    said = structs.encode(
        ForkBeginning(fork.at.world, owner, "", start.step, start.height, ForkPolicy.REISSUE, live=False)
    )
    fork.step(inbox.Control(FORKED, fork.carry(said)), said, time_us=start.time_us)
    _go_on(fork)
    for entries in what.steps:
        if entries[0].height <= start.height:  # the fork has these in its history
            continue
        given = replay.input_of(entries, parent.load)
        item, data = given.item, given.data
        if item is not None:
            found = _translated(fork, what.names, item, data)
            if found is None:
                # A failed delivery is known to the parent alone; any other answer that has no place here changes
                # nothing.
                same = same and not _is_failure(item)
                continue
            item, data = found
        fork.step(item, data, time_us=entries[0].time_us, error=given.error)
        _go_on(fork)
    return same


def difference(fork: Machine, parent: Machine) -> str:
    """The first cell or run that is not the same, for people."""
    for key in sorted({**parent.cells, **fork.cells}):  # sorted, so the first difference is the same one in every run
        sides = [None if (cell := each.cells.get(key)) is None else cell.data for each in (parent, fork)]
        if sides[0] != sides[1]:
            return f"cell {key[0]}{[key[1]] if key[1] else ''}:\n" + _sides(sides)
    for run in {**parent.runs, **fork.runs}:
        ends = [
            None if (found := each.runs.get(run)) is None else (found.record.status.name, found.record.data)
            for each in (parent, fork)
        ]
        if ends[0] != ends[1]:
            shown = [f"{each[0].lower()} " if each else "" for each in ends]
            return f"run {run!r}:\n" + _sides([each and each[1] for each in ends], shown)
    return ""


def _sides(data: Sequence[bytes | None], labels: Sequence[str] = ("", "")) -> str:
    texts = ["nothing" if each is None else repr(canonical.decode(each)) if each else "" for each in data]
    return f"  parent: {labels[0]}{texts[0]}\n  fork:   {labels[1]}{texts[1]}"


def _go_on(fork: Life) -> None:
    while fork.machine.unfinished:
        fork.step(inbox.Control(control_commands.CONTINUE, payload.EMPTY), b"", time_us=fork.head.time_us)


def _name(pending: Pending) -> Name:
    if pending.run:
        return pending.run, pending.op
    if pending.event:
        return "after", pending.event, pending.params, pending.due_us
    return "schedule", pending.name


def _translated(fork: Life, names: dict[bytes, Name], item: inbox.Item, data: bytes) -> tuple[inbox.Item, bytes] | None:
    """An input as the fork gets it; None if it has no place there."""
    if isinstance(item, inbox.EffectReceipt | inbox.TimerFired):
        mine = _intent(fork, names, item.intent)
        return None if mine is None else (msgspec.structs.replace(item, intent=mine), data)
    if isinstance(item, inbox.Message) and item.name == event_dispatch.REPLY:
        mine = _intent(fork, names, bytes.fromhex(item.correlation))
        if mine is None:
            return None
        return event_dispatch.as_if_asked(fork.machine, msgspec.structs.replace(item, correlation=mine.hex())), data
    if not isinstance(item, inbox.Control):
        return item, data
    if item.command == control_commands.CONTINUE:  # `_go_on` gives it where the fork itself needs one
        return None
    if item.command not in _NAMING:
        return item, data
    command = structs.decode(_NAMING[item.command], data)
    mine = _intent(fork, names, command.intent)
    if mine is None:
        return None
    named = structs.encode(msgspec.structs.replace(command, intent=mine))
    return msgspec.structs.replace(item, payload=fork.carry(named)), named


def _intent(fork: Life, names: dict[bytes, Name], intent: bytes) -> ids.IntentId | None:
    """The fork's id of the parent's work. What was never open stays what it is: it comes too late in both."""
    name = names.get(intent)
    if name is None:
        return ids.IntentId(intent)
    open_work = fork.machine.work.open
    found = (number for number in sorted(open_work) if _name(open_work[number]) == name)
    number = next(found, None)
    return None if number is None else fork.machine.work.wanted_again(open_work[number], fork.at).intent


def _is_failure(item: inbox.Item) -> bool:
    return isinstance(item, inbox.EffectReceipt) and item.status is not ReceiptStatus.OK
