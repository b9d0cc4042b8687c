"""What must hold of messages between universes and stores, with every batch and at the end.

* F1: one item for each message and destination, whatever is tried again.
* F2: a receipt has the id of the message and the stamp of the one item, also if an earlier attempt had put it there.
* F4: an item comes from another universe only if a grant stood at that commit that covers its sender, and only if that
  sender's world has asked for it: what a message says of its sender is what the sender's own journal says.
* E8: the record of a message is forgotten only when another attempt would be refused for its age.

Grants are told from the store's keys and compared here, not by the code that hosts use.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.keys import inbox as inbox_keys
from worldline.keys import universes as universe_keys
from worldline.keys import work as work_keys
from worldline.keys import worlds as world_keys
from worldline.model import ids, inbox
from worldline.model import world_records as world_model
from worldline.model.inbox import MessageMode
from worldline.model.work import Work, WorkState
from worldline.sim.check.audit import Audit
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.truth import AppliedBatch, Truth
from worldline.store import kv


class Item(msgspec.Struct, frozen=True):
    """A message in the inbox of a world."""

    at: ids.Address
    message: inbox.Message
    stamp: kv.Stamp


class Messages:
    """`audits`: one for each store; the first is told of what does not hold. `window_us`: how long ids are kept."""

    def __init__(self, audits: Sequence[Audit], *, window_us: int) -> None:
        self._audits = audits
        self._broken = audits[0].broken
        self._window_us = window_us
        self._truths: list[Truth] = []
        self.items: dict[tuple[ids.Address, bytes], Item] = {}
        self._grants: dict[bytes, world_model.Grants] = {}  # by key
        self._names: dict[ids.Address, str] = {}
        self._seen: dict[bytes, Item] = {}  # by key
        self.forgotten = 0

    def know(self, truths: list[Truth]) -> None:
        """The stores, once there are some."""
        self._truths = truths

    def look(self, applied: AppliedBatch) -> None:
        for key, put in applied.batch.puts.items():
            where = keyspaces.place(key)
            if where.what == "grants":
                self._grants[key] = universe_keys.GRANTS.unpack(put.value)
            elif where.what == "world_meta" and where.at is not None:
                self._names[where.at] = world_keys.META.unpack(put.value).name
        for append, stamp in zip(applied.batch.appends, applied.stamps, strict=True):
            where = keyspaces.place(append.prefix + stamp)
            if where.what == "inbox" and where.at is not None:
                item = inbox_keys.ITEM.unpack(append.value)
                if isinstance(item, inbox.Message):
                    self._came(applied, Item(where.at, item, stamp))
        for key in applied.batch.deletes:
            if key in self._seen:
                self._forgotten(applied, self._seen.pop(key))

    def _came(self, applied: AppliedBatch, item: Item) -> None:
        at = (item.at, bytes(item.message.message))
        if at in self.items:
            self._broken("F1", f"message {item.message.message.hex()} is in the inbox of its world twice")
        self.items.setdefault(at, item)  # the first stays: receipts must name its stamp
        if item.message.from_universe != item.at.universe and not self._allows(item.message, item.at):
            self._broken("F4", f"message {item.message.message.hex()} came from a universe that may not send here")
        for key in applied.batch.puts:
            if keyspaces.place(key).what == "seen":
                self._seen[key] = item

    def _allows(self, message: inbox.Message, at: ids.Address) -> bool:
        """Whether a message of another universe may come here, by what the stores say at this moment."""
        sender = ids.Address(ids.UniverseId(message.from_universe), ids.WorldId(message.from_world))
        asked = (each.worlds[sender].intents for each in self._audits if sender in each.worlds)
        # By the journals of all stores: a sender's name in a message proves nothing, and a forger would set it.
        if not any(message.message in intents for intents in asked):
            return False
        found = self._grants.get(universe_keys.grants_key(at.universe))
        label = f"inbox:{message.name}" if message.mode is MessageMode.INBOX else message.name
        return found is not None and any(
            each.universe == message.from_universe
            and _fits(each.worlds, message.world)
            and _fits(each.to, self._names[at])
            and _fits(each.events, label)
            for each in found.grants
        )

    def _forgotten(self, applied: AppliedBatch, item: Item) -> None:
        """E8: no attempt may be left that would not be refused for its age."""
        self.forgotten += 1
        work = self._work_of(item)
        # Nothing is left that would bring it again.
        if work is None or work.state in (WorkState.SETTLED, WorkState.SENT):
            return
        if applied.time_us - work.opened_us <= self._window_us // 2:
            self._broken("E8", f"message {item.message.message.hex()} was forgotten while it may be brought again")

    def _work_of(self, item: Item) -> Work | None:
        sender = ids.Address(ids.UniverseId(item.message.from_universe), ids.WorldId(item.message.from_world))
        key = work_keys.open_key(sender, ids.IntentId(item.message.message))
        return next((work_keys.WORK.unpack(each.copy[key]) for each in self._truths if key in each.copy), None)

    def receipt(self, op: str, said: list[str]) -> None:
        """F2: what a sender was told of a message that its receiver has processed."""
        id, stamp, _ = said
        found = [each for each in self.items.values() if each.message.message == bytes.fromhex(id)]
        if [each.stamp.hex() for each in found] != [stamp]:
            self._broken(
                "F2", f"{op}: the receipt of message {id} has the stamp {stamp}, which is not that of its item"
            )


def _fits(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern
