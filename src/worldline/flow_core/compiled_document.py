"""A document made ready to run: closures, made when they are first needed and kept.

What cannot be compiled (an unknown kind, too deep, depending on itself) raises its fault at every use, so a document
that was never validated ends in an error value and not in a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import UNSET

from worldline.flow_core import computed, document_schema, faults, flow_nodes, hashing
from worldline.flow_core.expressions import compiler, lookups, shapes
from worldline.flow_core.expressions.scope import Run

T = TypeVar("T")


class Compiled:
    """One document. `raw` is what was given; `hash` is that of its meaning."""

    def __init__(self, raw: Mapping[str, Any], parsed: document_schema.DomainSchema) -> None:
        self.raw = raw
        self.schema = parsed
        # Of what was given, and not of the record: unknown members count as well.
        self.hash = hashing.schema_hash(raw)
        self.fields = parsed.state.fields
        self._compiler = compiler.Compiler()
        self._made: dict[tuple[str, str], Any] = {}

    def evaluation(self) -> computed.Evaluation:
        """Return the computed values in their order."""
        return self._once(("computed", ""), self._evaluation)

    def action(self, name: str) -> flow_nodes.ActionFlow | None:
        """Return the flow of an action, None if there is no such action."""
        if name not in self.schema.actions:
            return None
        return self._once(("action", name), lambda: self._nodes().action(self.schema.actions[name].flow))

    def available(self, name: str) -> Run | None:
        """Return the condition of an action, None if it has none."""
        found = self.schema.actions[name].available
        if found is UNSET:
            return None
        given: Mapping[str, Any] = found
        return self._once(("available", name), lambda: self._compiler.one(given))

    def _nodes(self) -> flow_nodes.Nodes:
        return flow_nodes.Nodes(self.fields, self._compiler, self.action)

    def _evaluation(self) -> computed.Evaluation:
        fields = self.schema.computed.fields
        steps = tuple((key, self._compiler.one(fields[key].expr)) for key in computed.ordered(fields))
        read = [path for key, _ in steps for path in shapes.paths(fields[key].expr)]
        # What they read decides whether values can be remembered between jobs.
        return computed.Evaluation(steps, lookups.fields_of(read))

    def _once(self, key: tuple[str, str], make: Callable[[], T]) -> T:
        found = self._made.get(key)
        if found is None:
            try:
                found = make()
            # Kept like a result: what cannot be compiled now cannot be later.
            except faults.Fault as fault:
                found = fault
            except faults.NotJson as refused:
                found = faults.Fault(faults.INVALID_VALUE, str(refused))
            self._made[key] = found
        if isinstance(found, faults.Fault):
            # A new one each time: an exception that is raised again would collect tracebacks.
            raise faults.Fault(found.code, found.message, found.context)
        return found
