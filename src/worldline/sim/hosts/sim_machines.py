"""The machines of a simulated cluster, each over all its lives.

A machine runs some of the roles, or is a client, or both. When it dies nothing of its memory is left; its name stays,
and with it what it was for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from worldline.client.connection import Connection
from worldline.kernel.authoring.program import Program
from worldline.model import ids
from worldline.model.roles import Role
from worldline.model.settings import Settings
from worldline.sim.faults.faulty_store import HostEngine
from worldline.sim.runtime.sim_env import SimEnv
from worldline.sim.runtime.sim_loop import SimMachine
from worldline.sim.runtime.truth import Truth
from worldline.store.objects import objects_interface as objects


class Away(msgspec.Struct, frozen=True):
    """A universe that a machine is for: its store, and the bodies there, as they are and as hosts see them."""

    name: str
    universe: ids.UniverseId
    truth: Truth
    bodies: objects.Objects
    seen: objects.Objects


class Code(msgspec.Struct, frozen=True):
    """A program that changes while it is hosted: which version a life of a machine has, and the settings with it."""

    version_of: Callable[[SimMachine], Program]
    settings: Settings


class ClusterMember:
    """A machine of the cluster, over all its lives."""

    def __init__(
        self,
        name: str,
        main: Callable[[Connection], Awaitable[None]],
        *,
        runs: Sequence[Role] = (),
        client: bool = False,
        steady: bool = False,
        code: Code | None = None,
        away: Away | None = None,
    ) -> None:
        self.name = name
        self.main = main
        self.runs = runs
        self.client = client  # it has something to get done
        self.steady = steady  # it never fails, and sees a store that never does
        self.code = code  # it hosts this program, and nothing else
        self.away = away  # it is for another universe than the one that is simulated
        self.lives = 0
        self.host: SimMachine | None = None
        self.engine: HostEngine | None = None
        self.env: SimEnv | None = None
        self.universe: Connection | None = None  # of this life, once it has one
        # Of the present life; before its roles run, none can have failed.
        self.failed: Callable[[], BaseException | None] = lambda: None
        self.bugs: list[BaseException] = []  # over all lives: a bug is not excused by a restart
        self.stays_dead = False

    def begin(self, host: SimMachine, env: SimEnv, engine: HostEngine) -> None:
        """A new life: nothing is left of the one before."""
        assert host.life == self.lives + 1  # traces name a life by its number: none may be used twice
        self.lives = host.life
        self.host = host
        self.env = env
        self.engine = engine
        self.universe = None

    def watch(self, failed: Callable[[], BaseException | None]) -> None:
        """Where the roles of this life say which bug has stopped one."""
        self.failed = failed

    def join(self, connection: Connection) -> None:
        """The present life has opened its universe."""
        self.universe = connection

    def stay_dead(self) -> None:
        """It is not started again after its next death."""
        self.stays_dead = True

    @property
    def alive(self) -> bool:
        return self.host is not None and self.host.alive


def hosting(members: Sequence[ClusterMember], code: Code) -> list[ClusterMember]:
    """The machines that host a program which changes, as far as they have lived."""
    return [each for each in members if each.code is code and each.host is not None]
