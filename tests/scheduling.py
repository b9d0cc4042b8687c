"""Which worker of `pytest -n` runs which test, and in what order.

A file that has a fixture of its own for the whole file is one unit: split, every worker would make that fixture. Every
other test is a unit.

Some tests use up a processor (`BUSY`), all others wait most of the time: for processes, servers, disks, leases. Run one
after the other, the former would keep each other waiting, and the latter leave the processors idle. So they are the two
ends of one queue: some workers take from the front, where the busy ones are, the others from the back. At both ends the
long ones come first, so that no worker is left alone with one in the end.

The mark `xdist_group` is not used: xdist 3.8 writes the group into a private field that pytest 9.2 has no more, so the
mark does nothing, and nothing says so.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ROOT = Path(__file__).parents[1]

# Both by the beginning of their names, long ones first.
BUSY = (
    "tests/hostile/test_hosts.py",
    "tests/sim/",
    "tests/cli/test_cli_simulate.py",
    "tests/typing/",
    "tests/hostile/test_kernel.py",
    "tests/testing/",
    "tests/kernel/",
    "tests/flow_core/",
    "tests/features/shadow/",
    "tests/codec/",
    "tests/layers/",
    "tests/keys/",
    "tests/model/",
)
WAITING = (
    "tests/chaos/",
    "tests/hostile/test_cells.py",
    "tests/cli/test_blast_radius.py",
    "tests/cli/test_bench.py",
    "tests/conformance/test_kill.py",
    "tests/cli/test_cli_roles.py",
    "tests/worker/test_many_worlds.py",
    "tests/client/test_no_host.py",
    "tests/inspect/test_why.py",
    "tests/examples/",
    "tests/cli/",
    "tests/features/",
    "tests/effects/",
    "tests/cluster/",
    "tests/timers/",
    "tests/runtime/",
    "tests/worker/",
)
# Of two processors, the busy tests have about one.
BUSY_WORKERS = max(1, (os.cpu_count() or 2) // 2)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """As `--dist loadscope`, with units of our own, taken from both ends of the tests as they were collected."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget units that are done: xdist counts what a worker has left among all that it ever had."""
        super().mark_test_complete(node, item_index, duration)
        scope = unit(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]

    def _assign_work_unit(self, node: WorkerController) -> None:
        """`popitem` of the queue takes the first unit, which is to be this worker's."""
        if self.nodes.index(node) >= BUSY_WORKERS:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


def rank(nodeid: str) -> int:
    """The place of a test in the queue: busy ones from the front on, the others towards the end, long ones outside."""
    for number, beginning in enumerate(BUSY):
        if nodeid.startswith(beginning):
            return number
    waiting = next((number for number, each in enumerate(WAITING) if nodeid.startswith(each)), len(WAITING))
    return len(BUSY) + len(WAITING) - waiting


def unit(nodeid: str) -> str:
    """What is run by one worker: a whole file, or a test."""
    file = nodeid.partition("::")[0]
    return file if is_whole(file) else nodeid


@cache
def is_whole(file: str) -> bool:
    path = ROOT / file
    return path.is_file() and '@pytest.fixture(scope="module")' in path.read_text()
