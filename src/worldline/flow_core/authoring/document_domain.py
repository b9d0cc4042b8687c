"""A flow domain that is given as a document: its actions as calls, its snapshots as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from worldline.base import errors
from worldline.flow_core import flow_records, js_values
from worldline.flow_core.authoring.domain_class import Act


class Document:
    """A document under a name. `todos.action("add")(title="milk")` is a call of an action."""

    def __init__(self, name: str, document: Mapping[str, Any]) -> None:
        self.name = name
        self._document = dict(document)

    def document(self) -> dict[str, Any]:
        """Return the domain as plain data."""
        return self._document

    def action(self, name: str) -> Callable[..., Act[dict[str, Any]]]:
        """Return an action by its name; called with its input by name."""
        if name not in self._document["actions"]:
            known = ", ".join(sorted(self._document["actions"]))
            raise errors.BadInput(f"{self.name} has no action {name!r}; its actions are {known}")

        def call(**given: Any) -> Act[dict[str, Any]]:
            return Act(self, name, js_values.from_outside(given, f"input of {name}"))

        return call

    def read(self, snapshot: flow_records.Snapshot) -> dict[str, Any]:
        """Return fields and computed values by name, without what hosts keep."""
        found = {name: value for name, value in snapshot.data.items() if not name.startswith("$")}
        return found | snapshot.computed

    def __repr__(self) -> str:
        return f"Document({self.name!r})"


def name_of(domain: Any) -> str:
    """Return the name under which a domain is declared: of a class its own, unless it was declared under another."""
    if isinstance(domain, Document):
        return domain.name
    return str(domain.__flow__.get("name") or domain.__name__)


def schema_of(domain: str, action: str) -> str:
    """Return the schema of the event that is an intent, by the names of both."""
    return f"{domain}.{action}"
