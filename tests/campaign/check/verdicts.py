"""The promises of the project's own campaign: its programs and clients, flow domains against a model, universes
elsewhere, and what must be on time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.campaign.check import abroad, aftermath, flow_domains, fork_ends, kept, lateness
from tests.campaign.hosts import crew as crews
from tests.campaign.load import flow_domains as flows_load
from tests.campaign.load import forgers, fragile
from worldline.client.connection import Connection
from worldline.sim.check.audit import Audit
from worldline.sim.check.fork_checks import Forks
from worldline.sim.check.message_checks import Messages
from worldline.sim.check.promises import Promises
from worldline.sim.hosts.cluster import Cluster
from worldline.sim.runtime.truth import AppliedBatch


class Verdicts(Promises):
    unproven = (fragile.NAME, flows_load.NAME)  # H6 proves the latter

    def __init__(self, cluster: Cluster, audit: Audit) -> None:
        super().__init__(cluster, audit)
        self._crew = crews.of(cluster)
        self._flows = flow_domains.FlowDomains(audit.broken)

    def looks(self) -> list[Callable[[AppliedBatch], None]]:
        return [self._flows.look] if self.cluster.profile.flows else []

    async def at_rest(self, connection: Connection) -> bool:
        """A client may have made a fork just now."""
        await lateness.on_time(self.cluster, connection, self.audit)
        return bool(self.cluster.profile.flows)

    async def mend(self, connection: Connection) -> list[str]:
        return await aftermath.mend(self.cluster, connection, self.audit)

    def told(self) -> None:
        lateness.told(self.cluster, self.audit)

    async def kept(self, connection: Connection, forks: Forks) -> None:
        crew, cluster = self._crew, self.cluster
        ops, answered = crew.planned(), cluster.history.answered
        found = kept.Kept(dict(crew.worlds), ops, answered, cluster.truth.copy, crew.outside.done)
        await kept.promises(connection, found, self.audit)
        ends = fork_ends.ForkEnds(self.audit.broken, forks)
        await ends.at_end(connection)
        await ends.promised(connection, ops, answered)

    async def at_end(self, connection: Connection, sent: Messages, left: Sequence[str]) -> None:
        cluster, ops = self.cluster, self._crew.planned()
        if not left:
            await self._flows.at_end(connection, ops, cluster.history.answered)
        await abroad.at_end(cluster, self.audit, sent, left)
        self._judged()

    def _judged(self) -> None:
        """F5: what askers were told is what the judge said."""
        answered = self.cluster.history.answered
        for op in self._crew.planned():
            if op.kind == "plead" and op.id in answered and answered[op.id] != forgers.verdict(op.id):
                self.audit.broken("F5", f"{op.id}: the asker was told {answered[op.id]!r}")
