"""The four jobs, as synchronous functions: a host without I/O.

    StartIntent      opens the intent's slot, computes, asks for what is pending
    FulfillEffect    is it pending (else stale) -> is its turn come (else it waits in the slot) -> apply -> clear,
                     with a tombstone if it failed -> error patch -> ContinueCompute
    ContinueCompute  computes again, if nothing of the intent is pending any more; the last one does
    ApplyPatches     concrete patches from outside, of the domain's own data

`run` takes the head and gives the next one, with what is to be done: jobs to enqueue, effects to perform, an intent
that has ended, or that the key is fatal. A host makes the head its own before it does any of it (interlock). One
frozen context serves all of a job. Nothing is kept between jobs but the head.

Core is injected: whatever it raises is met here, so that a requirement is cleared even if applying failed. An error
that Core records as a value counts as one that it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from worldline.base import limits, probes
from worldline.flow_core import compute_trace, faults, flow_records, hashing, js_values, patches, slots, value_paths
from worldline.flow_core.compiled_document import Compiled
from worldline.flow_core.core import Computed
from worldline.flow_core.expressions import dates

EFFECT_APPLY_FAILED: Final = "EFFECT_APPLY_FAILED"
EFFECT_EXECUTION_FAILED: Final = "EFFECT_EXECUTION_FAILED"
EFFECT_TIMEOUT: Final = "EFFECT_TIMEOUT"
EFFECT_CANCELLED: Final = "EFFECT_CANCELLED"
EFFECT_REPEATED: Final = "EFFECT_REPEATED"  # the flow asks again for an id that failed
LOOP_MAX_ITERATIONS: Final = "LOOP_MAX_ITERATIONS"
SYSTEM_GET: Final = "system.get"  # answered here, from the frozen context


class Failure(msgspec.Struct, frozen=True):
    """An effect did not come to patches: timeout, cancelled, failed, unknown."""

    code: str
    message: str


class StartIntent(msgspec.Struct, frozen=True, rename="camel", tag_field="type", tag="StartIntent"):
    intent: flow_records.Intent

    @property
    def id(self) -> str:
        return f"{self.intent.intent_id}:start"

    @property
    def intent_id(self) -> str:
        return self.intent.intent_id


class ContinueCompute(msgspec.Struct, frozen=True, rename="camel", tag_field="type", tag="ContinueCompute"):
    intent_id: str
    number: int  # of the compute that is to come

    @property
    def id(self) -> str:
        return f"{self.intent_id}:continue:{self.number}"


class FulfillEffect(
    msgspec.Struct, frozen=True, rename="camel", tag_field="type", tag="FulfillEffect", omit_defaults=True
):
    intent_id: str
    requirement_id: str
    result_patches: tuple[Any, ...] = ()
    failure: Failure | None = None

    @property
    def id(self) -> str:
        return f"{self.requirement_id}:fulfill"


class ApplyPatches(msgspec.Struct, frozen=True, rename="camel", tag_field="type", tag="ApplyPatches"):
    patches: tuple[patches.Patch, ...]
    source: str

    @property
    def id(self) -> str:
        return f"{self.source}:apply"

    @property
    def intent_id(self) -> str:
        return ""


Job = StartIntent | ContinueCompute | FulfillEffect | ApplyPatches
Emit = Callable[..., None]


class IntentOutcome(msgspec.Struct, frozen=True, rename="camel"):
    """An intent has ended: complete, halted or error."""

    intent_id: str
    status: str
    error: flow_records.ErrorValue | None


class JobOutcome(msgspec.Struct, frozen=True):
    """The next head, and what is to be done once it is the head."""

    head: flow_records.Snapshot
    jobs: tuple[Job, ...] = ()
    effects: tuple[flow_records.Requirement, ...] = ()
    ended: IntentOutcome | None = None
    fatal: str = ""
    trace: compute_trace.TraceGraph | None = None
    dropped: str = ""  # the requirement whose outcome was stale


class CoreCalls(Protocol):
    """What a host needs of a Core."""

    def compute(
        self,
        schema: Compiled,
        snapshot: flow_records.Snapshot,
        intent: flow_records.Intent,
        context: flow_records.JobContext,
        *,
        reentry: bool = False,
        closing: Sequence[patches.Patch] = (),
    ) -> Computed: ...

    def apply(
        self,
        schema: Compiled,
        snapshot: flow_records.Snapshot,
        patch_list: Sequence[patches.Patch],
        context: flow_records.JobContext,
    ) -> flow_records.Snapshot: ...

    def abandon(
        self,
        snapshot: flow_records.Snapshot,
        intent: flow_records.Intent,
        context: flow_records.JobContext,
        *,
        code: str,
        message: str,
        detail: dict[str, Any] | None = None,
        closing: Sequence[patches.Patch] = (),
    ) -> flow_records.Snapshot: ...


class DomainRuntime(msgspec.Struct, frozen=True):
    """What jobs are run with: a document, a Core, and the policy for what is pending."""

    schema: Compiled
    core: CoreCalls
    parallel: bool = False
    iterations_max: int = limits.FLOW_ITERATIONS_MAX


def is_busy(head: flow_records.Snapshot) -> bool:
    """Return whether an intent is on its way: the next one waits for its end."""
    return bool(slots.every(head))


def seed(job: Job, head: flow_records.Snapshot) -> str:
    """Return the random seed of a job: its own intent's id; without an intent, that of the head stays."""
    return job.intent_id or head.meta.random_seed


def unheard(_type: str, /, **_fields: Any) -> None:
    """Serve as the `emit` of jobs without a subscriber."""


def run(
    job: Job, head: flow_records.Snapshot, domain: DomainRuntime, context: flow_records.JobContext, emit: Emit
) -> JobOutcome:
    """One job, from beginning to end."""
    # Without a subscriber not even the fields of events are made.
    if emit is unheard:
        return _done(_Turn(head, domain, context, emit), job)
    begun(job, context, emit)
    outcome = _done(_Turn(head, domain, context, emit), job)
    emit("job:end", jobType=type(job).__name__, jobId=job.id)
    return outcome


def begun(job: Job, context: flow_records.JobContext, emit: Emit) -> None:
    """Tell which job is run, and under which context: enough to run it again."""
    emit("job:start", jobType=type(job).__name__, jobId=job.id, intentId=job.intent_id, job=job)
    emit("context:frozen", jobId=job.id, now=context.now, randomSeed=context.random_seed, env=context.env)


def told(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an event, as data of its own: a job is made data only if a subscriber gets it."""
    return {
        name: flow_records.plain(each) if isinstance(each, msgspec.Struct) else js_values.duplicate(each)
        for name, each in fields.items()
    }


def _done(turn: _Turn, job: Job) -> JobOutcome:
    if isinstance(job, StartIntent):
        return turn.start(job.intent)
    if isinstance(job, ContinueCompute):
        return turn.go_on(job.intent_id)
    return turn.fulfill(job) if isinstance(job, FulfillEffect) else turn.patch(job)


def failed(
    job: Job,
    error: Exception,
    head: flow_records.Snapshot,
    domain: DomainRuntime,
    *,
    context: flow_records.JobContext,
    emit: Emit,
) -> JobOutcome:
    """End the intent of a job that raised, so that the next can begin; if even that fails, the key is fatal."""
    said = f"{type(error).__name__}: {error}"
    emit("job:error", jobType=type(job).__name__, jobId=job.id, message=said)
    return ended_by(job, said, head, domain, context=context, emit=emit)


def ended_by(
    job: Job,
    said: str,
    head: flow_records.Snapshot,
    domain: DomainRuntime,
    *,
    context: flow_records.JobContext,
    emit: Emit,
) -> JobOutcome:
    """End the intent of a job that raised what is said."""
    # An intent that begins has no slot in the head that was given.
    intent = job.intent if isinstance(job, StartIntent) else slots.intent(head, job.intent_id)
    if intent is None:
        # The intent has ended already, so nothing is left to end.
        return JobOutcome(head)
    try:
        return _Turn(head, domain, context, emit).abandon(intent, faults.INTERNAL_ERROR, said)
    except Exception as again:  # noqa: BLE001 - an injected Core: then the key is fatal
        probes.hit("flow.abandon-failed")
        emit("fatal:escalate", intentId=intent.intent_id, reason="abandon_failed", message=str(again))
        return JobOutcome(head, fatal=f"the intent {intent.intent_id} can neither go on nor end: {again}")


def resumed(head: flow_records.Snapshot, domain: DomainRuntime, context: flow_records.JobContext) -> JobOutcome:
    """Find what is to be done for the intents under way in a snapshot that a host begins with."""
    jobs: list[Job] = []
    effects: list[flow_records.Requirement] = []
    for intent_id in slots.every(head):
        pending = own_pending(head, intent_id)
        if not pending:
            jobs.append(ContinueCompute(intent_id, slots.computes(head, intent_id)))
        # In series only the first is asked for; the others follow when it has its outcome.
        for each in pending if domain.parallel else pending[:1]:
            # Its outcome has come, and waits for its turn in the slot.
            if slots.early(head, intent_id, each.id) is not None:
                continue
            if each.type == SYSTEM_GET:
                jobs.append(answered(each, context))
            else:
                effects.append(each)
    return JobOutcome(head, tuple(jobs), tuple(effects))


def fulfilled(intent_id: str, requirement_id: str, result: object) -> FulfillEffect:
    """Return the job over what a handler gave. What is no patch is a failure already, so the job is always data."""
    try:
        return FulfillEffect(intent_id, requirement_id, from_handler(result))
    except patches.BadPatch as refused:
        return FulfillEffect(intent_id, requirement_id, (), Failure(EFFECT_APPLY_FAILED, str(refused)))


def own_pending(head: flow_records.Snapshot, intent_id: str) -> list[flow_records.Requirement]:
    """What is pending of one intent, in Core's order."""
    return [each for each in head.system.pending_requirements if each.intent_id == intent_id]


def is_pending(head: flow_records.Snapshot, requirement_id: str) -> bool:
    """FULFILL-0: only what is pending is fulfilled."""
    return any(each.id == requirement_id for each in head.system.pending_requirements)


def is_next(head: flow_records.Snapshot, job: FulfillEffect) -> bool:
    """The ordering buffer: outcomes are applied in the order of the pending list, whichever came first."""
    return own_pending(head, job.intent_id)[:1] == [
        each for each in head.system.pending_requirements if each.id == job.requirement_id
    ]


def _required(head: flow_records.Snapshot, job: FulfillEffect) -> flow_records.Requirement:
    """Return the requirement that an outcome belongs to; a blank one where `is_pending` was switched off."""
    for each in head.system.pending_requirements:
        if each.id == job.requirement_id:
            return each
    return flow_records.Requirement(job.requirement_id, job.intent_id, "", {}, "", flow_records.FlowPosition("", 0), 0)


def must_clear(_failure: Failure | None) -> bool:
    """ERR-FE-1, ERR-FE-2: a requirement is cleared whether its result could be applied or not."""
    return True


def refused_again(head: flow_records.Snapshot, intent_id: str) -> flow_records.Requirement | None:
    """ERR-FE-4: a requirement that is pending though its id has failed before."""
    return next((each for each in own_pending(head, intent_id) if slots.is_failed(head, intent_id, each.id)), None)


def from_handler(result: object) -> patches.Concrete:
    """Return the patches of a handler: concrete, and of the domain's own data."""
    found = patches.concrete(result)
    for each in found:
        root = value_paths.split(each.path)[0]
        if root in patches.RESERVED or root == flow_records.HOST:
            raise patches.BadPatch(f"no handler may write {each.path}; {root} is not the domain's")
    return found


class _Turn:
    """Runs one job: it has the head as the job changes it, and the context that was frozen for it."""

    __slots__ = ("_context", "_domain", "_emit", "_head")

    def __init__(
        self, head: flow_records.Snapshot, domain: DomainRuntime, context: flow_records.JobContext, emit: Emit
    ) -> None:
        self._head = head
        self._domain = domain
        self._context = context
        self._emit = emit

    def start(self, intent: flow_records.Intent) -> JobOutcome:
        self._apply(slots.opened(intent), "host-intent-slot")
        # An injected Core may have left the patch out: without its slot the intent could not continue after a restart.
        if slots.slot(self._head, intent.intent_id) is None:
            raise RuntimeError("Core did not apply the slot of the intent")
        return self._compute(intent, reentry=False)

    def go_on(self, intent_id: str) -> JobOutcome:
        intent = slots.intent(self._head, intent_id)
        if intent is None:
            self._emit("continue:drop", intentId=intent_id, reason="ended")
            return JobOutcome(self._head)
        pending = own_pending(self._head, intent_id)
        if not pending:
            return self._compute(intent, reentry=True)
        # Its outcome is in the slot already: it must not be performed twice.
        waits = slots.early(self._head, intent_id, pending[0].id) is not None
        return self._asked([] if self._domain.parallel or waits else pending[:1])

    def patch(self, job: ApplyPatches) -> JobOutcome:
        self._apply(from_handler(job.patches), job.source)
        return JobOutcome(self._head)

    def abandon(
        self, intent: flow_records.Intent, code: str, message: str, detail: dict[str, Any] | None = None
    ) -> JobOutcome:
        """End an intent that cannot continue."""
        self._head = self._domain.core.abandon(
            self._head,
            intent,
            self._context,
            code=code,
            message=message,
            detail=detail,
            closing=slots.closing(intent.intent_id),
        )
        self._emit("intent:abandon", intentId=intent.intent_id, code=code)
        return self._over(intent, "error")

    def _compute(self, intent: flow_records.Intent, *, reentry: bool) -> JobOutcome:
        intent_id = intent.intent_id
        iteration = slots.computes(self._head, intent_id)
        result = self._domain.core.compute(
            self._domain.schema, self._head, intent, self._context, reentry=reentry, closing=slots.closing(intent_id)
        )
        self._head = result.snapshot
        self._emit("core:compute", intentId=intent_id, iteration=iteration, status=result.status)
        self._emit("core:apply", source="compute", patchCount=0)
        pending = own_pending(self._head, intent_id)
        if not pending:
            return self._over(intent, result.status, result.trace)
        again = refused_again(self._head, intent_id)
        if again is not None:
            probes.hit("flow.effect-repeated")
            ended = self.abandon(
                intent,
                EFFECT_REPEATED,
                f"the effect {again.type!r} failed and is asked for again by the same node",
                {"requirementId": again.id, "effectType": again.type},
            )
            return msgspec.structs.replace(ended, trace=result.trace)
        if iteration >= self._domain.iterations_max:
            ended = self.abandon(intent, LOOP_MAX_ITERATIONS, f"still pending after {iteration} computes")
            return msgspec.structs.replace(ended, trace=result.trace)
        return msgspec.structs.replace(
            self._asked(pending if self._domain.parallel else pending[:1]), trace=result.trace
        )

    def _over(
        self, intent: flow_records.Intent, status: str, trace: compute_trace.TraceGraph | None = None
    ) -> JobOutcome:
        ended = IntentOutcome(intent.intent_id, status, self._head.system.last_error)
        return JobOutcome(self._head, ended=ended, trace=trace)

    def _asked(self, requirements: list[flow_records.Requirement]) -> JobOutcome:
        """Effects to perform; what the context can answer is answered at once."""
        jobs: list[Job] = []
        effects = []
        for each in requirements:
            self._emit("effect:dispatch", requirementId=each.id, effectType=each.type, intentId=each.intent_id)
            if each.type == SYSTEM_GET:
                jobs.append(answered(each, self._context))
            else:
                effects.append(each)
        return JobOutcome(self._head, tuple(jobs), tuple(effects))

    def fulfill(self, job: FulfillEffect) -> JobOutcome:
        # First of all: a second outcome of an effect must change nothing.
        if not is_pending(self._head, job.requirement_id):
            return self._dropped(job, "dropped:stale")
        if not is_next(self._head, job):
            return self._waits(job)
        requirement = _required(self._head, job)
        failure = job.failure or self._fulfilled(job)
        # Cleared also if applying failed: a requirement that stays would block the intent for ever.
        if must_clear(failure):
            try:
                self._clear(job, failure)
            except Exception as error:  # noqa: BLE001 - an injected Core: ERR-FE-3
                probes.hit("flow.clear-failed")
                self._emit("effect:fulfill:error", requirementId=job.requirement_id, phase="clear", message=str(error))
                self._emit(
                    "fatal:escalate", intentId=job.intent_id, reason="requirement_clear_failed", message=str(error)
                )
                return JobOutcome(self._head, fatal=f"the requirement {job.requirement_id} cannot be cleared: {error}")
        if failure is not None:
            self._record(requirement, failure)
        return self._continued(job)

    def _dropped(self, job: FulfillEffect, reason: str) -> JobOutcome:
        self._emit("effect:fulfill:drop", requirementId=job.requirement_id, reason=reason)
        return JobOutcome(self._head, dropped=job.requirement_id)

    def _waits(self, job: FulfillEffect) -> JobOutcome:
        """Keep an outcome in the slot, because an earlier requirement of the intent has none yet."""
        if slots.early(self._head, job.intent_id, job.requirement_id) is not None:
            probes.hit("flow.early-twice")
            return self._dropped(job, "dropped:stale")
        self._apply(slots.kept_early(job.intent_id, job.requirement_id, _kept(job)), "ordering-buffer")
        self._emit("effect:fulfill:wait", requirementId=job.requirement_id)
        return JobOutcome(self._head)

    def _fulfilled(self, job: FulfillEffect) -> Failure | None:
        """Apply the result. What Core raises and what it records as an error are failures alike."""
        before = self._head.system.last_error
        try:
            given = from_handler(job.result_patches)
            self._apply(given, "effect")
            error = self._head.system.last_error
            # By identity: an error of an earlier job may be equal to one of this.
            if error is None or error is before:
                self._emit("effect:fulfill:apply", requirementId=job.requirement_id, patchCount=len(given))
                return None
            failure = Failure(EFFECT_APPLY_FAILED, f"{error.code}: {error.message}")
        except Exception as raised:  # noqa: BLE001 - an injected Core: ERR-FE-2, it is cleared all the same
            failure = Failure(EFFECT_APPLY_FAILED, str(raised))
        self._emit("effect:fulfill:error", requirementId=job.requirement_id, phase="apply", message=failure.message)
        return failure

    def _clear(self, job: FulfillEffect, failure: Failure | None) -> None:
        """The requirement leaves the pending list; if it failed, its tombstone is written in the same apply."""
        remaining = [each for each in self._head.system.pending_requirements if each.id != job.requirement_id]
        made = [patches.set_(patches.CLEAR, flow_records.plain_list(remaining) if remaining else [])]
        made += slots.settled(self._head, job.intent_id, job.requirement_id)
        # An intent that has ended has no slot for a tombstone.
        if failure is not None and slots.slot(self._head, job.intent_id) is not None:
            made += slots.tombstone(job.intent_id, job.requirement_id, failure.code)
        self._apply(patches.Concrete(made), "clear-requirement")
        # An injected Core may ignore the patch, and the intent would wait for ever.
        if any(each.id == job.requirement_id for each in self._head.system.pending_requirements):
            raise RuntimeError("it is still pending after it was cleared")
        self._emit("requirement:clear", requirementId=job.requirement_id)

    def _record(self, requirement: flow_records.Requirement, failure: Failure) -> None:
        """Record the error. ERR-FE-5: best effort; the intent continues whether this succeeds or not."""
        found = {
            "code": failure.code,
            "message": failure.message,
            "timestamp": self._context.now,
            "source": {"actionId": requirement.action_id, "nodePath": requirement.flow_position.node_path},
            "context": {
                "intentId": requirement.intent_id,
                "requirementId": requirement.id,
                "effectType": requirement.type,
            },
        }
        before = self._head
        try:
            self._apply(slots.error(self._head, js_values.from_outside(found, "error")), "error-patch")
        except Exception as error:  # noqa: BLE001 - an injected Core: ERR-FE-5
            probes.hit("flow.error-patch-failed")
            self._head = before  # back to where it was: the intent goes on without the record
            self._emit("effect:fulfill:error", requirementId=requirement.id, phase="error-patch", message=str(error))

    def _continued(self, job: FulfillEffect) -> JobOutcome:
        """ContinueCompute is always enqueued; an outcome that has waited for this one comes behind it."""
        jobs: list[Job] = [ContinueCompute(job.intent_id, slots.computes(self._head, job.intent_id))]
        self._emit("continue:enqueue", intentId=job.intent_id)
        for each in own_pending(self._head, job.intent_id)[:1]:
            kept = slots.early(self._head, job.intent_id, each.id)
            if kept is not None:
                # It waited for the one that is done now, and is next.
                jobs.append(_restored(job.intent_id, each.id, kept))
        return JobOutcome(self._head, tuple(jobs))

    def _apply(self, patch_list: Sequence[patches.Patch], source: str) -> None:
        self._head = self._domain.core.apply(self._domain.schema, self._head, patch_list, self._context)
        self._emit("core:apply", source=source, patchCount=len(patch_list))


def _kept(job: FulfillEffect) -> dict[str, Any]:
    """Return an outcome as data. Patches that are none are a failure already."""
    failure = job.failure
    try:
        given = [] if failure else flow_records.plain_list(from_handler(job.result_patches))
    except patches.BadPatch as refused:
        given, failure = [], Failure(EFFECT_APPLY_FAILED, str(refused))
    return {"patches": given} if failure is None else {"failure": {"code": failure.code, "message": failure.message}}


def _restored(intent_id: str, requirement_id: str, kept: dict[str, Any]) -> FulfillEffect:
    if "failure" in kept:
        return FulfillEffect(
            intent_id, requirement_id, (), Failure(kept["failure"]["code"], kept["failure"]["message"])
        )
    return FulfillEffect(intent_id, requirement_id, tuple(kept.get("patches") or ()))


def answered(requirement: flow_records.Requirement, context: flow_records.JobContext) -> FulfillEffect:
    """`system.get`: `uuid`, `timestamp` (a date as text), `now` (milliseconds), `seed` and `env.NAME`, into a path."""
    key, into = requirement.params.get("key"), requirement.params.get("into")
    known: dict[str, Any] = {
        "uuid": hashing.uuid_like([requirement.id]),
        "timestamp": dates.iso(context.now),
        "now": context.now,
        "time.now": context.now,
        "seed": context.random_seed,
    }
    if isinstance(key, str) and key.startswith("env."):
        # Only by name: the rest of the environment stays the host's.
        known[key] = context.env.get(key.removeprefix("env."))
    if not isinstance(into, str) or key not in known:
        failure = Failure(EFFECT_EXECUTION_FAILED, f"system.get needs into and one of {', '.join(known)}, not {key!r}")
        return FulfillEffect(requirement.intent_id, requirement.id, (), failure)
    return FulfillEffect(requirement.intent_id, requirement.id, (patches.set_(into, known[key]),))
