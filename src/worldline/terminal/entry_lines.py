"""Journal entries on one line each, with dates, and with names beside ids where the journal has told them."""

from __future__ import annotations

from collections.abc import Sequence

from worldline.base import errors
from worldline.base.bounded_map import BoundedMap
from worldline.client.connection import Connection
from worldline.inspect import entry_text, store_queries
from worldline.kernel import user_values
from worldline.model import ids, journal
from worldline.model.journal import Kind

NAMES_MAX = 10_000
KIND_WIDTH = max(len(kind.name) for kind in Kind)


class Names:
    """What ids in a world's journal are called: effects and timers by the entries that asked for them, worlds by the
    store.
    """

    def __init__(self, at: ids.Address) -> None:
        self._at = at
        # A log is followed for weeks: of the oldest, ids are shown instead.
        self._names: BoundedMap[str, str] = BoundedMap(NAMES_MAX)

    async def learn(self, connection: Connection, entries: Sequence[journal.JournalEntry]) -> None:
        """Take in what these entries tell, and look up the worlds that they name."""
        senders: dict[ids.WorldId, None] = {}
        for entry in entries:
            self._note(entry)
            if entry.kind is Kind.MESSAGE:
                sender = entry_text.fields(entry).get("from_world")
                # Each world is looked up once, however many messages it sends.
                if isinstance(sender, str) and sender not in self._names:
                    senders[ids.WorldId(bytes.fromhex(sender))] = None
        found = await store_queries.world_names(connection, [ids.Address(connection.id, each) for each in senders])
        for at, name in found.items():
            self._names[at.world.hex()] = name

    def line(self, entry: journal.JournalEntry, world: str = "") -> str:
        """An entry on one line."""
        named = f"{world:<16} " if world else ""
        time = entry_text.when(entry.time_us).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        kind = entry.kind.name.lower()
        return f"{time} {named}{entry.height:>6} {kind:<{KIND_WIDTH}} {self._said(entry)}".rstrip()

    def _said(self, entry: journal.JournalEntry) -> str:
        said = entry_text.fields(entry)
        name = self._names.get(str(said.get("intent")))
        if name is not None:
            said = {"of": name, **said}
        sender = self._names.get(str(said.get("from_world")))
        if sender is not None:
            said = {**said, "from_world": f"{sender} ({said['from_world']})"}
        return entry_text.parts(said)

    def _note(self, entry: journal.JournalEntry) -> None:
        # A large one stands in a blob, and is not loaded for a name.
        if entry.kind not in (Kind.EFFECT_REQUESTED, Kind.TIMER_SET) or not entry.payload:
            return
        try:
            ordinal, name, _, _, params, _ = user_values.load(tuple[int, str, str, int, bytes, int], entry.payload)
        except (errors.DecodeError, ValueError):
            return
        intent = ids.intent_id(self._at, step=entry.step, ordinal=ordinal, kind=name, params=params)
        self._names[intent.hex()] = name
