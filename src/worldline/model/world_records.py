"""What a world is, apart from its journal: program, status, labels, where it came from."""

from __future__ import annotations

import enum

import msgspec

from worldline.base import limits
from worldline.model import policy
from worldline.model.policy import fits


class Status(enum.IntEnum):
    """What a world takes and does. Numbers are stored and never reused.

    ======== ============ ======== ========
    status   takes input  runs     readable
    ======== ============ ======== ========
    ACTIVE   yes          yes      yes
    PAUSED   yes          no       yes
    ARCHIVED no           no       yes
    DELETED  no           no       no
    ======== ============ ======== ========
    """

    ACTIVE = 1
    PAUSED = 2
    ARCHIVED = 3
    DELETED = 4


TRANSITIONS: dict[Status, tuple[Status, ...]] = {
    Status.ACTIVE: (Status.PAUSED, Status.ARCHIVED, Status.DELETED),
    Status.PAUSED: (Status.ACTIVE, Status.ARCHIVED, Status.DELETED),
    Status.ARCHIVED: (Status.ACTIVE, Status.PAUSED, Status.DELETED),
    Status.DELETED: (),
}

TAKES_INPUT = (Status.ACTIVE, Status.PAUSED)


class UniverseMeta(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: str
    created_us: int
    closed: bool = False  # it is being deleted: no world is made in it any more


class WorldMeta(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Rarely changes: producers expect these very bytes, so nothing that counts or moves belongs here.

    `revision` makes every change a new value, also one that goes back to an earlier status.
    """

    name: str
    program: str
    program_hash: bytes
    status: Status
    labels: dict[str, str]
    created_us: int
    revision: int = 0
    dry: bool = False  # a fork whose effects do not leave it


class ForkPolicy(enum.IntEnum):
    """What becomes of the effects and questions that are open where a world is forked or reverted to. Timers are set
    again under every policy. Numbers are stored and never reused.
    """

    DROP = 1  # each gets a `cancelled` answer
    REISSUE = 2  # each is asked for again, by the branch and for the branch
    SHARE = 3  # each gets the answer that the parent gets
    SCRIPT = 4  # each gets the script's answer, or a `cancelled` one


class Section(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part of a history that stands in another world's journal: everything up to a height, from where the section
    before ends. `height` is the end of `step`.
    """

    world: bytes
    step: int
    height: int


class Origin(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part of a history whose steps another world made, of this store or another, before they were imported:
    everything up to a height, from where the origin before ends. Its intents and draws are named by that world.
    """

    universe: bytes
    world: bytes
    step: int
    height: int

    def __post_init__(self) -> None:
        if len(self.universe) != limits.ID_BYTES or len(self.world) != limits.ID_BYTES:
            raise ValueError("the ids of a universe and a world have 16 bytes")


class Lineage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a world came from that was forked, or imported from a file. Never changes.

    `sections`, the oldest first, say in whose journals its history stands up to the fork; its own journal goes on
    there. An imported world has none: all of its history is in its own journal. `request` is the digest of what was
    asked for, so that the same request finds the world it has made. `origins`, the oldest first: who made the steps
    that were imported.
    """

    parent: bytes
    parent_name: str  # as it was called then
    step: int
    height: int
    sections: list[Section]
    policy: ForkPolicy
    live: bool
    created_us: int
    request: bytes
    script: bytes = b""  # the address of the answers that it was given beforehand
    origins: list[Origin] = []
    # The head that its history had there: what stays known of it when the worlds that it comes from are deleted.
    chain: bytes = b""
    state: bytes = b""
    time_us: int = 0
    parent_snapshot_hash: bytes = b""  # the saved state at or below the fork that its state is made of; since 2.3

    def __post_init__(self) -> None:
        heights = [each.height for each in self.sections]
        made = [each.height for each in self.origins]
        if heights != sorted(heights) or made != sorted(made):
            raise ValueError("the sections of a lineage rise to its height")
        if (heights or made or [-1])[-1] != self.height or (made or [self.height])[-1] > self.height:
            raise ValueError("the sections of a lineage rise to its height")
        if any(len(each.world) != limits.ID_BYTES for each in self.sections) or len(self.parent) != limits.ID_BYTES:
            raise ValueError("a world id has 16 bytes")


class Pin(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A fork needs this world's snapshot at a step, and what was changed above it up to a height."""

    snapshot: int
    height: int


class Schema(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The store's format. A reader refuses another major, and a minor above its own."""

    major: int
    minor: int

    def __post_init__(self) -> None:
        if self.major < 1 or self.minor < 0:
            raise ValueError("majors count from 1, minors from 0")


# --- What other universes may send, and what the worlds of this one may do -------------------------------------------


class Grant(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Worlds of one universe may send some messages to some worlds. `label`: what the universe was called when it was
    allowed; its id decides. The other fields are patterns: text that must be equal, or that ends in `*` and must be the
    beginning.
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
        return self.universe == universe and fits(self.worlds, world) and fits(self.to, to) and fits(self.events, event)


class Grants(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All grants and rules of a universe. `changes`: how often they have been changed."""

    changes: int
    grants: list[Grant]
    rules: list[policy.PolicyRule] = []

    def __post_init__(self) -> None:
        if len(self.grants) > limits.GRANTS_MAX:
            raise ValueError(f"a universe has at most {limits.GRANTS_MAX} grants")
        if len(self.rules) > limits.RULES_MAX:
            raise ValueError(f"a universe has at most {limits.RULES_MAX} rules")


class GrantChange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One change: what was allowed, or is not any more; the number of the change, and the store's time of it. Of rules,
    `allowed` says whether they were added.
    """

    change: int
    allowed: bool
    grants: list[Grant]
    time_us: int
    rules: list[policy.PolicyRule] = []
