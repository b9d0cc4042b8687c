"""What other universes may send to a universe: grants, and the record of their changes.

Each field of a grant but the universe is a pattern: text that must be equal, or that ends in `*` and must be the
beginning.
"""

from __future__ import annotations

import msgspec

from worldline.base import limits

ANY = "*"


class Grant(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Worlds of one universe may send some messages to some worlds. `label`: what the universe was called when it was
    allowed; its id decides.
    """

    universe: bytes
    label: str
    worlds: str  # which of its worlds, by name
    to: str  # which worlds here, by name
    events: str  # which messages: by schema, or `inbox:` and the name of an inbox

    def __post_init__(self) -> None:
        if len(self.universe) != limits.ID_BYTES:
            raise ValueError("a universe id has 16 bytes")

    def covers(self, *, universe: bytes, world: str, to: str, event: str) -> bool:
        return (
            self.universe == universe and _fits(self.worlds, world) and _fits(self.to, to) and _fits(self.events, event)
        )


class Grants(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All grants of a universe. `changes`: how often they have been changed."""

    changes: int
    grants: list[Grant]

    def __post_init__(self) -> None:
        if len(self.grants) > limits.GRANTS_MAX:
            raise ValueError(f"a universe has at most {limits.GRANTS_MAX} grants")


class GrantChange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One change: what was allowed, or is not any more; the number of the change, and the store's time of it."""

    change: int
    allowed: bool
    grants: list[Grant]
    time_us: int


def _fits(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith(ANY) else text == pattern
