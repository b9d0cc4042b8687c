"""What is still to be done in a simulated cluster: clients that are not through, unread items, open work.

A run is quiet when nothing remains. Work that waits for a time from before the store's clock was set back is excused,
and so are the clients that wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from worldline.features.forks.pure import part as fork_part
from worldline.kernel import user_values
from worldline.keys import work as work_keys
from worldline.keys import worlds as world_keys
from worldline.model import ids
from worldline.model.work import Work, WorkKind, WorkState
from worldline.model.world_records import Status, WorldMeta
from worldline.sim.faults.excursions import Excursions
from worldline.sim.hosts.sim_machines import ClusterMember
from worldline.sim.load.history import ClientOp, History
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.truth import Truth


def _itself(op: ClientOp) -> list[str]:
    return [op.world]


class Remaining:
    """`excursions`: those of the store's clock, if it makes any. `own`: worlds of a user's scenario are run.
    `waited_for`: the worlds whose work an operation waits for.
    """

    def __init__(
        self,
        truth: Truth,
        history: History,
        members: Sequence[ClusterMember],
        *,
        excursions: Excursions | None,
        own: bool,
        waited_for: Callable[[ClientOp], list[str]] = _itself,
    ) -> None:
        self._truth = truth
        self._history = history
        self._members = members
        self._excursions = excursions
        self._own = own
        self._waited_for = waited_for

    def left(self, *, excused: bool = True) -> list[str]:
        """Return what remains. `excused`: without the work that is excused, and the clients that wait for it."""
        left: list[str] = []
        waiting: dict[ids.Address, None] = {}
        for key, value in self._truth.copy.items():
            where = keyspaces.place(key)
            # Leases, hints and records stay when all is done: only inputs and open work are something to do.
            if where.what not in ("inbox", "open") or self._is_gone(where.at):
                continue
            if where.what == "inbox":
                left.append(f"{where.what} of {_name(where.at)}")
            elif excused and self._is_excused(where.at, key, value):
                assert where.at is not None
                waiting[where.at] = None  # clients that wait for this world are excused with it
            elif self._is_due(where.at, value):
                left.append(f"{where.what} of {_name(where.at)}")
        for each in self._members:
            if each.client and each.name not in self._history.finished and not self._waits(each.name, waiting):
                left.append(each.name)
        return left

    def _is_excused(self, at: ids.Address | None, key: bytes, raw: bytes) -> bool:
        """Whether open work is excused. What a fork shares with its parent waits as long as the parent's does."""
        assert at is not None
        work = work_keys.WORK.unpack(raw)
        if self._excursions is None or self._excursions.is_excused(key, work):
            return self._excursions is not None
        if work.name != fork_part.SHARE:
            return False
        wanted = shared(work.params.inline or b"")
        owner = ids.Address(at.universe, ids.WorldId(wanted["world"]))
        asked = work_keys.open_key(owner, ids.IntentId(wanted["intent"]))
        return asked in self._truth.copy and self._is_excused(owner, asked, self._truth.copy[asked])

    def _waits(self, client: str, waiting: dict[ids.Address, None]) -> bool:
        """Whether a client waits for one of these worlds."""
        if not waiting:  # as in most seeds: no clock was set back
            return False
        wanted = [name for op in self._history.under_way(client) for name in self._waited_for(op)]
        return any(self._meta(at).name in wanted for at in waiting)

    def _meta(self, at: ids.Address) -> WorldMeta:
        return world_keys.META.unpack(self._truth.copy[world_keys.meta_key(at)])

    def _is_dry(self, at: ids.Address | None) -> bool:
        assert at is not None
        return self._meta(at).dry

    def _is_of_dry(self, at: ids.Address | None, work: Work) -> bool:
        """Whether the answer of a dry fork is waited for."""
        assert at is not None
        owner = ids.Address(at.universe, ids.WorldId(shared(work.params.inline or b"")["world"]))
        return status(self._truth, owner) is not Status.DELETED and self._is_dry(owner)

    def _is_due(self, at: ids.Address | None, raw: bytes) -> bool:
        """Whether open work must be done before all is quiet. A user's own worlds may keep timers for another day."""
        work = work_keys.WORK.unpack(raw)
        if work.state is WorkState.PARKED and self._is_dry(at):
            return False  # for a person
        if work.name == fork_part.SHARE and self._is_of_dry(at, work):
            return False  # for what may be parked there; `sim/check/fork_checks.py` says whether it is
        if not self._own:
            return True
        is_timer = work.kind is WorkKind.TIMER
        # A user's program may park effects and set timers for next week: neither has to end within a run.
        return work.state is not WorkState.PARKED and (not is_timer or work.due_us < self._truth.time_us())

    def _is_gone(self, at: ids.Address | None) -> bool:
        """Whether a world was deleted: its unread items stay until the janitor deletes them."""
        assert at is not None
        return status(self._truth, at) is Status.DELETED


def shared(params: bytes) -> dict[str, Any]:
    """Return what a fork shares with the world that it comes from: the arguments of `fork_part.SHARE`."""
    arguments, _ = user_values.load(tuple[bytes, bytes], params)
    found: dict[str, Any] = user_values.load(dict[str, Any], arguments)
    return found


def status(truth: Truth, at: ids.Address) -> Status:
    return world_keys.META.unpack(truth.copy[world_keys.meta_key(at)]).status


def _name(at: ids.Address | None) -> str:
    return "?" if at is None else at.world.hex()[-8:]
