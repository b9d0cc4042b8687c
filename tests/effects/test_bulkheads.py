"""No kind of effect takes all places of a process: those of others start at once, however many of it wait."""

from __future__ import annotations

import asyncio

import hypothesis
import pytest
from hypothesis import strategies

import worldline as wl
from tests import aio
from tests.kits.kit import Kit
from worldline.base import env as envs
from worldline.effects import claim_room, rate_limit
from worldline.kernel.authoring.calls import Effect
from worldline.model import ids
from worldline.model.settings import AdapterSettings
from worldline.runtime.universes import fair_turns

UNIVERSE = ids.UniverseId(bytes(16))


class Process:
    """The places of a process with so many kinds, none of which has a limit of its own."""

    def __init__(self, settings: AdapterSettings, kinds: int) -> None:
        async def nothing() -> None: ...

        def kind(number: int) -> claim_room.EffectKind:
            effect: Effect[[], None] = Effect(nothing, f"e{number}", {})
            return claim_room.EffectKind(
                f"q{number}", effect, rate_limit.Limit(envs.FixedEnv(), None, None), fair_turns.Shares()
            )

        self.kinds = [kind(number) for number in range(kinds)]
        self.slots: list[list[rate_limit.Slot]] = [[] for _ in self.kinds]
        self.room = claim_room.ClaimRoom(settings, self.kinds, self.busy, many=False)

    def busy(self) -> int:
        return sum(map(len, self.slots))

    def fill(self, kind: int) -> int:
        """Take all places that a kind gets. Returns how many it has then."""
        while self.room.of(self.kinds[kind]):
            self.slots[kind].append(self.room.take(self.kinds[kind], UNIVERSE))
        return len(self.slots[kind])

    def end(self, kind: int, count: int) -> None:
        for _ in range(min(count, len(self.slots[kind]))):
            self.slots[kind].pop().close()


@pytest.mark.parametrize(
    ("concurrency", "reserved", "alone", "second"),
    [(288, 32, 256, 8), (288, 0, 288, 0), (8, 32, 7, 1), (7, 32, 7, 0), (1, 32, 1, 0), (1_000, 32, 968, 8)],
)
def test_a_kind_alone_leaves_what_is_reserved(concurrency: int, reserved: int, alone: int, second: int) -> None:
    process = Process(AdapterSettings(concurrency=concurrency, reserved=reserved), 4)
    assert process.fill(0) == alone
    assert process.fill(1) == second
    assert process.busy() <= concurrency


def test_what_ships_gives_a_kind_alone_as_much_as_before() -> None:
    assert Process(AdapterSettings(), 5).fill(0) == 256


@hypothesis.given(
    kinds=strategies.integers(2, 20),
    concurrency=strategies.integers(8, 300),
    reserved=strategies.integers(1, 64),
    moves=strategies.lists(strategies.tuples(strategies.integers(0, 19), strategies.integers(0, 50)), max_size=30),
)
def test_each_kind_always_has_its_share(
    kinds: int, concurrency: int, reserved: int, moves: list[tuple[int, int]]
) -> None:
    """Whatever the others have taken and given back before: as long as there are not more kinds than places."""
    process = Process(AdapterSettings(concurrency=concurrency, reserved=reserved), kinds)
    share = min(reserved, concurrency // claim_room.RESERVED_PART) // kinds
    for kind, ended in moves:
        process.fill(kind % kinds)
        process.end(kind % kinds, ended)
    for kind in range(kinds):
        assert process.fill(kind) >= share
    assert process.busy() <= concurrency


@pytest.mark.parametrize("near", [True, False], ids=["handed", "queued"])
async def test_another_kind_starts_while_hundreds_of_one_do_not_end(memory_kit: Kit, near: bool) -> None:
    """As many as a process can perform at once, and more in the queue: all before the other kind comes."""
    app, gate = wl.Program("p"), asyncio.Event()

    @app.effect
    async def slow(number: int) -> int:
        await gate.wait()
        return number

    @app.effect
    async def quick() -> str:
        return "done"

    @app.workflow
    async def many() -> int:
        return len(await wl.gather(*(slow(number) for number in range(400))))

    @app.workflow
    async def one() -> str:
        return await quick()

    host = await memory_kit.process(app)
    client = host if near else await memory_kit.process()
    world = await client.universe.ensure("w", app)
    run = await world.start(many(), id="many")

    async def full() -> bool:
        return bool(host.host.effects.running == 256)

    await aio.until(full)
    assert await world.run(one(), timeout=10) == "done"
    assert host.host.effects.running >= 256, "none of them has ended"
    gate.set()
    assert await run.result(60) == 400
    await host.close()
