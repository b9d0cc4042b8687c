"""Testing worlds: synchronous, in virtual time, with every disturbance that must not make a difference.

`world` makes a world in memory; `crash_everywhere` runs a scenario with a crash at every entry, `everywhere.fork` with
forks behind every step; `replay` runs a journal exported from a store on the code as it is now; `simulate` runs a
scenario on a whole cluster that breaks; `domain_machine` makes a hypothesis machine of a flow domain, whose effects
`scripted` answers; `secrets` gives effects secrets that are none. The pytest plugin shows the journals of worlds whose
test failed.
"""

from worldline.effects.secret_reading import override as secrets
from worldline.kernel.authoring.scripts import Script, Unscripted
from worldline.testing import fork_everywhere as everywhere
from worldline.testing.crash_everywhere import crash_everywhere
from worldline.testing.domain_machine import domain_machine
from worldline.testing.domain_subjects import scripted
from worldline.testing.journal_replay import replay
from worldline.testing.simulation import Broken, simulate
from worldline.testing.stage import Restless
from worldline.testing.tested_world import NotTaken, Stuck, TestRun, TestWorld, world

__all__ = [
    "Broken",
    "NotTaken",
    "Restless",
    "Script",
    "Stuck",
    "TestRun",
    "TestWorld",
    "Unscripted",
    "crash_everywhere",
    "domain_machine",
    "everywhere",
    "replay",
    "scripted",
    "secrets",
    "simulate",
    "world",
]
