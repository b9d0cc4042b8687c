"""What one batch may do to open work: the transitions that are allowed, as the auditor sees them.

Each violation is an invariant's id and a sentence. Nothing is kept here; `Audit` knows the worlds.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from worldline.keys import inbox as inbox_keys
from worldline.model import ids, inbox
from worldline.model import work as works
from worldline.model.work import WorkKind, WorkState
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.truth import AppliedBatch


def violations(
    applied: AppliedBatch, intent: ids.IntentId, old: works.Work, new: works.Work, *, latest_us: int
) -> Iterator[tuple[str, str]]:
    """`latest_us`: the latest time that the store's clock has shown."""
    same = old.token == new.token  # a token is a claim: the same one is the same worker's
    match old.state, new.state:
        case ((WorkState.WAITING | WorkState.CLAIMED), WorkState.CLAIMED) if not same:
            if new.attempt != old.attempt + 1:
                yield "E5", f"attempt {new.attempt} after {old.attempt}"
            if old.due_us > latest_us:
                yield "E5", f"claimed {old.due_us - latest_us} us before it was due"
        case WorkState.CLAIMED, WorkState.CLAIMED:
            behind = applied.time_us < latest_us  # the clock was set back: renewed is what it says now
            if new.attempt != old.attempt or (new.due_us <= old.due_us and not behind):
                yield "E5", "a renewal that does not renew"
        case WorkState.CLAIMED, (WorkState.WAITING | WorkState.PARKED):
            if new.attempt != old.attempt:
                yield "E5", f"attempt {new.attempt} was given back while {old.attempt} was under way"
        case WorkState.WAITING, WorkState.PARKED:  # by hand
            if new.attempt != old.attempt:
                yield "E5", f"attempt {old.attempt} became {new.attempt} when it was set aside"
        case WorkState.WAITING, WorkState.WAITING if len(new.blamed) < len(old.blamed):  # a worker that lives
            if msgspec.structs.replace(new, blamed=old.blamed) != old:
                yield "E5", "more was changed than who is counted as dead"
        case WorkState.CLAIMED, WorkState.SENT:
            if new.attempt != old.attempt or not new.asked:
                yield "E5", "a question was handed on by another attempt, or to no world"
        case WorkState.SENT, WorkState.SETTLED:
            yield from _unanswered(applied, intent, inbox.EffectReceipt)
        case WorkState.CLAIMED, WorkState.SETTLED if same:
            yield from _unanswered(applied, intent, inbox.EffectReceipt)
        case WorkState.WAITING, WorkState.SETTLED if old.kind is WorkKind.TIMER:
            if old.due_us > latest_us:
                yield "T2", "a timer fired before its time"
            yield from _unanswered(applied, intent, inbox.TimerFired)
        # Whatever is not listed above is forbidden: a transition that is new has to be allowed here by name.
        case before, after:
            what = f"{before.name} became {after.name}, {'the same' if same else 'another'} token"
            yield "E5" if before is WorkState.CLAIMED else "E4", what


def _unanswered(applied: AppliedBatch, intent: ids.IntentId, kind: type) -> Iterator[tuple[str, str]]:
    """Settled work is answered by the same batch."""
    items = [
        inbox_keys.ITEM.unpack(append.value)
        for append, stamp in zip(applied.batch.appends, applied.stamps, strict=True)
        if keyspaces.place(append.prefix + stamp).what == "inbox"
    ]
    if not any(isinstance(item, kind) and getattr(item, "intent", b"") == intent for item in items):
        yield "E6", "work was settled by a batch that has no answer in it"
