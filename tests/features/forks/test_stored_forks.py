"""Forks: a world goes on as two, whatever was open in it, and neither reaches into the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.features.forks.everything_open import Added, Balance
from tests.features.forks.forking import SECONDS, Shop, check, own, result, until
from tests.kits.kit import Kit
from worldline import testing
from worldline.base import errors
from worldline.client.world_handle import Handle
from worldline.effects import parking
from worldline.inspect import journal_export, store_queries
from worldline.kernel.part_inputs import FORKED, ForkBeginning
from worldline.keys import lineage as lineage_keys
from worldline.layers import snapshots as snapshot_layer
from worldline.model.journal import Kind
from worldline.model.world_records import ForkPolicy
from worldline.store import kv


async def test_each_policy_gives_open_effects_their_fate(kit: Kit) -> None:
    shop = Shop()
    async with kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        await world.send(Added(5))
        _ = await world.start(shop.buy("a"), id="r")
        await until(lambda: shop.calls)
        script = [{"effect": "charge", "arguments": {"order": "a"}, "answer": "scripted"}]
        dropped = await world.fork("dropped")
        shared = await world.fork("shared", effects="share")
        scripted = await world.fork("scripted", effects="script", script=script)
        other = [{"effect": "charge", "arguments": {"order": "b"}, "answer": ""}]
        unmatched = await world.fork("unmatched", effects="script", script=other)
        reissued = await world.fork("reissued", effects="reissue")
        again = await world.fork("again", effects="reissue", script=script)
        live = await world.fork("live", effects="reissue", live=True)
        for each in (dropped, unmatched):
            with pytest.raises(wl.RunFailed, match="was open when this world was forked from 'alice'"):
                await result(each, "r")
        assert (await result(scripted, "r"))[0] == "scripted"
        assert (await result(again, "r"))[0] == "scripted"
        await until(lambda: len(shop.calls) == 2)  # of the live one
        shop.gate.set()
        mine = await result(world, "r")
        assert mine[0] == "paid a"
        assert await result(shared, "r") == mine
        assert (await result(live, "r"))[0] == "paid a"
        assert Kind.EFFECT_RESULT not in await own(dropped)
        assert Kind.EFFECT_RESULT not in await own(reissued)
        # A dry fork draws what its parent draws; a live one something of its own from the fork on.
        assert (await result(scripted, "r"))[1:] == mine[1:]
        drawn = await result(live, "r")
        assert drawn[1] == mine[1]
        assert drawn[2] != mine[2]
        assert len(shop.calls) == 2
        assert len({key for _, key in shop.calls}) == 2, "no call of a fork is taken for one of its parent"
        await check(universe, "alice", "dropped", "shared", "scripted", "unmatched", "reissued", "again", "live")


async def test_the_parent_is_the_same_with_and_without_forks(memory_kit: Kit) -> None:
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        await world.send(Added(5))
        before = await world.head()
        fork = await world.fork("fork")
        await fork.ask(Balance())
        await fork.send(Added(1))
        assert await world.head() == before
        assert (await fork.state(shop.Till)).cents == 6
        assert (await world.state(shop.Till)).cents == 5


async def test_everything_else_that_is_open_goes_on(kit: Kit) -> None:
    shop = Shop()
    async with kit.hosting(shop.program) as universe:
        bank = await universe.ensure("bank", shop.program)
        await bank.pause()
        world = await universe.ensure("alice", shop.program)
        _ = await world.start(shop.parent(), id="parent")
        _ = await world.start(shop.asks(), id="asks")
        _ = await world.start(shop.waits(), id="waits")
        forks = {effects: await world.fork(effects, effects=effects) for effects in ("drop", "reissue", "share")}
        scripted = await world.fork(
            "script", effects="script", script=[{"ask": "bank", "arguments": {"event": "Balance"}, "answer": 7}]
        )
        live = await world.fork("live", effects="reissue", live=True)
        await bank.resume()
        for each in (*forks.values(), scripted, live, world):
            assert await result(each, "parent") == "child slept"  # the timer was set again
            await each.send(Added(3))
            assert await result(each, "waits") == 3
        with pytest.raises(wl.RunFailed, match="was open when"):
            await result(forks["drop"], "asks")
        assert await result(world, "asks") == 0
        assert await result(forks["share"], "asks") == 0
        assert await result(live, "asks") == 0
        assert await result(scripted, "asks") == 7
        run = await forks["reissue"].attach("asks")
        assert await run.status() is wl.RunStatus.RUNNING  # a question of a dry fork waits for a person
        await run.answer(1, 11)
        assert await result(forks["reissue"], "asks") == 11
        await check(universe, "alice", "drop", "reissue", "share", "script", "live")


async def test_messages_of_a_dry_fork_go_nowhere(memory_kit: Kit) -> None:
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        bank = await universe.ensure("bank", shop.program)
        world = await universe.ensure("alice", shop.program)
        _ = await world.start(shop.tells(), id="t")
        dry = await world.fork("dry")
        live = await world.fork("live", live=True)
        for each in (world, dry, live):
            assert await result(each, "t") == "told"
        assert await bank.ask(Balance()) == 2


async def test_new_effects_of_a_dry_fork_are_parked_and_can_only_be_answered(kit: Kit) -> None:
    shop = Shop()
    async with kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        fork = await world.fork("fork", script=[{"effect": "charge", "answer": "once", "times": 1}])
        assert (await fork.run(shop.buy("a"), id="first", timeout=SECONDS))[0] == "once"
        _ = await fork.start(shop.buy("b"), id="second")
        connection = universe._connection
        at = await Handle(connection, "fork").address()
        [opened] = [each async for each in store_queries.open_work(connection, at)]
        assert opened.work.state.name == "PARKED"
        described = await Handle(connection, "fork").describe()
        with pytest.raises(errors.Closed, match="dry fork"):
            parking.retry(kv.Batch(), described, opened, now_us=0)
        run = await fork.attach("second")
        await run.answer(1, "by hand")
        assert (await result(fork, "second"))[0] == "by hand"
        assert not shop.calls
        await check(universe, "alice", "fork")


async def test_forks_of_forks_at_any_height(kit: Kit) -> None:
    shop = Shop()
    async with kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        for cents in (1, 2, 4):
            await (await world.send(Added(cents))).applied()
        first = await world.fork("first", at=2)
        await (await first.send(Added(8))).applied()
        second = await first.fork("second")
        await (await second.send(Added(16))).applied()
        third = await second.fork("third", at=1)  # in the first world's journal
        inside = await second.fork("inside", at=(await second.head()).height - 1)
        assert (await third.lineage()).height == 1  # type: ignore[union-attr]
        sums = {each.name: (await each.state(shop.Till)).cents for each in (world, first, second, third, inside)}
        assert sums == {"alice": 7, "first": 11, "second": 27, "third": 1, "inside": 11}
        assert (await second.state(shop.Till, at=1)).cents == 1
        assert [each.height for each in await second.journal()] == [*range(1, (await second.head()).height + 1)]
        for name in ("first", "second", "third", "inside"):
            await universe.world(name).ask(Balance())
        await check(universe, "alice", "first", "second", "third", "inside")
    async with kit.hosting(shop.program) as universe:  # restored elsewhere
        assert {name: await universe.world(name).ask(Balance()) for name in sums} == sums
        await check(universe, *sums)


async def test_a_fork_is_exported_from_the_fork_on(memory_kit: Kit, tmp_path: Path) -> None:
    shop = Shop()
    shop.gate.set()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        await world.run(shop.buy("a"), id="a", timeout=SECONDS)
        fork = await world.fork("fork", live=True)
        await fork.run(shop.buy("b"), id="b", timeout=SECONDS)
        exported = await journal_export.collect(Handle(universe._connection, "fork"))
        journal_export.write(exported, tmp_path / "fork.jsonl")
        lineage = await fork.lineage()
        assert lineage is not None
        assert exported.start.height == lineage.height
        assert exported.entries[0].height == lineage.height + 1
    assert testing.replay(tmp_path / "fork.jsonl", shop.program) > 2


async def test_a_fork_of_each_status_and_labels(memory_kit: Kit) -> None:
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program, labels={"tier": "1"})
        await world.pause()
        assert await (await world.fork("of-paused")).ask(Balance()) == 0
        await world.archive()
        archived = await world.fork("of-archived", labels={"kind": "what-if"})
        assert await archived.ask(Balance()) == 0
        assert (await universe.world("of-paused").describe()).labels == {"tier": "1"}
        described = await archived.describe()
        assert (described.labels, described.status.name) == ({"kind": "what-if"}, "ACTIVE")
        await world.delete(after_forks=True)
        with pytest.raises(wl.NotFound):
            await world.fork("of-deleted")
        assert await (await archived.fork("of-fork")).ask(Balance()) == 0  # it does not need the deleted one


async def test_a_shared_effect_ends_when_the_parent_is_gone(memory_kit: Kit) -> None:
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        _ = await world.start(shop.buy("a"), id="r")
        await until(lambda: shop.calls)
        given_up = await world.fork("given-up", effects="share")
        run = await world.attach("r")
        await run.cancel("no")
        with pytest.raises(wl.RunFailed, match="has given it up"):
            await result(given_up, "r")
        _ = await world.start(shop.buy("b"), id="s")
        await until(lambda: len(shop.calls) == 2)
        gone = await world.fork("gone", effects="share")
        await world.delete(after_forks=True)
        with pytest.raises(wl.RunFailed, match="is deleted"):
            await result(gone, "s")


async def test_the_same_request_finds_the_world_it_has_made(kit: Kit) -> None:
    shop = Shop()
    async with kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        await asyncio.gather(*(world.fork("fork") for _ in range(8)))
        await world.send(Added(1))
        await world.fork("fork")
        with pytest.raises(wl.Exists, match="named 'fork'"):
            await world.fork("fork", live=True)
        with pytest.raises(wl.Exists, match="named 'alice'"):
            await world.fork("alice")
        names = [each.name async for each in universe.worlds()]
        assert sorted(names) == ["alice", "fork"]


async def test_a_pin_stands_until_the_fork_has_a_state_of_its_own(memory_kit: Kit) -> None:
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        await world.send(Added(1))
        await world.pause()  # so that nothing here takes the forks for a while
        connection = universe._connection
        at = await Handle(connection, "alice").address()

        async def pins() -> list[bytes]:
            read = await connection.store.engine.read(snapshot_layer.pins_range(at, count_max=10))
            return [fork for fork, _ in snapshot_layer.decode_pins(at, read.page(0))]

        async def count() -> bytes | None:
            return (await connection.store.engine.read(kv.Get(lineage_keys.pin_count_key(at)))).value(0)

        before = await count()
        fork = await world.fork("fork")
        assert await count() != before
        await fork.ask(Balance())

        async def none_left() -> bool:
            return not await pins()

        await until(none_left)
        second = await world.fork("second")
        await second.pause()
        await second.delete()
        assert await pins() == []


async def test_a_world_begins_from_a_seed(kit: Kit) -> None:
    shop = Shop()
    shop.gate.set()
    async with kit.hosting(shop.program) as universe:
        template = await universe.ensure("template", shop.program)
        for cents in (1, 2):
            await (await template.send(Added(cents))).applied()
        made = [await universe.create(f"w{n}", shop.program, seed="template@1") for n in range(3)]
        whole = await universe.create("whole", shop.program, seed="template")
        assert [await each.ask(Balance()) for each in made] == [1, 1, 1]
        assert await whole.ask(Balance()) == 3
        assert (await whole.run(shop.buy("a"), id="r", timeout=SECONDS))[0] == "paid a"
        await asyncio.gather(*(each.send(Added(1)) for each in made))
        drawn = [(await each.state(shop.Till)).drawn for each in made]
        assert len({*drawn}) == 3, "each draws its own"
        with pytest.raises(wl.NotFound):
            await universe.create("x", shop.program, seed="nothing@4")
        with pytest.raises(wl.BadInput, match="no height 99"):
            await universe.create("x", shop.program, seed="template@99")


async def test_before_something_happened(memory_kit: Kit) -> None:
    shop = Shop()
    shop.gate.set()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        await (await world.send(Added(1))).applied()
        await world.run(shop.buy("a"), id="r", timeout=SECONDS)
        await (await world.send(Added(2))).applied()
        before_effect = await world.fork("effect", before="effect charge")
        before_event = await world.fork("event", before="event Added")
        await (await world.send(Added(4))).applied()
        await world.fork("event", before="event Added")  # the same request, although that would be elsewhere now
        assert await before_effect.runs() == []
        assert (await before_event.state(shop.Till)).cents == 1
        for wrong in ("charge", "effect ", "timer x", 7):
            with pytest.raises(wl.BadInput, match="say before what"):
                await world.fork("x", before=wrong)  # type: ignore[arg-type]
        with pytest.raises(wl.NotFound, match="no effect 'ship'"):
            await world.fork("x", before="effect ship")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"effects": "keep"}, "effects must be one of drop, reissue, share, script"),
        ({"effects": "script"}, "needs a script"),
        ({"at": -1}, "a height, which is a number"),
        ({"at": True}, "a height, which is a number"),
        ({"at": 99}, "no height 99"),
        ({"at": 0, "before": "effect charge"}, "not both"),
        ({"script": "charge"}, "a list of rules"),
        ({"script": [7]}, "rule 1 of the script is no rule"),
        ({"script": [{"effect": "charge"}]}, 'has an "answer", or an "error"'),
        ({"script": [{"answer": 1}]}, 'names an "effect"'),
        ({"script": [{"effect": "ship", "answer": 1}]}, "does not have"),
        ({"script": [{"effect": "charge", "answer": 1}]}, "script of charge"),
        ({"script": [{"effect": "charge", "answer": "", "time": 1}]}, "a rule has effect, ask"),
        ({"script": [{"effect": "charge", "answer": "", "times": -1}]}, "is a number"),
        ({"labels": {"a": 1}}, "labels must be"),
    ],
)
async def test_what_cannot_be_forked_so_is_said(memory_kit: Kit, given: dict[str, Any], said: str) -> None:
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        with pytest.raises(wl.BadInput, match=said):
            await world.fork("fork", **given)
        assert [each.name async for each in universe.worlds()] == ["alice"]


async def test_scripts_of_tests_are_taken_if_they_are_data(memory_kit: Kit) -> None:
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        fork = await world.fork("fork", script=wl.Script().on(shop.charge, "one", ConnectionError("down"), "last"))
        said: list[str] = []
        for number in range(4):
            try:
                said.append((await fork.run(shop.buy("a"), id=f"r{number}", timeout=SECONDS))[0])
            except wl.RunFailed as error:
                said.append(str(error.__cause__ or error)[-4:])
        assert said[0] == "one"
        assert "down" in said[1]
        assert said[2:] == ["last", "last"]
        for callable_answer in (lambda order: order, wl.Script.later(1, "x")):
            with pytest.raises(wl.BadInput, match="run by any worker"):
                await world.fork("x", script=wl.Script().on(shop.charge, callable_answer))


async def test_a_forged_first_step_is_refused(memory_kit: Kit) -> None:
    """A producer says to a world that it is a live fork of another, at the very step where it is."""
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        dry = await world.fork("dry")
        await (await dry.send(Added(1))).applied()
        for each in (world, dry):
            at, head = await each._handle.address(), await each.head()
            said = ForkBeginning(at.world, b"o" * 16, "any", head.step, head.height, ForkPolicy.DROP, live=True)
            with pytest.raises(wl.errors.Closed, match="no producer can send it"):
                await each._handle.command(FORKED, said)
            machine = await each._handle.machine()
            assert machine.branch is None or machine.branch.dry
        _ = await dry.start(shop.buy("a"), id="a")
        await dry.ask(Balance())
        assert not shop.calls
        await check(universe, "alice", "dry")
