"""Two worlds compared: where they part, and what became of effects that both have inherited or asked for since."""

from __future__ import annotations

import pytest

import worldline as wl
from tests.features.forks.everything_open import Added
from tests.features.forks.forking import Shop, result, until
from tests.kits.kit import Kit
from worldline.client.world_handle import Handle
from worldline.features.diff.calls import Point, common
from worldline.features.diff.records import Diff, EffectSide, Field
from worldline.features.proofs import calls as proof_calls
from worldline.features.proofs import entry_proof
from worldline.layers.history.history_line import HistoryLine
from worldline.model import ids
from worldline.model.journal import Kind
from worldline.model.world_records import Section

OPEN = EffectSide("charge", {"order": "o1"}, "open")
PAID = EffectSide("charge", {"order": "o1"}, "ok", "paid o1")
PARKED = EffectSide("charge", {"order": "o1"}, "parked")


def effects(found: Diff) -> list[tuple[str, int, str, EffectSide | None, EffectSide | None]]:
    return [(each.run, each.operation, each.change, each.left, each.right) for each in found.effects]


async def added(world: wl.World, *cents: int) -> int:
    for each in cents:
        await (await world.send(Added(each))).applied(20)
    return (await world.head()).height


async def test_a_world_and_its_fork(kit: Kit) -> None:
    """By a client without any program; on every engine."""
    shop = Shop()
    host = await kit.process(shop.program)
    world = await host.universe.ensure("w", shop.program)
    shared = await added(world, 1, 2)
    fork = await world.fork("f")
    await added(world, 10)
    await added(fork, 20, 30)
    top, other = await world.head(), await fork.head()
    await host.close()
    universe = (await kit.process()).universe
    found = await universe.world("w").diff(universe.world("f"))
    assert (found.ancestor, found.step, found.height) == ("w", 2, shared)
    [till] = found.cells
    assert (till.reducer, till.change) == ("Till", "changed")
    assert Field(("cents",), "changed", 13, 53) in till.fields
    assert (found.runs, found.effects) == ([], [])
    left, right = found.entries.left, found.entries.right
    assert (left.world, left.height, left.first, left.count) == ("w", top.height, shared + 1, top.height - shared)
    assert (right.world, right.height, right.first) == ("f", other.height, shared + 1)
    assert right.count == other.height - shared
    assert (left.kinds["event"], right.kinds["event"]) == (1, 2)
    back = await universe.world("f").diff(universe.world("w"))
    assert (back.ancestor, back.entries.left, back.entries.right) == ("w", right, left)
    assert (await universe.world("w").diff(universe.world("f"), at=shared, to=shared)).same
    below = await universe.world("f").diff(universe.world("w"), at=1)
    assert (below.height, below.entries.left.count, below.entries.right.count) == (1, 0, top.height - 1)


async def test_each_fate_of_an_open_effect(memory_kit: Kit) -> None:
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("w", shop.program)
        _ = await world.start(shop.buy("o1"), id="r")
        await until(lambda: len(shop.calls) == 1)
        script = [{"effect": "charge", "answer": "scripted"}]
        dropped = await world.fork("drop")
        reissued = await world.fork("reissue", effects="reissue")
        shared = await world.fork("share", effects="share")
        scripted = await world.fork("script", effects="script", script=script)
        again = await world.fork("again", effects="reissue", script=script)
        for each in (dropped, reissued, shared, scripted, again):
            await added(each, 1)
        await result(scripted, "r")
        await result(again, "r")
        before = {each.name: await world.diff(each) for each in (dropped, reissued, shared, scripted, again)}
        shop.gate.set()
        await result(world, "r")
        await result(shared, "r")
        after = {each.name: await world.diff(each) for each in (dropped, reissued, shared, scripted, again)}
    answers = {
        "reissue": PARKED,
        "script": EffectSide("charge", {"order": "o1"}, "ok", "scripted"),
        "again": EffectSide("charge", {"order": "o1"}, "ok", "scripted"),
    }
    for name, right in answers.items():
        assert effects(before[name]) == [("r", 1, "changed", OPEN, right)], name
        assert effects(after[name]) == [("r", 1, "changed", PAID, right)], name
    [lost] = before["drop"].effects
    assert lost.left == OPEN
    assert lost.right is not None
    assert (lost.right.status, lost.right.answer["code"]) == ("cancelled", "cancelled")
    assert effects(before["share"]) == [], "open in both"
    assert effects(after["share"]) == [], "the same answer in both"
    assert [each.path for each in after["script"].runs[0].fields][:1] == [("result", 0)]


async def test_branches_with_scripts_are_compared_by_their_answers(memory_kit: Kit) -> None:
    """What they asked for since the fork, with arguments and answers side by side, also if the run ended at once."""
    app = wl.Program("agent")

    @app.effect(name="think")
    async def think(text: str) -> str:
        return text

    @app.workflow(name="decide")
    async def decide() -> str:
        event = await wl.wait(Added)
        first = await think(f"about {event.cents}")
        return await think(f"then {first}")

    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        _ = await world.start(decide(), id="d")
        sides = []
        for answer in ("yes", "no"):
            sides.append(await world.fork(answer, script=[{"effect": "think", "answer": answer}]))
            await (await sides[-1].send(Added(1), to="d")).applied(20)
            assert await result(sides[-1], "d") == answer
        found = await sides[0].diff(sides[1])
        assert found.ancestor == "w"
        about, then = {"text": "about 1"}, [{"text": f"then {answer}"} for answer in ("yes", "no")]
        assert effects(found) == [
            ("d", 2, "changed", EffectSide("think", about, "ok", "yes"), EffectSide("think", about, "ok", "no")),
            ("d", 3, "changed", EffectSide("think", then[0], "ok", "yes"), EffectSide("think", then[1], "ok", "no")),
        ]
        assert [each.fields for each in found.runs] == [(Field(("result",), "changed", "yes", "no"),)]


async def test_a_fork_of_a_fork_and_what_is_gone(memory_kit: Kit) -> None:
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("w", shop.program)
        low = await added(world, 1)
        first = await world.fork("first")
        middle = await added(first, 2)
        second, third = await first.fork("second"), await first.fork("third")
        await added(second, 3)
        await added(third, 4)
        await added(world, 5)
        found = await second.diff(third)
        assert (found.ancestor, found.height) == ("first", middle)
        assert Field(("cents",), "changed", 6, 7) in found.cells[0].fields
        far = await third.diff(world)
        assert (far.ancestor, far.height) == ("w", low)
        assert Field(("cents",), "changed", 7, 6) in far.cells[0].fields
        inside = await third.diff(at=1)
        assert (inside.ancestor, inside.height, inside.entries.right.first) == ("w", 1, 2), "across two journals"
        early = await world.fork("early", at=0)
        assert ((await early.diff(third)).ancestor, (await early.diff(third)).height) == ("w", 0)
        stranger = await universe.ensure("x", shop.program)
        with pytest.raises(wl.BadInput, match="worlds 'third' and 'x' have no common ancestor"):
            await third.diff(stranger)


async def test_effects_of_a_parents_journal_are_found_from_below(memory_kit: Kit) -> None:
    """Two heights of a fork, the lower one in its parent's journal: the intents there are the parent's."""
    shop = Shop()
    shop.gate.set()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("w", shop.program)
        await added(world, 1)
        _ = await world.start(shop.buy("o1"), id="r")
        await result(world, "r")
        fork = await world.fork("f")
        await added(fork, 1)
        assert effects(await fork.diff(at=1)) == [("r", 1, "added", None, PAID)]


async def test_across_a_revert(memory_kit: Kit) -> None:
    """An effect that was answered before the ancestor is open again when the world is taken back, and has a fate."""
    shop = Shop()
    shop.gate.set()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("w", shop.program)
        _ = await world.start(shop.buy("o1"), id="r")
        await result(world, "r")
        asked = next(each.height for each in await world.journal() if each.kind is Kind.EFFECT_RESULT) - 1
        top = await added(world, 1)
        await world.revert(asked)
        await until_failed(world)
        found = await world.diff(at=top)
        [cell] = found.cells
        assert (cell.reducer, cell.change) == ("Till", "removed")
        [effect] = found.effects
        assert (effect.run, effect.operation, effect.change, effect.left) == ("r", 1, "added", None)
        assert effect.right is not None
        assert (effect.right.status, effect.right.answer["code"]) == ("cancelled", "cancelled")
        [run] = found.runs
        assert Field(("status",), "changed", "finished", "failed") in run.fields


async def until_failed(world: wl.World) -> None:
    with pytest.raises(wl.RunFailed):
        await result(world, "r")


async def test_proofs_go_across_a_lineage(memory_kit: Kit) -> None:
    """Of an entry of the parent's, for the chain digest of the fork; and running it again from a snapshot on."""
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("w", shop.program)
        await added(world, 1, 2)
        fork = await world.fork("f")
        height = await added(fork, 3)
        head = await fork.head()
        for each in range(1, height + 1):
            proof = await entry_proof.prove_entry(Handle(universe._connection, "f"), each)
            assert (proof.chain, len(proof.later)) == (head.chain, head.step - proof.step)
        await fork.snapshot()
        await added(fork, 4)
        handle = Handle(universe._connection, "f")
        steps = [(await proof_calls.prove(handle, since=since)).proved for since in (0, 1, height, height + 1)]
        top = (await fork.head()).step
        assert steps == [top, top, 1, 1]


def at(number: int) -> ids.Address:
    return ids.Address(ids.UniverseId(bytes(16)), ids.WorldId(bytes([number]) * 16))


def line(number: int, *sections: tuple[int, int]) -> HistoryLine:
    return HistoryLine(at(number), tuple(Section(at(world).world, height, height) for world, height in sections))


W, F, G, H = line(1), line(2, (1, 30)), line(3, (1, 30)), line(4, (1, 30), (2, 40))
COMMON = [
    ((W, 50), (W, 20), (1, 20)),
    ((W, 50), (F, 45), (1, 30)),
    ((W, 10), (F, 45), (1, 10)),
    ((W, 30), (F, 30), (1, 30)),
    ((F, 45), (G, 35), (1, 30)),
    ((F, 20), (G, 35), (1, 20)),
    ((F, 45), (H, 60), (2, 40)),
    ((F, 35), (H, 60), (2, 35)),
    ((G, 45), (H, 60), (1, 30)),
    ((H, 60), (H, 10), (1, 10)),
    ((H, 60), (line(5, (1, 20)), 60), (1, 20)),
]


@pytest.mark.parametrize(("left", "right", "expected"), COMMON)
async def test_the_common_ancestor(
    memory_kit: Kit, left: tuple[HistoryLine, int], right: tuple[HistoryLine, int], expected: tuple[int, int]
) -> None:
    universe = (await memory_kit.process()).universe
    points = [Point(Handle(universe._connection, "w"), height, each) for each, height in (left, right)]
    for one, other in (points, reversed(points)):
        assert common(one, other) == (at(expected[0]), expected[1])
