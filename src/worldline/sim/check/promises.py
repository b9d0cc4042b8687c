"""What is checked of a run besides what holds of every program: what the programs and clients of a suite promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worldline.client.connection import Connection
from worldline.sim.check.audit import Audit
from worldline.sim.check.fork_checks import Forks
from worldline.sim.check.message_checks import Messages
from worldline.sim.hosts.cluster import Cluster
from worldline.sim.runtime.truth import AppliedBatch


class Promises:
    """Nothing is promised. `unproven`: programs whose worlds no replay proves, by name."""

    unproven: Sequence[str] = ()

    def __init__(self, cluster: Cluster, audit: Audit) -> None:
        self.cluster = cluster
        self.audit = audit

    def looks(self) -> list[Callable[[AppliedBatch], None]]:
        """Who is told of every batch, when all others have been."""
        return []

    async def at_rest(self, connection: Connection) -> bool:
        """Nothing is left to do, for the first time. Returns whether clients may have begun something since."""
        del connection
        return False

    async def mend(self, connection: Connection) -> list[str]:
        """All is at rest: what is done then, as by operators. Returns what is left to do, if that takes too long."""
        del connection
        return []

    def told(self) -> None:
        """The machines have ended: whether clients were told in time."""

    async def kept(self, connection: Connection, forks: Forks) -> None:
        """Every world was replayed, and nothing was left to do: what must have come of it."""

    async def at_end(self, connection: Connection, sent: Messages, left: Sequence[str]) -> None:
        """The last checks. `connection` knows no program. `left`: what was left to do."""
