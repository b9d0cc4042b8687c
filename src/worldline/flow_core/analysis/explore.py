"""`flow.explore`: which states of a domain can be reached, which actions never run, where nothing can be done.

From the first snapshot on, every action is tried in every state with a few inputs, and every effect is answered in a
few ways: breadth first, so that a trail is a shortest one. States are told apart by their data; the ids of intents in
it count as equal. The same arguments give the same answer. What is given up at a bound makes the search incomplete:
then an action that was not seen to run may still, and states beyond were not looked at. Also a complete search has
tried only the inputs and answers that it was given or has chosen itself.

No state counts as stuck that an input could leave: stuck is where `Core.unavailable` refuses every action.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from worldline.base import errors
from worldline.flow_core import core as cores
from worldline.flow_core import (
    document_schema,
    fields,
    flow_records,
    hashing,
    jobs,
    js_values,
    patches,
    validation,
    value_paths,
)
from worldline.flow_core.analysis import reads, samples
from worldline.flow_core.authoring import domain_class
from worldline.flow_core.compiled_document import Compiled

STATES_MAX: Final = 1_000
DEPTH_MAX: Final = 12
INPUTS_MAX: Final = 8  # of one action, if they are not given
ANSWERS_MAX: Final = 3  # of one effect, if they are not given
ITERATIONS_MAX: Final = 8  # computes of one intent
OUTCOMES_MAX: Final = 64  # of one intent, over all its answers
_INTENT: Final = "explore:"
_FAILED: Final = {"code": "FAILED", "message": "explored"}


class Step(msgspec.Struct, frozen=True):
    """One action on the way to a state: its input, and what its effects answered, by type. `input` is UNSET if none."""

    action: str
    input: Any
    answers: tuple[tuple[str, Any], ...] = ()


class StuckState(msgspec.Struct, frozen=True):
    """A state in which every action is refused, and a shortest way to it."""

    data: dict[str, Any]
    trail: tuple[Step, ...]


class NeverRuns(msgspec.Struct, frozen=True):
    """An action that came to no good end in any state, and why: what it was refused or failed with, each once."""

    action: str
    reasons: tuple[str, ...]


class Explored(msgspec.Struct, frozen=True):
    """What was found. `dead`: refused everywhere; `failing`: begun, and ended with an error every time."""

    states: int
    complete: bool
    dead: tuple[NeverRuns, ...]
    failing: tuple[NeverRuns, ...]
    stuck: tuple[StuckState, ...]


def explore(
    domain: Mapping[str, Any] | Compiled | type[domain_class.Domain],
    *,
    data: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Sequence[Any]] | None = None,
    answers: Mapping[str, Sequence[Any]] | None = None,
    final: Callable[[flow_records.Snapshot], bool] = lambda _: False,
    states_max: int = STATES_MAX,
    depth_max: int = DEPTH_MAX,
) -> Explored:
    """Walk through the states that a domain can reach. `inputs` by action and `answers` by effect replace those that
    are chosen; states that are `final` are not stuck.

    An answer is the value that is set where `into` says, a `Failure`, or a list of patches.
    """
    given = domain.document() if isinstance(domain, type) else domain
    compiled = given if isinstance(given, Compiled) else validation.load(given)
    if states_max < 1 or depth_max < 0:
        raise errors.BadInput("states_max is at least 1, depth_max at least 0")
    actions = compiled.schema.actions
    _require_known("action", inputs or {}, list(actions))
    _require_known("effect", answers or {}, [each for spec in actions.values() for each in reads.effects(spec)])
    search = _Search(compiled, dict(inputs or {}), dict(answers or {}), final)
    return search.run(dict(data or {}), states_max=states_max, depth_max=depth_max)


def _require_known(kind: str, named: Mapping[str, Any], there: list[str]) -> None:
    for name in named:
        if name not in there:
            raise errors.BadInput(f"there is no {kind} {name!r}; there are {', '.join(dict.fromkeys(there)) or 'none'}")


class _Search:
    """One exploration: what was seen of actions, and what is to be tried."""

    def __init__(
        self,
        compiled: Compiled,
        inputs: Mapping[str, Sequence[Any]],
        answers: Mapping[str, Sequence[Any]],
        final: Callable[[flow_records.Snapshot], bool],
    ) -> None:
        self._compiled = compiled
        self._core = cores.Core(trace=False)
        # Without traces, which a search would make for every compute.
        self._domain = jobs.DomainRuntime(compiled, self._core, iterations_max=ITERATIONS_MAX)
        self._literals = samples.Literals(compiled.schema)
        self._inputs = {
            name: list(inputs[name]) if name in inputs else samples.of_input(spec, self._literals, INPUTS_MAX)
            for name, spec in compiled.schema.actions.items()
        }
        self._answers = answers
        self._final = final
        self._complete = True
        self._intents = 0
        self._ran: dict[str, None] = {}
        self._begun: dict[str, None] = {}
        self._reasons: dict[str, dict[str, None]] = {name: {} for name in compiled.schema.actions}

    def run(self, data: dict[str, Any], *, states_max: int, depth_max: int) -> Explored:
        first = _resting(cores.created(self._compiled, data, flow_records.JobContext()))
        # States are told apart by their data, so a state is visited once, on a shortest way.
        seen = {_key(first.data): None}
        todo: deque[tuple[flow_records.Snapshot, tuple[Step, ...]]] = deque([(first, ())])
        stuck: list[StuckState] = []
        while todo:
            head, trail = todo.popleft()
            if self._is_stuck(head):
                stuck += [] if self._final(head) else [StuckState(head.data, trail)]
                continue
            if len(trail) == depth_max:
                self._complete = False
                continue
            for step, after in self._steps(head):
                key = _key(after.data)
                if key in seen:
                    continue
                # The states that are waiting are still visited: actions may run there.
                if len(seen) == states_max:
                    self._complete = False
                    continue
                seen[key] = None
                todo.append((after, (*trail, step)))
        never = [NeverRuns(name, tuple(reasons)) for name, reasons in self._reasons.items() if name not in self._ran]
        return Explored(
            states=len(seen),
            complete=self._complete,
            stuck=tuple(stuck),
            dead=tuple(each for each in never if each.action not in self._begun),
            failing=tuple(each for each in never if each.action in self._begun),
        )

    def _is_stuck(self, head: flow_records.Snapshot) -> bool:
        return all(self._core.unavailable(self._compiled, head, name) is not None for name in self._reasons)

    def _steps(self, head: flow_records.Snapshot) -> Iterator[tuple[Step, flow_records.Snapshot]]:
        """Everything that can be done in a state, and the state afterwards."""
        for action, inputs in self._inputs.items():
            for given in inputs:
                # Ids differ within a search, because a marker of `flow.once` must see another intent.
                self._intents += 1
                intent = flow_records.Intent(action, f"{_INTENT}{self._intents}", given)
                refusal = self._core.refusal(self._compiled, head, intent)
                if refusal is not None:
                    self._reasons[action] |= dict.fromkeys(refusal.reasons or (refusal.message,))
                    continue
                self._begun[action] = None
                for after, answered, error in self._outcomes(head, intent):
                    if error:
                        self._reasons[action][error] = None
                    else:
                        self._ran[action] = None
                    yield (
                        Step(action, msgspec.UNSET if given is js_values.MISSING else given, answered),
                        _resting(after),
                    )

    def _outcomes(
        self, head: flow_records.Snapshot, intent: flow_records.Intent
    ) -> Iterator[tuple[flow_records.Snapshot, tuple[tuple[str, Any], ...], str]]:
        """Say how an intent can end: the head, what was answered on the way, and the error or nothing."""
        todo: deque[tuple[flow_records.Snapshot, jobs.Job, tuple[tuple[str, Any], ...]]] = deque()
        todo.append((head, jobs.StartIntent(intent), ()))
        ends = 0
        while todo:
            before, job, answered = todo.popleft()
            # Time stands still, so that no state differs by when it was reached.
            context = flow_records.JobContext(0, jobs.seed(job, before))
            try:
                outcome = jobs.run(job, before, self._domain, context, jobs.unheard)
            except errors.Error as error:
                # As a host does: an error ends the intent, and the search continues.
                outcome = jobs.failed(job, error, before, self._domain, context=context, emit=jobs.unheard)
            todo += [(outcome.head, each, answered) for each in outcome.jobs]
            for requirement in outcome.effects:
                for said, done in self._answered(requirement):
                    todo.append((outcome.head, done, (*answered, (requirement.type, said))))
            if outcome.ended is not None:
                error_value = outcome.ended.error if outcome.ended.status == "error" else None
                yield (
                    outcome.head,
                    answered,
                    "" if error_value is None else f"{error_value.code}: {error_value.message}",
                )
                # Every effect has several answers, so ends multiply.
                ends += 1
                if ends == OUTCOMES_MAX and todo:
                    self._complete = False
                    return

    def _answered(self, requirement: flow_records.Requirement) -> Iterator[tuple[Any, jobs.FulfillEffect]]:
        """What an effect may come to, each as a job."""
        into, fail = requirement.params.get("into"), requirement.params.get("fail")
        if requirement.type in self._answers:
            said: list[Any] = list(self._answers[requirement.type])
        else:
            spec = self._field(into)
            # A target that is no field is answered without a patch.
            chosen = [[]] if spec is None else samples.of_field(spec, self._literals, ANSWERS_MAX)
            said = [*chosen, jobs.Failure(_FAILED["code"], _FAILED["message"])]
        for each in said:
            yield each, self._fulfilled(requirement, each, into, fail)

    def _fulfilled(self, requirement: flow_records.Requirement, said: Any, into: Any, fail: Any) -> jobs.FulfillEffect:
        """Return an answer as a host's handlers give it: see `flow.answering`."""
        if isinstance(said, jobs.Failure):
            if not isinstance(fail, str):
                return jobs.FulfillEffect(requirement.intent_id, requirement.id, (), said)
            given: object = [patches.set_(fail, {"code": said.code, "message": said.message})]
        elif isinstance(said, list) and all(isinstance(each, patches.Patch) for each in said):
            given = said if said or not isinstance(into, str) else [patches.set_(into, said)]
        else:
            # A host's handler sets what `into` names; without one, the answer is dropped.
            given = [patches.set_(str(into), said)] if isinstance(into, str) else []
        return jobs.fulfilled(requirement.intent_id, requirement.id, given)

    def _field(self, into: Any) -> document_schema.FieldSpec | None:
        return fields.lookup(self._compiled.fields, value_paths.split(into)) if isinstance(into, str) and into else None


def _resting(head: flow_records.Snapshot) -> flow_records.Snapshot:
    """A state as the next action sees it: the data alone, without what a host keeps of ended intents."""
    data = {name: each for name, each in head.data.items() if name != flow_records.HOST}
    meta = flow_records.Meta(0, 0, "", head.meta.schema_hash)
    return flow_records.Snapshot(data, head.computed, flow_records.System(), meta)


def _key(data: dict[str, Any]) -> str:
    """What tells states apart: the ids of the search's own intents are all the same."""
    return hashing.canonical(_nameless(data))


def _nameless(value: Any) -> Any:
    if isinstance(value, str):
        # Else every intent would make a new state, and the search would not end.
        return _INTENT if value.startswith(_INTENT) else value
    if isinstance(value, list):
        return [_nameless(each) for each in value]
    if isinstance(value, dict):
        return {name: _nameless(each) for name, each in value.items()}
    return value
