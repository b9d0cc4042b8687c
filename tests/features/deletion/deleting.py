"""A world with something of everything, and looking for what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import zstandard

import worldline as wl
from tests.features.compaction import compacting
from tests.features.forks.forking import until
from tests.kits import kit as kits
from tests.kits.kit import Kit, Process
from worldline.base import limits
from worldline.features.erasure import keyspace as ledger_keys
from worldline.features.erasure import scrub_keyspace
from worldline.keys import leases as lease_keys
from worldline.keys import space
from worldline.keys import work as work_keys
from worldline.keys import worlds as world_keys
from worldline.model import ids
from worldline.store import kv

SECRET = "s3cr3t"  # and what it is in
LARGE = limits.INLINE_BYTES_MAX * 2
_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Note:
    key: str
    text: str


@dataclass(frozen=True)
class Read(wl.Request[str]):
    key: str


@dataclass(frozen=True)
class Bad:
    text: str


class Vault:
    """A program whose worlds have something of every kind, each with a word of its own."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.gate = asyncio.Event()
        self.program = app = wl.Program("vault")
        vault = self

        @app.reducer(key="key")
        @dataclass
        class Cell:
            text: str = ""
            key: str = ""

            @wl.on
            def noted(self, event: Note) -> None:
                self.text = event.text

            @wl.on
            def read(self, request: Read) -> str:
                return self.text

        @app.reducer
        @dataclass
        class Fussy:
            count: int = 0

            @wl.on
            def bad(self, event: Bad) -> None:
                raise RuntimeError(f"{SECRET}-traceback {event.text}")

        @app.effect(name="echo")
        async def echo(text: str) -> str:
            vault.called.append(text)
            return f"{SECRET}-result {text}"

        @app.effect(name="stuck", retry=wl.Retry(attempts=1))
        async def stuck(text: str) -> str:
            vault.called.append(text)
            await vault.gate.wait()
            return text

        @app.workflow(name="talk")
        async def talk(text: str) -> str:
            said = await echo(f"{SECRET}-params {text}")
            await wl.send("friend", Note("k", f"{SECRET}-message {len(said)}"), headers={"h": f"{SECRET}-header"})
            return said

        @app.workflow(name="wait")
        async def wait(text: str) -> str:
            async with wl.scope(timeout=3_600):
                await stuck(f"{SECRET}-open {text}")
            return text

        @app.workflow(name="nap")
        async def nap() -> None:
            await wl.sleep(0.01)

        @app.workflow(name="back")
        async def back(to: str) -> None:
            await wl.send(to, Note("k", "back"))

        self.talk, self.wait, self.nap, self.back = talk, wait, nap, back


# Every place that one was put into. Those of messages are in the world that was sent them, too.
WORDS = (
    "event",
    "large",
    "cell-key",
    "cell-value",
    "arguments",
    "params",
    "result",
    "open",
    "label",
    "name",
    "alias",
    "traceback",
    "dead",
    "seen",
    "inbox",
    "header",
    "message",
)


async def full(kit: Kit, vault: Vault, process: Process, *, name: str = f"{SECRET}-name") -> wl.World:
    """A world with a journal in segments and frames, snapshots, open work, dead letters, traces, names, seen ids,
    labels, something unread, and large values.
    """
    app = vault.program
    universe = process.universe
    await universe.ensure("friend", app)
    world = await universe.ensure(name, app, labels={"l": f"{SECRET}-label"})
    await world.send(Note(f"{SECRET}-cell-key", f"{SECRET}-event {SECRET}-cell-value"), id=f"{SECRET}-seen")
    body = kit.env.random_bytes(LARGE // 2).hex()
    await world.send(Note("large", f"{SECRET}-large {body}"))
    await world.send(Bad(f"{SECRET}-dead"))
    assert await world.run(vault.talk(f"{SECRET}-arguments"), id="talk")
    await kits.begin(world, vault.wait("x"), id="wait")
    for number in range(12):
        await world.send(Note("k", str(number) * 40))
        if number in (5, 10):
            await world.snapshot()
    await compacting.compact(process, world)
    await until(lambda: any(text.startswith(f"{SECRET}-open") for text in vault.called))
    return world


async def items(engine: kv.Engine, *, ledger: bool = False) -> dict[bytes, bytes]:
    """Every key of the store. `ledger`: with what says by ids that something was erased, and stays."""
    found: dict[bytes, bytes] = {}
    begin = b"\x00"
    while True:
        page = (await engine.read(kv.Range(begin, b"\xff", count_max=5_000, bytes_max=64 * limits.MIB))).page(0)
        found |= dict(page.items)
        if not page.more:
            kept = () if ledger else (ledger_keys.entries()[0], scrub_keyspace.COUNT, scrub_keyspace.LAST)
            return {key: raw for key, raw in found.items() if not key.startswith(kept)}
        begin = page.items[-1][0] + b"\x00"


async def bodies(kit: Kit) -> dict[str, bytes]:
    """Every object."""
    kept = await kit._bodies()
    if kit.in_store_bytes_max:
        return {}
    return {each.name: await kept.get(each.name) for each in await kept.list("", count_max=10_000)}


def parts(data: bytes) -> Iterator[bytes]:
    """Bytes as they are, and what is compressed inside of them."""
    yield data
    start = data.find(_ZSTD)
    while start >= 0:
        with contextlib.suppress(zstandard.ZstdError):  # a delta against something else, or no frame
            yield zstandard.ZstdDecompressor().decompressobj().decompress(data[start:])
        start = data.find(_ZSTD, start + 1)


async def words(kit: Kit, engine: kv.Engine) -> set[str]:
    """Which of the words can be found anywhere."""
    objects = [(name.encode(), body) for name, body in (await bodies(kit)).items()]
    everything = [*(await items(engine, ledger=True)).items(), *objects]
    found = {part for pair in everything for data in pair for part in parts(data)}
    return {word for word in WORDS if any(f"{SECRET}-{word}".encode() in part for part in found)}


async def left(engine: kv.Engine, at: ids.Address) -> list[bytes]:
    """Every key that is about a world, but the two that stay."""
    kept = [world_keys.meta_key(at), lease_keys.epoch_key(at)]
    return [key for key, raw in (await items(engine)).items() if key not in kept and about(at, key, raw)]


def about(at: ids.Address, key: bytes, raw: bytes) -> bool:
    if key.startswith((space.world(at), work_keys.open_work(at)[0])):
        return True
    return bytes(at.world) in key or (raw.endswith(at.world) and key.startswith(space.universe(at.universe)))


def settings(**more: Any) -> Any:
    return compacting.by_hand(**more)
