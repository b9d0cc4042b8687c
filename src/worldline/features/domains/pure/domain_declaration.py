"""Declaring flow domains in a program: the class or document, checked, as the data that worlds are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from worldline.base import errors
from worldline.flow_core import hashing, validation
from worldline.flow_core.analysis import document_lint, reads
from worldline.flow_core.authoring import document_domain
from worldline.flow_core.authoring.document_domain import Document
from worldline.flow_core.authoring.domain_class import Domain
from worldline.flow_core.compiled_document import Compiled
from worldline.kernel.authoring import reducers
from worldline.model import ids


class DeclaredDomain(msgspec.Struct, frozen=True):
    """A flow domain of a program. `raw`: its document as RFC 8785 text."""

    name: str
    hash: str
    keyed: bool
    parallel: bool
    actions: list[str]
    raw: bytes


def declare(what: Any, *, keyed: bool, name: str, parallel: bool) -> tuple[DeclaredDomain, Any]:
    """A domain as data, and what its author calls it by: the class itself, or a `Document`."""
    is_class = isinstance(what, type) and issubclass(what, Domain)
    if not is_class and not isinstance(what, Mapping):
        raise errors.BadInput("a flow domain is a class that derives from flow.Domain, or a document")
    given = what.document() if is_class else what
    schema = validation.load(given)
    if is_class:
        _check_asked(what.__name__, schema)
    name = ids.check_name(name or (document_domain.name_of(what) if is_class else _name(given)), "a flow domain's name")
    if "." in name:
        raise errors.BadInput(f"a flow domain's name has no dot: {name!r}; give it another with name=")
    # The class remembers its first name, because users call the domain by the class.
    if is_class and what.__flow__.setdefault("name", name) != name:
        raise errors.BadInput(f"{what.__name__} is declared as {what.__flow__['name']!r} already")
    for action, spec in schema.schema.actions.items():
        ids.check_event_name(document_domain.schema_of(name, action))
        for effect in reads.effects(spec):  # a host would perform it for whatever the document says
            ids.check_event_name(effect)
    raw = hashing.canonical(given).encode()
    found = hashing.schema_hash(msgspec.json.decode(raw))  # of the text that worlds are given
    made = DeclaredDomain(name, found, keyed, parallel, sorted(schema.schema.actions), raw)
    return made, what if is_class else Document(name, given)


def check(
    program: str, domains: Mapping[str, DeclaredDomain], known: Mapping[str, reducers.Reducer], routes: reducers.Routes
) -> None:
    """Refuse what could be taken for something else: a reducer of a domain's name, an event of an action's."""
    for domain in domains.values():
        if domain.name in known:
            raise errors.BadInput(f"program {program!r} has both a reducer and a flow domain named {domain.name!r}")
        for action in domain.actions:
            schema = document_domain.schema_of(domain.name, action)
            if schema in routes.types or schema in routes.handlers:
                raise errors.BadInput(f"program {program!r}: an event is named {schema!r}, as the flow domain's action")


def _check_asked(name: str, document: Compiled) -> None:
    """Refuse effects of a class that are never asked for: `flow.perform` waits for its field to be null."""
    parsed = document.schema
    for finding in (each for action in parsed.actions for each in document_lint.never_asked(parsed, action)):
        raise errors.BadInput(f"{name}: {finding.what}; {finding.instead}, as in `receipt: str | None = None`")


def _name(document: Mapping[str, Any]) -> str:
    """What a document is called: by its meta, else by the last part of its id."""
    meta = document.get("meta")
    named = meta.get("name") if isinstance(meta, Mapping) else None
    found = named or str(document["id"]).replace("/", ":").rpartition(":")[2]
    return str(found)
