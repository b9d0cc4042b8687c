"""What a host keeps in a snapshot, in `data["$host"]` alone: everything it must know to go on after a restart.

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
from worldline.kernel.flow import patches, paths, snapshots, values

_SLOTS: Final = "intentSlots"


def _path(first: str, *segments: str) -> str:
    return ".".join([f"{snapshots.HOST}.{first}", *map(paths.escaped, segments)])


def own(head: snapshots.Snapshot) -> dict[str, Any]:
    """All that the host keeps."""
    found = head.data.get(snapshots.HOST)
    return found if type(found) is dict else {}


def every(head: snapshots.Snapshot) -> dict[str, dict[str, Any]]:
    """The intents on their way, by id."""
    found = own(head).get(_SLOTS)
    return found if type(found) is dict else {}


def slot(head: snapshots.Snapshot, intent_id: str) -> dict[str, Any] | None:
    return every(head).get(intent_id)


def intent(head: snapshots.Snapshot, intent_id: str) -> snapshots.Intent | None:
    """An intent on its way, as it was submitted."""
    found = slot(head, intent_id)
    return None if found is None else snapshots.Intent(found["type"], intent_id, found.get("input", values.MISSING))


def opened(intent: snapshots.Intent) -> patches.Concrete:
    """The patch that opens the slot of an intent."""
    made: dict[str, Any] = {"type": intent.type, "computes": 1}
    if intent.input is not values.MISSING:
        made["input"] = intent.input
    return patches.Concrete((patches.set_(_path(_SLOTS, intent.intent_id), made),))


def closing(intent_id: str) -> patches.Concrete:
    """The patch that belongs to the end of an intent."""
    return patches.Concrete((patches.unset(_path(_SLOTS, intent_id)),))


def computes(head: snapshots.Snapshot, intent_id: str) -> int:
    found = slot(head, intent_id)
    return 0 if found is None else int(found.get("computes", 0))


def is_failed(head: snapshots.Snapshot, intent_id: str, requirement_id: str) -> bool:
    """Whether a tombstone says that this id must not be performed again."""
    return requirement_id in ((slot(head, intent_id) or {}).get("failed") or {})


def tombstone(intent_id: str, requirement_id: str, code: str) -> list[patches.Patch]:
    return [patches.set_(_path(_SLOTS, intent_id, "failed", requirement_id), code)]


def early(head: snapshots.Snapshot, intent_id: str, requirement_id: str) -> dict[str, Any] | None:
    """An outcome that waits for the requirements before its own."""
    found = (slot(head, intent_id) or {}).get("early") or {}
    return found.get(requirement_id)


def kept_early(intent_id: str, requirement_id: str, outcome: dict[str, Any]) -> patches.Concrete:
    return patches.Concrete((patches.set_(_path(_SLOTS, intent_id, "early", requirement_id), outcome),))


def settled(head: snapshots.Snapshot, intent_id: str, requirement_id: str) -> list[patches.Patch]:
    """What goes with the clearing of a requirement: one more compute is to come, and its outcome waits no more."""
    if slot(head, intent_id) is None:
        return []
    made = [patches.set_(_path(_SLOTS, intent_id, "computes"), computes(head, intent_id) + 1)]
    if early(head, intent_id, requirement_id) is not None:
        made.append(patches.unset(_path(_SLOTS, intent_id, "early", requirement_id)))
    return made


def error(head: snapshots.Snapshot, found: dict[str, Any]) -> patches.Concrete:
    """The patches that record an error of the host."""
    before = own(head).get("errors")
    errors = [*(before if isinstance(before, list) else []), found][-limits.FLOW_ERRORS_MAX :]
    return patches.Concrete((patches.set_(_path("lastError"), found), patches.set_(_path("errors"), errors)))
