"""Personal values in messages to other worlds: sealed anew for the lineage that gets them.

A world can erase what it has, and nothing else: so a message takes its values along, under salts of their own, in the
commit that posts it. A token whose value was erased is sent as it is, and is erased there, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import env as envs
from worldline.codec import sealed as tokens
from worldline.layers.stored import lines
from worldline.layers.upkeep import sealed
from worldline.model import ids, step
from worldline.model.upkeep.sealed import New
from worldline.roles.erasure import sealing
from worldline.roles.erasure.vault import StoreVault
from worldline.store import kv


class Moved(msgspec.Struct, frozen=True):
    """Values for another lineage, and its subjects as they were read."""

    root: ids.Address
    new: list[New]
    subjects: list[sealed.Subject]

    def add(self, batch: kv.Batch) -> None:
        sealed.keep(batch, self.root, self.new)
        sealed.unchanged(batch, self.root, self.subjects)


def is_personal(outgoing: Sequence[step.Outgoing]) -> bool:
    return any(tokens.MAGIC in each.data for each in outgoing)


async def moved(
    engine: kv.Engine, env: envs.Env, vault: StoreVault, message: step.Outgoing, to: ids.Address, pending: Sequence[New]
) -> tuple[step.Outgoing, Moved | None]:
    """A message as it is for another world, and the values that go with it. `pending`: values that its sender keeps in
    the same commit.
    """
    found = tokens.find(message.data)
    root = sealed.root_of(lines.decode(to, (await engine.read(lines.get(to))).value(0)))
    if not found or root == vault.root:
        return message, None
    opened, subjects = await sealing.read(engine, vault.root, found)
    vault.know(subjects)
    opened |= {sealing.token_of(each): each.kept.data for each in pending}
    desk = sealing.Collector(env, message.intent)
    data = message.data
    for each in found:
        value = opened[each.pack()]
        if value is not None:
            data = data.replace(each.pack(), desk.seal(each.subject, value))
    if not desk.new:
        return message, None
    wanted = list(dict.fromkeys(each.subject for each in desk.new))
    read = await engine.read(*(sealed.get_subject(root, each) for each in wanted))
    there = [sealed.Subject(each, read.value(index)) for index, each in enumerate(wanted)]
    return msgspec.structs.replace(message, data=data), Moved(root, desk.new, there)
