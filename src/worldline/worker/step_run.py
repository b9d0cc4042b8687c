"""Making steps: inputs become sealed steps, and everything they derived is gathered for one commit.

`run` is called in the kernel's thread, which has no event loop, and is the only thing that touches the machine there.
Nothing that it gathers has happened until it is committed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from worldline.base import env as envs
from worldline.base import limits, probes
from worldline.codec import digest
from worldline.kernel import control_commands
from worldline.kernel import step as kernel_step
from worldline.keys import inbox as inbox_keys
from worldline.layers import cas, step_commit
from worldline.layers import inbox as inboxes
from worldline.layers import journal as journals
from worldline.model import ids, inbox, journal, step_records
from worldline.model import traces as trace
from worldline.model.change import Change
from worldline.model.personal_records import New
from worldline.runtime.personal.message_values import ResealedValues
from worldline.worker.held_world import HeldWorld
from worldline.worker.waiting_input import JournalPlace, WaitingInput, handed_stamp

CYCLE_BYTES_MAX = limits.STEP_BYTES_MAX  # of a cycle's batch, before its last step
FOLLOW_UPS_MAX = 8  # steps in a row that only send what those before had no room for
RECORD_BYTES = 256  # more or less what a record takes besides its payload: keys, numbers, digests
BEHIND_US_MIN = 100_000  # how far the store's time is behind a world's own before a step says so: reads overtake others

assert CYCLE_BYTES_MAX + 2 * limits.STEP_BYTES_MAX + 2 * limits.STEP_CHANGES_BYTES_MAX < limits.BATCH_BYTES_MAX, (
    "a cycle's last step is a full one"
)


Begin = Callable[[step_records.Input], None]

_CONTINUE = step_records.Input(control_commands.CONTINUED, b"")


class CycleBudget(msgspec.Struct, frozen=True):
    """What a cycle may use for one world. It may end a cycle early, and never changes an outcome."""

    deadline_us: int
    steps_max: int
    effects_max: int


class StepsDone(msgspec.Struct):
    """What one run of steps derived, ready to be committed."""

    before: journal.Head
    after: journal.Head
    entries: list[journal.JournalEntry] = []
    data: list[bytes] = []  # the entries as they are stored
    changes: list[bytes] = []  # of each step, as they are stored
    changed: list[Change] = []  # of all steps, if the world keeps what is not saved
    taken: list[inboxes.UnreadItem] = []
    handed: list[tuple[WaitingInput, JournalPlace]] = []
    buried: list[step_commit.Buried] = []
    wanted: dict[ids.IntentId, step_records.WorkRequest] = {}
    closed: dict[ids.IntentId, None] = {}
    cancelled: list[step_records.WorkRequest] = []
    outgoing: list[step_records.Outgoing] = []
    large: list[bytes] = []  # payloads and rows that must be in the CAS before the commit
    carried: list[bytes] = []  # what inputs carry: it is there, and must stay
    traces: list[trace.StepTraces] = []  # where user code failed
    sealed: list[New] = []  # personal values, to be kept apart
    halted: list[step_records.Halted] = []  # what waits for a person from these steps on
    warnings: list[str] = []  # for the log
    moved: list[ResealedValues] = []  # those that messages take to other worlds
    steps: int = 0
    size: int = 0
    cut: bool = False  # not everything that was read was processed
    unfinished: bool = False  # the machine has more to do by itself

    def reseal(self, outgoing: list[step_records.Outgoing], moved: list[ResealedValues]) -> None:
        """Messages have personal values with them, which go to other worlds."""
        self.outgoing, self.moved = outgoing, moved


def run(
    held: HeldWorld,
    unread: list[tuple[inboxes.UnreadItem, bytes]],
    handed: list[WaitingInput],
    budget: CycleBudget,
    *,
    time_us: int,
    env: envs.Env,
    begin: Begin,
    poison: str = "",
) -> StepsDone:
    """Step through these inputs, in order, until they are used up or the budget is. What was handed over comes behind
    everything that was in the inbox when it was read. `begin` is told of each input before its step. `poison`: why what
    was handed over must not reach user code.
    """
    done = StepsDone(held.head, held.head)
    held.machine.cells.begin_steps(done.changed)
    held.machine.vault.begin()
    for item, data in unread:
        if _full(done, budget, env):
            done.cut = True
            break
        _take_unread(held, done, item, input_of(item, data), time_us=time_us, begin=begin)
    # Items of the inbox are left, and what was handed over must not be processed before them.
    for handover in () if done.cut else handed:
        if _full(done, budget, env):
            break
        given = handed_input(handover, poison)
        applied, dead, _ = _step(held, done, given, time_us, begin)
        done.handed.append((handover, msgspec.structs.replace(applied, dead=dead) if dead else applied))
        _carry(done, handover.data)
        done.size += RECORD_BYTES
        if dead:
            letter = _as_unread(handover.item, applied)
            done.buried.append(step_commit.Buried(letter, dead, applied.step, done.after.time_us))
            done.size += len(letter.raw)
    done.unfinished = _go_on(held, done, budget, time_us=time_us, env=env, begin=begin)
    return done


def run_one(
    held: HeldWorld,
    unread: list[tuple[inboxes.UnreadItem, bytes]],
    *,
    poison: str,
    given_up: bool,
    time_us: int,
    begin: Begin,
) -> StepsDone:
    """One step of a world on trial, over `next_input`. `poison`: why that must not reach user code. `given_up`: it
    could not be resolved without user code, so it is not processed.
    """
    done = StepsDone(held.head, held.head)
    held.machine.cells.begin_steps(done.changed)
    held.machine.vault.begin()
    given = msgspec.structs.replace(next_input(held, unread), poison=poison)
    if given_up:
        given = _not_taken(given)
    if held.machine.unfinished:
        _step(held, done, given, time_us, begin)
        done.cut = bool(unread)
    else:
        _take_unread(held, done, unread[0][0], given, time_us=time_us, begin=begin)
        done.cut = len(unread) > 1
    done.unfinished = held.machine.unfinished
    return done


def next_input(held: HeldWorld, unread: list[tuple[inboxes.UnreadItem, bytes]]) -> step_records.Input:
    """What a world on trial steps over next. What an earlier step began comes first, and by itself: the runs that
    continue then have nothing to do with the next input.
    """
    return _CONTINUE if held.machine.unfinished else input_of(*unread[0])


def _not_taken(step_input: step_records.Input) -> step_records.Input:
    """An input whose step cannot be made: a step over bytes that cannot be decoded touches nothing of the world, and
    makes it a dead letter. What an earlier step began is no input, and loses its first part.
    """
    probes.hit("trial.not-taken")
    item = step_input.item
    if item == control_commands.CONTINUED:
        return msgspec.structs.replace(step_input, discard=True)
    asked = item.correlation if isinstance(item, inbox.InboxEvent | inbox.Control) else ""
    raw_digest = step_input.raw_digest if item is None else digest.sha256(inbox_keys.ITEM.pack(item))
    return step_records.Input(None, step_input.data, step_input.stamp, raw_digest, step_input.poison, correlation=asked)


def handed_input(handover: WaitingInput, poison: str = "") -> step_records.Input:
    return step_records.Input(
        handover.item, handover.data, handover.stamp, trace=handover.trace, tried=handover.tried, poison=poison
    )


def input_of(item: inboxes.UnreadItem, data: bytes) -> step_records.Input:
    raw_digest = b"" if item.item else digest.sha256(item.raw)
    return step_records.Input(item.item, data, item.stamp, raw_digest, item.error, trace=item.trace, tried=item.tried)


def _take_unread(
    held: HeldWorld,
    done: StepsDone,
    item: inboxes.UnreadItem,
    step_input: step_records.Input,
    *,
    time_us: int,
    begin: Begin,
) -> None:
    applied, dead, instead = _step(held, done, step_input, time_us, begin)
    _carry(done, step_input.data)
    if dead and instead is None:
        done.buried.append(step_commit.Buried(item, dead, applied.step, done.after.time_us))
        done.size += len(item.raw)
        return
    done.taken.append(item)
    if instead is not None:
        letter = _as_unread(msgspec.structs.replace(instead.event, payload=cas.as_payload(instead.data)), applied)
        done.buried.append(step_commit.Buried(letter, dead, applied.step, done.after.time_us))
        done.size += len(letter.raw)
        _carry(done, instead.data)


def _carry(done: StepsDone, data: bytes) -> None:
    """An input's payload, if it is large: the journal, or a dead letter, refers to it from now on."""
    if not cas.is_small(data):
        done.carried.append(data)


def _full(done: StepsDone, budget: CycleBudget, env: envs.Env) -> bool:
    """Whether the cycle ends here: at least one step is done, and time or room is used up."""
    return done.steps > 0 and (
        done.steps >= budget.steps_max
        or done.size > CYCLE_BYTES_MAX
        or len(done.wanted) >= budget.effects_max
        or env.monotonic_us() > budget.deadline_us
    )


def _go_on(held: HeldWorld, done: StepsDone, budget: CycleBudget, *, time_us: int, env: envs.Env, begin: Begin) -> bool:
    """Steps for what those before had no room for. Whether something is left, which goes with the next cycle."""
    for _ in range(FOLLOW_UPS_MAX):
        if not held.machine.unfinished:
            return False
        if _full(done, budget, env):
            return True
        _step(held, done, _CONTINUE, time_us, begin)
    return held.machine.unfinished


def _step(
    held: HeldWorld, done: StepsDone, step_input: step_records.Input, time_us: int, begin: Begin
) -> tuple[JournalPlace, str, step_records.BuriedEvent | None]:
    """One step. Returns where it is journaled, why its input was not processed, and what is buried instead of that."""
    # First: if the step never returns, it is known over which input.
    begin(step_input)
    head = done.after
    number = head.step + 1
    due_us = step_input.item.due_us if isinstance(step_input.item, inbox.TimerFired) else 0
    # Logical time starts at birth, the baseline's time: the store's clock may be set back before the first step.
    logical_us = max(head.time_us, held.baseline.time_us, time_us, due_us)
    behind_us = logical_us - time_us if logical_us - time_us >= BEHIND_US_MIN else 0
    stepped = kernel_step.step(
        held.machine,
        step_input,
        step_records.StepContext(held.at, number, logical_us, behind_us, held.entropy),
        held.parts,
    )
    sealed = journals.seal(
        head,
        stepped.drafts,
        stepped.changes,
        state=stepped.state,
        time_us=logical_us,
        covered=stepped.covered,
        plain=stepped.plain,
        book=held.deltas,
    )
    done.after = sealed.after
    done.entries += sealed.entries
    done.data += sealed.data
    done.changes += sealed.changes
    if held.unsaved.tracked:
        done.changed += stepped.changes
    if sealed.large:
        done.large += sealed.large
    done.steps += 1
    size = len(sealed.changes[0])
    for data in sealed.data:
        size += len(data) + RECORD_BYTES
    done.size += size
    if stepped.traces:
        done.traces.append(trace.StepTraces(number, logical_us, stepped.traces))
        done.size += sum(_size(len(each.text)) for each in stepped.traces)
    if stepped.sealed:
        done.sealed += stepped.sealed
        done.size += sum(RECORD_BYTES + len(each.kept.data) for each in stepped.sealed)
    if stepped.halted:
        done.halted += stepped.halted
    if stepped.warnings:
        done.warnings += stepped.warnings
    # Most steps ask for nothing: one test instead of a call.
    if stepped.wanted or stepped.closed or stepped.cancelled or stepped.outgoing:
        _gather(done, stepped)
    return JournalPlace(head.height + 1, number), stepped.dead, stepped.letter


def _gather(done: StepsDone, stepped: step_records.Stepped) -> None:
    """What a step asked for, sent and gave up. Work that is wanted and settled in one commit is never opened."""
    for wanted in stepped.wanted:
        done.wanted[wanted.intent] = wanted
        done.size += _size(len(wanted.params))
    # After `wanted`: a step may ask for work and give it up at once.
    for intent in stepped.closed:
        if done.wanted.pop(intent, None) is None:
            done.closed[intent] = None
    for cancelled in stepped.cancelled:
        done.size += 2 * RECORD_BYTES  # what is cancelled has two keys
        if done.wanted.pop(cancelled.intent, None) is None:
            done.cancelled.append(cancelled)
    for outgoing in stepped.outgoing:
        done.outgoing.append(outgoing)
        done.size += _size(len(outgoing.data))


def _size(length: int) -> int:
    """What a record with a payload of this length takes in a batch, more or less."""
    return RECORD_BYTES + (min(limits.INLINE_BYTES_MAX, length))


def _as_unread(item: inbox.Item, applied: JournalPlace) -> inboxes.UnreadItem:
    """A refused hand-over as the dead letter it becomes, filed under its step."""
    return inboxes.UnreadItem(handed_stamp(applied), inbox_keys.ITEM.pack(item), item)
