"""Conservation: accounts in two universes pay each other by message while hosts are killed. No cent is lost or doubled,
at any time: on one store, and between two stores of different kinds.

The option `transfers` is the dose: 5,000 transfers are between 50 accounts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import options
from tests.features.abroad.test_messages_away import placed
from tests.kits import fixtures
from tests.kits import kit as kits
from tests.kits.kit import Kit, Process
from worldline.client import send_door
from worldline.codec import structs
from worldline.kernel import control_commands
from worldline.layers import journal as journals
from worldline.model import inbox, payload

TRANSFERS = options.number("transfers")
ACCOUNTS = max(4, TRANSFERS // 100)
KILLS = max(1, TRANSFERS // 250)
CENTS = 1_000
SECONDS = 60 + TRANSFERS / 5

bank = wl.Program("accounts")


@dataclass(frozen=True)
class Debit:
    id: str
    cents: int


@dataclass(frozen=True)
class Credit:
    id: str
    cents: int


@bank.reducer
@dataclass
class Account:
    cents: int = CENTS
    doubles: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)

    @wl.on
    def debit(self, event: Debit) -> None:
        self.cents -= event.cents
        self.sent[event.id] = event.cents

    @wl.on
    def credit(self, event: Credit) -> None:
        self.cents += event.cents
        self.doubles += event.id in self.received
        self.received[event.id] = event.cents


@bank.workflow
async def pay(id: str, to: str, cents: int) -> None:
    wl.emit(Debit(id, cents))
    await wl.send(to, Credit(id, cents))


class Side:
    """One of the two universes: a client, and a host that is killed now and then."""

    def __init__(self, kit: Kit, universe: str, peers: dict[str, str] | None) -> None:
        self.kit = kit
        self.universe = universe
        self._options: dict[str, Any] = {"universe": universe, "peers": peers}
        self._client: Process | None = None
        self._host: Process | None = None

    @property
    def client(self) -> wl.Universe:
        assert self._client is not None
        return self._client.universe

    async def begin(self) -> None:
        self._client = await self.kit.process(**self._options)
        for number in range(ACCOUNTS // 2):
            await self.client.create(f"account-{number}", bank)
        self._host = await self.kit.process(bank, **self._options)

    async def kill(self) -> None:
        assert self._host is not None
        await self._host.kill()
        await self.kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
        self._host = await self.kit.process(bank, **self._options)

    async def start(self, world: str, call: wl.Call[None], run_id: str) -> None:
        """Durable, and the same run however often it is said."""
        handle = self.client.world(world)._handle
        wanted = control_commands.StartRun(run_id, call.target.name, call.pack(), bytes(16), named=True)
        item = inbox.Control(control_commands.RUN, payload.inline(structs.encode(wanted)))
        await send_door.enqueue(handle.connection, await handle.address(), item, client_id=run_id)

    @property
    def worlds(self) -> list[wl.World]:
        return [self.client.world(f"account-{number}") for number in range(ACCOUNTS // 2)]

    async def close(self) -> None:
        for each in (self._host, self._client):
            if each is not None:
                await each.close()


async def accounts(*sides: Side) -> list[Account]:
    """All accounts of these sides, which share a store, as they were at one moment."""
    worlds = [world for side in sides for world in side.worlds]
    addresses = [await each._handle.address() for each in worlds]
    read = await sides[0].client._connection.store.engine.read(*map(journals.get_head, addresses))
    heights = [journals.decode_head(read.value(index)).height for index in range(len(worlds))]
    return [
        await world.state(Account, at=height) if height else Account()
        for world, height in zip(worlds, heights, strict=True)
    ]


async def look(left: Side, right: Side) -> int:
    """Check that no cent is lost or doubled. Returns how many transfers have arrived.

    What left one account and is in no other is on its way: with that, the sum is what it was. Two stores have no moment
    in common, so there all that was received is looked at first, and what was sent after it.
    """
    if left.kit is right.kit:
        early = late = await accounts(left, right)
    else:
        early = [*await accounts(left), *await accounts(right)]
        late = [*await accounts(left), *await accounts(right)]
    received = _all(each.received for each in early)
    sent = _all(each.sent for each in late)
    assert received.items() <= sent.items()
    for each in (*early, *late):
        assert each.doubles == 0
        assert each.cents == CENTS - sum(each.sent.values()) + sum(each.received.values())
    if early is late:
        on_the_way = sum(cents for name, cents in sent.items() if name not in received)
        assert sum(each.cents for each in early) + on_the_way == len(early) * CENTS
    if len(received) == TRANSFERS:
        assert sum(each.cents for each in late) == len(late) * CENTS
    return len(received)


def _all(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    """All of these together. None is in two of them."""
    whole: dict[str, int] = {}
    for part in parts:
        assert not whole.keys() & part.keys()
        whole |= part
    return whole


async def play(left: Side, right: Side, reach: tuple[str, str], seed: int) -> None:
    draws = random.Random(seed)
    for side in (left, right):
        await side.begin()
    await left.client.allow(right.client.id, worlds="account-*", to="account-*", events="Credit")
    await right.client.allow(left.client.id)
    kills = sorted(draws.sample(range(TRANSFERS), KILLS))
    for number in range(TRANSFERS):
        turn = draws.randrange(2)
        near = draws.random() < 0.2
        there = f"account-{draws.randrange(ACCOUNTS // 2)}"
        here = f"account-{draws.randrange(ACCOUNTS // 2)}"
        to = there if near else f"{reach[turn]}/{there}"
        call = pay(f"t{number}", to, draws.randrange(1, 100))
        await (left, right)[turn].start(here, call, f"t{number}")
        if number in kills:
            await draws.choice((left, right)).kill()
            await look(left, right)
    async with asyncio.timeout(SECONDS):
        while await look(left, right) < TRANSFERS:  # noqa: ASYNC110 - other processes move it on
            await asyncio.sleep(0.1)
    for side in (left, right):
        await side.close()


@pytest.mark.parametrize("engine", ["lmdb", "postgres"])
async def test_between_two_universes_of_one_store(engine: str, tmp_path: Path) -> None:
    kit = fixtures.make(engine, tmp_path)
    await play(Side(kit, "left", None), Side(kit, "right", None), ("right", "left"), seed=1)
    await kit.aclose()


async def test_between_two_stores_of_different_kinds(tmp_path: Path) -> None:
    folder, server = placed("lmdb", tmp_path / "near"), placed("postgres", tmp_path / "far")
    left, right = Side(folder, "left", {"far": server.url}), Side(server, "right", {"near": folder.url})
    await play(left, right, ("far:right", "near:left"), seed=2)
    await folder.aclose()
    await server.aclose()
