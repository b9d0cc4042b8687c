"""The whole store is examined after every single commit of the canonical scenario: each of them leaves it whole."""

from __future__ import annotations

import asyncio

from tests.kits import kit as kits
from tests.kits import scenario
from worldline.api.world_api import World
from worldline.base import errors
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.inspect import doctor
from worldline.layers import inbox as inboxes
from worldline.store import kv


class Examined(kits.Around):
    """Looks through another process's eyes at what each commit has left, before its own process has the answer."""

    def __init__(self, engine: kv.Engine, looking: Connection) -> None:
        super().__init__(engine)
        self._looking = looking
        self._one_at_a_time = asyncio.Lock()
        self.commits = 0
        self.wrong: list[str] = []

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        async with self._one_at_a_time:
            outcomes = await self._engine.commit(*batches)
            self.commits += 1
            self.wrong += [f"commit {self.commits}: {each}" for each in await examine(self._looking)]
        return outcomes


async def examine(connection: Connection) -> list[str]:
    """Journals follow their heads, queues say what journals say, and nothing that is journaled is still unread."""
    report = await doctor.examine(connection, repair=False)
    wrong = [f"{each.world} {each.kind}: {each.what}" for each in report.findings]
    for name in ("bank", "shop"):
        world = Handle(connection, name)
        try:
            at = await world.address()
        except errors.NotFound:
            continue  # made by a later commit
        journaled = {entry.stamp for entry in await kits.entries(World(connection, name)) if entry.stamp}
        page = (await connection.store.engine.read(inboxes.read_range(at, count_max=10_000))).page(0)
        if journaled & {each.stamp for each in inboxes.decode(page.items)}:
            wrong.append(f"{name}: journaled and still unread")
    return wrong


async def test_every_commit_leaves_the_store_whole(memory_kit: kits.Kit) -> None:
    looking = await memory_kit.process()
    for program in scenario.PROGRAMS:
        looking.universe._connection.knows(program)
    made: list[Examined] = []

    def wrap(engine: kv.Engine) -> Examined:
        made.append(Examined(engine, looking.universe._connection))
        return made[-1]

    async with memory_kit.hosting(*scenario.PROGRAMS, wrap=wrap) as universe:
        try:
            await scenario.drive(universe)
        finally:
            assert made[0].wrong == []  # said first: it is why the scenario did not come to its end
    assert made[0].wrong == []
    assert made[0].commits > 30
    await memory_kit.aclose()
