"""Which document the jobs of a cell are run with, whether data fits one, and who is told of what jobs do."""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

from worldline.base import errors
from worldline.flow_core import core as cores
from worldline.flow_core import document_schema, faults, fields, flow_records, jobs, patches, validation
from worldline.flow_core import js_values as flow_values
from worldline.flow_core.compiled_document import Compiled
from worldline.kernel.machine import Machine


class JobListener(Protocol):
    """Told of what jobs do, as the standalone host's trace sink is: (domain, key, type, fields). A journal that is run
    again with one shows what happened (`job_trace.py`); steps themselves record nothing. `graphs`: also of Core's
    traces.
    """

    graphs: bool

    def __call__(self, domain: str, key: str, type: str, fields: dict[str, Any], /) -> None: ...


recorder: ContextVar[JobListener | None] = ContextVar("recorder", default=None)


# By its text: many cells and worlds have the same document, which never changes.
@functools.lru_cache(maxsize=256)
def compiled(raw: bytes) -> Compiled:
    """A document made ready to run. What is wrong with it was refused when it was declared."""
    return validation.load_unchecked(msgspec.json.decode(raw))


def created(machine: Machine, domain: str, context: flow_records.JobContext) -> flow_records.Snapshot:
    """The first snapshot of a cell, under the domain's document of now."""
    found = machine.domains.current.get(domain)
    if found is None:
        raise errors.NotFound(f"the world has no flow domain {domain!r} now")
    return cores.created(compiled(machine.domains.documents[found.hash].raw), {}, context)


def run_with(machine: Machine, domain: str, head: flow_records.Snapshot) -> jobs.DomainRuntime:
    """What jobs are run with: the document that the snapshot was made under."""
    current = machine.domains.current.get(domain)
    parallel = current is not None and current.parallel
    told = recorder.get()
    return _ready(machine.domains.documents[head.meta.schema_hash].raw, parallel, told is not None and told.graphs)


@functools.lru_cache(maxsize=256)
def _ready(raw: bytes, parallel: bool, traced: bool) -> jobs.DomainRuntime:
    core = cores.Core(effects="parallel" if parallel else "serial", trace=traced)
    return jobs.DomainRuntime(compiled(raw), core, parallel=parallel)


def completed(document: Compiled, data: dict[str, Any]) -> dict[str, Any]:
    """Data of another document, with the defaults of fields that it does not have."""
    # Defaults first, so that what the data has already wins.
    return {**document_schema.defaults(document.schema), **data}


def mended(document: Compiled, data: dict[str, Any], given: patches.Concrete) -> dict[str, Any]:
    """Data of another document that fits this one with these patches. `BadInput` if it does not."""
    found = completed(document, data)
    try:
        for patch in given:
            found = patches.written(found, patch, document.fields)
    except faults.Fault as fault:
        raise errors.BadInput(f"the patches are not applied: {fault}") from fault
    wrong = misfit(document, found)
    if wrong:
        raise errors.BadInput(f"the patches are not applied: the data would still not fit the document: {wrong}")
    return found


def misfit(document: Compiled, data: dict[str, Any]) -> str:
    """Where data does not fit a document; empty if it does. A field that is declared no more does not count."""
    for name, spec in document.fields.items():
        wrong = fields.misfit(spec, data.get(name, flow_values.MISSING), name) if name in data or spec.required else ""
        if wrong:
            return wrong
    return ""
