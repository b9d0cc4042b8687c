"""Every byte of a small world and of its fork, turned over one by one: the next read says which record it is and where,
and nothing goes on as if nothing were."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import pytest

import worldline as wl
from tests import options
from worldline.base import errors, limits
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.inspect import verify
from worldline.keys import lineage as lineage_keys
from worldline.layers.history import history_line
from worldline.model import ids
from worldline.runtime import world_restore
from worldline.sim.check.checkers import contents
from worldline.sim.runtime import keyspaces
from worldline.store import kv

LARGE = "x" * (limits.INLINE_BYTES_MAX + 100)
WHOLE_BYTES_MAX, EDGE, STRIDE = 4_096, 64, 29
BITS = range(8) if options.flag("every_crash") else range(1)

app = wl.Program("flipped")


@dataclass(frozen=True)
class Noted:
    text: str


@app.reducer()
@dataclass
class Notes:
    last: str = ""
    count: int = 0

    @wl.on
    def noted(self, event: Noted) -> None:
        self.last = event.text[:20]
        self.count += 1


@app.effect
async def fetch(name: str) -> str:
    return name


class Turned:
    """An engine of which one value is read with one bit turned over."""

    def __init__(self, engine: kv.Engine) -> None:
        self._engine = engine
        self._key, self._value = b"", b""

    def turn(self, key: bytes, value: bytes, place: int, bit: int) -> None:
        self._key = key
        self._value = value[:place] + bytes([value[place] ^ (1 << bit)]) + value[place + 1 :]

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        found = await self._engine.read(*requests)
        answers = list(found.answers)
        for index, request in enumerate(requests):
            answer = answers[index]
            if isinstance(request, kv.Get):
                answers[index] = self._value if request.key == self._key else answer
            elif isinstance(answer, kv.Page):
                items = [(key, self._value if key == self._key else value) for key, value in answer.items]
                answers[index] = msgspec.structs.replace(answer, items=items)
        return msgspec.structs.replace(found, answers=answers)

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)


class Stored:
    """A world with a large note, its fork with a script, and a fork of that which leans on both."""

    def __init__(self, connection: Connection, worlds: dict[str, ids.Address], items: dict[bytes, bytes]) -> None:
        self.engine = Turned(connection.store.engine)
        store = msgspec.structs.replace(connection.store, engine=self.engine)
        self.turned = Connection(store, connection.id, connection.name, connection.settings)
        self.worlds = worlds
        self.items = items

    async def look(self) -> None:
        """Everything that is read of the worlds, each by what it is found by."""
        for name, at in self.worlds.items():
            world = Handle(self.turned, name)
            assert await world.address() == at
            await world.describe()
            await verify.verify(self.turned, at)
            world_restore.fold(await world_restore.gather(self.turned.store.engine, self.turned.blobs, at))

    def of(self, *what: str) -> dict[bytes, bytes]:
        """The values of these keyspaces: those of the worlds, and everything that is not one world's."""
        found = {}
        for key, value in self.items.items():
            where = keyspaces.place(key)
            own = where.at in self.worlds.values() or where.what in ("cas", "chunk", "name")
            if where.what in what and own:
                found[key] = value
        return found


@asynccontextmanager
async def small() -> AsyncIterator[Stored]:
    async with wl.open("memory://", host=app) as universe:
        world = await universe.create("alice", app)
        for text in ("one", LARGE, "three"):
            await (await world.send(Noted(text))).applied()
        fork = await world.fork("fork", at=2, script=[{"effect": "fetch", "answer": "scripted"}])
        await (await fork.send(Noted("four"))).applied()
        await fork.snapshot()
        await (await fork.send(Noted("five"))).applied()
        await fork.pause()
        await world.pause()
        await fork.fork("leaning")
        await universe.world("leaning").pause()
        connection = universe._connection
        names = ("alice", "fork", "leaning")
        worlds = {name: await Handle(connection, name).address() for name in names}
        engine = connection.store.engine
        lineage = history_line.decode_lineage((await engine.read(history_line.get(worlds["leaning"]))).value(0))
        assert lineage is not None
        assert len(lineage.sections) in (1, 2)
        made = Stored(connection, worlds, await contents(engine))
        await made.look()
        yield made


# The keyspaces, and what must be said of a damaged value of them.
SAID: dict[str, Callable[[str], bool]] = {
    "journal": lambda said: "height" in said,
    "head": lambda said: "head" in said,
    "snapshot": lambda said: "snapshot" in said,
    "baseline": lambda said: "snapshot" in said or "baseline" in said,
    "lineage": lambda said: "lineage" in said,
    "retain": lambda said: "pin" in said,
    "cas": lambda said: any(each in said for each in ("snapshot", "script", "height", "blob")),
    "chunk": lambda said: any(each in said for each in ("snapshot", "script", "height", "blob")),
    "world_meta": bool,
    "name": bool,
}


@pytest.mark.parametrize("what", SAID)
async def test_any_flipped_byte_is_named(what: str) -> None:
    async with small() as stored:
        await turn_all(stored, what)


def places(size: int) -> list[int]:
    """All of them; of a large payload only some inside, unless this is a long run."""
    if len(BITS) > 1 or size <= WHOLE_BYTES_MAX:
        return list(range(size))
    return [*range(EDGE), *range(EDGE, size - EDGE, STRIDE), *range(size - EDGE, size)]


async def turn_all(stored: Stored, what: str) -> None:
    silent: Counter[str] = Counter()
    vague: Counter[str] = Counter()
    counters = [lineage_keys.pin_count_key(at) for at in stored.worlds.values()]
    values = {key: value for key, value in stored.of(what).items() if key not in counters}
    for key, value in values.items():
        for place in places(len(value)):
            for bit in BITS:
                stored.engine.turn(key, value, place, (place + bit) % 8)
                try:
                    await stored.look()
                except (errors.Corrupt, errors.NotFound) as error:
                    if not SAID[what](str(error)):
                        vague[str(error)] += 1
                else:
                    silent[f"{keyspaces.place(key)} byte {place}"] += 1
    assert values
    assert not silent
    assert not vague


async def test_a_pin_that_is_missing_is_named() -> None:
    async with small() as stored:
        await without_pins(stored)


async def without_pins(stored: Stored) -> None:
    leaning = stored.worlds["leaning"]
    pins = [key for key in stored.of("retain") if key.endswith(leaning.world)]
    assert pins
    for key in pins:
        batch = kv.Batch()
        batch.expect(key, stored.items[key])
        batch.delete(key)
        assert isinstance((await stored.turned.store.engine.commit(batch))[0], kv.Ok)
        with pytest.raises(verify.Damaged, match="no pin keeps what it needs of world"):
            await verify.verify(stored.turned, leaning)
        batch = kv.Batch()
        batch.absent(key)
        batch.put(key, stored.items[key])
        await stored.turned.store.engine.commit(batch)
