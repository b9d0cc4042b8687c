"""What of a world's past is kept as it is: pure rules over what was read.

Entries are kept in frames or in segments: for ever, or for as long as the policy says, and in any case as long as a
state below them is kept. What steps changed, and saved states, are kept as far as something needs them:

* The last so many snapshots, or as many more as are young enough, and what steps changed above the oldest of these: a
  state there can be read, forked and gone back to at any step. Or all of them, for ever.
* Above what is in segments: one snapshot for each `margin` entries, because entries are moved up to one, and the first,
  which states above are made from. A world that is saved after every few entries has no more than these.
* What forks have pinned: a snapshot, and everything above it.
* The first snapshot that was taken of each program's state: a proof resumes there.

So the journal is compacted up to a snapshot, which stays: states can be made from there on.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.layers.snapshots import StoredSnapshot
from worldline.model.age import Age
from worldline.model.journal import DroppedEntries, Segment
from worldline.model.settings import WorkerSettings
from worldline.model.snapshots import StateSnapshot

DROPS_MAX = 500  # snapshots in one batch


class RetentionPolicy(msgspec.Struct, frozen=True):
    """`entries`, `age_us`: when there is enough to compact; `margin`: entries below the baseline that stay; `kept`: the
    snapshots, 0: all; `kept_us`: for how long each is kept at least, 0: no longer than it is among the last ones;
    `changes`: whether segments keep what steps changed; `journal_us`: for how long entries are kept at least, 0: for
    ever.
    """

    entries: int
    age_us: int
    margin: int
    kept: int
    changes: bool = False
    journal_us: int = 0
    kept_us: int = 0


def policy_of(settings: WorkerSettings) -> RetentionPolicy:
    return RetentionPolicy(
        entries=settings.segment_entries,
        age_us=settings.segment_ms * 1000,
        margin=settings.segment_margin,
        kept=settings.snapshots_kept,
        changes=settings.segment_changes,
        journal_us=settings.journal_kept_ms * 1000,
        kept_us=settings.snapshots_kept_ms * 1000,
    )


class KnownPast(msgspec.Struct, frozen=True):
    """What was read of a world: its baseline, its own snapshots, the oldest first, its last segment, the height above
    which its own journal begins, and the snapshots that forks need of it, by step.
    """

    baseline: StateSnapshot
    snapshots: Sequence[StoredSnapshot]
    last: Segment | DroppedEntries | None
    forked_at: int
    pinned: tuple[int, ...]

    @property
    def compacted(self) -> int:
        """The height up to which entries are in segments."""
        return self.forked_at if self.last is None else self.last.last_height


def aged(policy: RetentionPolicy, known: KnownPast, now: Age) -> RetentionPolicy:
    """The policy of a world at an age of its universe: snapshots that are young enough count among the last ones."""
    if not policy.kept or not policy.kept_us:
        return policy
    return msgspec.structs.replace(policy, kept=max(policy.kept, _young(known.snapshots, policy.kept_us, now)))


def _young(snapshots: Sequence[StoredSnapshot], period_us: int, now: Age) -> int:
    """How many of the last snapshots have not certainly been there for so long."""
    since_us = now.age_us  # one without an age was there when the age of the next was read: it counts from then
    for count, each in enumerate(reversed(snapshots)):
        since_us = each.record.age_us or since_us
        if now.has_passed(period_us, since_us=since_us):
            return count
    return len(snapshots)


def limit(known: KnownPast, policy: RetentionPolicy) -> StateSnapshot | None:
    """The snapshot up to which entries may be moved into segments, if there are any below it."""
    if not policy.kept and not policy.changes:
        return None  # every state is kept, and what steps changed with it
    held_back = min(known.pinned, default=None)
    older = [each.record for each in known.snapshots if each.record.step <= known.baseline.step]
    # One more than those that go: the oldest that is kept may be the end itself, because it stays.
    for record in reversed(older[: max(0, len(older) - policy.kept + 1)]):
        pinned = held_back is not None and record.step > held_back
        if record.height <= known.baseline.height - policy.margin and not pinned:
            return record if record.height > known.compacted else None  # older ones lie lower still
    return None


def is_due(known: KnownPast, up_to: StateSnapshot, policy: RetentionPolicy, *, first_us: int) -> bool:
    """Whether there is enough to compact. `first_us`: the time of the first entry that is in no segment."""
    return up_to.height - known.compacted >= policy.entries or up_to.time_us - first_us >= policy.age_us


def allows(known: KnownPast, segment: Segment) -> bool:
    """Whether these entries may be moved now, after what may have happened since that was decided."""
    # A pin at the last step itself needs only what is above it.
    pinned = any(step < segment.last_step for step in known.pinned)
    return segment.last_height <= known.baseline.height and not pinned


def is_held_back(known: KnownPast, policy: RetentionPolicy) -> bool:
    """Whether forks keep from being compacted what could be otherwise."""
    return limit(known, policy) != limit(msgspec.structs.replace(known, pinned=()), policy)


def droppable(known: KnownPast, policy: RetentionPolicy, *, compacted: int | None = None) -> list[StoredSnapshot]:
    """The snapshots that nothing needs. Of those above what is compacted, or will be, every state can still be made
    when they are gone: what steps changed is there.
    """
    if not policy.kept:
        return []
    end = known.compacted if compacted is None else compacted
    stay = {each.record.step: None for each in _latest(known, policy)}
    stay |= dict.fromkeys([*known.pinned, known.baseline.step])
    # The first snapshot above the segments: all states behind them are made from it.
    base = next((each.record.step for each in known.snapshots if each.record.height >= end), None)
    found: list[StoredSnapshot] = []
    program = None
    before = 0  # the height of the last one that stays
    for index, each in enumerate(known.snapshots):
        record = each.record
        first_of_program = record.program_hash != program
        program = record.program_hash
        if first_of_program or record.step in stay or record.step == base:
            before = record.height
        elif record.height < end or known.snapshots[index + 1].record.height - before <= policy.margin:
            found.append(each)
        else:  # without it there would be no snapshot within so many entries
            before = record.height
    return found


def _latest(known: KnownPast, policy: RetentionPolicy) -> Sequence[StoredSnapshot]:
    return known.snapshots[max(0, len(known.snapshots) - policy.kept) :] if policy.kept else known.snapshots


def may_expire(known: KnownPast, segment: Segment, policy: RetentionPolicy) -> bool:
    """Whether the entries of a segment may go, if they are old enough: no state that is kept lies below its end, but
    the first ones of programs that have written nothing above it.
    """
    kept = [known.baseline.height, *(each.record.height for each in _latest(known, policy))]
    pinned = any(step < segment.last_step for step in known.pinned)
    return bool(policy.journal_us) and segment.last_height <= min(kept) and not pinned
