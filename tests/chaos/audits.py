"""The simulator's checkers over what really happened: every commit that was recorded, the worlds, the queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from tests.chaos import history, opening
from tests.chaos.processes import Crew
from worldline.api.universe_api import Universe
from worldline.inspect import doctor
from worldline.kernel.authoring.program import Program
from worldline.keys import leases as lease_keys
from worldline.model import ids, leases
from worldline.sim.check import checkers
from worldline.sim.check.audit import Audit, ProvenDead, never_proven
from worldline.sim.runtime import keyspaces

COMMITS_MIN = 50

More = Callable[[Universe, dict[bytes, bytes], Audit], Awaitable[None]]


async def check(
    crew: Crew,
    of: Universe,
    direct: str,
    *,
    knows: Sequence[Program],
    worlds: Sequence[str],
    more: More | None = None,
) -> None:
    """`direct`: where the store is reached whatever was done to the way there. `more` looks at what it should hold."""
    is_folder = "://" not in direct
    universe = await opening.plain(direct, crew.objects, of, knows=knows)
    try:
        committed, contents = history.split(await checkers.contents(universe._connection.store.engine))
        proven_dead = _proven_dead(committed, crew.killed) if is_folder else never_proven
        audit = Audit(in_stamp_order=is_folder, proven_dead=proven_dead)
        copy = history.replay(await history.in_order(committed, direct), audit)
        checkers.same_contents(contents, copy, audit)
        for name in worlds:
            await checkers.replayed(universe._connection, name, audit)
        if more is not None:
            await more(universe, copy, audit)
        report = await doctor.examine(universe._connection, repair=False)
    finally:
        await opening.close(universe)
    assert not audit.violations, f"{len(committed)} commits: {audit.violations[:5]}"
    assert report.findings == []
    assert audit.checked == len(committed) > COMMITS_MIN


def _proven_dead(committed: list[history.Committed], killed: dict[str, int]) -> ProvenDead:
    """In a folder a process that was killed is known to be dead at once, by the lock it held."""
    hosts: dict[bytes, str] = {}
    for each in committed:
        for put in each.record.puts:
            if keyspaces.place(put.key).what == "worker":
                hosts[put.key] = f"{each.record.host}/{each.record.life}"

    def proven(holder: leases.Holder, now_us: int) -> bool:
        label = hosts.get(lease_keys.worker_key(ids.WorkerId(holder.worker)), "")
        return killed.get(label, now_us + 1) <= now_us

    return proven
