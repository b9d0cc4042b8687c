"""What a world does first in a process that takes it: a fork begins, a changed program is adopted, and the flow
domains that it does not know yet are declared.
"""

from __future__ import annotations

from worldline.base import grammar
from worldline.codec import printable, structs
from worldline.kernel import control_commands, halts, part_inputs
from worldline.layers import worlds
from worldline.layers.history import history_line
from worldline.model import inbox, payload
from worldline.worker.cycle import Cycle
from worldline.worker.held_world import HeldWorld
from worldline.worker.waiting_input import WaitingInput

log = printable.logger("worldline.worker")


async def begin_fork(cycle: Cycle, held: HeldWorld) -> None:
    """The first step of a fork: what its lineage says, as an input of its own. No user code runs in it."""
    lineage = held.lineage
    assert lineage is not None
    script = structs.decode(list[bytes], await held.blobs.get(lineage.script)) if lineage.script else []
    owner = history_line.line_of(held.at, lineage).identity(lineage.height)
    fields = (
        held.at.world,
        owner.world,
        lineage.parent_name,
        lineage.step,
        lineage.height,
        lineage.policy,
        lineage.live,
        script,
    )
    elsewhere = owner.universe != held.at.universe
    said = structs.encode(
        part_inputs.ImportBeginning(*fields, owner.universe) if elsewhere else part_inputs.ForkBeginning(*fields)
    )
    # Carried: a script may be too large to stand in the entry itself.
    item = inbox.Control(part_inputs.FORKED, await held.blobs.carry(said))
    await cycle.take_alone(held, WaitingInput(item, said))
    log.info("world %r begins as a fork of %r at height %d", held.name, lineage.parent_name, lineage.height)


async def adopt(cycle: Cycle, held: HeldWorld, world: worlds.WorldRecord, old_hash: bytes) -> None:
    """Continue under other code than the world ran under before.

    The change is an input of its own, journaled in one commit with the world's record. Runs get the new code when they
    next continue; one that it does not fit is blocked then, alone. Blocked ones are tried again now.
    """
    change = structs.encode(control_commands.ChangeProgram(old_hash, held.program.hash))
    item = inbox.Control(control_commands.PROGRAM, payload.inline(change))
    await cycle.take_alone(held, WaitingInput(item, change), changing=world)
    held.adopt()
    blocked = halts.count_blocked(held.machine)
    log.warning(  # when more of them are blocked, the log counts again (`worker/step_log.py`)
        "world %r goes on under the changed program %r, which runs get when they next continue: %s, and %d blocked now",
        world.meta.name,
        held.program.name,
        grammar.count(len(held.machine.live) - blocked, "run"),
        blocked,
    )


async def declare_domains(cycle: Cycle, held: HeldWorld) -> None:
    """Give the world the documents of its program's flow domains, where it does not have them: as an input, so that the
    journal is enough to run them again.
    """
    news = held.parts.domains.news(held.machine, held.program)
    if news is not None:
        said = structs.encode(news)
        await cycle.take_alone(
            held, WaitingInput(inbox.Control(part_inputs.DOMAINS, await held.blobs.carry(said)), said)
        )
