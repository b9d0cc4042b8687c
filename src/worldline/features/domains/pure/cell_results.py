"""What the jobs of one cell have derived in one step. It is done at once, after the cell is written."""

from __future__ import annotations

from collections import deque

from worldline.base import limits, probes
from worldline.features.domains.pure import intent_ends, requirements
from worldline.features.domains.pure.domain_cell import IntentWaiter
from worldline.features.domains.pure.intent_ends import EndAnswers
from worldline.features.domains.pure.requirements import Asked
from worldline.flow_core import jobs
from worldline.kernel import run_requests, user_values
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import DeferredOperation
from worldline.kernel.run_operations import OpKind
from worldline.model.journal import Kind


class Derived:
    """`jobs`: not run yet. `asked`: requirements that leave. `ends`: of intents. `stale`: requirements whose outcome is
    dropped. `said`: failures to be journaled. `cut_off`: intents that have ended and may have effects open.
    """

    __slots__ = ("_goes_on", "_told", "asked", "cut_off", "ends", "is_read", "jobs", "said", "stale", "told_bytes")

    def __init__(self) -> None:
        self.jobs: deque[jobs.Job] = deque()
        self.asked: list[Asked] = []
        self.ends: list[tuple[str, EndAnswers]] = []
        self.stale: list[str] = []
        self.said: list[bytes] = []
        self.cut_off: list[str] = []
        self.told_bytes = 0  # that the ends take, about
        self.is_read = False  # a caller is told of an end, and reads the state as it is behind this step
        self._told: dict[str, list[IntentWaiter]] = {}
        self._goes_on = False

    def copy(self) -> Derived:
        made = Derived()
        made.jobs = self.jobs.copy()
        made.asked, made.ends, made.stale = [*self.asked], [*self.ends], [*self.stale]
        made.said, made.cut_off = [*self.said], [*self.cut_off]
        made.told_bytes, made.is_read = self.told_bytes, self.is_read
        return made

    def add_end(self, intent_id: str, end: EndAnswers, waiters: list[IntentWaiter]) -> None:
        """An intent has ended, for which these wait."""
        self.ends.append((intent_id, end))
        # A larger answer is stored apart, and takes no more room in the step.
        self.told_bytes += len(waiters) * min(len(end.whole.data), limits.INLINE_BYTES_MAX)
        if end.brief is not None and any(each.correlation for each in waiters):
            self.is_read = True

    def tell_to(self, told: dict[str, list[IntentWaiter]]) -> None:
        """The callers that are told of each end."""
        self._told = told

    def continue_later(self) -> None:
        """The next intent of the cell begins in another step."""
        self._goes_on = True

    def carry_out(
        self, machine: Machine, domain: str, key: str, leaving: list[DeferredOperation], *, emit: jobs.Emit
    ) -> None:
        """Do it: journal failures, give up and ask for effects, tell callers. `leaving`: what `asked` becomes."""
        for failure in self.said:
            machine.draft(Kind.HANDLER_FAILED, failure)
        for intent_id in self.cut_off:
            for effect, pending, target in requirements.give_up(machine, domain, key, intent_id):
                emit(
                    "effect:cancel",
                    requirementId=target.requirement,
                    effectType=pending.name,
                    intentId=intent_id,
                    work=effect.hex(),
                )
        for held in leaving:
            run_requests.ask_for(machine, held)
        for requirement_id in self.stale:
            probes.hit("domains.outcome-stale")
            machine.draft(Kind.LATE_ANSWER, user_values.dump(["receipt", domain, key, requirement_id, "dropped:stale"]))
        if self._goes_on:
            probes.hit("domains.queue-goes-on")
            # A caller reads the state as it is when this step ends, so nothing more may come into the step.
            if self.is_read:
                machine.now.close()
            machine.work.unsent.append(DeferredOperation("", -1, OpKind.ACT, domain, b"", 0, key))
        for intent_id, end in self.ends:
            for owed in self._told[intent_id]:
                # A question that was put to the parent is answered by the parent alone.
                if owed.is_asked_of(machine.now.context.address):
                    intent_ends.tell(machine, owed, end)
                else:
                    probes.hit("domains.asked-before-fork")
