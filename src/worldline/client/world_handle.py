"""One world by its name, with everything in bytes: what `World` gives types to, and what tools use as it is.

Whether the world exists shows when it is used. Its address is looked up once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from worldline.base import errors
from worldline.client import send_door, world_answers
from worldline.client.connection import Connection
from worldline.codec import structs
from worldline.kernel import control_commands, event_dispatch
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import Cell
from worldline.layers import cas, worlds
from worldline.model import cell_rows, ids, inbox, payload, row_keys
from worldline.model import journal as journals
from worldline.model.rows import Rows
from worldline.runtime import world_reader as readers
from worldline.runtime import world_restore
from worldline.runtime.live_hub import Chunk
from worldline.worker.held_world import HeldWorld


class Handle:
    def __init__(self, connection: Connection, name: str, program: str = "") -> None:
        self.connection = connection
        self.name = ids.check_name(name, "a world's name")
        self._at: ids.Address | None = None
        self._program = program  # its name, if that is known

    async def address(self) -> ids.Address:
        if self._at is None:
            read = await self.connection.store.engine.read(worlds.get_name(self.connection.id, self.name))
            found = worlds.named(self.connection.id, read.value(0))
            if found is None:
                raise errors.NotFound(f"no world {self.name!r} in universe {self.connection.name!r}")
            self._at = found
        return self._at

    async def program(self) -> str:
        """The name of the program that the world has, which is the same all its life. It is looked up once."""
        if not self._program:
            held = None if self.connection.host is None else self.connection.host.worlds.peek(await self.address())
            known = held.machine.program.name if held is not None else (await self.describe()).meta.program
            self._program = known
        return self._program

    # --- Talking to it -------------------------------------------------------------------------------------------

    async def send(
        self, schema: str, data: bytes, *, to: str | None = None, id: str | None = None, correlation_id: str = ""
    ) -> send_door.Sending:
        """Send an event. Durable on return."""
        if id is not None:
            ids.check_client_id(id)
        # Here, so that the caller gets the error, and not the world a dead letter.
        event_dispatch.check_outside(schema, data)
        carried = payload.inline(data) if cas.is_small(data) else await self.carry(data)
        item = inbox.InboxEvent(schema, carried, to or "")
        if correlation_id:
            # A record of its own: an event without the id keeps the bytes that it always had.
            item = inbox.CorrelatedEvent(schema, carried, to or "", correlation_id=correlation_id)
        return await send_door.deliver(self.connection, self._at or await self.address(), item, data, client_id=id)

    async def ask(self, schema: str, data: bytes, *, id: str | None = None, correlation_id: str = "") -> bytes:
        """Send a request and wait for its answer."""
        return (await self.ask_at(schema, data, id=id, correlation_id=correlation_id))[0]

    async def ask_at(
        self,
        schema: str,
        data: bytes,
        *,
        id: str | None = None,
        correlation: str = "",
        correlation_id: str = "",
        halts: world_answers.Halts | None = None,
    ) -> tuple[bytes, int]:
        """The same, with the height at which the answer stands. `correlation`: one that no other has, if it is known
        already: the answer is found by it. `correlation_id`: what the caller calls what this belongs to. `halts`: the
        answer is the end of an intent, which may wait for a person.
        """
        if id is not None:
            ids.check_client_id(id)
        event_dispatch.check_outside(schema, data)
        carried = payload.inline(data) if cas.is_small(data) else await self.carry(data)
        # The caller's id also names the answer, so asking again under it finds the first answer.
        correlation = id or correlation or self.connection.store.env.random_bytes(16).hex()
        item = inbox.InboxEvent(schema, carried, correlation=correlation)
        if correlation_id:
            item = inbox.CorrelatedEvent(schema, carried, correlation=correlation, correlation_id=correlation_id)
        at = self._at or await self.address()
        return await world_answers.ask(self.connection, at, item, data, correlation, client_id=id, halts=halts)

    async def command(self, name: str, arguments: object) -> tuple[bytes, int]:
        """Give a control input and wait for its answer. Returns it with the height at which it stands."""
        data = structs.encode(arguments)
        # Only a new run asks for work; every other command must pass in a full universe: it may free what fills that.
        carried = await (self.carry if name == control_commands.RUN else self.connection.blobs.carry)(data)
        correlation = self.connection.store.env.random_bytes(16).hex()
        item = inbox.Control(name, carried, correlation)
        return await world_answers.ask(self.connection, await self.address(), item, data, correlation)

    async def carry(self, data: bytes) -> payload.Payload:
        """The payload of an input that asks for work. A large one is stored now, if the universe may have more."""
        if not cas.is_small(data):
            await self.connection.pressure.check_body(await self.address())
        return await self.connection.blobs.carry(data)

    # --- Looking at it -------------------------------------------------------------------------------------------

    async def describe(self) -> worlds.WorldRecord:
        """The world's record, with its bytes as they are stored."""
        at = await self.address()
        return worlds.decode(at, (await self.connection.store.engine.read(worlds.get(at))).value(0))

    async def head(self) -> journals.Head:
        return await readers.head(self.connection.store.engine, await self.address())

    async def journal(self, *, above: int | None = None, limit: int = 1_000) -> list[journals.JournalEntry]:
        """Entries above a height; without one, from the first that is kept on."""
        engine, where = self.connection.store.engine, await self.address()
        top = await readers.head(engine, where)
        if above is None:
            above = (await readers.kept(engine, where)).above
        found = await world_restore.read_entries(
            engine, self.connection.blobs, where, above=above, up_to=min(top.height, above + limit)
        )
        loaded = await world_restore.load_referenced(self.connection.blobs, found)
        return [world_restore.filled(entry, loaded) for entry in found]

    async def follow(self, *, above: int | None = None) -> AsyncIterator[journals.JournalEntry | Chunk]:
        """Entries as they are committed, from a height or from now on; of a world held here, chunks as well."""
        async for each in world_answers.follow(self.connection, await self.address(), above):
            yield each

    async def cell(self, reducer: str, key: str, *, at: int | None = None) -> bytes | None:
        """The data of one cell, now or at a height; None if there is no such cell. No machine is made. Costs what has
        changed since the last look; at a height, a few nodes and what changed since the snapshot before it.
        """
        name = row_keys.cell(reducer, key)
        held = await self._held(at)
        if held is not None:
            cell = held.machine.cells.get((reducer, key))
            if cell is None and held.cold is not None:  # the cell may exist without being in memory
                cold = await held.cold.read(name)
                return None if cold is None else cell_rows.decode(cold.meaning).data
            return None if cell is None else cell.data
        if at is None:
            row = (await self._rows(at)).get(name)
        else:
            past = await self.past(at)
            await past.fetch([name])
            row = past.rows.get(name)
        return None if row is None else cell_rows.decode(row.meaning).data

    async def step_end(self, height: int) -> int:
        """The height at which the step ends that an entry belongs to: its last entry alone has a chain."""
        held = await self._held(None)
        if held is not None and held.head.height == height:  # as mostly: the answer came with the world's last step
            return height
        engine, blobs = self.connection.store.engine, self.connection.blobs
        async for each in readers.entries(engine, blobs, await self.address(), above=height - 1):
            if each is not None and each.chain:
                return each.height
        raise AssertionError("following a journal does not end")

    async def live_cell(self, reducer: str, key: str, *, at: int) -> Cell | None:
        """A cell in the memory of this process, if it runs the world and this is still its height. It must not be
        changed.
        """
        held = await self._held(None)
        return None if held is None or held.head.height != at else held.machine.cells.get((reducer, key))

    async def cells(self, *, at: int | None = None) -> dict[tuple[str, str], bytes]:
        """The data of every cell, by reducer and key, in that order; now or at a height. Of a world that this process
        runs without having all its cells in memory, all rows are read, and none is kept.
        """
        held = await self._held(at)
        if held is not None and held.cold is None:
            return {name: cell.data for name, cell in sorted(held.machine.cells.items())}
        found = {}
        rows = await self._rows(at) if held is None else (await self.rows_at(held.head.height))[0]
        for key, row in rows.under(row_keys.CELL):
            reducer, name = row_keys.parse(key).texts
            found[reducer, name] = cell_rows.decode(row.meaning).data
        return dict(sorted(found.items()))

    async def machine(self, *, at: int | None = None) -> Machine:
        """The whole state, read-only, now or at a height. The program need not be known here."""
        return (await self.machine_and_head(at=at))[0]

    async def machine_of_runs(self) -> Machine:
        """The state as far as runs are concerned, now: some cells may be missing. It must not be changed."""
        held = await self._held(None)
        return await self.machine() if held is None else held.machine

    async def machine_and_head(self, *, at: int | None = None) -> tuple[Machine, journals.Head]:
        held = await self._held(at)
        if held is not None and held.cold is None:
            return held.machine, held.head
        reader = await self._reader()
        return await reader.latest() if at is None else await reader.at_height(at)

    async def rows_at(self, at: int) -> tuple[Rows, journals.Head]:
        """All rows at the last step end at or below a height; for the caller alone."""
        return await (await self._reader()).rows_at(at)

    async def past(self, at: int) -> readers.Past:
        """The last step end at or below a height, of which single rows can be read."""
        return await (await self._reader()).past(at)

    async def _rows(self, at: int | None) -> Rows:
        reader = await self._reader()
        return (await reader.rows() if at is None else await reader.rows_at(at))[0]

    async def _reader(self) -> readers.WorldReader:
        return self.connection.reader(await self.address(), (await self.describe()).meta.program)

    async def _held(self, at: int | None) -> HeldWorld | None:
        """The world as this process runs it, between two steps, if it does and no height is asked for."""
        _check_height(at)
        if at is not None or self.connection.host is None:
            return None
        held = self.connection.host.worlds.peek(await self.address())
        if held is not None:
            # A step in another thread changes the machine in place: it is read between two steps only.
            await held.quiet()
        return held


def _check_height(at: object) -> None:
    if at is not None and (not isinstance(at, int) or isinstance(at, bool)):
        raise errors.BadInput(f"a height is a number, not {at!r}")
