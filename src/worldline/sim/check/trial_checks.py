"""POISON, BLAME, INNOCENT: what the crash budget may count, and what it may resolve.

POISON, counted from the batches alone: every holder that marks an input before its step counts once, and so does every
step that is held against its input while its process lives. BLAME: a holder is counted as dead only when its heartbeat
is, or was removed since its mark; a step is committed only after it was said that its code has returned; a mark says so
if its host performs an effect that processes may have died of; and of the attempts at such effects that a host
performs, one is alone at most, and none while a mark stands there. INNOCENT: nothing is resolved without its code in a
world whose program never ends a process, whatever its hosts have died of; and no effect is parked for the deaths of its
processes, for none ends any.
"""

from __future__ import annotations

from collections.abc import Callable

from worldline.codec import structs
from worldline.keys import journal as journal_keys
from worldline.keys import trial as trial_keys
from worldline.keys import work as work_keys
from worldline.model import ids, journal, leases
from worldline.model.journal import Kind
from worldline.model.leases import CrashTrial, HolderActivity
from worldline.model.work import WorkState
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.truth import AppliedBatch

PARKED_FOR = "attempts in a row died"
Marks = dict[bytes, dict[tuple[int, int], None]]  # of each input: epoch, and deaths that were held against it then


class TrialAudit:
    """`is_dead`: whether a holder counts as dead when a batch is applied. `was_removed`: whether its heartbeat was
    missing at some time since a moment. `kills`: whether a world's inputs may end its processes. `performs`: the
    attempts under way at a host, by its label: intent, in hex, and number.
    """

    def __init__(
        self,
        budget: int,
        broken: Callable[[str, str], None],
        *,
        is_dead: Callable[[leases.Holder, AppliedBatch], bool],
        was_removed: Callable[[leases.Holder, int], bool],
        kills: Callable[[ids.Address], bool],
        performs: Callable[[str], list[tuple[str, int]]],
    ) -> None:
        self._budget = budget
        self._broken = broken
        self._is_dead = is_dead
        self._was_removed = was_removed
        self._written_us: dict[ids.Address, int] = {}  # when each trial was written, in virtual time
        self._kills = kills
        self._performs = performs
        self._died: dict[tuple[str, int], int] = {}  # by attempt: how many before it died with their processes
        self._alone: dict[tuple[str, int], bool] = {}  # by attempt: whether its claim says so
        self._marks: dict[tuple[ids.Address, int], Marks] = {}  # by the step of the head

    def look(self, applied: AppliedBatch) -> None:
        for key, old in applied.before.items():
            where, put = keyspaces.place(key), applied.batch.puts.get(key)
            if where.what == "open" and put is not None:
                work = work_keys.WORK.unpack(put.value)
                # No effect of these programs ends a process, so a park for deaths blames an innocent.
                if work.state is WorkState.PARKED and PARKED_FOR in work.error:
                    self._broken("INNOCENT", f"an effect that ends no process was parked: {work.error}")
                self._died[keyspaces.intent_of(where).hex(), work.attempt] = work.died
                self._alone[keyspaces.intent_of(where).hex(), work.attempt] = work.alone
                self._solitude(applied)
            if where.what == "trial":
                assert where.at is not None
                before = trial_keys.TRIAL.get(old)
                if put is not None:
                    after = trial_keys.TRIAL.unpack(put.value)
                    self._marked(where.at, before, after)
                    self._blamed(before, after, applied, since_us=self._written_us.get(where.at, 0))
                    self._written_us[where.at] = applied.now_us
                    self._beside(after, applied)
                # The trial is deleted with a step: the one moment at which what was marked can be compared with what
                # was committed.
                elif journal_keys.head_key(where.at) in applied.batch.puts:
                    if before is not None and before.running is HolderActivity.STEP:
                        self._broken("BLAME", "a step was committed, and the store says that its code runs")
                    self._stepped(where.at, applied)

    def _marked(self, at: ids.Address, old_trial: CrashTrial | None, after: CrashTrial) -> None:
        # Another input begins with no deaths.
        deaths = 0 if old_trial is None or old_trial.input != after.input else old_trial.step_deaths
        held_against = after.running is HolderActivity.NOTHING and after.step_deaths > deaths
        if after.running is HolderActivity.STEP or held_against:
            marks = self._marks.setdefault((at, after.step), {}).setdefault(after.input, {})
            marks[after.epoch, after.step_deaths if held_against else 0] = None

    def _blamed(self, old_trial: CrashTrial | None, after: CrashTrial, applied: AppliedBatch, *, since_us: int) -> None:
        for each in after.blamed:
            # Judged when it was added: a holder may come back later.
            if old_trial is not None and each in old_trial.blamed:
                continue
            holder = leases.Holder(each.worker, each.incarnation, 0, 0)
            if not self._is_dead(holder, applied) and not self._was_removed(holder, since_us):
                self._broken("BLAME", "a holder was counted as dead, and its heartbeat says that it lives")

    def _beside(self, after: CrashTrial, applied: AppliedBatch) -> None:
        # By what the outside has seen, not by what the host says of itself.
        suspects = [each for each in self._performs(applied.host.label) if self._died.get(each)]
        if suspects and after.running is not HolderActivity.NOTHING and not after.beside:
            self._broken("BLAME", "a mark does not say that its host performs an effect that processes may die of")
        if after.running is HolderActivity.STEP and any(self._alone.get(each) for each in suspects):
            self._broken("BLAME", "a mark was made, and a claim says that its effect is performed alone there")

    def _solitude(self, applied: AppliedBatch) -> None:
        suspects = [each for each in self._performs(applied.host.label) if self._died.get(each)]
        if len(suspects) > 1 and any(self._alone.get(each) for each in suspects):
            self._broken("BLAME", "a host performs two effects that it may die of, and a claim says that one is alone")

    def _stepped(self, at: ids.Address, applied: AppliedBatch) -> None:
        """A step of a world on trial: it is made over one input."""
        for key, put in applied.batch.puts.items():
            if keyspaces.place(key).what != "journal":
                continue
            for raw in journal_keys.unpack_frame(put.value).entries:
                entry = structs.decode(journal.JournalEntry, raw)
                if entry.kind is Kind.POISON:
                    self._poisoned(at, entry.step - 1)

    def _poisoned(self, at: ids.Address, step: int) -> None:
        holders = max(map(len, self._marks.get((at, step), {}).values()), default=0)
        if not self._kills(at):
            self._broken("INNOCENT", f"a harmless input was resolved without code, after {holders} holders")
        elif holders < self._budget:
            self._broken("POISON", f"an input was resolved without code after {holders} holders of {self._budget}")
