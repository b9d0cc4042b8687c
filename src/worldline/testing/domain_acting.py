"""Flow domains in test worlds: what `World` has for them, without awaiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from worldline.base import errors
from worldline.client import world_answers
from worldline.codec import structs
from worldline.features.domains import previews
from worldline.features.domains.previews import Explained, Preview
from worldline.features.domains.pure import part as domain_part
from worldline.features.domains.pure.job_trace import Trace, TraceRecorder, told
from worldline.features.domains.stored_trace import wanted_of
from worldline.flow_core import flow_records, jobs
from worldline.flow_core.authoring.action_calls import Acted, IntentAnswer, acted_of, checked, event_of
from worldline.flow_core.authoring.document_domain import name_of
from worldline.flow_core.authoring.domain_class import Act, Action
from worldline.flow_core.exporting.tools import Shape, Tools
from worldline.flow_core.patches import Patch
from worldline.kernel.event_dispatch import Answer
from worldline.kernel.rows.row_records import JournaledFailure
from worldline.model import inbox, journal
from worldline.model.journal import Kind
from worldline.testing import stage

S = TypeVar("S")


class Unended(errors.Error):
    """Nothing more happens by itself, and the intent has not ended: one of its effects has no answer."""

    code = "unended"


class Acting:
    """What of a test world concerns its flow domains."""

    _stage: stage.Stage
    _actor: stage.Actor
    _correlation: Callable[[], str]
    command: Callable[[str, object], bytes]

    def act(self, act: Act[S], /, *, key: str = "", id: str | None = None) -> Acted[S]:
        """Do an action, and let time pass until it has ended. The same id is the same intent."""
        correlation = self.submit(act, key=key, id=id)
        # Until the answer is there, and not until all is quiet: timers of the world may go on for ever.
        self._stage.play(until=lambda: self._answer(correlation) is not None)
        found = self._answer(correlation)
        if found is None:
            raise Unended(f"{name_of(act.domain)}.{act.action} has not ended: an effect that it needs has no answer")
        answer = structs.decode(Answer, found.payload)
        if not answer.ok:
            raise world_answers.error_of(structs.decode(JournaledFailure, answer.data))
        said = structs.decode(IntentAnswer, answer.data)
        # An answer that says no state leaves it as it is in the cell.
        state = self.snapshot(act.domain, key) if said.state is None else flow_records.decoded(said.state)
        return acted_of(act, said, state)

    def submit(self, act: Act[Any], /, *, key: str = "", id: str | None = None) -> str:
        """Send an intent without waiting for its end. Returns the correlation of its answer."""
        correlation = self._correlation()
        schema, data = event_of(checked(act), key=key, id=id or correlation, named=id is not None)
        item = inbox.InboxEvent(schema, self._actor.life.carry(data), correlation=correlation)
        self._stage.step(self._actor, item, data)
        return correlation

    def snapshot(self, domain: Any, key: str = "", *, at: int | None = None) -> flow_records.Snapshot:
        """Return a cell as Core has it, now or at a height."""
        life = self._actor.life
        machine = life.machine if at is None else life.at_height(at)
        return previews.snapshot_of(machine, domain, key, now_us=self._stage.now_us)

    def explain(self, what: Act[Any] | Action[Any, ...], /, *, key: str = "") -> Explained:
        """Say whether an action may be done now, and if not, why."""
        return previews.explain(self._actor.life.machine, what, key, now_us=self._stage.now_us)

    def preview(self, act: Act[S], /, *, key: str = "") -> Preview[S]:
        """Say what an action would do now, up to its first effect."""
        return previews.preview(self._actor.life.machine, checked(act), key, now_us=self._stage.now_us)

    def tools(self, domain: Any, /, *, key: str = "", shape: Shape = "openai") -> Tools:
        """Offer the actions of a domain as tools for a model."""
        return previews.tools(self._actor.life.machine, domain, key, shape=shape, now_us=self._stage.now_us)

    def abandon(self, domain: Any, id: str, /, *, key: str = "") -> None:
        """End an intent that is on its way, with an error."""
        self.command(domain_part.ABANDON, domain_part.AbandonIntent(name_of(domain), key, id))

    def patch(self, domain: Any, patch_list: Sequence[Patch], /, *, key: str = "", source: str = "patch") -> None:
        """Change the data of a domain from outside."""
        plain = flow_records.plain_list(jobs.from_handler(patch_list))
        self.command(domain_part.PATCH, domain_part.PatchCell(name_of(domain), key, plain, source))

    def env(self, env: Mapping[str, Any], /) -> None:
        """Set what flows read as their environment from here on."""
        self.command(domain_part.ENV, domain_part.SetEnv(dict(env)))

    def trace(
        self,
        *,
        domain: Any = None,
        key: str | None = None,
        intent: str | None = None,
        above: int | None = None,
        up_to: int | None = None,
        graphs: bool = False,
    ) -> Trace:
        """Say what the jobs of flow domains did: of all steps since the world began, was forked or adopted other code,
        or of those that end in (above, up_to].
        """
        life = self._actor.life
        first = life.baseline.head.height
        # Below the baseline, other code or another world has done the steps: running them on this code would say
        # something else.
        if above is not None and above < first:
            raise errors.NotRetained(above, f"other code or another world did this; steps can be run from {first} on")
        top = life.head.height if up_to is None else up_to
        recorder = TraceRecorder(wanted_of(domain, key, intent, graphs=graphs), above=first if above is None else above)
        for entries, machine in life.replaying():
            if entries[-1].height <= (above or 0):
                life.check(machine, entries)  # not wanted, but the machine has to come past it
            elif entries[-1].height > top or recorder.is_full:
                break
            else:
                recorder.begin(entries)
                with told(recorder):
                    life.check(machine, entries)
                recorder.end(entries)
        return recorder.trace()

    def _answer(self, correlation: str) -> journal.JournalEntry | None:
        found = (
            each for each in self._actor.life.filled() if each.kind is Kind.ANSWERED and each.correlation == correlation
        )
        return next(found, None)
