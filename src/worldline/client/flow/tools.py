"""Actions as tools: what an agent may call now, in the shapes that models take, and why it may not call the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from worldline.base import errors
from worldline.kernel.flow.authoring import exporting
from worldline.kernel.flow.authoring.domains import Act
from worldline.kernel.flow.compiled import Compiled


@dataclass(frozen=True)
class Tool:
    """An action that may be called now. `input`: JSON Schema of its arguments."""

    name: str
    description: str
    input: dict[str, Any]


@dataclass(frozen=True)
class Tools:
    """The actions of one cell. `unavailable`: why each of the others cannot be called now."""

    domain: Any
    key: str
    available: list[Tool]
    unavailable: dict[str, str]

    def openai(self) -> list[dict[str, Any]]:
        return [
            {"type": "function", "function": {
                "name": each.name, "description": each.description, "parameters": each.input,
            }}
            for each in self.available
        ]  # fmt: skip

    def anthropic(self) -> list[dict[str, Any]]:
        return [
            {"name": each.name, "description": each.description, "input_schema": each.input} for each in self.available
        ]

    def mcp(self) -> list[dict[str, Any]]:
        return [
            {"name": each.name, "description": each.description, "inputSchema": each.input} for each in self.available
        ]

    def act(self, name: str, arguments: dict[str, Any]) -> Act[Any]:
        """What a model has chosen, as a call for `world.act`. Only what is available here."""
        if all(each.name != name for each in self.available):
            why = self.unavailable.get(name)
            raise errors.BadInput(f"tool {name!r} is not available{f': {why}' if why else ''}")
        return Act(self.domain, name, dict(arguments))


def tool_of(document: Compiled, action: str) -> Tool:
    spec = document.schema.actions[action]
    described = spec.description if isinstance(spec.description, str) else ""
    given = {name: part for name, part in exporting.input_schema(spec).items() if name != "$schema"}
    return Tool(action, described, given or {"type": "object", "properties": {}})
