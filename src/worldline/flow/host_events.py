"""What a host tells its trace sink, and running the recorded jobs again.

`job:start` carries the job as data and `context:frozen` its context, so the events of a key are enough to do everything
again without handlers or a clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from worldline.base import errors
from worldline.flow_core import flow_records, jobs


class Event(msgspec.Struct, frozen=True):
    """One event of one key."""

    key: str
    type: str
    fields: dict[str, Any]


def replay(
    domain: jobs.DomainRuntime, head: flow_records.Snapshot, events: Iterable[Event], key: str = "default"
) -> flow_records.Snapshot:
    """Return the head after every job that the events record, each under the context that was frozen for it then.

    A job that raised, or whose environment did, is not run: its intent ends with the error that was recorded.
    """
    job: jobs.Job | None = None
    context: flow_records.JobContext | None = None
    for each in events:
        # A host tells of all its keys by one sink.
        if each.key != key:
            continue
        if each.type == "job:start":
            job = msgspec.convert(each.fields["job"], jobs.Job)
        elif each.type == "context:frozen":
            context = flow_records.JobContext(each.fields["now"], each.fields["randomSeed"], each.fields["env"])
        elif each.type in ("job:end", "job:error"):
            if job is None or context is None:
                raise errors.BadInput(f"{each.type} without its job: these are not all events of the key")
            if each.type == "job:end":
                head = jobs.run(job, head, domain, context, jobs.unheard).head
            else:
                said = each.fields["message"]
                head = jobs.ended_by(job, said, head, domain, context=context, emit=jobs.unheard).head
            # Each start has one end, so a second end is a gap in the events.
            job = context = None
    return head
