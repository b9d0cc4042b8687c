"""Making steps: inputs become sealed steps, and everything they derived is gathered for one commit.

`run` is called in the kernel's thread, which has no event loop, and is the only thing that touches the machine there.
Nothing that it gathers has happened until it is committed.
"""

from __future__ import annotations

import msgspec

from worldline.base import env as envs
from worldline.base import limits
from worldline.codec import digest
from worldline.kernel import commands
from worldline.kernel import step as kernel_step
from worldline.keys import inbox as inbox_keys
from worldline.layers import commit
from worldline.layers import inbox as inboxes
from worldline.layers import journal as journals
from worldline.model import ids, inbox, journal, payload, step
from worldline.roles.world.handover import Applied, Handover, handed_stamp
from worldline.roles.world.held_world import HeldWorld

CYCLE_BYTES_MAX = limits.STEP_BYTES_MAX  # of a cycle's batch, before its last step
FOLLOW_UPS_MAX = 8  # steps in a row that only send what those before had no room for
RECORD_BYTES = 256  # more or less what a record takes besides its payload: keys, numbers, digests
BEHIND_US_MIN = 100_000  # how far the store's time is behind a world's own before a step says so: reads overtake others

assert CYCLE_BYTES_MAX + 2 * limits.STEP_BYTES_MAX < limits.BATCH_BYTES_MAX, "a cycle's last step is a full one"


class Budget(msgspec.Struct, frozen=True):
    """What a cycle may use for one world. It may end a cycle early, and never changes an outcome."""

    deadline_us: int
    steps_max: int
    effects_max: int


class Done(msgspec.Struct):
    """What one run of steps derived, ready to be committed."""

    before: journal.Head
    after: journal.Head
    entries: list[journal.Entry] = []
    data: list[bytes] = []  # the entries as they are stored
    taken: list[inboxes.Unread] = []
    handed: list[tuple[Handover, Applied]] = []
    buried: list[commit.Buried] = []
    wanted: dict[ids.IntentId, step.Wanted] = {}
    closed: dict[ids.IntentId, None] = {}
    cancelled: list[step.Wanted] = []
    outgoing: list[step.Outgoing] = []
    large: list[bytes] = []  # payloads that must be in the CAS before the commit
    steps: int = 0
    size: int = 0
    cut: bool = False  # not everything that was read was taken
    unfinished: bool = False  # the machine has more to do by itself


def run(
    held: HeldWorld, unread: list[tuple[inboxes.Unread, bytes]], handed: list[Handover], budget: Budget,
    *, time_us: int, env: envs.Env,
) -> Done:  # fmt: skip
    """Step through these inputs, in order, until they are used up or the budget is. What was handed over comes behind
    everything that was in the inbox when it was read.
    """
    done = Done(held.head, held.head)
    for item, data in unread:
        if _full(done, budget, env):
            done.cut = True
            break
        given = step.Input(item.item, data, item.stamp, b"" if item.item else digest.sha256(item.raw), item.error)
        applied, dead = _step(held, done, given, time_us)
        if dead:
            done.buried.append(commit.Buried(item, dead, applied.step, done.after.time_us))
            done.size += len(item.raw)
        else:
            done.taken.append(item)
    for handover in () if done.cut else handed:
        if _full(done, budget, env):
            break
        applied, dead = _step(held, done, step.Input(handover.item, handover.data, handover.stamp), time_us)
        done.handed.append((handover, applied))
        done.size += RECORD_BYTES
        if dead:
            letter = _as_unread(handover.item, applied)
            done.buried.append(commit.Buried(letter, dead, applied.step, done.after.time_us))
            done.size += len(letter.raw)
    _go_on(held, done, budget, time_us, env)
    done.unfinished = held.machine.unfinished
    return done


def _full(done: Done, budget: Budget, env: envs.Env) -> bool:
    """Whether the cycle ends here: at least one step is done, and time or room is used up."""
    return done.steps > 0 and (
        done.steps >= budget.steps_max
        or done.size > CYCLE_BYTES_MAX
        or len(done.wanted) >= budget.effects_max
        or env.monotonic_us() > budget.deadline_us
    )


def _go_on(held: HeldWorld, done: Done, budget: Budget, time_us: int, env: envs.Env) -> None:
    """Steps for what those before had no room for; what is left then goes with the next cycle."""
    for _ in range(FOLLOW_UPS_MAX):
        if not held.machine.unfinished or _full(done, budget, env):
            return
        _step(held, done, step.Input(inbox.Control(commands.CONTINUE, payload.EMPTY), b""), time_us)


def _step(held: HeldWorld, done: Done, given: step.Input, time_us: int) -> tuple[Applied, str]:
    head = done.after
    due_us = given.item.due_us if isinstance(given.item, inbox.TimerFired) else 0
    # Logical time starts at birth, the baseline's time: the store's clock may be set back before the first step.
    logical_us = max(head.time_us, held.baseline.time_us, time_us, due_us)
    behind_us = logical_us - time_us if logical_us - time_us >= BEHIND_US_MIN else 0
    stepped = kernel_step.step(held.machine, given, step.Context(held.at, head.step + 1, logical_us, behind_us))
    sealed = journals.seal(head, stepped.drafts, state=stepped.state, time_us=logical_us)
    done.after = sealed.after
    done.entries += sealed.entries
    done.data += sealed.data
    done.steps += 1
    for draft in stepped.drafts:
        length = len(draft.payload)
        if length > limits.INLINE_BYTES_MAX:
            done.large.append(draft.payload)
        done.size += _size(length)
    if stepped.wanted or stepped.closed or stepped.cancelled or stepped.outgoing:
        _gather(done, stepped)
    return Applied(head.height + 1, head.step + 1), stepped.dead


def _gather(done: Done, stepped: step.Stepped) -> None:
    """What a step asked for, sent and gave up. Work that is wanted and settled in one commit is never opened."""
    for wanted in stepped.wanted:
        done.wanted[wanted.intent] = wanted
        done.size += _size(len(wanted.params))
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


def _as_unread(item: inbox.Item, applied: Applied) -> inboxes.Unread:
    """A refused hand-over as the dead letter it becomes, filed under its step."""
    return inboxes.Unread(handed_stamp(applied), inbox_keys.ITEM.pack(item), item)
