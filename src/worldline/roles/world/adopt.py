"""A change of program: a world goes on under other code than its baseline was written by."""

from __future__ import annotations

import logging

from worldline.codec import structs
from worldline.kernel import commands
from worldline.layers import worlds
from worldline.model import inbox, payload
from worldline.roles.world.cycle import kernel_thread
from worldline.roles.world.cycle.cycle import Cycle
from worldline.roles.world.handover import Handover
from worldline.roles.world.held_world import HeldWorld

log = logging.getLogger("worldline.worker")


async def adopt(
    kernel: kernel_thread.KernelThread, cycle: Cycle, held: HeldWorld, world: worlds.World, before: bytes
) -> None:
    """Go on under other code than the baseline was written by.

    The entries above the baseline have been replayed and came out the same. Every live run is rebuilt under the new
    code; those that it does not fit are blocked, the others go on. The change is an input of its own, journaled in one
    commit with the baseline that follows it, so no restore ever has to run old entries under new code.
    """
    blocked = await kernel.run(held.at, commands.fits, held.machine)
    change = structs.encode(commands.ChangeProgram(before, held.program.hash, blocked))
    item = inbox.Control(commands.PROGRAM, payload.inline(change))
    await cycle.step_and_save(held, Handover(item, change), world)
    name = world.meta.name
    if blocked:
        for run_id, report in sorted(blocked.items()):
            log.warning("world %r: run %r is blocked, its code has changed under it:\n%s", name, run_id, report)
    log.warning(
        "world %r goes on under the changed program %r: %d runs taken over, %d blocked",
        name, held.program.name, len(held.machine.live_runs()) - len(blocked), len(blocked),
    )  # fmt: skip
