"""How the suite opens each engine.

A `Kit` is one engine and one fresh, empty store. `open` may be called several times: every call gives another engine
object on the same store. For postgres these engines share nothing but the store, as if each were another process. For
lmdb they share the folder's writer thread too, as all engines of one process do. Memory has no store outside its
process, so its engines are `Facade`s of one `MemoryEngine`: they share keys and hints, and only closing is their own.
Cases that need a store which outlives its engines ask for a `durable_kit`; cases that need another process use `place`,
which a child opens by `open_place`.

Each engine is there plain and sealed (`features/encryption`): the values of keys that no case counts on are encrypted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from tests.conformance import sealed
from worldline.base import env as envs
from worldline.base import env_os, errors
from worldline.features.encryption import sealed_engine
from worldline.features.encryption.cipher_interface import CipherVault
from worldline.store import kv, memory_engine, postgres
from worldline.store.lmdb import lmdb_driver

SEALED = "sealed-"  # what the name of an engine begins with if its values are encrypted

# Small, so that a test folder is quick to make; still beyond what any case here writes.
LMDB_MAP_BYTES = 256 * 1024 * 1024


class Place(NamedTuple):
    """A store that any process can open: the engine's name and a folder or URL."""

    engine: str
    where: str


class Kit:
    def __init__(
        self, name: str, opener: Callable[[], Awaitable[kv.Engine]], place: Place | None, *, is_sealed: bool = False
    ) -> None:
        self.name = name
        self.is_sealed = is_sealed  # the engine below has had the whole dose; the dose here is smaller
        self._opener = opener
        self._place = place
        self._opened: list[kv.Engine] = []

    @property
    def place(self) -> Place:
        assert self._place is not None, f"{self.name} has no store outside its process"
        return self._place

    async def open(self) -> kv.Engine:
        """Another engine on this kit's store. Closed with the kit, if the case has not closed it before."""
        engine = await self._opener()
        self._opened.append(engine)
        return engine

    async def aclose(self) -> None:
        while self._opened:
            await self._opened.pop().close()


class Facade:
    """One of several engines on one `MemoryEngine`: all but closing is shared.

    `MemoryEngine` answers at once. This gives way to others before and after, as an engine with I/O does, so that
    concurrent callers do meet.
    """

    def __init__(self, engine: memory_engine.MemoryEngine) -> None:
        self._engine = engine
        self._closed = False
        self.hints = engine.hints

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        await asyncio.sleep(0)
        snapshot = await self._open().read(*requests)
        await asyncio.sleep(0)
        return snapshot

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        await asyncio.sleep(0)
        outcomes = await self._open().commit(*batches)
        await asyncio.sleep(0)
        return outcomes

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        return await self._open().wait(prefix, seen, timeout_ms)

    async def freeze(self) -> kv.Frozen:
        return await self._open().freeze()

    async def raise_stamps(self, above: kv.Stamp) -> None:
        await self._open().raise_stamps(above)

    async def durability(self) -> kv.Durability:
        return await self._open().durability()

    async def close(self) -> None:
        self._closed = True
        self._engine.hints.note(None)

    def _open(self) -> memory_engine.MemoryEngine:
        if self._closed:
            raise errors.StoreUnavailable("this store is closed")
        return self._engine


def memory_kit(env: envs.Env, vault: CipherVault | None = None) -> Kit:
    shared = memory_engine.MemoryEngine(env)

    async def opener() -> kv.Engine:
        return Facade(shared) if vault is None else sealed_engine.SealedEngine(Facade(shared), vault)

    return Kit("memory", opener, None, is_sealed=vault is not None)


def placed_kit(place: Place, env: envs.Env) -> Kit:
    """A kit on a store in a folder or on a server; the first `open` creates it."""

    async def opener() -> kv.Engine:
        return await open_place(place, env, create=True)

    is_sealed = place.engine.startswith(SEALED)
    return Kit(place.engine.removeprefix(SEALED), opener, place, is_sealed=is_sealed)


async def open_place(
    place: Place, env: envs.Env | None = None, *, create: bool = False, map_bytes: int = LMDB_MAP_BYTES
) -> kv.Engine:
    env = env_os.OsEnv() if env is None else env
    if place.engine.startswith(SEALED):
        plain = Place(place.engine.removeprefix(SEALED), place.where)
        inner = await open_place(plain, env, create=create, map_bytes=map_bytes)
        return sealed_engine.SealedEngine(inner, sealed.FixedVault())
    if place.engine == "lmdb":
        return await lmdb_driver.open(Path(place.where), env, create=create, map_bytes=map_bytes)
    assert place.engine == "postgres"
    return await postgres.open(place.where, env, create=create)
