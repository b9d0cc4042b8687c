"""What a host keeps in a snapshot, in `data["$host"]` alone: everything it must know to resume after a restart.

    intentSlots.<intent id>   an intent on its way: {type, input?, computes, failed?, early?}. Gone when it ends.
        computes              how many computes it has had
        failed.<requirement>  tombstones: ids whose fulfilment failed, which are never performed again
        early.<requirement>   the ordering buffer: outcomes that came before an earlier requirement's
    lastError, errors         what went wrong in hosts: the last ones

Functions here read it, or make patches for Core to apply; what these carry was checked where it came from.
"""

from __future__ import annotations

from typing import Any, Final

from worldline.base import limits
from worldline.flow_core import flow_records, js_values, patches, value_paths

_SLOTS: Final = "intentSlots"


def _path(first: str, *segments: str) -> str:
    # Ids may have dots in them, which are no ends of segments.
    return ".".join([f"{flow_records.HOST}.{first}", *map(value_paths.escaped, segments)])


def own(head: flow_records.Snapshot) -> dict[str, Any]:
    """All that the host keeps."""
    found = head.data.get(flow_records.HOST)
    return found if type(found) is dict else {}


def every(head: flow_records.Snapshot) -> dict[str, dict[str, Any]]:
    """Return the intents on their way, by id."""
    found = own(head).get(_SLOTS)
    return found if type(found) is dict else {}


def slot(head: flow_records.Snapshot, intent_id: str) -> dict[str, Any] | None:
    return every(head).get(intent_id)


def intent(head: flow_records.Snapshot, intent_id: str) -> flow_records.Intent | None:
    """Return an intent on its way, as it was submitted."""
    found = slot(head, intent_id)
    return (
        None if found is None else flow_records.Intent(found["type"], intent_id, found.get("input", js_values.MISSING))
    )


def opened(intent: flow_records.Intent) -> patches.Concrete:
    """Return the patch that opens the slot of an intent."""
    made: dict[str, Any] = {"type": intent.type, "computes": 1}
    if intent.input is not js_values.MISSING:
        made["input"] = intent.input
    return patches.Concrete((patches.set_(_path(_SLOTS, intent.intent_id), made),))


def closing(intent_id: str) -> patches.Concrete:
    """Return the patch that belongs to the end of an intent."""
    return patches.Concrete((patches.unset(_path(_SLOTS, intent_id)),))


def computes(head: flow_records.Snapshot, intent_id: str) -> int:
    found = slot(head, intent_id)
    return 0 if found is None else int(found.get("computes", 0))


def is_failed(head: flow_records.Snapshot, intent_id: str, requirement_id: str) -> bool:
    """Return whether a tombstone says that this id must not be performed again."""
    return requirement_id in ((slot(head, intent_id) or {}).get("failed") or {})


def tombstone(intent_id: str, requirement_id: str, code: str) -> list[patches.Patch]:
    return [patches.set_(_path(_SLOTS, intent_id, "failed", requirement_id), code)]


def early(head: flow_records.Snapshot, intent_id: str, requirement_id: str) -> dict[str, Any] | None:
    """Return an outcome that waits for the requirements before its own."""
    found = (slot(head, intent_id) or {}).get("early") or {}
    return found.get(requirement_id)


def kept_early(intent_id: str, requirement_id: str, outcome: dict[str, Any]) -> patches.Concrete:
    return patches.Concrete((patches.set_(_path(_SLOTS, intent_id, "early", requirement_id), outcome),))


def settled(head: flow_records.Snapshot, intent_id: str, requirement_id: str) -> list[patches.Patch]:
    """What goes with the clearing of a requirement: one more compute is to come, and its outcome waits no more."""
    # Its intent has ended, and the slot with it.
    if slot(head, intent_id) is None:
        return []
    made = [patches.set_(_path(_SLOTS, intent_id, "computes"), computes(head, intent_id) + 1)]
    if early(head, intent_id, requirement_id) is not None:
        made.append(patches.unset(_path(_SLOTS, intent_id, "early", requirement_id)))
    return made


def error(head: flow_records.Snapshot, host_error: dict[str, Any]) -> patches.Concrete:
    """Return the patches that record an error of the host."""
    before = own(head).get("errors")
    # Only the last ones: they are in every snapshot from here on.
    errors = [*(before if isinstance(before, list) else []), host_error][-limits.FLOW_ERRORS_MAX :]
    return patches.Concrete((patches.set_(_path("lastError"), host_error), patches.set_(_path("errors"), errors)))
