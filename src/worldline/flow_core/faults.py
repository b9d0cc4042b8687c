"""What goes wrong in a flow domain, and whose fault it is.

A `Fault` stops one evaluation and becomes an error value in the snapshot: it never leaves Core. What leaves Core is the
caller's fault: a document that is no schema (`SchemaRefused`), or a value that is no JSON (`NotJson`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from worldline.base import errors

VALIDATION_ERROR: Final = "VALIDATION_ERROR"
PATH_NOT_FOUND: Final = "PATH_NOT_FOUND"
TYPE_MISMATCH: Final = "TYPE_MISMATCH"
UNKNOWN_ACTION: Final = "UNKNOWN_ACTION"
ACTION_UNAVAILABLE: Final = "ACTION_UNAVAILABLE"
INVALID_INPUT: Final = "INVALID_INPUT"
CYCLIC_DEPENDENCY: Final = "CYCLIC_DEPENDENCY"
UNKNOWN_FLOW: Final = "UNKNOWN_FLOW"
CYCLIC_CALL: Final = "CYCLIC_CALL"
UNKNOWN_EFFECT: Final = "UNKNOWN_EFFECT"
INTERNAL_ERROR: Final = "INTERNAL_ERROR"
INVALID_VALUE: Final = "INVALID_VALUE"  # a value that no snapshot can keep: NaN, an infinity, half a character
LIMIT_EXCEEDED: Final = "LIMIT_EXCEEDED"  # an evaluation that is larger than any document needs


class Fault(Exception):
    """Stops an evaluation; `code` is that of the error value it becomes."""

    def __init__(self, code: str, message: str, context: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.context = context


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a document: SCHEMA_ERROR or V-001 to V-008, what, and where."""

    code: str
    message: str
    path: str = ""

    def __str__(self) -> str:
        return f"{self.code} at {self.path}: {self.message}" if self.path else f"{self.code}: {self.message}"


class SchemaRefused(errors.BadInput):
    """A document that is no valid schema. `problems` has all that was found."""

    code = "schema_refused"

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{problems[0]}{more}")
        self.problems = problems


class NotJson(errors.BadInput):
    """A value that no snapshot can keep, and where it stands."""

    code = "not_json"
