"""Worldline: a runtime for worlds, long-lived programs whose whole life is an append-only journal.

Names are loaded when they are first used, so that `import worldline.flow` loads no storage driver. Type checkers read
`__init__.pyi`, which imports the same names from the same places.
"""

if not __debug__:
    raise ImportError("Worldline keeps its assertions on: run Python without -O and PYTHONOPTIMIZE")

import importlib
from typing import Any

__version__ = "0.1.0.dev0"

# Where each public name is declared. `http=http_call`: the name here, and the name there.
_DECLARED = {
    "": "errors flow ops",
    "base.errors": "BadInput Error Exists NotFound NotHosted Overloaded StoreUncertain",
    "base.failures": (
        "CancelKind Cancelled EffectFailed EffectTimeout Fatal Refused RunCancelled RunFailed TryAgain Undeliverable"
    ),
    "features.diff.records": "Diff",
    "api.hosting": "serve",
    "client.dead_letters": "DeadLetter",
    "client.journal_entry": "Entry",
    "api.open": "open",
    "client.run_handle": "Run Sent",
    "api.universe_api": "Universe",
    "api.world_api": "World",
    "kernel.authoring": "http=http_call",
    "kernel.authoring.calls": "Call Effect Request Retry Workflow",
    "kernel.authoring.log_calls": "log",
    "kernel.authoring.message_calls": "Receipt Sender",
    "kernel.authoring.program": "Program",
    "kernel.authoring.reducers": "on",
    "kernel.authoring.resources": "Resource use",
    "kernel.authoring.scripts": "Script",
    "kernel.authoring.workflow_api": (
        "Scope Started Timer act after ask continue_as_new emit gather now patched random schedule scope send "
        "sender sleep sleep_until start state unschedule uuid wait"
    ),
    "kernel.event_dispatch": "Envelope",
    "flow_core.authoring.action_calls": "Acted",
    "kernel.personal.personal_value": "Personal",
    "kernel.rows.row_records": "RunStatus",
    "kernel.schedules": "Scheduled",
    "model.journal": "Head Kind",
    "model.settings": "Settings",
    "model.work": "WorkState",
    "model.world_records": "Status",
    "effects.attempt": "Attempt attempt",
    "effects.secret_reading": "secret",
    "runtime.live_hub": "Chunk",
}
_PLACES = {
    public: (f"worldline.{module}".rstrip("."), there or public)
    for module, names in _DECLARED.items()
    for public, _, there in (name.partition("=") for name in names.split())
}

__all__ = sorted(_PLACES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'worldline' has no attribute {name!r}")
    module, there = _PLACES[name]
    within = None if module == __name__ else getattr(importlib.import_module(module), there, None)
    found = within or importlib.import_module(f"{module}.{there}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
