"""Who else is in a simulated cluster: the hosts and clients that a suite brings, and what its worlds are.

A cluster has hosts, a store and faults, and knows no workload. It asks its company who there is, at each phase.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence

from worldline.client.connection import Connection
from worldline.features.abroad import peer_stores
from worldline.host.process import Role
from worldline.kernel.authoring.program import Program
from worldline.model import ids
from worldline.model.settings import Settings
from worldline.runtime.store_opening import Store
from worldline.sim.hosts.sim_machines import ClusterMember
from worldline.sim.load.history import Called, ClientOp
from worldline.sim.load.scenarios import PATIENCE_SECONDS
from worldline.sim.runtime.sim_env import SimEnv
from worldline.sim.runtime.sim_loop import SimMachine
from worldline.sim.runtime.truth import AppliedBatch, Truth

Main = Callable[[Connection], Awaitable[None]]
Find = Callable[[bytes], tuple[ids.Address | None, bool]]


class Company:
    """No host and no client. `is_users`: worlds of a user's are run, which may keep work for another day."""

    is_users = False
    worlds: Sequence[tuple[str, str]] = ()  # that are there from the beginning: name and program
    edited: Sequence[Program] = ()  # programs that not every host has, as they are at first,
    mended: Sequence[Program] = ()  # and those of them that are others in the end

    # --- Boot -----------------------------------------------------------------------------------------------

    def patched(self) -> contextlib.AbstractContextManager[None]:
        """Return what is other than usual for the length of a run."""
        return contextlib.nullcontext()

    def begin(self) -> None:
        """The store is there, and nothing in it."""

    async def boot(self, others: Sequence[Callable[[AppliedBatch], None]]) -> None:
        """The worlds are there, and no machine has started. `others`: who audits other stores."""

    def members(self) -> list[ClusterMember]:
        """Hosts of programs that no other host has."""
        return []

    def clients(self, hosting: Callable[[], Sequence[Role]]) -> list[ClusterMember]:
        """The machines that have something to get done, and those enlisted last. `hosting`: draws a client's roles."""
        del hosting
        return []

    def booted(self, find: Find) -> None:
        """All have started. `find`: the world that asked for an intent, and whether it still waits for the answer."""

    # --- While it runs --------------------------------------------------------------------------------------

    def peers(self, store: Store, member: ClusterMember, host: SimMachine, env: SimEnv) -> peer_stores.Peers | None:
        """Other stores, as one life of a machine sees them."""
        del store, member, host, env
        return None

    def chaos(self) -> None:
        """The faults begin."""

    def heal(self) -> None:
        """They have ended."""

    async def finish(self) -> None:
        """All is at rest: the last thing that clients do."""

    # --- What is known of it --------------------------------------------------------------------------------

    def patience_seconds(self) -> float:
        """From the end of the faults until everything must be done."""
        return PATIENCE_SECONDS

    def crash_budget(self, settings: Settings) -> int:
        """Of the hosts whose processes may end by an input. `settings`: of all others."""
        return settings.worker.crash_budget

    def kills(self, at: ids.Address) -> bool:
        """Whether the inputs of a world may end its processes."""
        del at
        return False

    def truths(self) -> list[Truth]:
        """Other stores, as they are."""
        return []

    def left(self) -> list[str]:
        """Return what is still to be done there."""
        return []

    def waited_for(self, op: ClientOp) -> list[str]:
        """The worlds whose work an operation waits for."""
        return [op.world]

    def on_call(self, look: Callable[[Called], None]) -> None:
        """Who is told of every effect that reaches the outside, where it is simulated."""

    def performs(self, label: str) -> list[Called]:
        """The calls that are under way at a host, by its label."""
        del label
        return []

    def complaints(self) -> list[tuple[str, str]]:
        """Return what clients and programs have found broken: invariants, and how."""
        return []
