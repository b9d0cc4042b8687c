"""The names of the queues that open work waits in."""

from __future__ import annotations

import functools

from worldline.base import limits
from worldline.codec import digest
from worldline.kernel.authoring.program import Program
from worldline.model import step_records
from worldline.model.work import WorkKind

_TIMER = WorkKind.TIMER
TIMER_QUEUE = "worldline/timers"


def queue_of(program: Program, request: step_records.WorkRequest) -> str:
    """Timers have a queue of their own; an effect goes to the one it declares, under its program's name."""
    if request.kind is _TIMER:
        return TIMER_QUEUE
    effect = program.effects.get(request.name)
    return effect_queue(program, "default" if effect is None else effect.queue, request.name)


@functools.lru_cache(maxsize=4096)
def effect_queue(program: Program, queue: str, name: str) -> str:
    """One queue for each kind of effect, so that a kind whose limits are used up holds up no other."""
    whole = f"{program.name}/{queue}/{name}"
    if len(whole.encode()) <= limits.NAME_BYTES_MAX:
        return whole
    return f"{queue_prefix(program)}#{digest.sha256(whole.encode()).hex()[:32]}"


def queue_prefix(program: Program) -> str:
    """What all queues of a program begin with."""
    return program.name.encode()[:32].decode(errors="ignore")
