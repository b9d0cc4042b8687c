"""Documents of flow domains in worlds: declared, refused, and changed while a world has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

import worldline as wl
from tests.features.domains.shop import TODOS, Order, Order2, Order3, Shop
from tests.features.domains.shop_worlds import opened, waiting
from worldline import flow, testing
from worldline.base import errors
from worldline.codec import structs
from worldline.features.domains.pure import part as domain_part
from worldline.kernel.event_dispatch import Answer
from worldline.model.journal import Kind


@dataclass(frozen=True)
class Added:
    __schema__: ClassVar[str] = "Todos.add"
    count: int


@dataclass
class Sums:
    count: int = 0

    @wl.on
    def added(self, event: Added) -> None:
        self.count += event.count


# --- Declaring ---------------------------------------------------------------------------------------------------


def test_a_domain_is_declared_as_class_and_as_document() -> None:
    shop = Shop()
    assert (shop.order, shop.todos.name) == (Order, "Todos")
    assert {name: (each.keyed, each.actions) for name, each in shop.app.domains.items()} == {
        "Todos": (False, ["add", "clear"]),
        "Order": (True, ["fill", "pay"]),
    }
    assert len({Shop(version).app.hash for version in (1, 2, 3, 1)}) == 3


def test_perform_into_a_field_that_is_never_null_is_refused() -> None:
    class Letter(flow.Domain):
        text: str = ""

        @flow.action
        def fetch(self) -> None:
            flow.perform(flow.ask("fetch"), into=self.text)

    with pytest.raises(wl.BadInput, match="'fetch' is never asked for: text is never null; let the field begin"):
        wl.Program("post").domain(Letter)


def test_clashes_and_wrong_documents_are_refused() -> None:
    app = wl.Program("app")
    app.domain(keyed=True)(Order)
    with pytest.raises(wl.BadInput, match="already has a flow domain named 'Order'"):
        app.domain(keyed=True)(Order)
    with pytest.raises(flow.SchemaRefused):
        app.domain({**TODOS, "actions": {}})
    with pytest.raises(wl.BadInput, match="or a document"):
        app.domain(7)  # type: ignore[call-overload]
    with pytest.raises(wl.BadInput, match="has no dot"):
        app.domain(TODOS, name="a.b")
    with pytest.raises(wl.BadInput, match="is declared as 'Order' already"):
        wl.Program("other").domain(name="Bill")(Order)

    app.reducer(name="Todos")(Sums)
    app.domain(TODOS, name="Todos")
    with pytest.raises(wl.BadInput, match="both a reducer and a flow domain named 'Todos'"):
        testing.world(app).__enter__()


def test_an_event_named_as_an_action_is_refused() -> None:
    app = wl.Program("app")
    app.domain(TODOS, name="Todos")

    app.reducer(Sums)
    with pytest.raises(wl.BadInput, match=r"an event is named 'Todos\.add'"):
        testing.world(app).__enter__()


# --- Changed documents -----------------------------------------------------------------------------------------------


def test_an_intent_on_its_way_ends_under_its_own_document() -> None:
    shop = Shop()
    with opened(shop, wl.Script.later(5, "r-1")) as world:
        world.act(Order.fill(5), key="o")
        world.submit(Order.pay("tok"), key="o")
        first = world.snapshot(Order, "o").meta.schema_hash
        world.adopt(Shop(2).app)
        world.advance(10)
        snapshot = world.snapshot(Order, "o")
        assert (snapshot.meta.schema_hash, snapshot.data["receipt"], "note" in snapshot.data) == (first, "r-1", False)
        done = world.act(Order2.pay("tok"), key="o")
        assert done.state.note == "paid by the second version"
        assert world.snapshot(Order, "o").meta.schema_hash != first


@pytest.mark.probe("domains.cell-unfit")
def test_data_that_does_not_fit_blocks_its_cell_and_says_where() -> None:
    shop = Shop()
    with opened(shop) as world:
        world.act(Order.fill(5), key="o")
        world.adopt(Shop(3).app)
        waits = world.submit(Order3.fill("7"), key="o", id="later")
        assert waiting(world, "o") == ["later"]
        assert "cents must be string, not number" in str(world.explain(Order3.fill, key="o"))
        failed = [each for each in world.journal() if each.kind is Kind.HANDLER_FAILED]
        assert len(failed) == 1
        assert b"Order['o'] is blocked" in failed[0].payload
        assert world.act(Order3.fill("7"), key="new").state.cents == "7"
        world.crash()
        world.adopt(Shop(1).app)
        [answered] = [each for each in world.journal() if each.correlation == waits and each.kind is Kind.ANSWERED]
        assert structs.decode(Answer, answered.payload).ok
        assert world.machine.domains.blocked == {}


def test_a_patch_that_makes_data_fit_mends_a_blocked_cell() -> None:
    with opened(Shop()) as world:
        world.act(Order.fill(5), key="o")
        world.adopt(Shop(3).app)
        waits = world.submit(Order3.fill("7"), key="o")
        head = world.snapshot(Order3, "o")
        for wrong, said in (("receipt", "would still not fit the document: cents must be string"), ("x", "declared")):
            with pytest.raises(wl.BadInput, match=said):
                world.patch(Order3, [flow.set(wrong, "r-1")], key="o")
        with pytest.raises(wl.BadInput, match="cents must be string, not number"):
            world.patch(Order3, [flow.set("cents", 6)], key="o")
        assert (world.snapshot(Order3, "o"), world.machine.domains.blocked) == (head, {("Order", "o"): None})
        world.patch(Order3, [flow.set("cents", "six")], key="o")
        assert world.machine.domains.blocked == {}
        [mended] = [each for each in world.trace().events if each.fields.get("source") == "patch"]
        assert (mended.type, mended.fields["patchCount"]) == ("core:apply", 1)
        assert world.state(Order3, "o").cents == "7"
        [answered] = [each for each in world.journal() if each.correlation == waits and each.kind is Kind.ANSWERED]
        assert structs.decode(Answer, answered.payload).ok


def test_a_patch_of_an_idle_cell_is_under_the_document_of_now() -> None:
    with opened(Shop(), wl.Script.later(5, "r-1")) as world:
        for key in ("idle", "busy"):
            world.act(Order.fill(5), key=key)
        world.submit(Order.pay("tok"), key="busy")
        first = world.snapshot(Order, "busy").meta.schema_hash
        world.adopt(Shop(2).app)
        world.patch(Order2, [flow.set("note", "by hand")], key="idle")
        assert (world.state(Order2, "idle").note, world.state(Order2, "idle").cents) == ("by hand", 5)
        world.patch(Order2, [flow.set("cents", 6)], key="busy")
        assert (world.state(Order2, "busy").cents, world.snapshot(Order2, "busy").meta.schema_hash) == (6, first)


def test_a_domain_that_the_program_has_no_more_takes_nothing() -> None:
    shop = Shop()
    with opened(shop, wl.Script.later(5, "r-1")) as world:
        world.act(Order.fill(5), key="o")
        world.submit(Order.pay("tok"), key="o")
        less = wl.Program("shop")
        less.domain(TODOS, name="Todos")
        world.adopt(less)
        with pytest.raises(errors.Error, match="nothing here takes"):
            world.act(Order.fill(1), key="o")
        assert ("Order", "o") in world.machine.cells
        with pytest.raises(wl.NotFound, match="no flow domain 'Order'"):
            world.tools(Order, key="o")


def test_a_world_is_told_only_what_it_does_not_have() -> None:
    shop = Shop()
    with opened(shop) as world:
        assert domain_part.news(world.machine, shop.app) is None
        told = domain_part.news(world.machine, Shop(2).app)
        assert told is not None
        assert (len(told.documents), sorted(told.domains), told.alone) == (1, ["Order", "Todos"], True)
    with testing.world(wl.Program("none")) as world:
        assert world.journal() == []
        assert list(world.machine.domains.rows()) == []
