"""A program with secrets, and looking at a store as someone without keys sees it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import worldline as wl
from worldline.features.encryption import sealed_engine, sealed_objects
from worldline.runtime import store_opening
from worldline.store import kv
from worldline.store.objects import objects_interface as objects

OLD, NEW = b"o" * 32, b"n" * 32
SECRET = "the-planted-secret"

app = wl.Program("safe")


class Note(msgspec.Struct):
    text: str


class Bad(msgspec.Struct):
    text: str


class Count(msgspec.Struct, wl.Request[int]):
    pass


@app.reducer
class Notes(msgspec.Struct):
    texts: list[str] = msgspec.field(default_factory=list)

    @wl.on
    def add(self, event: Note) -> None:
        self.texts.append(event.text)

    @wl.on
    def bad(self, event: Bad) -> None:
        raise ValueError("no")

    @wl.on
    def count(self, event: Count) -> int:
        return len(self.texts)


@app.effect
async def tell(text: str) -> str:
    return f"told {text}"


@app.workflow
async def telling(text: str) -> str:
    return await tell(text)


@app.workflow
async def failing(text: str) -> None:
    raise ValueError(text)


@app.effect
async def stall(text: str) -> str:
    await asyncio.sleep(1_000)
    return text


@app.workflow
async def waiting(text: str) -> str:
    return await stall(text)


def codec(current: str = "old", *ids: str) -> wl.ops.AesGcm:
    keys = {"old": OLD, "new": NEW}
    return wl.ops.AesGcm(keys={key_id: keys[key_id] for key_id in ids or (current,)}, current=current)


def inner(store: store_opening.Store) -> tuple[kv.Engine, objects.Objects]:
    """The engine and the objects below the encryption."""
    engine, bodies = store.engine, store.objects
    while not isinstance(engine, sealed_engine.SealedEngine):
        engine = engine._engine  # type: ignore[attr-defined]
    while not isinstance(bodies, sealed_objects.SealedObjects):
        bodies = bodies.inner  # type: ignore[attr-defined]
    return engine.inner, bodies.inner


async def everything(store: store_opening.Store) -> dict[bytes, bytes]:
    """All keys and values, and all objects by their names, as they are stored."""
    engine, bodies = inner(store)
    page = (await engine.read(kv.Range(b"\x00", b"\xff", 1_000_000, 1 << 30))).page(0)
    assert not page.more
    found = dict(page.items)
    for each in await bodies.list(""):
        found[each.name.encode()] = await bodies.get(each.name)
    return found


@contextlib.asynccontextmanager
async def opened(place: str | Path, given: Any = None, **options: Any) -> AsyncIterator[wl.Universe]:
    async with wl.open(str(place), codec=codec() if given is None else given, **options) as universe:
        yield universe


async def live(universe: wl.Universe, name: str = "w") -> wl.World:
    """A world that has a secret in everything a world has."""
    world = await universe.ensure(name, app, labels={"of": SECRET})
    await (await world.send(Note(SECRET), id="note-1")).applied()
    await (await world.send(Note(SECRET + "x" * 40_000))).applied()
    assert await world.run(telling(SECRET)) == f"told {SECRET}"
    with pytest.raises(wl.RunFailed):
        await world.run(failing(SECRET))
    _ = await world.start(waiting(SECRET))
    await world.send(Bad(SECRET))
    still = await universe.ensure(f"{name}-still", app)
    await still.pause()
    await still.send(Note(SECRET))
    return world
