"""Memory layouts: where objects stand while a simulation runs.

In a process that does the same as another one, objects come to stand in the same order, one behind the other, so what
is ordered by address is ordered as it was made, and nothing shows. Here memory is freed at random places between the
turns of a simulation, and what is made next stands there.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from unittest import mock

from worldline.sim.runtime.sim_loop import SimLoop

BLOCKS = 40_000
BYTES_MAX = 600  # of a block: about as large as a task with all that it has
FREED_AT_ONCE = 4


@contextlib.contextmanager
def scattered(seed: int) -> Iterator[None]:
    """Simulations of this block have their objects at addresses that another seed does not have, nor another order of
    them.
    """
    draws = random.Random(seed)
    blocks = [bytes(draws.randrange(BYTES_MAX)) for _ in range(BLOCKS)]
    for each in draws.sample(range(BLOCKS), BLOCKS // 2):
        blocks[each] = b""
    turn = SimLoop._turn

    def scattering(loop: SimLoop) -> None:
        for _ in range(FREED_AT_ONCE):
            blocks[int(draws.random() * BLOCKS)] = b""
            blocks[int(draws.random() * BLOCKS)] = bytes(int(draws.random() * BYTES_MAX))
        turn(loop)

    with mock.patch.object(SimLoop, "_turn", scattering):
        yield
