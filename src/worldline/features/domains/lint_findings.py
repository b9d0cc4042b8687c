"""What `worldline check` says of a flow domain: its problems, or else likely mistakes in it."""

from __future__ import annotations

import msgspec

from worldline.features.domains import command_targets
from worldline.flow_core import faults, validation
from worldline.flow_core.analysis import document_lint


class FileFinding(msgspec.Struct, frozen=True):
    """A finding in a domain, which has paths and no lines."""

    file: str
    path: str
    rule: str
    what: str
    instead: str

    def __str__(self) -> str:
        where = f"{self.file}: {self.path}: " if self.path else f"{self.file}: "
        return f"{where}{self.what}; {self.instead}" if self.instead else f"{where}{self.what}"


def of_domain(target: str) -> list[FileFinding]:
    """All that is found. A document that is not valid is not looked at any further."""
    try:
        domain = validation.load(command_targets.document(target))
    except faults.SchemaRefused as refused:
        return [FileFinding(target, each.path, each.code, each.message, "") for each in refused.problems]
    return [FileFinding(target, each.path, each.rule, each.what, each.instead) for each in document_lint.lint(domain)]
