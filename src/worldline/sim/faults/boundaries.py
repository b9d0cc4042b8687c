"""The places at which a host can be stopped, and which faults must have happened there.

There is one boundary before and one after each kind of commit that matters, and around reads. A cell is a boundary and
a fault; a campaign counts them. Boundaries that cannot be reached in this design are listed with the reason.
"""

from __future__ import annotations

# What stands before and after each kind of commit. A name that stands nowhere here cannot be stopped at.
BOUNDARIES: dict[str, tuple[str, str]] = {
    "acquire": ("B1 before acquire", "B1 after acquire"),
    "step": ("B2 after drain, before append", "B7 after append, before publish"),
    "claim": ("B4 before claim", "B4 after claim, before call"),
    "settle": ("B5 after call, before receipt", "B17 after ack, before reply"),
    "fire": ("B6 before timer fires", "B6 after timer fired"),
    "blob": ("B8 after upload, before metadata", "B8 after metadata"),
    "snapshot": ("B9 after snapshot blob, before index", "B9 after index and promote"),
    "beat": ("B19 before renewal", "B19 between renewal and answer"),
    "fork": ("B15 inside fork, before its commit", "B15 after fork"),
    "begin": ("B15 before a fork's first step", "B15 after a fork's first step"),
    "lean": ("B15 before a fork's first own state is recorded", "B15 after a fork's first own state"),
    "compact": ("B11 after segment, before index", "B12 after index and deletes"),
    "delete": ("B13 before a world is deleted", "B13 after a world is deleted"),
    "remove": ("B13 between delete batches, before one", "B13 between delete batches, after one"),
    "deliver": ("B20 before a message is enqueued elsewhere", "B20 between message and sender's receipt"),
    "enqueue": ("ingress before enqueue", "ingress after enqueue"),
    "read": ("B18 before read", "B18 after read"),
    "condemn": ("B14 before condemn", "B14 after condemn, before sweep"),
    "sweep": ("B22 before a sweep deletes", "B22 between deletes of a sweep"),
    "mark": ("B23 before it is said what a holder does", "B23 after it is said what a holder does"),
    "cold": ("B21 before a cell is fetched", "B21 after a cell is fetched"),  # a step waits for it
}
READS = ("read", "cold")
UNREACHABLE = {
    "B3 after append, before cursor": "one batch appends and deletes what was consumed (J6 asserts it)",
    "B10 after index, before promote": "one batch records a snapshot and makes it the baseline (R3 asserts it)",
    "B12 after index, before deletes": "one batch indexes a segment and deletes its frames (R1 asserts it)",
    "B16 after reaper move": "expired claims are due again by themselves; there is no reaper (E5 asserts it)",
}
RARE = [
    "fire",
    "fire",
    "snapshot",
    "settle",
    "settle",
    "settle",
    "claim",
    "claim",
]  # kinds of commits that there are few of
FORKING = ("fork", "begin", "lean")  # those of forks, which only some seeds have
COMPACTING = ("compact",)  # likewise
DELETING = ("delete", "remove")  # likewise
SENDING = ("deliver",)  # likewise
COLLECTING = ("condemn", "sweep")  # likewise
JUDGING = ("mark",)  # worlds on trial, which are few
FAULTS = ("crash", "pause", "unknown", "partition")

Cell = tuple[str, str]


def reachable() -> list[Cell]:
    """Every cell of boundary and fault that a campaign must hit. A read has no unknown outcome."""
    names = [(kind, name) for kind, pair in BOUNDARIES.items() for name in pair]
    return [(name, fault) for kind, name in names for fault in FAULTS if fault != "unknown" or kind not in READS]
