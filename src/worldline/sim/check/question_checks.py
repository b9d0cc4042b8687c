"""What must hold of questions between worlds of a universe, and of names that are the runtime's own.

* F5: a question is answered by the world that it was put to, and by no other.
* F6: the id of a question is not what another world can compute.
* F7: no event or message that speaks for the runtime comes through a door: of a reserved name, or saying itself which
  world has sent it. The forger that writes the store by itself is no door.

Which world a question was put to is told from the inbox that it stands in, not by the code that worlds use.
"""

from __future__ import annotations

from collections.abc import Sequence

from worldline.base import errors
from worldline.codec import structs
from worldline.kernel import event_dispatch, user_values
from worldline.kernel.authoring import message_calls
from worldline.keys import inbox as inbox_keys
from worldline.keys import worlds as world_keys
from worldline.model import ids, inbox, journal
from worldline.model.inbox import MessageMode, Reply
from worldline.model.journal import Kind
from worldline.sim.load.history import Broken
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.sim_loop import ROGUE
from worldline.sim.runtime.truth import AppliedBatch

ORDINALS = 4  # that another world would try
_SYSTEM = ("worldline/", "worldline.", "inbox:", "message:")


class QuestionAudit:
    def __init__(self, broken: Broken) -> None:
        self._broken = broken
        self._names: dict[ids.Address, str] = {}
        self._put_to: dict[bytes, ids.Address] = {}  # questions, by id

    def look(self, applied: AppliedBatch) -> None:
        for key, put in applied.batch.puts.items():
            where = keyspaces.place(key)
            if where.what == "world_meta" and where.at is not None:
                self._names[where.at] = world_keys.META.unpack(put.value).name
        for append, stamp in zip(applied.batch.appends, applied.stamps, strict=True):
            where = keyspaces.place(append.prefix + stamp)
            if where.what == "inbox" and where.at is not None:
                item = inbox_keys.ITEM.unpack(append.value)
                if isinstance(item, inbox.Message):
                    self._came(item, where.at, through_door=applied.host.name != ROGUE)

    def _came(self, item: inbox.Message, at: ids.Address, *, through_door: bool) -> None:
        if item.reply is Reply.MESSAGE:
            self._put_to[item.message] = at  # by the inbox that it stands in: what the asker meant to ask may be forged
            if item.message in _guesses(item, self._names.get(at, "")):
                self._broken("F6", f"the id of question {item.message.hex()} can be computed by any world")
        # The forger writes the store by itself: only what worlds then take from it counts.
        if not through_door or item.mode is not MessageMode.TYPED:
            return
        if item.name == event_dispatch.REPLY:
            if self._asked(item.correlation) != _sender(item):
                self._broken("F7", f"an answer to {item.correlation} came from a world that was not asked")
        elif _is_reserved(item.name):
            self._broken("F7", f"a message of the name {item.name!r} came through a door")

    def step(self, at: ids.Address, entries: Sequence[journal.JournalEntry]) -> None:
        """A step was journaled."""
        first = entries[0]
        if first.blob or first.kind not in (Kind.MESSAGE, Kind.EVENT):
            return
        item: inbox.Item = structs.decode(inbox.Item, first.payload)  # type: ignore[arg-type]
        if isinstance(item, inbox.InboxEvent) and _speaks_for_runtime(item):
            self._broken("F7", f"an event of the name {item.schema!r} came through a door")
        if (
            not isinstance(item, inbox.Message)
            or item.name != event_dispatch.REPLY
            or item.mode is not MessageMode.TYPED
        ):
            return
        # A forged answer that the step dropped has done no harm.
        counts = not any(each.kind is Kind.LATE_ANSWER for each in entries)
        if counts and self._asked(item.correlation) != _sender(item):
            who = item.from_world.hex()
            self._broken("F5", f"world {at.world.hex()}: world {who} has answered a question that was put to another")

    def _asked(self, question: str) -> ids.Address | None:
        try:
            return self._put_to.get(bytes.fromhex(question))
        except ValueError:
            return None


def _sender(item: inbox.Message) -> ids.Address:
    return ids.Address(ids.UniverseId(item.from_universe), ids.WorldId(item.from_world))


def _guesses(item: inbox.Message, kind: str) -> list[ids.IntentId]:
    """The ids that another world would try, which knows the rest."""
    if item.payload.inline is None:
        return []
    asker, step = _sender(item), item.from_step
    params = message_calls.Content(item.name, item.payload.inline, item.to).pack()
    return [ids.intent_id(asker, step=step, ordinal=each, kind=kind, params=params) for each in range(ORDINALS)]


def _is_reserved(name: str) -> bool:
    return name.startswith(_SYSTEM) or name == "Envelope"


def _speaks_for_runtime(item: inbox.InboxEvent) -> bool:
    if item.schema != "Envelope":
        return _is_reserved(item.schema)
    try:
        return item.payload.inline is not None and bool(
            user_values.load(event_dispatch.Envelope, item.payload.inline).from_world
        )
    except errors.DecodeError:
        return True
