"""Messages to worlds of other universes: one item whatever happens, only where it is allowed, answers included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import worldline as wl
from tests.keys import samples
from tests.kits import fixtures
from tests.kits import kit as kits
from tests.kits.crashing import Crashing, Fate
from tests.kits.kit import Kit
from worldline.base import errors
from worldline.client import world_changes as changes
from worldline.features.abroad import delivery_effects
from worldline.features.quotas import job as quota_job
from worldline.inspect import doctor
from worldline.kernel.authoring import message_calls
from worldline.keys import space
from worldline.keys import work as work_keys
from worldline.layers import work as works
from worldline.model import ids
from worldline.model.inbox import Message, ReceiptStatus
from worldline.model.journal import Kind
from worldline.model.settings import PressureSettings
from worldline.model.work import WorkState
from worldline.store import kv, transact

PRESSURE = PressureSettings()


@dataclass(frozen=True)
class Note:
    text: str


@dataclass(frozen=True)
class Count(wl.Request[int]):
    pass


@dataclass(frozen=True)
class Deny(wl.Request[int]):
    pass


sender = wl.Program("sender")
keeper = wl.Program("keeper")


@keeper.reducer()
@dataclass
class Notes:
    texts: list[str] = field(default_factory=list)
    senders: list[str] = field(default_factory=list)

    @wl.on
    def note(self, event: Note) -> None:
        who = wl.sender()
        assert who is not None
        self.texts.append(event.text)
        self.senders.append(f"{who.universe}/{who.world} {who.headers} {who.correlation}")

    @wl.on
    def count(self, event: Count) -> int:
        return len(self.texts)

    @wl.on
    def deny(self, event: Deny) -> int:
        raise wl.Refused("not today")

    @wl.on(inbox="post")
    def post(self, event: str) -> None:
        self.texts.append(f"post {event}")


@sender.workflow
async def send(to: str, texts: list[str]) -> int:
    for text in texts:
        await wl.send(to, Note(text))
    return await wl.ask(to, Count())


@sender.workflow
async def once(to: str, text: str) -> str:
    try:
        receipt = await wl.send(to, Note(text), headers={"h": "1"}, correlation="c")
    except wl.Undeliverable as error:
        return f"{error.code}: {error}"
    return receipt.stamp


@sender.workflow
async def post(to: str, text: str) -> str:
    return (await wl.send(to, text, inbox="post")).stamp


@sender.workflow
async def asks(to: str) -> str:
    try:
        return str(await wl.ask(to, Deny()))
    except wl.Refused as error:
        return f"refused: {error}"
    except wl.Undeliverable as error:
        return error.code


@sender.workflow
async def in_time(to: str, seconds: float) -> str:
    try:
        return str(await wl.ask(to, Count(), timeout=seconds))
    except TimeoutError:
        return "no answer in time"


@asynccontextmanager
async def two(kit: Kit, **options: Any) -> AsyncIterator[tuple[wl.Universe, wl.Universe]]:
    """Two universes of one store, the second of which takes all messages of the first."""
    async with kit.hosting(sender, **options) as here, kit.hosting(keeper, universe="shop") as there:
        await there.allow("default")
        await here.ensure("sender", sender)
        await there.ensure("keeper", keeper)
        yield here, there


async def notes(universe: wl.Universe) -> Notes:
    await universe.world("keeper").ask(Count())  # behind what is in its inbox
    return await universe.world("keeper").state(Notes)


async def test_messages_and_answers_between_universes(kit: Kit) -> None:
    async with two(kit) as (here, there):
        world = here.world("sender")
        assert await kits.run(world, send("shop/keeper", ["a", "b"]), id="r") == 2
        stamp = await kits.run(world, once("shop/keeper", "c"), id="o")
        assert await kits.run(world, asks("shop/keeper"), id="d") == "refused: not today"
        found = await notes(there)
        assert found.texts == ["a", "b", "c"]
        assert found.senders[2] == "default/sender {'h': '1'} c"
        entries = await kits.entries(there.world("keeper"))
        assert stamp in [each.stamp.hex() for each in entries if each.kind is Kind.MESSAGE]
        await kits.run(world, post("shop/keeper", "hello"), id="p")
        assert (await notes(there)).texts[-1] == "post hello"
        await kits.prove(world, sender)
        await kits.prove(there.world("keeper"), keeper)


async def test_a_large_message_and_its_large_store(memory_kit: Kit) -> None:
    async with two(memory_kit) as (here, there):
        large = "x" * 100_000
        assert await kits.run(here.world("sender"), send("shop/keeper", [large]), id="r") == 1
        assert (await notes(there)).texts == [large]


async def test_the_own_universe_by_its_name_needs_no_grant(memory_kit: Kit) -> None:
    async with memory_kit.hosting(sender, keeper) as here:
        await here.ensure("sender", sender)
        await here.ensure("keeper", keeper)
        await here.ensure("team/keeper", keeper)
        world = here.world("sender")
        assert await kits.run(world, send("default/keeper", ["a"]), id="r") == 1
        assert await kits.run(world, send("/team/keeper", ["a"]), id="s") == 1
        assert await here.allowed() == []
        with pytest.raises(wl.BadInput, match="name another universe"):
            await here.allow("default")


# --- Who may send ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grant", "taken"),
    [
        ({}, True),
        ({"worlds": "sender"}, True),
        ({"worlds": "sen*", "to": "keep*", "events": "Note"}, True),
        ({"worlds": "other"}, False),
        ({"to": "other*"}, False),
        ({"events": "Paid"}, False),
        ({"events": "inbox:*"}, False),
        (None, False),
    ],
)
async def test_what_is_not_allowed_is_refused_and_changes_nothing(
    grant: dict[str, str] | None, taken: bool, memory_kit: Kit
) -> None:
    async with memory_kit.hosting(sender) as here, memory_kit.hosting(keeper, universe="shop") as there:
        world = await here.ensure("sender", sender)
        keeper_world = await there.ensure("keeper", keeper)
        if grant is not None:
            assert await there.allow("default", **grant)
            assert not await there.allow("default", **grant)
        before = await keeper_world.head()
        said = await kits.run(world, once("shop/keeper", "x"), id="r")
        if taken:
            assert (await notes(there)).texts == ["x"]
        else:
            assert said.startswith("not_allowed: ")
            assert "may not send Note there" in said
            # Whether there is such a world is not said to a sender that may not send to it.
            assert (await kits.run(world, once("shop/nobody", "x"), id="h")).replace("nobody", "keeper") == said
            assert await keeper_world.head() == before
            assert await kits.unread(await memory_kit.engine(), await keeper_world._handle.address()) == 0


async def test_who_may_not_send_stores_nothing_there(memory_kit: Kit) -> None:
    """Also not the contents of a large message, which are stored before the message that refers to them."""
    async with memory_kit.hosting(sender) as here:
        client = await memory_kit.process(universe="shop")
        await client.universe.create("keeper", keeper)
        world = await here.ensure("sender", sender)
        engine, prefix = await memory_kit.engine(), space.universe(client.universe._connection.id)
        everything = kv.Range(prefix, prefix + b"\xff", count_max=10_000)
        before = (await engine.read(everything)).page(0).items
        assert (await kits.run(world, once("shop/keeper", "x" * 100_000), id="r")).startswith("not_allowed")
        assert (await engine.read(everything)).page(0).items == before
        await client.close()


async def test_a_universe_over_its_quota_takes_no_messages_from_others(memory_kit: Kit) -> None:
    """For that universe they come from outside. Its own worlds still send to each other."""
    async with memory_kit.hosting(sender) as here:
        client = await memory_kit.process(universe="shop")
        there = client.universe
        await there.create("keeper", keeper)
        await there.allow("default")
        await there.set_quota(bytes=1)
        store = there._connection.store
        await quota_job.count_now(store.engine, store.env, there._connection.id)
        world = await here.ensure("sender", sender)
        engine, prefix = await memory_kit.engine(), space.universe(there._connection.id)
        everything = kv.Range(prefix, prefix + b"\xff", count_max=10_000)
        before = (await engine.read(everything)).page(0).items
        said = await kits.run(world, once("shop/keeper", "x" * 100_000), id="r")
        assert said.startswith("quota_exceeded: ")
        assert "over its quota of bytes" in said
        assert (await engine.read(everything)).page(0).items == before
        await there.set_quota(bytes=None)
        assert not (await kits.run(world, once("shop/keeper", "y"), id="s")).startswith("quota_exceeded")
        await client.close()


async def test_a_grant_that_is_taken_back_stops_what_is_not_in_an_inbox_yet(memory_kit: Kit) -> None:
    """The batch that enqueues expects the grant: taken back between the read and the commit, it does not hold."""
    denied = asyncio.Event()

    class DenyFirst(kits.Around):
        async def commit(self, *batches: Any) -> Any:
            if not denied.is_set() and any(
                isinstance(kits.item_of(each.value), Message) for batch in batches for each in batch.appends
            ):
                denied.set()
                assert await there.deny("default")
            return await self._engine.commit(*batches)

    async with memory_kit.hosting(sender, wrap=DenyFirst) as here, memory_kit.hosting(keeper, universe="shop") as there:
        await there.allow("default")
        world = await here.ensure("sender", sender)
        await there.ensure("keeper", keeper)
        assert (await kits.run(world, once("shop/keeper", "x"), id="r")).startswith("not_allowed")
        assert denied.is_set()
        assert (await notes(there)).texts == []


async def test_changes_of_grants_are_kept(kit: Kit) -> None:
    async with kit.hosting(keeper, universe="shop") as there, kit.hosting(sender) as here:
        assert await there.allow("default", to="keeper")
        assert await there.allow(here.id, events="Note")
        assert [each.events for each in await there.deny("default", to="keeper")] == ["*"]
        assert await there.deny("default", to="nothing") == []
        assert [(each.universe, each.events) for each in await there.allowed()] == [(here.id, "Note")]
        changes = await there.allowed_changes()
        assert [(each.change, each.allowed) for each in changes] == [(3, False), (2, True), (1, True)]
        assert changes[0].what[0].to == "keeper"
        assert changes[0].time_us >= changes[2].time_us > 0
        assert await here.allowed() == []
        with pytest.raises(wl.NotFound, match="no universe 'nowhere'"):
            await there.allow("nowhere")
        for bad in ({"worlds": "a*b"}, {"to": ""}, {"events": "**"}):
            with pytest.raises(wl.BadInput):
                await there.allow("default", **bad)


async def test_no_such_universe_world_or_peer(memory_kit: Kit) -> None:
    async with two(memory_kit) as (here, there):
        world = here.world("sender")
        told = [
            await kits.run(world, once(to, "x"), id=to)
            for to in ("nowhere/keeper", "shop/nobody", "billing:shop/keeper")
        ]
        assert all(each.startswith("undeliverable: ") for each in told)
        assert "no universe 'nowhere'" in told[0]
        assert "no such world" in told[1]
        assert "no peer 'billing'" in told[2]
        await there.world("keeper").archive()
        assert "is archived" in await kits.run(world, once("shop/keeper", "x"), id="a")
        assert await kits.run(world, asks("shop/keeper"), id="q") == "undeliverable"


# --- Once --------------------------------------------------------------------------------------------------------


async def story(here: wl.Universe, there: wl.Universe) -> None:
    world = here.world("sender")
    assert await kits.run(world, send("shop/keeper", ["a", "b"]), id="r") == 2
    assert (await notes(there)).texts == ["a", "b"]


@pytest.mark.parametrize("fate", Fate, ids=lambda fate: fate.name.lower())
async def test_once_whatever_happens_to_a_commit_of_the_sender(fate: Fate, tmp_path: Path) -> None:
    at, stride = 1, 3
    while await crashed(fixtures.make("memory", tmp_path / str(at)), at, fate):
        at += stride
    assert at > 10


async def crashed(kit: Kit, at: int, fate: Fate) -> bool:
    made: list[Crashing] = []

    def wrap(engine: Any) -> Crashing:
        made.append(Crashing(engine, at, fate))
        return made[-1]

    async with kit.hosting(keeper, universe="shop") as there:
        client = await kit.process()
        await there.allow("default")
        await there.ensure("keeper", keeper)
        await client.universe.ensure("sender", sender)
        process = await kit.process(sender, wrap=wrap)
        [engine] = made
        telling = asyncio.ensure_future(story(process.universe, there))
        dying = asyncio.ensure_future(engine.dead.wait())
        await asyncio.wait([telling, dying], return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        await process.kill()
        await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
        async with kit.hosting(sender) as here:
            await story(here, there)
            await kits.prove(here.world("sender"), sender)
            await kits.prove(there.world("keeper"), keeper)
        await client.close()
    await kit.aclose()
    return engine.met


async def test_a_repeat_finds_the_first_stamp_also_under_another_name_and_without_a_grant(memory_kit: Kit) -> None:
    async with two(memory_kit) as (here, there):
        carrier = delivery_effects.Carrier(here._connection.peers, memory_kit.env, window_us=10**9, pressure=PRESSURE)
        opened = await claimed(memory_kit, here)
        content = message_calls.Content("Note", b"\xa1dtextaz")
        first = await carrier.send(opened, "shop/keeper", content, ask=False)
        await there.deny("default")
        await changes.rename(here._connection, opened.at, "renamed")
        again = await carrier.send(opened, "shop/keeper", content, ask=False)
        assert again == [first[0], first[1], True]
        other = message_calls.Content("Note", b"\xa1dtexta!")
        with pytest.raises(wl.errors.IdReused):
            await carrier.send(opened, "shop/keeper", other, ask=False)


async def claimed(kit: Kit, here: wl.Universe) -> works.Open:
    """A claim as an adapter has it."""
    at = await here.world("sender")._handle.address()
    found = works.Open(at, ids.IntentId(b"i" * 16), replace(samples.WORK, opened_us=kit.env.wall_us()), b"")
    await stored(here, found, None)
    return found


async def stored(here: wl.Universe, found: works.Open, before: works.Open | None) -> None:
    key = work_keys.open_key(found.at, found.intent)
    batch = kv.Batch()
    if before is None:
        batch.absent(key)
    else:
        batch.expect(key, work_keys.WORK.pack(before.work))
    batch.put(key, work_keys.WORK.pack(found.work))
    assert isinstance((await here._connection.store.engine.commit(batch))[0], kv.Ok)


@pytest.mark.probe("deliver.claim-lost")
async def test_an_attempt_whose_claim_was_taken_over_delivers_nothing(memory_kit: Kit) -> None:
    """The other one may have told the sender that it was refused (simulator, seed 218: refused, and it came)."""
    async with two(memory_kit) as (here, there):
        carrier = delivery_effects.Carrier(here._connection.peers, memory_kit.env, window_us=10**9, pressure=PRESSURE)
        opened = await claimed(memory_kit, here)
        await stored(here, works.Open(opened.at, opened.intent, replace(opened.work, token=b"t" * 16), b""), opened)
        with pytest.raises(errors.Conflicted, match="taken over by another attempt"):
            await carrier.send(opened, "shop/keeper", message_calls.Content("Note", b"\xa1dtextaz"), ask=False)
        assert (await notes(there)).texts == []


async def test_a_message_that_is_too_old_is_refused(memory_kit: Kit) -> None:
    async with two(memory_kit) as (here, there):
        carrier = delivery_effects.Carrier(
            here._connection.peers, memory_kit.env, window_us=20_000_000, pressure=PRESSURE
        )
        opened = await claimed(memory_kit, here)
        for seconds in (11, -22):
            memory_kit.env.ahead_us += seconds * 1_000_000
            with pytest.raises(wl.Fatal, match="on its way for so long") as caught:
                await carrier.send(opened, "shop/keeper", message_calls.Content("Note", b"\xa1dtextaz"), ask=False)
            assert caught.value.code == "expired"
        assert (await notes(there)).texts == []


# --- Answers -----------------------------------------------------------------------------------------------------


async def test_an_answer_settles_the_question_that_was_put_to_that_world_alone(memory_kit: Kit) -> None:
    async with memory_kit.hosting(sender) as here:
        client = await memory_kit.process(universe="shop")
        there = client.universe
        await there.allow("default")
        await there.ensure("keeper", keeper)
        world = await here.ensure("sender", sender)
        run = await world.start(in_time("shop/keeper", 600), id="q")
        engine = await memory_kit.engine()
        at = await world._handle.address()
        opened = await sent(engine, at)
        carrier = delivery_effects.Carrier(here._connection.peers, memory_kit.env, window_us=10**9, pressure=PRESSURE)
        keeper_at = await there.world("keeper")._handle.address()

        def by(universe: bytes, world: bytes) -> works.Open:
            address = ids.Address(ids.UniverseId(universe), ids.WorldId(world))
            return works.Open(address, ids.IntentId(b"r" * 16), opened.work, b"")

        ok = ReceiptStatus.OK
        for stranger in (by(at.universe, keeper_at.world), by(keeper_at.universe, at.world)):
            with pytest.raises(wl.Fatal, match="was not put to this world"):
                await carrier.reply(stranger, at, opened.intent, ok, b"\x18\x2a")
        right = by(keeper_at.universe, keeper_at.world)
        assert await carrier.reply(right, at, opened.intent, ok, b"\x18\x2a")
        assert await run.result(30) == "42"
        assert not await carrier.reply(right, at, opened.intent, ok, b"\x18\x2b")  # once
        await client.close()


async def sent(engine: kv.Engine, at: ids.Address) -> works.Open:
    """The question, once it is in the other universe's inbox."""
    for _ in range(1_000):
        for each in await kits.opened(engine, at):
            if each.work.state is WorkState.SENT:
                return each
        await asyncio.sleep(0.01)
    raise AssertionError("the question was not sent")


async def test_time_runs_out_and_the_late_answer_changes_nothing(memory_kit: Kit) -> None:
    async with memory_kit.hosting(sender) as here:
        client = await memory_kit.process(universe="shop")
        await client.universe.allow("default")
        await client.universe.ensure("keeper", keeper)
        world = await here.ensure("sender", sender)
        assert await kits.run(world, in_time("shop/keeper", 0.2), id="q") == "no answer in time"
        head = await world.head()
        async with memory_kit.hosting(keeper, universe="shop") as there:
            for _ in range(1_000):
                if Kind.EFFECT_RESULT in await kits.kinds(there.world("keeper")):
                    break
                await asyncio.sleep(0.01)
            await kits.prove(there.world("keeper"), keeper)
        assert await world.head() == head
        await client.close()


async def test_a_question_that_was_sent_is_derived_like_all_open_work(memory_kit: Kit) -> None:
    """Its record deleted, it is found missing, written anew and sent again, which finds the first stamp."""
    tools = await memory_kit.process()
    client = await memory_kit.process(universe="shop")
    await client.universe.allow("default")
    await client.universe.ensure("keeper", keeper)
    engine = await memory_kit.engine()
    async with memory_kit.hosting(sender) as here:
        world = await here.ensure("sender", sender)
        await kits.begin(world, in_time("shop/keeper", 600), id="q")
        at = await world._handle.address()
        opened = await sent(engine, at)
        assert not (await doctor.examine(here._connection, repair=False)).findings
    batch = kv.Batch()
    works.close_gone(batch, opened)
    await transact.commit(engine, memory_kit.env, batch)
    tools.universe._connection.knows(sender)
    assert len((await doctor.examine(tools.universe._connection, repair=True)).findings) == 1
    async with memory_kit.hosting(sender) as here:
        assert (await sent(engine, at)).intent == opened.intent
        async with memory_kit.hosting(keeper, universe="shop") as there:
            assert await (await here.world("sender").attach("q")).result(30) == "0"
            assert (await kits.kinds(there.world("keeper"))).count(Kind.MESSAGE) == 1
    await tools.close()
    await client.close()


def placed(engine: str, folder: Path) -> Kit:
    """A store that others can open by its URL: with objects beside it, if it is a folder."""
    if engine == "lmdb":
        (folder / "store" / "objects").mkdir(parents=True)
    return fixtures.make(engine, folder)


# --- Other stores ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("near", "far"), [("lmdb", "postgres"), ("postgres", "lmdb"), ("lmdb", "lmdb")])
async def test_messages_between_two_stores(near: str, far: str, tmp_path: Path) -> None:
    one, other = placed(near, tmp_path / "near"), placed(far, tmp_path / "far")
    async with (
        one.hosting(sender, peers={"far": other.url}) as here,
        other.hosting(keeper, universe="shop", peers={"near": one.url}) as there,
    ):
        await there.allow(here.id)
        world = await here.ensure("sender", sender)
        await there.ensure("keeper", keeper)
        assert await kits.run(world, send("far:shop/keeper", ["a", "b"]), id="r") == 2
        assert (await notes(there)).texts == ["a", "b"]
        await there.deny("near:default")
        assert "not_allowed" in await kits.run(world, once("far:shop/keeper", "x"), id="n")
    await one.aclose()
    await other.aclose()


async def test_a_peer_that_is_down_is_tried_again(tmp_path: Path) -> None:
    one, other = placed("lmdb", tmp_path / "near"), placed("lmdb", tmp_path / "far")
    async with one.hosting(sender, peers={"far": other.url}) as here:
        world = await here.ensure("sender", sender)
        run = await world.start(once("far:shop/keeper", "x"), id="r")
        engine, at = await one.engine(), await world._handle.address()
        for _ in range(1_000):
            if any(each.work.error for each in await kits.opened(engine, at)):
                break
            await asyncio.sleep(0.01)
        async with other.hosting(keeper, universe="shop") as there:
            await there.allow(here.id)
            await there.ensure("keeper", keeper)
            assert len(await run.result(30)) == 24
            assert (await notes(there)).texts == ["x"]
    await one.aclose()
    await other.aclose()
