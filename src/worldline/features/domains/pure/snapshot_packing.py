"""The snapshot of a cell as canonical bytes: a small one made at once, a larger one of parts, so that a large field
that a step leaves alone is not encoded again.

Containers of a snapshot are never changed in place (`flow_core/js_values.py`), so a field that is the same object has
the same bytes. What is kept is a cache: without it the bytes come out the same.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from worldline.codec import canonical
from worldline.flow_core import flow_records, js_values

LARGE_BYTES_MIN: Final = 512  # of a field whose bytes are kept; those of a smaller one are made as quickly
SMALL_BYTES_MAX: Final = 2_048  # of a snapshot that is encoded at once
_FIELD_DEPTH: Final = 3  # a field stands in the data, in the snapshot, in a cell or an answer
_PART_DEPTH: Final = 2
_joined: Final = canonical.joiner("data", "computed", "system", "meta")
_joined_with_input: Final = canonical.joiner("data", "computed", "system", "meta", "input")
_IDLE_PLAIN: Final = flow_records.plain(flow_records.IDLE)
_IDLE_BYTES: Final = canonical.encode(_IDLE_PLAIN)


class CellPacker:
    """Of one cell. `size`: about how many bytes it takes, if that is known."""

    __slots__ = ("_fields", "_is_small", "_last")

    def __init__(self, size: int = 0) -> None:
        self._fields: dict[str, tuple[Any, bytes]] = {}
        self._is_small = size <= SMALL_BYTES_MAX
        self._last: tuple[flow_records.Snapshot, bytes] | None = None

    def pack(self, head: flow_records.Snapshot) -> bytes:
        """The bytes of a snapshot as JSON values. `EncodeError` for what has none: values that are nested too deep."""
        if self._last is not None and self._last[0] is head:
            return self._last[1]
        made = _at_once(head) if self._is_small else self._by_parts(head)
        if made is None:
            made = self._by_parts(head)
        self._is_small = len(made) <= SMALL_BYTES_MAX
        self._last = head, made
        return made

    def rest(self) -> None:
        """Between steps only large fields are kept."""
        self._last = None

    def _by_parts(self, head: flow_records.Snapshot) -> bytes:
        parts = (
            self._data(head.data),
            canonical.encode(head.computed, around=_PART_DEPTH),
            _IDLE_BYTES
            if head.system == flow_records.IDLE
            else canonical.encode(flow_records.plain(head.system), around=_PART_DEPTH),
            canonical.encode_flat(msgspec.to_builtins(head.meta)),
        )
        if head.input is js_values.MISSING:
            return _joined(*parts)
        return _joined_with_input(*parts, canonical.encode(head.input, around=_PART_DEPTH))

    def _data(self, data: dict[str, Any]) -> bytes:
        # A new table each time: fields that are gone, or have become small, are not kept.
        known, self._fields = self._fields, {}
        parts: dict[str, bytes] = {}
        for name, value in data.items():
            found = known.get(name)
            # Containers are never changed in place, so the same object has the same bytes.
            if found is None or found[0] is not value:
                found = value, canonical.encode(value, around=_FIELD_DEPTH)
            if len(found[1]) >= LARGE_BYTES_MIN:
                self._fields[name] = found
            parts[name] = found[1]
        return canonical.join_map(parts)


def _at_once(head: flow_records.Snapshot) -> bytes | None:
    """The same bytes by one call. A snapshot's values were checked when they came into it, all but how deep they stand
    in each other: None if that is a question.
    """
    plain: dict[str, Any] = {
        "data": head.data,
        "computed": head.computed,
        "meta": msgspec.to_builtins(head.meta),
        "system": _IDLE_PLAIN if head.system == flow_records.IDLE else flow_records.plain_system(head.system),
    }
    if head.input is not js_values.MISSING:
        plain["input"] = head.input
    made = canonical.encode_flat(plain)
    return made if canonical.is_shallow(made) else None
