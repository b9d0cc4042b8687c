"""The pure Core: compute, apply, abandon, refusal, explain. The same arguments give the same result.

compute   one run of an action's flow over a snapshot, from its beginning. The steps:
          0 computed values again; 1 is there such an action, has the intent an id, does its input fit; 2 is the action
          available (not asked again when a host resumes the same intent: `reentry`); 3 run the flow; 4 computed
          values again; 5 `system` and `meta`. Version + 1, also where an early step refuses.
apply     concrete patches, one by one: one that is refused is skipped and becomes an error, the others are applied.
          Version + 1, also for no patch at all. Of `system`, only `pendingRequirements` can be written.
abandon   ends an intent that cannot continue: its requirements are cleared, its error is `lastError`.
refusal   why an intent would be refused now, without running it; `unavailable` says it of all intents of an action.
explain   a path's value, and how it came about.

Errors are values in the snapshot. What is raised is the caller's fault: `patches.BadPatch`, `faults.NotJson`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from worldline.base import limits
from worldline.flow_core import (
    compute_trace,
    computed,
    faults,
    fields,
    flow_nodes,
    flow_records,
    js_values,
    patches,
    value_paths,
)
from worldline.flow_core.compiled_document import Compiled
from worldline.flow_core.document_schema import defaults
from worldline.flow_core.expressions import compiler, lookups, reasons
from worldline.flow_core.expressions.scope import EvalScope, Run

Effects = Literal["serial", "parallel"]
_ENDS: Final = {flow_nodes.RUNNING: "complete", "pending": "pending", "halted": "halted", "error": "error"}
_TERMINATED: Final = {"complete": "complete", "pending": "effect", "halted": "halt", "error": "error"}
_STATUS: Final = {"complete": "idle", "halted": "idle", "pending": "pending", "error": "error"}


class Computed(msgspec.Struct, frozen=True):
    """What a compute gives: complete, pending, halted or error; the new snapshot, and what it did."""

    status: str
    snapshot: flow_records.Snapshot
    requirements: tuple[flow_records.Requirement, ...]
    trace: compute_trace.TraceGraph | None


class Refusal(msgspec.Struct, frozen=True):
    """Why an intent would be refused now: the error's code and message, and the parts of its condition that fail."""

    code: str
    message: str
    reasons: tuple[str, ...] = ()


class Explanation(msgspec.Struct, frozen=True):
    """A value, the paths that it depends on, the values these have (`inputs`), and how each came about."""

    value: Any
    deps: tuple[str, ...]
    inputs: dict[str, Any]
    trace: compute_trace.TraceNode
    nodes: dict[str, compute_trace.TraceNode]


class Core:
    """Stateless. `effects="parallel"` collects effects that stand beside each other; `trace=False`: no traces."""

    def __init__(self, *, effects: Effects = "serial", trace: bool = True) -> None:
        self._parallel = effects == "parallel"
        self._trace = trace

    def compute(
        self,
        schema: Compiled,
        snapshot: flow_records.Snapshot,
        intent: flow_records.Intent,
        context: flow_records.JobContext,
        *,
        reentry: bool = False,
        closing: Sequence[patches.Patch] = (),
    ) -> Computed:
        """Run an intent as far as it goes: to its end, or to the effects that it waits for. `closing`: patches of the
        host's own namespace that belong to the end of the intent; applied if it ends.
        """
        meter = js_values.EvaluationMeter()
        try:
            snapshot = _with_computed(schema, snapshot, meter)
            action = _accepted(schema, snapshot, intent, meter, reentry=reentry)
        except (faults.Fault, computed.ComputedFailed) as refused:
            return self._refused(snapshot, intent, context, refused, closing)
        scope = _scope(snapshot, intent, meter)
        recorder = compute_trace.NodeRecorder(context.now) if self._trace else None
        flow = flow_nodes.FlowRun(scope, context, action=intent.type, parallel=self._parallel, recorder=recorder)
        try:
            action.run(flow)
        # What was patched before stays: the flow has failed, and not the compute.
        except faults.Fault as fault:
            flow.fail("", fault.code, fault.message, fault.context)
        return self._ended(schema, snapshot, intent, flow, closing)

    def apply(
        self,
        schema: Compiled,
        snapshot: flow_records.Snapshot,
        patch_list: Sequence[patches.Patch],
        context: flow_records.JobContext,
    ) -> flow_records.Snapshot:
        """Return the snapshot after patches, with its computed values."""
        data, system = snapshot.data, snapshot.system
        refused: list[flow_records.ErrorValue] = []
        for patch in patches.concrete(patch_list):
            try:
                # Hosts clear requirements by a patch, so that it is in the same apply as the tombstone.
                if patch.path == patches.CLEAR and patch.op == "set":
                    system = msgspec.structs.replace(system, pending_requirements=_requirements(patch.value))
                elif value_paths.split(patch.path)[0] in patches.RESERVED and not _declares(schema, patch):
                    raise faults.Fault(faults.PATH_NOT_FOUND, f"no patch may write {patch.path}")  # noqa: TRY301
                else:
                    data = patches.written(data, patch, schema.fields)
            except faults.Fault as fault:
                refused.append(_patch_error(snapshot, patch, fault, context))
        try:
            derived = schema.evaluation().run(snapshot, data, snapshot.input, js_values.EvaluationMeter())
        except (faults.Fault, computed.ComputedFailed) as fault:
            derived = {}
            refused.append(_error(fault, "", context))
        if refused:
            system = msgspec.structs.replace(
                system, status="error", last_error=refused[-1], errors=flow_records.kept((*system.errors, *refused))
            )
        return flow_records.Snapshot(
            data=data,
            computed=derived,
            system=system,
            input=snapshot.input,
            meta=flow_records.Meta(
                snapshot.meta.version + 1, context.now, context.random_seed, snapshot.meta.schema_hash
            ),
        )

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
    ) -> flow_records.Snapshot:
        """Return the snapshot in which the intent has ended with this error. Nothing of it is pending any more."""
        error = flow_records.ErrorValue(
            code=code,
            message=message,
            source=flow_records.ErrorSource(intent.type, f"actions.{intent.type}.flow"),
            timestamp=context.now,
            context=detail,
        )
        # Only its own: other intents, if there are any, still wait for theirs.
        remaining = tuple(each for each in snapshot.system.pending_requirements if each.intent_id != intent.intent_id)
        system = _system(snapshot, error, status="error", pending=remaining)
        return _settled(snapshot, system, context, closing)

    def refusal(self, schema: Compiled, snapshot: flow_records.Snapshot, intent: flow_records.Intent) -> Refusal | None:
        """Say why the intent would be refused before anything of it is run; None if it would not. Changes nothing."""
        meter = js_values.EvaluationMeter()
        try:
            snapshot = _with_computed(schema, snapshot, meter)
            _accepted(schema, snapshot, intent, meter, reentry=False)
        except computed.ComputedFailed as failed:
            return Refusal(failed.fault.code, str(failed))
        except faults.Fault as fault:
            condition = (
                schema.schema.actions[intent.type].available if fault.code == faults.ACTION_UNAVAILABLE else None
            )
            if not isinstance(condition, dict):
                return Refusal(fault.code, fault.message)
            # With a new meter, because the refusal may have spent all of the other.
            scope = _scope(snapshot, intent, js_values.EvaluationMeter())
            return Refusal(fault.code, fault.message, reasons.why(condition, scope))
        return None

    def unavailable(self, schema: Compiled, snapshot: flow_records.Snapshot, action: str) -> Refusal | None:
        """Say why every intent of an action would be refused now, whatever its input; None if one might not.

        Parts of its condition that read the intent, its input or its id, are left out: `refusal` decides them.
        """
        if action not in schema.schema.actions:
            return Refusal(faults.UNKNOWN_ACTION, f"there is no action {action!r}")
        meter = js_values.EvaluationMeter()
        condition = schema.schema.actions[action].available
        known = reasons.without_intent(condition) if isinstance(condition, dict) else None
        try:
            snapshot = _with_computed(schema, snapshot, meter)
            if known is not None:
                scope = _scope(snapshot, flow_records.Intent(action, ""), meter)
                # A condition without the parts about the intent is another one, which is not kept compiled.
                run = schema.available(action) if known is condition else compiler.Compiler().one(known)
                assert run is not None
                _require(run, scope, action)
        except computed.ComputedFailed as failed:
            return Refusal(failed.fault.code, str(failed))
        except faults.Fault as fault:
            if fault.code != faults.ACTION_UNAVAILABLE or known is None:
                return Refusal(fault.code, fault.message)
            scope = _scope(snapshot, flow_records.Intent(action, ""), js_values.EvaluationMeter())
            return Refusal(fault.code, fault.message, reasons.why(known, scope))
        return None

    def explain(self, schema: Compiled, snapshot: flow_records.Snapshot, path: str) -> Explanation:
        """Show a computed value with those it depends on; anything else as it is."""
        recorder = compute_trace.NodeRecorder(snapshot.meta.timestamp)
        value = _explained(schema, snapshot, path, recorder)
        field = schema.schema.computed.fields.get(path)
        deps = () if field is None else tuple(field.deps)
        root = recorder.nodes[recorder.root]
        inputs = {recorder.nodes[each].source_path: recorder.nodes[each].output for each in root.children}
        return Explanation(value, deps, inputs, root, recorder.nodes)

    def _refused(
        self,
        snapshot: flow_records.Snapshot,
        intent: flow_records.Intent,
        context: flow_records.JobContext,
        refused: faults.Fault | computed.ComputedFailed,
        closing: Sequence[patches.Patch],
    ) -> Computed:
        """End a compute that an early step refused: nothing was run, and requirements stay as they are."""
        error = _error(refused, intent.type, context)
        pending = snapshot.system.pending_requirements
        after = _settled(snapshot, _system(snapshot, error, status="error", pending=pending), context, closing)
        graph = None
        if self._trace:
            node = compute_trace.refused(f"trace-error-{intent.intent_id}", error)
            graph = _graph(node.id, {node.id: node}, intent, snapshot, context, ended="error")
        return Computed("error", after, (), graph)

    def _ended(
        self,
        schema: Compiled,
        old: flow_records.Snapshot,
        intent: flow_records.Intent,
        flow: flow_nodes.FlowRun,
        closing: Sequence[patches.Patch],
    ) -> Computed:
        context, status, error = flow.context, _ENDS[flow.status], flow.error
        # A flow that failed after it had asked for effects waits for none of them.
        requirements = tuple(flow.requirements) if status == "pending" else ()
        data, given = flow.scope.data, intent.input
        try:
            derived = schema.evaluation().run(old, data, given, flow.scope.meter)
        except (faults.Fault, computed.ComputedFailed) as fault:
            # A snapshot without computed values is no ground to perform effects on.
            derived, status, requirements = {}, "error", ()
            error = _error(fault, intent.type, context)
        action = intent.type if status == "pending" else None
        system = _system(old, error, status=_STATUS[status], pending=requirements, action=action)
        current = flow_records.Snapshot(data, derived, system, old.meta, given)
        after = _settled(current, system, context, () if status == "pending" else closing)
        graph = None
        if flow.recorder is not None:
            graph = _graph(flow.recorder.root, flow.recorder.nodes, intent, old, context, ended=_TERMINATED[status])
        return Computed(status, after, requirements, graph)


def created(schema: Compiled, data: dict[str, Any], context: flow_records.JobContext) -> flow_records.Snapshot:
    """Return the first snapshot of a host: the defaults, what is given, and the computed values of it."""
    made = flow_records.created({**defaults(schema.schema), **data}, schema.hash, context)
    try:
        return _with_computed(schema, made, js_values.EvaluationMeter())
    except (faults.Fault, computed.ComputedFailed) as failed:
        return msgspec.structs.replace(
            made, system=_system(made, _error(failed, "", context), status="error", pending=())
        )


def _with_computed(
    schema: Compiled, snapshot: flow_records.Snapshot, meter: js_values.EvaluationMeter
) -> flow_records.Snapshot:
    derived = schema.evaluation().run(snapshot, snapshot.data, snapshot.input, meter)
    return flow_records.Snapshot(snapshot.data, derived, snapshot.system, snapshot.meta, snapshot.input)


def _accepted(
    schema: Compiled,
    snapshot: flow_records.Snapshot,
    intent: flow_records.Intent,
    meter: js_values.EvaluationMeter,
    *,
    reentry: bool,
) -> flow_nodes.ActionFlow:
    """Return the action that an intent names, if it may be run now. Raises a fault."""
    action = schema.action(intent.type)
    if action is None:
        raise faults.Fault(faults.UNKNOWN_ACTION, f"there is no action {intent.type!r}")
    if not intent.intent_id:
        raise faults.Fault(faults.INVALID_INPUT, "an intent needs an id")
    # Before the condition, which may read the input.
    if wrong := fields.input_misfit(schema.schema.actions[intent.type].input, intent.input):
        raise faults.Fault(faults.INVALID_INPUT, wrong)
    condition = None if reentry else schema.available(intent.type)
    if condition is not None:
        _require(condition, _scope(snapshot, intent, meter), intent.type)
    return action


def _scope(snapshot: flow_records.Snapshot, intent: flow_records.Intent, meter: js_values.EvaluationMeter) -> EvalScope:
    """What the expressions of an intent read."""
    scope = EvalScope(snapshot, intent_id=intent.intent_id, action=intent.type)
    scope.begin_flow(intent.input, meter)
    return scope


def _require(condition: Run, scope: EvalScope, action: str) -> None:
    """Raise a fault unless an action's condition holds."""
    found = condition(scope)
    # Not by truth: a condition that gives a number or a text is a mistake in the document.
    if found is not True and found is not False:
        raise faults.Fault(
            faults.TYPE_MISMATCH, f"available of {action!r} is {js_values.kind_of(found)}, not a boolean"
        )
    if not found:
        raise faults.Fault(faults.ACTION_UNAVAILABLE, f"the action {action!r} is not available now")


def _system(
    old: flow_records.Snapshot,
    error: flow_records.ErrorValue | None,
    *,
    status: str,
    pending: tuple[flow_records.Requirement, ...],
    action: str | None = None,
) -> flow_records.System:
    """`system` after a compute: its error or none, and the last errors."""
    errors = old.system.errors if error is None else flow_records.kept((*old.system.errors, error))
    if status == "idle" and error is None and not errors and not pending and action is None:
        return flow_records.IDLE  # as mostly: one for all cells
    return flow_records.System(status, error, errors, pending, action)


def _settled(
    snapshot: flow_records.Snapshot,
    system: flow_records.System,
    context: flow_records.JobContext,
    closing: Sequence[patches.Patch],
) -> flow_records.Snapshot:
    """Return the next version of a snapshot; the seed stays as it was."""
    data, meta = snapshot.data, snapshot.meta
    for patch in closing:
        # The host's own namespace, which no field declares: nothing is checked.
        data = patches.changed(data, patch.op, value_paths.split(patch.path), patch.value)
    meta = flow_records.Meta(meta.version + 1, context.now, meta.random_seed, meta.schema_hash)
    return flow_records.Snapshot(data, snapshot.computed, system, meta, snapshot.input)


def _graph(
    root: str,
    recorded: dict[str, compute_trace.TraceNode],
    intent: flow_records.Intent,
    old: flow_records.Snapshot,
    context: flow_records.JobContext,
    *,
    ended: str,
) -> compute_trace.TraceGraph:
    said = {"type": intent.type} if intent.input is js_values.MISSING else {"type": intent.type, "input": intent.input}
    return compute_trace.TraceGraph(
        root=root,
        nodes=recorded,
        intent=said,
        base_version=old.meta.version,
        result_version=old.meta.version + 1,
        duration=context.duration_ms,
        terminated_by=ended,
    )


def _error(
    failure: faults.Fault | computed.ComputedFailed, action: str, context: flow_records.JobContext
) -> flow_records.ErrorValue:
    fault = failure.fault if isinstance(failure, computed.ComputedFailed) else failure
    where = failure.key if isinstance(failure, computed.ComputedFailed) else ""  # of an early error: no node was run
    return flow_records.ErrorValue(
        code=fault.code,
        message=fault.message,
        source=flow_records.ErrorSource(action, where),
        timestamp=context.now,
        context=None if fault.context is None else dict(fault.context),
    )


def _patch_error(
    snapshot: flow_records.Snapshot, patch: patches.Patch, fault: faults.Fault, context: flow_records.JobContext
) -> flow_records.ErrorValue:
    return flow_records.ErrorValue(
        code=fault.code,
        message=fault.message,
        timestamp=context.now,
        source=flow_records.ErrorSource(snapshot.system.current_action or "", patch.path),
        context={"patch": {"op": patch.op, "path": patch.path}},
    )


def _declares(schema: Compiled, patch: patches.Patch) -> bool:
    """Return whether a field of the state has a name that is reserved elsewhere."""
    return fields.lookup(schema.fields, value_paths.split(patch.path)) is not None


def _requirements(value: Any) -> tuple[flow_records.Requirement, ...]:
    if value == []:  # nothing is left, as mostly
        return ()
    try:
        return msgspec.convert(value, tuple[flow_records.Requirement, ...])
    except msgspec.ValidationError as refused:
        raise faults.Fault(faults.TYPE_MISMATCH, f"these are no requirements: {refused}") from None


def _explained(
    schema: Compiled, snapshot: flow_records.Snapshot, path: str, recorder: compute_trace.NodeRecorder
) -> Any:
    """The value at a path. Computed fields over others make chains as long as the document has fields, and one field
    may be in many of them: a loop instead of calls, and a bound on how much is recorded.
    """
    known = schema.schema.computed.fields
    derived, error = _derived(schema, snapshot)
    meter = js_values.EvaluationMeter()
    within: dict[str, None] = {}
    value = None
    left = [(path, False)]
    while left:
        each, explained = left.pop()  # explained: what it depends on is recorded
        if explained:
            value = derived.get(each)
            recorder.end("computed", each, {"expr": known[each].expr, **error}, value)
            del within[each]
            continue
        meter.spend(limits.FLOW_NODE_WORK)
        recorder.begin()
        if each in known and each not in within:
            within[each] = None
            # Backwards, because what is added last is explained first.
            left += [(each, True), *((dep, False) for dep in reversed(known[each].deps))]
        else:
            found = lookups.compiled(each)(EvalScope(snapshot))
            value = None if found is js_values.MISSING else js_values.checked(found, js_values.EvaluationMeter(), each)
            recorder.end("expr", each, {"path": each}, value)
    return value


def _derived(schema: Compiled, snapshot: flow_records.Snapshot) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the computed values, or none of them and why."""
    try:
        return _with_computed(schema, snapshot, js_values.EvaluationMeter()).computed, {}
    except (faults.Fault, computed.ComputedFailed) as failed:
        return {}, {"error": str(failed)}
