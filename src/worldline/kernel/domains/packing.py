"""The snapshot of a cell as canonical bytes, made of parts: a large field that a step leaves alone is not encoded
again.

Containers of a snapshot are never changed in place (`kernel/flow/values.py`), so a field that is the same object has
the same bytes. What is kept is a cache: without it the bytes come out the same.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from worldline.codec import canonical
from worldline.kernel.flow import snapshots, values

LARGE_BYTES_MIN: Final = 512  # of a field whose bytes are kept; those of a smaller one are made as quickly
_FIELD_DEPTH: Final = 3  # a field stands in the data, in the snapshot, in a cell or an answer
_PART_DEPTH: Final = 2
_joined: Final = canonical.joiner("data", "computed", "system", "meta")
_joined_with_input: Final = canonical.joiner("data", "computed", "system", "meta", "input")
_IDLE: Final = snapshots.System()
_IDLE_BYTES: Final = canonical.encode(snapshots.plain(_IDLE))


class Packer:
    """Of one cell."""

    __slots__ = ("_fields", "_last")

    def __init__(self) -> None:
        self._fields: dict[str, tuple[Any, bytes]] = {}
        self._last: tuple[snapshots.Snapshot, bytes] | None = None

    def pack(self, head: snapshots.Snapshot) -> bytes:
        """The bytes of a snapshot as JSON values. `EncodeError` for what has none: values that are nested too deep."""
        if self._last is not None and self._last[0] is head:
            return self._last[1]
        parts = (
            self._data(head.data),
            canonical.encode(head.computed, around=_PART_DEPTH),
            _IDLE_BYTES if head.system == _IDLE else _plain(head.system),
            canonical.encode_flat(msgspec.to_builtins(head.meta)),
        )
        if head.input is values.MISSING:
            made = _joined(*parts)
        else:
            made = _joined_with_input(*parts, canonical.encode(head.input, around=_PART_DEPTH))
        self._last = head, made
        return made

    def rest(self) -> None:
        """Between steps only large fields are kept."""
        self._last = None

    def _data(self, data: dict[str, Any]) -> bytes:
        known, self._fields = self._fields, {}
        parts: dict[str, bytes] = {}
        for name, value in data.items():
            found = known.get(name)
            if found is None or found[0] is not value:
                found = value, canonical.encode(value, around=_FIELD_DEPTH)
            if len(found[1]) >= LARGE_BYTES_MIN:
                self._fields[name] = found
            parts[name] = found[1]
        return canonical.join_map(parts)


def _plain(record: msgspec.Struct) -> bytes:
    return canonical.encode(snapshots.plain(record), around=_PART_DEPTH)
