"""One life of flow domains, lived twice, with a process that dies at each commit, and restored at each entry: on every
engine it goes through the same state digests.

The life has an action without effects, one with an effect, an intent that waits for its end, an effect that fails, and
two effects in parallel whose answers come in the other order. What the digests are of is the same in every life: the
order of inputs is made so by `Life`, and the time in snapshots stands still. The chain also covers times, stamps and
ids, which every life has of its own; in the test world it is the same, too (`test_worlds.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

import worldline as wl
from tests import aio, options
from tests.features.domains.shop import Order
from tests.features.domains.test_stored_domains import proved
from tests.kits import fixtures
from tests.kits import kit as kits
from tests.kits.crashing import DEATHS, Crashing, Fate
from tests.kits.fixtures import ENGINES
from tests.kits.kit import Kit
from worldline import flow
from worldline.api.universe_api import Universe
from worldline.base import errors, limits
from worldline.features.domains import calls as domain_calls
from worldline.features.domains.pure import cell_turn, domain_cell
from worldline.flow_core import slots
from worldline.model.journal import Kind
from worldline.runtime import operator_calls
from worldline.store import kv

NEVER = 1 << 30
AT_ONCE = 8  # lives
EVERY_DEATH = options.flag("every_crash")
# No heartbeat counts as a commit of a life. A dead process's lease does not run out here: it is revoked.
SETTINGS = kits.settings(worker={"lease_ttl_ms": 60_000, "heartbeat_ms": 30_000})


class Parcel(flow.Domain):
    grams: int | None = None
    label: str | None = None

    @flow.action
    def pack(self) -> None:
        flow.perform(flow.ask("weigh"), into=self.grams)
        flow.perform(flow.ask("print_label"), into=self.label)


class Life:
    """The program of one life, and what goes on around it. `drive` may be called again and again, in any process."""

    def __init__(self, looking: Universe) -> None:
        """`looking`: a client that outlives the processes which host the world."""
        self.app = app = wl.Program("shop")
        self._seen = looking.world("w")
        tried = wl.Retry(attempts=5)  # an attempt whose process dies counts

        @app.effect(retry=tried)
        async def charge(card: str, cents: int) -> str:
            if card == "stolen":
                raise wl.Fatal("the card is blocked", code="declined")
            await aio.until(self._both_fills)  # so the second one has come, and waits
            return f"{cents} from {card}"

        @app.effect(retry=tried)
        async def weigh() -> int:
            await aio.until(self._label_first)
            return 350

        @app.effect(retry=tried)
        async def print_label() -> str:
            return "label 1"

        app.domain(keyed=True, name="Order")(Order)
        app.domain(name="Parcel", effects="parallel")(Parcel)

    async def drive(self, universe: Universe) -> list[bytes]:
        """The whole life. Returns the state digests it went through."""
        world = await universe.ensure("w", self.app)
        await world.act(Order.fill(5), key="a", id="fill", timeout=60)
        async with asyncio.TaskGroup() as together:
            paying = together.create_task(world.act(Order.pay("tok"), key="a", id="pay", timeout=60))
            await aio.until(self._charge_asked_for)
            filling = together.create_task(world.act(Order.fill(9), key="a", id="later", timeout=60))
        assert (paying.result().state.receipt, filling.result().state.cents) == ("5 from tok", 9)
        await world.act(Order.fill(7), key="b", id="fill", timeout=60)
        failed = await world.act(Order.pay("stolen"), key="b", id="pay", timeout=60)
        assert failed.state.refused == flow.Error("declined", "the card is blocked")
        packed = await world.act(Parcel.pack(), id="pack", timeout=60)
        assert (packed.state.grams, packed.state.label) == (350, "label 1")
        entries = await kits.entries(world)
        assert [each.kind for each in entries].count(Kind.EFFECT_REQUESTED) == 4
        return list(dict.fromkeys(each.state for each in entries if each.state))

    async def _charge_asked_for(self) -> bool:
        return Kind.EFFECT_REQUESTED in await kits.kinds(self._seen)

    async def _both_fills(self) -> bool:
        inputs = [kits.item(each) for each in await kits.entries(self._seen) if each.kind is Kind.EVENT]
        return [getattr(each, "schema", "") for each in inputs].count("Order.fill") >= 2

    async def _label_first(self) -> bool:
        head = await domain_calls.snapshot_at(self._seen._handle, Parcel, "", at=None)
        return head.data["label"] is not None or any("early" in each for each in slots.every(head).values())


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time in snapshots stands still: it is part of what the digests are of."""
    monkeypatch.setattr(cell_turn.CellTurn, "_now", 1_000)


async def lived(kit: Kit, at: int = NEVER, fate: Fate = Fate.DIES_AFTER) -> tuple[Crashing, list[bytes]]:
    """A life whose process dies at this commit, if it gets there; then another one goes on."""
    looking = await kit.process()
    life, made = Life(looking.universe), list[Crashing]()

    def wrap(engine: kv.Engine) -> Crashing:
        made.append(Crashing(engine, at, fate))
        return made[-1]

    process = await kit.process(life.app, wrap=wrap, settings=SETTINGS)
    [engine] = made
    driving = asyncio.ensure_future(life.drive(process.universe))
    dying = asyncio.ensure_future(engine.dead.wait())
    await asyncio.wait([driving, dying], return_when=asyncio.FIRST_COMPLETED)
    dying.cancel()
    if not engine.dead.is_set():
        digests = await driving
        with contextlib.suppress(errors.StoreUnavailable):  # it may die of its last commits
            await process.close()
        if not engine.dead.is_set():
            return engine, digests
    driving.cancel()
    await asyncio.gather(driving, return_exceptions=True)
    await process.kill()
    with contextlib.suppress(errors.NotFound):  # it has made no world yet
        at_ = await looking.universe.world("w")._handle.address()
        await operator_calls.revoke_lease(looking.engine, kit.env, at_)
    async with kit.hosting(life.app, settings=SETTINGS) as universe:
        return engine, await life.drive(universe)


async def checked(engine: str, folder: Path, at: int, fate: Fate, expected: Sequence[bytes]) -> bool:
    """One life with a death: its digests are those that are expected, and it is proved without its program. False if
    it ended before the death.
    """
    kit = fixtures.make(engine, folder / f"{at}-{fate.name}")
    (folder / f"{at}-{fate.name}").mkdir()
    try:
        crashing, digests = await lived(kit, at, fate)
        assert digests == expected, f"commit {at}: {fate.value}"
        assert (await proved(kit, "w")).holds
    finally:
        await kit.aclose()
    return crashing.dead.is_set()


async def twin(folder: Path) -> list[bytes]:
    """The digests of a life in which nothing goes wrong."""
    kit = fixtures.make("memory", folder)
    try:
        return (await lived(kit))[1]
    finally:
        await kit.aclose()


def fates(engine: str, at: int) -> tuple[Fate, ...]:
    """Both in memory. In a real store, turn about: what is there after one death is there before the next."""
    return DEATHS if engine == "memory" or EVERY_DEATH else (DEATHS[at % 2],)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_death_at_any_commit_changes_no_digest(engine: str, tmp_path: Path) -> None:
    expected = await twin(tmp_path)
    numbers = itertools.count(1)
    while True:
        part = [(at, fate) for at in itertools.islice(numbers, AT_ONCE) for fate in fates(engine, at)]
        died = await asyncio.gather(*(checked(engine, tmp_path, at, fate, expected) for at, fate in part))
        if not all(died):
            break
    assert next(numbers) > 16


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_restore_at_any_entry_has_the_digest_of_its_step(engine: str, tmp_path: Path) -> None:
    kit = fixtures.make(engine, tmp_path)
    assert (await lived(kit))[1] == await twin(tmp_path / "twin")
    async with kit.hosting() as client:
        world = client.world("w")
        expected = bytes(limits.DIGEST_BYTES)
        for entry in await kits.entries(world):
            expected = entry.state or expected
            machine, head = await world._handle.machine_and_head(at=entry.height)
            assert (machine.state, head.state) == (expected, expected), entry.height
            for cell in machine.cells.values():
                assert domain_cell.encode(*domain_cell.decode(cell.data), None) == cell.data
            machine.close()
    await kit.aclose()
