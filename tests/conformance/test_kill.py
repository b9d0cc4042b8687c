"""kill -9 at random instants of a process that writes: every acked write is there, nothing is torn.

Each round forks a writer (`killed_writer`), kills it, opens the store again and looks at all of it. The store is the
same one in every round, and goes on growing. The option `kill_rounds` asks for more rounds,
`kill_seed` for other instants.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import options
from tests.conformance import batches, killed_writer, kits
from tests.conformance.killed_writer import Chain, Life, Maker

ROUNDS = options.number("kill_rounds")
SEED = options.number("kill_seed")


@pytest.fixture
def maker() -> Iterator[Maker]:
    made = Maker()
    yield made
    made.close()


class Campaign:
    """One store, and what is known of it."""

    def __init__(self, maker: Maker, place: kits.Place) -> None:
        self.acks = 0
        self.lost_acks = 0
        self._maker = maker
        self._place = place
        self._known = {chain: Chain() for chain in killed_writer.CHAINS}

    def round(self, runner: asyncio.Runner, *, since: str, delay_us: int) -> None:
        life = self._maker.live(self._place, since=since, delay_us=delay_us)
        before = {chain: state.n for chain, state in self._known.items()}
        runner.run(self._look())
        for chain, state in self._known.items():
            self._compare(chain, before[chain], state.n, life)
        self.acks += life.acks

    def check_everything(self, runner: asyncio.Runner) -> None:
        """From the first log item on, and that the store can still be written."""
        found = {chain: state.n for chain, state in self._known.items()}
        self._known = {chain: Chain() for chain in killed_writer.CHAINS}
        runner.run(self._look(write=True))
        assert {chain: state.n for chain, state in self._known.items()} == {0: found.pop(0) + 1, **found}

    def _compare(self, chain: int, before: int, now: int, life: Life) -> None:
        """What was acked is there; of what was not, at most the one step under way."""
        acked = max(before, life.started.get(chain, 0), life.acked.get(chain, 0))
        assert now >= acked, f"chain {chain}: step {acked} was acked or seen, but the store is at {now}"
        assert now <= acked + 1, f"chain {chain}: the store is at {now}, but nobody went beyond {acked + 1}"
        self.lost_acks += now - acked

    async def _look(self, *, write: bool = False) -> None:
        engine = await kits.open_place(self._place, create=True, map_bytes=killed_writer.MAP_BYTES)
        try:
            if write:
                head = await batches.get(engine, killed_writer.head_key(0))
                n = 0 if head is None else int.from_bytes(head[:8], "big")
                await batches.ok(engine, killed_writer.step(0, n + 1, head))
            await killed_writer.check(engine, self._known)
        finally:
            await engine.close()


def _instants(count: int, *, most_us: int) -> Iterator[tuple[str, int]]:
    """Mostly while it writes; now and then while it opens the store."""
    choose = random.Random(SEED)
    for _ in range(count):
        yield ("fork" if choose.random() < 0.15 else "ready"), choose.randrange(most_us)


def test_an_embedded_writer_is_killed(maker: Maker, tmp_path: Path) -> None:
    campaign = Campaign(maker, kits.Place("lmdb", str(tmp_path / "store")))
    with asyncio.Runner() as runner:
        for since, delay_us in _instants(ROUNDS, most_us=50_000):
            campaign.round(runner, since=since, delay_us=delay_us)
        campaign.check_everything(runner)
    assert campaign.acks > 2 * ROUNDS, "hardly anything was written, so this proved nothing"
    assert campaign.lost_acks > ROUNDS // 20, "no kill ever met a commit under way"


def test_an_embedded_writer_of_sealed_values_is_killed(maker: Maker, tmp_path: Path) -> None:
    campaign = Campaign(maker, kits.Place("sealed-lmdb", str(tmp_path / "store")))
    rounds = max(30, ROUNDS // 10)
    with asyncio.Runner() as runner:
        for since, delay_us in _instants(rounds, most_us=50_000):
            campaign.round(runner, since=since, delay_us=delay_us)
        campaign.check_everything(runner)
    assert campaign.acks > 2 * rounds, "hardly anything was written, so this proved nothing"


def test_an_embedded_writer_is_killed_while_it_makes_the_store(maker: Maker, tmp_path: Path) -> None:
    choose = random.Random(SEED)
    with asyncio.Runner() as runner:
        for number in range(max(20, ROUNDS // 10)):
            campaign = Campaign(maker, kits.Place("lmdb", str(tmp_path / str(number))))
            campaign.round(runner, since="fork", delay_us=choose.randrange(20_000))
            campaign.check_everything(runner)


def test_a_client_of_a_server_is_killed(maker: Maker, postgres_place: kits.Place) -> None:
    campaign = Campaign(maker, postgres_place)
    rounds = max(30, ROUNDS // 10)
    with asyncio.Runner() as runner:
        for since, delay_us in _instants(rounds, most_us=80_000):
            campaign.round(runner, since=since, delay_us=delay_us)
        campaign.check_everything(runner)
    assert campaign.acks > 2 * rounds, "hardly anything was written, so this proved nothing"
