"""Which worker a world belongs to: pure, deterministic, and the same for all who see the same.

Workers say what they are by labels; worlds say what they need by theirs:

====================  ==============================================
label of a world      the worker must have
====================  ==============================================
(its program)         `program:PROGRAM`
`pin=NAME`            `name=NAME`: the worker, or the workers, of that name
`needs:KEY=VALUE`     `KEY=VALUE`
`needs:KEY`           `KEY`, with any value
====================  ==============================================

Needs are held by the workers themselves, whether there is an orchestrator or not. Among those that fit, a world goes to
the one with the highest sha256 of worker and world (rendezvous hashing) that has room left. So when a worker joins or
leaves, only the worlds that it wins or had won change their place, and two who decide at once decide the same.

A world stays where it is as long as that is good enough. For balance alone it moves only to the worker it would go to
anyway, only if that one runs the same code and is clearly less loaded, those first that no worker has in memory, and
only so many at once. A world that must move goes to a worker with the code it runs under now, as long as there is one:
while new code is rolled out, worlds stay with the old until its last worker goes (`versions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from worldline.base import errors, grammar, limits
from worldline.codec import digest
from worldline.model import ids
from worldline.runtime import worker_labels

NAME = worker_labels.NAME
UNIVERSE = worker_labels.UNIVERSE
TIMERS = "role:timers"  # it fires the timers of its worlds itself
REFUSED = "refused:"  # and a world: the worker cannot run it, and why
DIVERGED = "diverged:"  # and a world: its code did not do the same again, and where

# A world moves for balance only if its worker's load is above that of the other by more than this, after the move.
SLACK_PERCENT = 10
CODE_CHARACTERS = 16  # of a program's hash, as a label
LABEL_HEADS_BYTES = 6  # of a name and a value, at most, where they are stored


class Site(msgspec.Struct, frozen=True):
    """A worker that may be given worlds: alive, and not being emptied."""

    worker: ids.WorkerId
    capacity: int
    labels: dict[str, str]


class Active(msgspec.Struct, frozen=True):
    """A world that is held, or has something to do. `quiet`: nothing waits for it now. `code`: what it runs under, as
    workers name it; empty if any will do.
    """

    at: ids.Address
    needs: dict[str, str]
    holder: ids.WorkerId | None
    assigned: ids.WorkerId | None
    quiet: bool = True
    code: str = ""


Reason = Literal["held", "placed", "moved", "balance", "nowhere to go"]


class Choice(msgspec.Struct, frozen=True):
    """Where a world should be from now on. None: anywhere."""

    at: ids.Address
    to: ids.WorkerId | None
    reason: Reason


def reserved(label: str) -> bool:
    """Whether a worker's label has a meaning here, so that it is not set by hand."""
    return label in (NAME, UNIVERSE, TIMERS) or label.startswith((worker_labels.PROGRAM, REFUSED, DIVERGED))


def refused_label(at: ids.Address) -> str:
    """Name the label by which a worker says why it cannot run a world."""
    return REFUSED + at.world.hex()


def diverged_label(at: ids.Address) -> str:
    """Name the label by which a worker says where a world's code did not do the same again."""
    return DIVERGED + at.world.hex()


def labels_of(labels: Mapping[str, str], *, universes: str, programs: Mapping[str, bytes]) -> dict[str, str]:
    """All that a worker says about itself: its own labels, where it works, what it can run and which code that is.
    `universes`: the ids of those it serves, with commas between them; `*` for all of the store.
    """
    code = {worker_labels.program_label(name): code_of(whole) for name, whole in programs.items()}
    said = {**labels, UNIVERSE: universes, **code}
    size = sum(len(name.encode()) + len(value.encode()) + LABEL_HEADS_BYTES for name, value in said.items())
    if size > limits.WORKER_LABELS_BYTES_MAX:
        what, advice = f"what a heartbeat says of {grammar.count(len(programs), 'program')}", ""
        if "," in universes:
            what += f" and {grammar.count(1 + universes.count(','), 'universe')}"
            advice = "serve all universes of the store, or fewer"
        raise errors.TooLarge(what, size=size, limit=limits.WORKER_LABELS_BYTES_MAX, advice=advice)
    return said


def code_of(program_hash: bytes) -> str:
    """A program's code as labels name it."""
    return program_hash.hex()[:CODE_CHARACTERS]


def programs_of(labels: Mapping[str, str]) -> dict[str, str]:
    """The programs that a worker has, and the code of each."""
    return {
        name.removeprefix(worker_labels.PROGRAM): code
        for name, code in labels.items()
        if name.startswith(worker_labels.PROGRAM)
    }


def score(worker: ids.WorkerId, world: ids.WorldId) -> bytes:
    return digest.hash_parts(b"placement", worker, world)


def choose(
    active: Sequence[Active],
    sites: Sequence[Site],
    *,
    moves_max: int,
    besides: Mapping[ids.WorkerId, int] | None = None,
) -> list[Choice]:
    """What should change. Empty if all is well, and after its own choices were carried out.

    `besides`: how many worlds workers have that were not looked at.
    """
    plan = _Plan(active, sites, besides or {})
    for world in plan.worlds:
        plan.settle(world)
    if plan.uneven():
        plan.balance(moves_max)
    return plan.choices


class _Plan:
    """Where everything is, and what was decided so far. Loads count what was decided."""

    def __init__(self, active: Sequence[Active], sites: Sequence[Site], besides: Mapping[ids.WorkerId, int]) -> None:
        # Sorted, as the worlds are: two orchestrators that see the same must choose the same.
        self._sites = {site.worker: site for site in sorted(sites, key=lambda site: site.worker)}
        self.worlds = sorted(active, key=lambda each: each.at)
        self._loads = {worker: besides.get(worker, 0) for worker in self._sites}
        self._place: dict[ids.Address, ids.WorkerId] = {}
        self.choices: list[Choice] = []
        for world in self.worlds:
            place = self._at_home(world)
            if place is not None:
                self._put(world, place)

    def _at_home(self, world: Active) -> ids.WorkerId | None:
        """The worker that it is assigned to, else the one that has it, if it may stay there."""
        # The assignment first: the holder is about to release a world that is assigned to another.
        for worker in (world.assigned, world.holder):
            site = None if worker is None else self._sites.get(worker)
            if site is not None and _fits(world, site):
                return site.worker
        return None

    def _put(self, world: Active, worker: ids.WorkerId) -> None:
        self._place[world.at] = worker
        self._loads[worker] += 1

    def _winner(self, world: Active) -> Site | None:
        """Of the workers that fit and have room, the one it belongs to. Where it is already, there is room."""
        place = self._place.get(world.at)
        able = [site for site in self._sites.values() if _fits(world, site)]
        # Its own code as long as a fitting worker has it, even one without room.
        able = [site for site in able if _has_code(world, site)] or able
        fitting = [site for site in able if site.worker == place or self._loads[site.worker] < site.capacity]
        return max(fitting, key=lambda site: score(site.worker, world.at.world), default=None)

    def settle(self, world: Active) -> None:
        """A world without a place gets one, or is free for any worker; one that has a place is assigned to it."""
        place = self._place.get(world.at)
        if place is not None:
            if world.assigned != place:
                self.choices.append(Choice(world.at, place, "held"))
            return
        winner = self._winner(world)
        if winner is not None:
            self._put(world, winner.worker)
            self.choices.append(Choice(world.at, winner.worker, "placed" if world.holder is None else "moved"))
        elif world.assigned is not None:
            self.choices.append(Choice(world.at, None, "nowhere to go"))

    def uneven(self) -> bool:
        """Whether any move could be worth it."""
        sites = list(self._sites.values())
        return any(self._lighter(to, than=than) for to in sites for than in sites if to is not than)

    def balance(self, moves_max: int) -> None:
        """Move some of those that would rather be elsewhere, beginning with those that it costs least to move."""
        moved = 0
        # Worlds that no worker has in memory cost nothing to move; among the others, quiet ones first.
        for world in sorted(self.worlds, key=lambda each: (each.holder is not None, not each.quiet, each.at)):
            if moved >= moves_max:
                return
            to = self._wish(world)
            if to is None or not self._lighter(to, than=self._sites[self._place[world.at]]):
                continue
            self._loads[self._place[world.at]] -= 1
            self._put(world, to.worker)
            self.choices = [choice for choice in self.choices if choice.at != world.at]
            self.choices.append(Choice(world.at, to.worker, "balance"))
            moved += 1

    def _wish(self, world: Active) -> Site | None:
        """Where a world that may stay would rather be."""
        place = self._place.get(world.at)
        moving = world.holder is not None and world.assigned is not None and world.holder != world.assigned
        winner = None if place is None or moving else self._winner(world)
        if place is None or winner is None or winner.worker == place:
            return None
        return winner if _same_code(world, winner, self._sites[place]) else None

    def _lighter(self, to: Site, *, than: Site) -> bool:
        """Whether a world more there is clearly less than what is here. In shares of capacity, without fractions."""
        if self._loads[to.worker] >= to.capacity:
            return False
        # Products instead of quotients: whole numbers compare alike on every machine.
        here = self._loads[than.worker] * max(1, to.capacity)
        there = (self._loads[to.worker] + 1) * max(1, than.capacity)
        return here * 100 > there * (100 + SLACK_PERCENT)


def _fits(world: Active, site: Site) -> bool:
    return worker_labels.unmet(world.needs, site.labels) is None and worker_labels.serves(
        site.labels, world.at.universe
    )


def _has_code(world: Active, site: Site) -> bool:
    codes = [site.labels.get(name) for name in world.needs if name.startswith(worker_labels.PROGRAM)]
    return world.code in ("", *codes)


def _same_code(world: Active, one: Site, other: Site) -> bool:
    return all(
        one.labels.get(name) == other.labels.get(name) for name in world.needs if name.startswith(worker_labels.PROGRAM)
    )
