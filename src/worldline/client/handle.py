"""One world by its name, with everything in bytes: what `World` gives types to, and what tools use as it is.

Whether the world exists shows when it is used. Its address is looked up once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from worldline.base import errors
from worldline.client import answers, delivery
from worldline.client.connection import Connection
from worldline.codec import structs
from worldline.kernel.state import Machine
from worldline.layers import cas, worlds
from worldline.model import ids, inbox, payload
from worldline.model import journal as journals
from worldline.roles import reader as readers
from worldline.roles import restore
from worldline.roles.hub import Chunk


class Handle:
    def __init__(self, universe: Connection, name: str) -> None:
        self.universe = universe
        self.name = ids.check_name(name, "a world's name")
        self._at: ids.Address | None = None

    async def address(self) -> ids.Address:
        if self._at is None:
            read = await self.universe.store.engine.read(worlds.get_name(self.universe.id, self.name))
            found = worlds.named(self.universe.id, read.value(0))
            if found is None:
                raise errors.NotFound(f"no world {self.name!r} in universe {self.universe.name!r}")
            self._at = found
        return self._at

    # --- Talking to it -------------------------------------------------------------------------------------------

    async def send(self, schema: str, data: bytes, *, to: str | None = None, id: str | None = None) -> delivery.Sending:
        """Send an event. Durable on return."""
        if id is not None:
            ids.check_client_id(id)
        carried = payload.inline(data) if cas.is_small(data) else await self.universe.blobs.carry(data)
        item = inbox.Event(schema, carried, to or "")
        return await delivery.deliver(self.universe, self._at or await self.address(), item, data, client_id=id)

    async def ask(self, schema: str, data: bytes, *, id: str | None = None) -> bytes:
        """Send a request and wait for its answer."""
        if id is not None:
            ids.check_client_id(id)
        carried = await self.universe.blobs.carry(data)
        correlation = id or self.universe.store.env.random_bytes(16).hex()
        item = inbox.Event(schema, carried, correlation=correlation)
        answer, _ = await answers.ask(self.universe, await self.address(), item, data, correlation, client_id=id)
        return answer

    async def command(self, name: str, wanted: object) -> tuple[bytes, int]:
        """Give a control input and wait for its answer. Returns it with the height at which it stands."""
        data = structs.encode(wanted)
        carried = await self.universe.blobs.carry(data)
        correlation = self.universe.store.env.random_bytes(16).hex()
        item = inbox.Control(name, carried, correlation)
        return await answers.ask(self.universe, await self.address(), item, data, correlation)

    # --- Looking at it -------------------------------------------------------------------------------------------

    async def describe(self) -> worlds.World:
        """The world's record, with its bytes as they are stored."""
        at = await self.address()
        return worlds.decode(at, (await self.universe.store.engine.read(worlds.get(at))).value(0))

    async def head(self) -> journals.Head:
        return await readers.head(self.universe.store.engine, await self.address())

    async def journal(self, *, above: int = 0, limit: int = 1_000) -> list[journals.Entry]:
        """Entries above a height."""
        engine, where = self.universe.store.engine, await self.address()
        top = await readers.head(engine, where)
        found = await restore.read_entries(engine, where, above=above, up_to=min(top.height, above + limit))
        loaded = await restore.load_referenced(self.universe.blobs, found)
        return [restore.filled(entry, loaded) for entry in found]

    async def follow(self, *, above: int | None = None) -> AsyncIterator[journals.Entry | Chunk]:
        """Entries as they are committed, from a height or from now on; of a world held here, chunks as well."""
        async for each in answers.follow(self.universe, await self.address(), above):
            yield each

    async def machine(self, *, at: int | None = None) -> Machine:
        """The whole state, read-only, now or at a height. `NotFound` if the world's program is not known here."""
        return (await self.machine_and_head(at=at))[0]

    async def machine_and_head(self, *, at: int | None = None) -> tuple[Machine, journals.Head]:
        _check_height(at)
        where = await self.address()
        if at is None:
            held = None if self.universe.host is None else self.universe.host.worlds.peek(where)
            if held is not None:
                await held.quiet()
                return held.machine, held.head
        meta = (await self.describe()).meta
        program = self.universe.programs.get(meta.program)
        if program is None:
            raise errors.NotFound(f"program {meta.program!r} is not known here; open the universe with it")
        reader = self.universe.reader(where, program)
        return await reader.latest() if at is None else await reader.at_height(at)


def _check_height(at: object) -> None:
    if at is not None and (not isinstance(at, int) or isinstance(at, bool)):
        raise errors.BadInput(f"a height is a number, not {at!r}")
