"""What must not be late once all is calm, whatever the clocks have done before.

TIME: in every world that has timers, something that is begun now takes as long as it should, although the store's clock
was hours off. WAIT: the end of a run that is journaled is told to the client that waits for it.
"""

from __future__ import annotations

import asyncio

from tests.campaign.load import programs, workloads
from worldline.api.world_api import World
from worldline.client.connection import Connection
from worldline.keys import journal as journal_keys
from worldline.sim.check.audit import Audit
from worldline.sim.hosts.cluster import LAG_SECONDS, Cluster

ON_TIME_SECONDS = 60.0  # for some seconds of work and a takeover; clocks were off by ten minutes at least
TELLING_SECONDS = 8.0  # besides reads that are slow


async def on_time(cluster: Cluster, connection: Connection, audit: Audit) -> None:
    """TIME, if the clock was off in this run: effects and timers, tried in each world that has them."""
    if cluster.excursions.count:
        names = [name for name, program in cluster.company.worlds if program == programs.agents.name]
        await asyncio.gather(*(_try(connection, name, audit) for name in names))


async def _try(connection: Connection, name: str, audit: Audit) -> None:
    id = f"on time in {name}"
    try:
        async with asyncio.timeout(ON_TIME_SECONDS):
            await World(connection, name).run(programs.agent(id), id=id)
    except TimeoutError:
        audit.broken("TIME", f"{name}: what was begun when the clock was right again takes over {ON_TIME_SECONDS} s")


def told(cluster: Cluster, audit: Audit) -> None:
    """WAIT: from the end of a run to the answer of a client that was waiting for it."""
    history, profile = cluster.history, cluster.profile
    bound_us = int((TELLING_SECONDS + (3 * max(LAG_SECONDS) if profile.lag else 0)) * 1_000_000)
    bound_us += profile.slowest_us if profile.slow else 0  # an answer may have been under way when all became calm
    bound_us += profile.settings.worker.lease_ttl_ms * 1000  # one that was cut off asks anew; the holder may be dead
    for id, answered_us in history.answered_us.items():
        ended_us = history.ended_us.get(id)
        if ended_us is None or history.begun[id].kind not in workloads.RUNS:
            continue
        if history.tried_us[id] < ended_us:
            late_us = answered_us - max(ended_us, cluster.calm_since_us)
            if late_us > bound_us + _reading_us(cluster, history.begun[id].world):
                audit.broken("WAIT", f"run {id} was at its end {late_us / 1_000_000:.1f} s before its client was told")


def _reading_us(cluster: Cluster, world: str) -> int:
    """How long a host that reads journals late may need to look through the whole of one: two reads for each segment,
    and what is not told is found there.
    """
    if not cluster.profile.lag:
        return 0
    head = journal_keys.HEAD.unpack(cluster.truth.copy[journal_keys.head_key(cluster.addresses[world])])
    segments = head.height / max(1, cluster.settings.worker.segment_entries)
    return int(2 * max(LAG_SECONDS) * segments * 1_000_000)
