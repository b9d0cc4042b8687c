"""`wl.act`: workflows do actions of flow domains, in their own world and in others, and get their ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import worldline as wl
from tests.features.domains.shop import TODOS, Order
from tests.kits.fixtures import kit, lmdb_kit
from tests.kits.kit import Kit
from worldline import flow, testing
from worldline.base import limits
from worldline.model.journal import Kind
from worldline.testing.tested_world import TestWorld

__all__ = ["kit", "lmdb_kit"]


class Store:
    """A program with an order, a list and workflows that use them. `far`: the world that they act in."""

    def __init__(self, *, far: str | None = None, name: str = "store") -> None:
        self.app = app = wl.Program(name)

        @app.effect(timeout=10)
        async def charge(card: str, cents: int) -> str:
            return f"{cents} from {card}"

        @app.effect
        async def ping(number: int) -> int:
            return number

        self.charge, self.ping = charge, ping
        app.domain(keyed=True)(Order)
        self.todos = app.domain(TODOS, name="Todos")
        add = self.todos.action("add")

        @app.workflow
        async def buy(key: str, cents: int) -> str:
            filled = await wl.act(Order.fill(cents), key=key, world=far)
            paid = await wl.act(Order.pay("tok"), key=key, world=far)
            assert filled.state.cents == cents
            return f"{paid.status}: {paid.state.receipt} {paid.state.paid}"

        @app.workflow
        async def refused(key: str) -> str:
            end = await wl.act(Order.pay("tok"), key=key, world=far)
            assert end.error is not None
            return f"{end.status}: {end.error.code}"

        @app.workflow
        async def chosen(key: str, cents: int, id: str) -> str:
            end = await wl.act(Order.fill(cents), key=key, id=id, world=far)
            return f"{end.status}: {end.state.cents}"

        @app.workflow
        async def hasty(key: str) -> str:
            try:
                await wl.act(Order.pay("tok"), key=key, world=far, timeout=1)
            except TimeoutError as late:
                return str(late)
            return "in time"

        @app.workflow
        async def many(count: int, size: int) -> int:
            found = 0
            for number in range(count):
                end = await wl.act(add(title=f"{number:0{size}d}"), world=far)
                found = len(end.state["list"])
            return found

        @app.workflow
        async def behind_effects(count: int) -> list[Any]:
            async with wl.scope() as scope:
                pings = [scope.start(ping(number)) for number in range(count)]
                end = await wl.act(add(title="milk"), world=far)
                return [end.state["list"], sum([await each for each in pings])]

        self.buy, self.refused, self.chosen, self.hasty, self.many = buy, refused, chosen, hasty, many
        self.behind_effects = behind_effects

    def script(self, *answers: Any) -> wl.Script:
        return wl.Script().on(self.charge, *(answers or ("r-1",))).on(self.ping, lambda number: number)


def ends(world: TestWorld, kind: Kind) -> list[bytes]:
    return [each.payload for each in world.journal() if each.kind is kind]


# --- In the same world ---------------------------------------------------------------------------------------------


def test_a_workflow_acts_and_gets_the_end_also_when_an_effect_is_behind_it() -> None:
    store = Store()
    with testing.world(store.app, store.script(wl.Script.later(5, "r-1"))) as world:
        assert world.run(store.buy("o", 5)) == "complete: r-1 True"
        assert world.state(Order, "o").cents == 5
        assert any(b"Order.pay" in each for each in ends(world, Kind.EVENT_RAISED))
        world.prove()


def test_an_error_of_the_action_is_an_end_and_no_exception() -> None:
    store = Store()
    with testing.world(store.app, store.script()) as world:
        assert world.run(store.refused("o")) == "error: ACTION_UNAVAILABLE"
        world.prove()


def test_the_same_id_is_the_same_intent_for_runs_and_clients() -> None:
    store = Store()
    with testing.world(store.app, store.script()) as world:
        world.act(Order.fill(7), key="o", id="once")
        world.act(Order.fill(8), key="o")
        assert world.run(store.chosen("o", 7, "once")) == "complete: 8"
        with pytest.raises(wl.RunFailed, match="once") as refused:
            world.run(store.chosen("o", 9, "once"))
        assert refused.value.code == wl.errors.IdReused.code
        assert world.state(Order, "o").cents == 8
        world.prove()


def test_intents_without_an_id_are_told_apart_by_run_and_operation() -> None:
    store = Store()
    with testing.world(store.app, store.script()) as world:
        assert [world.run(store.many(2, 1)), world.run(store.many(2, 1))] == [2, 4]
        assert world.state()["Todos"][""]["snapshot"]["data"]["list"] == ["0", "1", "0", "1"]
        world.prove()


def test_when_time_is_up_the_intent_goes_on() -> None:
    store = Store()
    with testing.world(store.app, store.script(wl.Script.later(5, "r-1"))) as world:
        world.act(Order.fill(5), key="o")
        assert world.run(store.hasty("o")) == "Order.pay did not end in time"
        assert world.state(Order, "o").receipt is None
        world.advance(10)
        assert world.state(Order, "o").receipt == "r-1"
        world.prove()


def test_a_cancelled_run_leaves_its_intent_on_its_way() -> None:
    store = Store()
    with testing.world(store.app, store.script(wl.Script.later(5, "r-1"))) as world:
        world.act(Order.fill(5), key="o")
        run = world.start(store.buy("o", 6))
        run.cancel("enough")
        world.advance(10)
        assert run.status is wl.RunStatus.CANCELLED
        assert world.state(Order, "o").receipt == "r-1"
        world.prove()


def test_a_state_of_any_size_comes_with_the_end() -> None:
    store = Store()
    with testing.world(store.app, store.script()) as world:
        assert world.run(store.many(8, 1_000)) == 8
        assert len(world.machine.cells["Todos", ""].data) > 2 * limits.FLOW_STATE_BYTES_MAX
        world.prove()


def test_more_than_a_step_holds_goes_on_in_the_next() -> None:
    store = Store()
    count = limits.STEP_EFFECTS_MAX + 6
    with testing.world(store.app, store.script()) as world:
        assert world.run(store.behind_effects(count)) == [["milk"], sum(range(count))]
        assert world.run(store.many(50, 8_000)) == 51
        world.prove()


def test_an_action_that_the_world_does_not_have_fails_the_call_alone() -> None:
    other = wl.Program("store")

    class Lamp(flow.Domain):
        on: bool = False

        @flow.action
        def toggle(self) -> None:
            self.on = True

    @other.workflow
    async def light() -> str:
        try:
            await wl.act(Lamp.toggle())
        except wl.EffectFailed as error:
            return error.code
        return "lit"

    @other.workflow
    async def wrong() -> None:
        await wl.act(Lamp.toggle)  # type: ignore[arg-type]

    with testing.world(other) as world:
        assert world.run(light()) == "not_found"
        with pytest.raises(wl.RunFailed, match="an action is called to be done") as refused:
            world.run(wrong())
        assert refused.value.code == wl.BadInput.code


def test_outside_of_workflows_it_says_where_it_works() -> None:
    with pytest.raises(wl.errors.OutsideWorkflow, match=r"wl\.act\(\)"):
        wl.act(Order.fill(1), key="o").send(None)


def test_a_crash_at_any_height_and_a_fork_behind_every_step_come_to_the_same() -> None:
    store = Store()
    script = store.script(wl.Script.later(5, "r-1"))

    def scenario(world: TestWorld) -> Any:
        found = world.run(store.buy("o", 5), id="b"), world.run(store.hasty("p"), id="h")
        world.advance(10)
        return found

    with testing.world(store.app, script) as world:
        expected, head = scenario(world), world.head
    for height in range(2, head.height + 1):
        with testing.world(store.app, store.script(wl.Script.later(5, "r-1")), twice=False) as world:
            world.crash(at=height)
            assert scenario(world) == expected
            assert (world.head, world.crashes) == (head, 1), height
    assert testing.everywhere.fork(scenario, store.app, script) > 10


def test_other_code_that_acts_otherwise_is_shown() -> None:
    store, changed = Store(), wl.Program("store")
    changed.domain(keyed=True)(Order)
    changed.domain(TODOS, name="Todos")

    @changed.workflow
    async def buy(key: str, cents: int) -> str:
        return str(await wl.act(Order.pay("tok"), key=key))

    with testing.world(store.app, store.script(wl.Script.later(5, "r-1"))) as world:
        run = world.start(store.buy("o", 5), id="b")
        world.adopt(changed)
        world.advance(10)
        assert run.status is wl.RunStatus.BLOCKED
        said = world.why("b")
        assert "act 'Order.fill' (cents=5) for key 'o'" in said, said
        with pytest.raises(wl.BadInput, match="abandon the intent"):
            run.answer(2, "r-2")


# --- In another world ----------------------------------------------------------------------------------------------


@contextmanager
def bought(name: str) -> Iterator[tuple[Store, TestWorld, TestWorld]]:
    """A store, its world, and the world of this name in which its workflows act and have bought. Both are proved in
    the end.
    """
    near, far = Store(far=name), Store()
    with testing.world(near.app) as world:
        other = world.also(name, far.app, far.script(wl.Script.later(5, "r-1")))
        assert world.run(near.refused("o")) == "error: ACTION_UNAVAILABLE"
        assert world.run(near.buy("o", 5)) == "complete: r-1 True"
        yield near, world, other
        world.prove()
        other.prove()


def test_a_workflow_acts_in_another_world() -> None:
    with bought("far") as (near, world, other):
        assert [world.run(near.many(2, 3_000)), world.run(near.many(2, 3_000))] == [2, 4]
        assert world.run(near.chosen("o", 9, "n")) == world.run(near.chosen("o", 9, "n")) == "complete: 9"
        with pytest.raises(wl.RunFailed) as refused:
            world.run(near.chosen("o", 8, "n"))
        assert refused.value.code == wl.errors.IdReused.code
        assert other.state(Order, "o").cents == 9
        assert "Order" not in world.state()


def test_a_workflow_acts_in_a_world_of_another_universe() -> None:
    with bought("stock/far") as (near, world, _):
        assert world.run(near.many(3, 40_000)) == 3
        assert world.run(near.hasty("p")) == "in time"


async def test_on_every_engine_a_run_acts_here_and_there(kit: Kit) -> None:
    near, far = Store(far="far", name="near"), Store()
    async with kit.hosting(near.app, far.app) as universe:
        other = await universe.ensure("far", far.app)
        world = await universe.ensure("near", near.app)
        assert await other.run(far.buy("o", 5), id="b") == "complete: 5 from tok True"
        assert await world.run(near.buy("p", 6), id="b") == "complete: 6 from tok True"
        assert await world.run(near.many(8, 1_000)) == 8
        assert (await other.state(Order, "p")).receipt == "6 from tok"
