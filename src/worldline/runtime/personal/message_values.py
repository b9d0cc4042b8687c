"""Personal values in messages to other worlds: sealed again for the lineage that gets them.

A world can erase what it has, and nothing else: so a message takes its values along, under salts of their own, in the
commit that posts it. A token whose value was erased is sent as it is, and is erased there, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import env as envs
from worldline.codec import sealed_token as tokens
from worldline.layers import personal_records
from worldline.model import ids, step_records
from worldline.model.personal_records import New
from worldline.runtime.personal import outside_desk
from worldline.runtime.personal.store_vault import StoreVault
from worldline.store import kv


class ResealedValues(msgspec.Struct, frozen=True):
    """Values for another lineage, and its subjects as they were read."""

    root: ids.Address
    new: list[New]
    subjects: list[personal_records.SubjectRecord]

    def add(self, batch: kv.Batch) -> None:
        personal_records.keep(batch, self.root, self.new)
        personal_records.unchanged(batch, self.root, self.subjects)


def is_personal(outgoing: Sequence[step_records.Outgoing]) -> bool:
    return any(tokens.MAGIC in each.data for each in outgoing)


class Moving:
    """Of the messages of one commit. `pending`: the values that their sender keeps in it."""

    def __init__(self, engine: kv.Engine, env: envs.Env, vault: StoreVault, pending: Sequence[New]) -> None:
        self._engine = engine
        self._env = env
        self._vault = vault
        self._pending = {outside_desk.token_of(each): each.kept.data for each in pending}
        self.done: list[ResealedValues] = []

    async def moved(self, message: step_records.Outgoing, to: ids.Address) -> step_records.Outgoing:
        """A message as it is for another world. What goes with it is `done`."""
        found = tokens.find(message.data)
        root = await outside_desk.root_of(self._engine, to)
        if not found or root == self._vault.root:
            return message
        opened, subjects = await outside_desk.read(self._engine, self._vault.root, found)
        # The commit expects these subjects unchanged: an erasure in between has the steps made again.
        self._vault.know(subjects)
        # Values that the sender keeps in this very commit are in no store yet.
        opened |= self._pending
        # Numbered by the intent: values of two messages never get the same number.
        desk, data = outside_desk.CollectingDesk(self._env, message.intent), message.data
        for each in found:
            value = opened[each.pack()]
            if value is not None:
                data = data.replace(each.pack(), desk.seal(each.subject, value))
        if desk.new:
            self.done.append(
                ResealedValues(root, desk.new, await outside_desk.subjects_of(self._engine, root, desk.new))
            )
        return msgspec.structs.replace(message, data=data)
