"""The seven nodes of a flow, as closures over one run of it.

A flow is run from its beginning at every compute: nothing is suspended. Each step sees what the steps before it
patched; computed values stay those of the compute's start. A node stops the flow by changing the status from
"running": an effect (pending), halt, fail, or a fault (error); what was patched before stays.

With `parallel`, the steps of a `seq` that stand beside an effect and can only lead to effects are run too, so one
compute may have several requirements. The paths of nodes are relative to their action, because an action can be
called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from worldline.base import limits
from worldline.flow_core import (
    compute_trace,
    document_schema,
    faults,
    fields,
    flow_records,
    hashing,
    js_values,
    patches,
    value_paths,
)
from worldline.flow_core.expressions import compiler
from worldline.flow_core.expressions.scope import EvalScope
from worldline.flow_core.expressions.scope import Run as Expression

RUNNING: Final = "running"
INLINE: Final = {"array.map": "select", "array.filter": "where"}  # effects that Core evaluates by itself


class FlowRun:
    """One run of an action's flow: the working data, and what has come of it."""

    __slots__ = (
        "_called",
        "_prefix",
        "action",
        "context",
        "deep",
        "error",
        "intent_id",
        "parallel",
        "recorder",
        "requirements",
        "schema_hash",
        "scope",
        "status",
        "version",
    )

    def __init__(
        self,
        scope: EvalScope,
        context: flow_records.JobContext,
        *,
        action: str,
        parallel: bool,
        recorder: compute_trace.NodeRecorder | None,
    ) -> None:
        self.scope = scope
        self.context = context
        self.action = action
        self.intent_id = scope.intent_id
        self.version = scope.meta.version
        self.schema_hash = scope.meta.schema_hash
        self.parallel = parallel
        self.recorder = recorder
        self.status = RUNNING
        self.error: flow_records.ErrorValue | None = None
        self.requirements: list[flow_records.Requirement] = []
        self.deep = 0
        self._prefix = ""  # of the actions that were called, if it is in one of them
        self._called = [action]

    def at(self, path: str) -> str:
        """Return the whole path of a node."""
        return f"actions.{self.action}.flow{self._prefix}{path}"

    def stop(self, status: str) -> None:
        self.status = status

    def resume(self) -> None:
        """Go on behind an effect, to collect the ones beside it."""
        self.status = RUNNING

    def fail(self, path: str, code: str, message: str, context: Mapping[str, Any] | None = None) -> None:
        self.status = "error"
        self.error = flow_records.ErrorValue(
            code=code,
            message=message,
            source=flow_records.ErrorSource(self.action, self.at(path)),
            timestamp=self.context.now,
            context=None if context is None else dict(context),
        )

    def require(self, path: str, effect: str, params: dict[str, Any]) -> flow_records.Requirement:
        """Record that an effect is needed, and stop the flow."""
        where = self.at(path)
        found = flow_records.Requirement(
            id=hashing.requirement_id(
                schema_hash=self.schema_hash,
                intent_id=self.intent_id,
                action_id=self.action,
                node_path=where,
                effect=effect,
                params=params,
            ),
            intent_id=self.intent_id,
            type=effect,
            params=params,
            action_id=self.action,
            flow_position=flow_records.FlowPosition(where, self.version),
            created_at=self.context.now,
        )
        self.requirements.append(found)
        self.status = "pending"
        return found

    def call(self, path: str, name: str, target: ActionFlow, depth: int) -> None:
        """Run the flow of another action on the same data."""
        # On the way here, not of all that were called: an action may be called twice in a row.
        if name in self._called:
            return self.fail(path, faults.CYCLIC_CALL, f"{' -> '.join([*self._called, name])} calls itself")
        # Heights are known before the call is run, so recursion stays within the bound.
        if self.deep + depth + target.height > limits.FLOW_DEPTH_MAX:
            return self.fail(path, faults.LIMIT_EXCEEDED, f"calls nested deeper than {limits.FLOW_DEPTH_MAX}")
        before = self._prefix
        self._prefix = f"{before}{path}.call({name})"
        self._called.append(name)
        self.deep += depth
        target.run(self)
        self.deep -= depth
        self._called.pop()
        self._prefix = before
        return None


Node = Callable[[FlowRun], None]


class ActionFlow:
    """The flow of one action, ready to run. `height`: how deep its nodes are nested."""

    __slots__ = ("height", "run")

    def __init__(self, run: Node, height: int) -> None:
        self.run = run
        self.height = height


class Nodes:
    """Compiles the flow of one action. `find` gives the action that a call names."""

    def __init__(
        self,
        declared: Mapping[str, document_schema.FieldSpec],
        compile_: compiler.Compiler,
        find: Callable[[str], ActionFlow | None],
    ) -> None:
        self._declared = declared
        self._compiler = compile_
        self._find = find
        self._height = 0

    def action(self, flow: Mapping[str, Any]) -> ActionFlow:
        run = self._node(flow, "", 0)
        return ActionFlow(run, self._height)

    def _node(self, node: Mapping[str, Any], path: str, depth: int) -> Node:
        if wrong := document_schema.node_problem(node):
            raise faults.Fault(faults.INTERNAL_ERROR, wrong)
        self._compiler.entered(depth)
        self._height = max(self._height, depth)
        builders = {
            "seq": self._seq,
            "if": self._if,
            "patch": self._patch,
            "effect": self._effect,
            "call": self._call,
            "halt": self._halt,
            "fail": self._fail,
        }
        begun = self._compiler.nodes
        inner = builders[node["kind"]](node, path, depth)
        # Of their children, `seq` and `if` may skip some: each child is charged when it is run.
        own = 0 if node["kind"] in ("seq", "if") else self._compiler.nodes - begun
        weight = limits.FLOW_NODE_WORK + own

        def run(flow: FlowRun) -> None:
            flow.scope.meter.spend(weight)
            if flow.recorder is not None:
                flow.recorder.begin()
            inner(flow)

        return run

    def _expression(self, node: Mapping[str, Any], name: str) -> Expression:
        return self._compiler.one(node[name])

    def _seq(self, node: Mapping[str, Any], path: str, depth: int) -> Node:
        steps = [
            (self._node(each, f"{path}.steps[{at}]", depth + 1), only_effects(each))
            for at, each in enumerate(node["steps"])
        ]

        def run(flow: FlowRun) -> None:
            for step, collectable in steps:
                if flow.status == "pending" and flow.parallel and collectable:
                    flow.resume()
                    step(flow)
                    # It has asked for nothing, and the flow still waits for the effect before it.
                    if flow.status == RUNNING:
                        flow.stop("pending")
                elif flow.status == RUNNING:
                    step(flow)
                else:
                    break
            if flow.recorder is not None:
                _end(flow, "flow", path, {}, None)

        return run

    def _if(self, node: Mapping[str, Any], path: str, depth: int) -> Node:
        begun = self._compiler.nodes
        cond = self._expression(node, "cond")
        weight = self._compiler.nodes - begun
        then = self._node(node["then"], f"{path}.then", depth + 1)
        otherwise = self._node(node["else"], f"{path}.else", depth + 1) if "else" in node else None

        def run(flow: FlowRun) -> None:
            flow.scope.meter.spend(weight)
            found = _evaluated(flow, path, cond)
            if flow.status == RUNNING:
                taken = js_values.is_set(found)
                if taken:
                    then(flow)
                elif otherwise is not None:
                    otherwise(flow)
                found = taken
            if flow.recorder is not None:
                _end(flow, "branch", path, {"cond": found}, found)

        return run

    def _patch(self, node: Mapping[str, Any], path: str, _depth: int) -> Node:
        op, target = node["op"], node["path"]
        value = self._expression(node, "value") if op != "unset" else None
        write = self._writer(op, target)

        def run(flow: FlowRun) -> None:
            found = None
            try:
                if value is not None:
                    found = value(flow.scope)
                found = write(flow.scope, found)
            except faults.Fault as fault:
                found = None
                flow.fail(path, fault.code, fault.message, fault.context)
            if flow.recorder is not None:
                _end(flow, "patch", path, {"op": op, "path": target}, found)

        return run

    def _writer(self, op: str, target: str) -> Callable[[EvalScope, Any], Any]:
        """Checks a value and writes it into the working data; gives what was written."""
        segments = value_paths.split(target)
        spec = fields.lookup(self._declared, segments)
        if spec is None and segments[0] == "system":
            return lambda _, value: value  # Core writes `system` itself when the compute ends
        if spec is None:
            return _nowhere(target)
        declared, partial = spec, op == "merge"
        single = segments[0] if len(segments) == 1 and op == "set" else None

        def write(scope: EvalScope, value: Any) -> Any:
            if op != "unset":
                if value is js_values.MISSING:
                    raise faults.Fault(faults.TYPE_MISMATCH, f"Value is required at {target}")
                # Copied, so that two places of the data never share a container.
                value = js_values.checked(value, scope.meter, target)
                if wrong := fields.misfit(declared, value, target, partial=partial):
                    raise faults.Fault(faults.TYPE_MISMATCH, wrong)
            # A field at the top, which is the usual case, needs no walk.
            if single is not None:
                scope.write({**scope.data, single: value})
            else:
                scope.write(patches.changed(scope.data, op, segments, value))
            return value

        return write

    def _effect(self, node: Mapping[str, Any], path: str, _depth: int) -> Node:
        effect = node["type"]
        if effect in INLINE:
            return self._inline(node, path)
        # Evaluated in one order, so that the first fault does not depend on how the document was stored.
        params = [
            (name, self._compiler.one(node["params"][name])) for name in sorted(node["params"], key=hashing.utf16)
        ]

        def run(flow: FlowRun) -> None:
            found: dict[str, Any] = {}
            try:
                evaluated = {name: each(flow.scope) for name, each in params}
                # A copy: it is in the snapshot, and later patches must not reach it.
                found = js_values.checked(evaluated, flow.scope.meter, "params")
                flow.require(path, effect, found)
            except faults.Fault as fault:
                flow.fail(path, fault.code, fault.message, fault.context)
            if flow.recorder is not None:
                _end(flow, "effect", path, {"type": effect, "params": found}, None)

        return run

    def _inline(self, node: Mapping[str, Any], path: str) -> Node:
        """`array.map` and `array.filter`: evaluated here, written like a patch."""
        effect, params = node["type"], node["params"]
        body, target = params.get(INLINE[effect]), params.get("into", {}).get("value")
        if body is None or "source" not in params or not isinstance(target, str):
            raise faults.Fault(faults.INTERNAL_ERROR, f"{effect} needs source, {INLINE[effect]} and a literal into")
        loop = {"kind": "map", "array": params["source"], "mapper": body}
        if effect == "array.filter":
            loop = {"kind": "filter", "array": params["source"], "predicate": body}
        return self._patch({"kind": "patch", "op": "set", "path": target, "value": loop}, path, 0)

    def _call(self, node: Mapping[str, Any], path: str, depth: int) -> Node:
        name, find = node["flow"], self._find

        def run(flow: FlowRun) -> None:
            try:
                target = find(name)  # when it is run: actions may call each other in a circle
                if target is None:
                    flow.fail(path, faults.UNKNOWN_FLOW, f"no action {name!r} to call")
                else:
                    flow.call(path, name, target, depth)
            except faults.Fault as fault:
                flow.fail(path, fault.code, fault.message, fault.context)
            if flow.recorder is not None:
                _end(flow, "call", path, {"flow": name}, None)

        return run

    def _halt(self, node: Mapping[str, Any], path: str, _depth: int) -> Node:
        reason = node.get("reason")

        def run(flow: FlowRun) -> None:
            flow.stop("halted")
            if flow.recorder is not None:
                _end(flow, "halt", path, {} if reason is None else {"reason": reason}, None)

        return run

    def _fail(self, node: Mapping[str, Any], path: str, _depth: int) -> Node:
        code = node["code"]
        message = self._expression(node, "message") if "message" in node else None

        def run(flow: FlowRun) -> None:
            said = code if message is None else _evaluated(flow, path, message)
            if flow.status == RUNNING:
                # Half of a character becomes a question mark: a snapshot could not keep it.
                text = js_values.bounded(js_values.text(said)).encode(errors="replace").decode()
                flow.fail(path, faults.VALIDATION_ERROR, text, {"code": code})
            if flow.recorder is not None:
                assert flow.error is not None
                _end(flow, "error", path, {"code": code, "message": flow.error.message}, None)

        return run


def only_effects(node: Mapping[str, Any]) -> bool:
    """Whether a node can do nothing else than ask for effects, so that its neighbours cannot see that it was run."""
    kind = node["kind"]
    if kind == "effect":
        return node["type"] not in INLINE
    if kind == "if":
        return only_effects(node["then"]) and ("else" not in node or only_effects(node["else"]))
    return kind == "seq" and all(only_effects(each) for each in node["steps"])


def _evaluated(flow: FlowRun, path: str, expression: Expression) -> Any:
    """Return the value of an expression; a fault stops the flow."""
    try:
        return expression(flow.scope)
    except faults.Fault as fault:
        flow.fail(path, fault.code, fault.message, fault.context)
        return None


def _nowhere(target: str) -> Callable[[EvalScope, Any], Any]:
    def write(_scope: EvalScope, _value: Any) -> Any:
        raise faults.Fault(faults.PATH_NOT_FOUND, f"no field is declared at {target}")

    return write


def _end(flow: FlowRun, kind: str, path: str, inputs: dict[str, Any], output: Any) -> None:
    """Record a node. Callers ask for the recorder first, so that without one not even the inputs are made."""
    assert flow.recorder is not None
    flow.recorder.end(kind, flow.at(path), inputs, output)
