"""Flow domains in worlds: acting, by hand, what goes wrong. On the test world, where every step is done twice, and
every world is proved at its end.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import worldline as wl
from tests.features.domains.shop import Order, Shop, break_clearing
from tests.features.domains.shop_worlds import intents, opened, waiting
from tests.flow_core.documents import document, effect, field, get, lit, op, put, seq, when
from worldline import flow, testing
from worldline.base import limits
from worldline.codec import canonical
from worldline.features.domains.pure import domain_cell
from worldline.features.domains.pure import part as domain_part
from worldline.features.domains.pure.requirements import AnsweredRequirement
from worldline.flow_core.exporting import tools as exporting
from worldline.host.feature_list import PARTS
from worldline.kernel import replay, run_repair, runs
from worldline.kernel.machine import Machine
from worldline.model import inbox, payload
from worldline.model import step_records as steps
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.testing.tested_world import TestWorld

# --- Acting ------------------------------------------------------------------------------------------------------


def test_an_action_with_an_effect_ends_and_says_so() -> None:
    shop = Shop()
    with opened(shop) as world:
        refused = world.act(Order.pay("tok"), key="o-7")
        assert (refused.status, refused.error and refused.error.code) == ("error", "ACTION_UNAVAILABLE")
        assert str(world.explain(Order.pay, key="o-7")) == "no: cents > 0 is false (cents = 0)"
        assert world.act(Order.fill(5), key="o-7").state.cents == 5
        assert world.explain(Order.pay("tok"), key="o-7").available
        asked = world.preview(Order.pay("tok"), key="o-7")
        assert (asked.status, asked.asks[0][0], asked.asks[0][1]["cents"]) == ("pending", "charge", 5)
        done = world.act(Order.pay("tok"), key="o-7")
        assert (done.status, done.state.receipt, done.state.paid, done.error) == ("complete", "r-1", True, None)
        [asked_for] = [each for each in world.journal() if each.kind is Kind.EFFECT_REQUESTED]
        assert b"into" not in asked_for.payload
        assert world.state(Order, "o-7").receipt == "r-1"
        assert world.state(Order, "o-7", at=6).receipt is None
        assert world.state(Order, "other").cents == 0


def test_a_document_with_other_numbers_means_the_same_to_a_world() -> None:
    app = wl.Program("app")
    made = app.domain(document({"go": put("count", lit(1.0))}), name="Made")
    with testing.world(app) as world:
        assert world.act(made.action("go")()).state["count"] == 1


def test_a_document_is_acted_on_and_is_a_catalogue_of_tools() -> None:
    shop = Shop()
    with opened(shop) as world:
        tools = world.tools(shop.todos)
        assert [each.name for each in tools.available] == ["add"]
        assert {each.name: each.reasons for each in tools.unavailable} == {
            "clear": ("list.length > 0 is false (list.length = 0)",)
        }
        assert [sorted(world.tools(shop.todos, shape=each).documents[0]) for each in exporting.SHAPES] == [
            ["function", "type"],
            ["input_schema", "name"],
            ["inputSchema", "name"],
        ]
        chosen: flow.Act[dict[str, Any]] = flow.Act(shop.todos, *tools.call("add", {"title": "milk"}))
        assert world.act(chosen).state["list"] == ["milk"]
        assert world.tools(shop.todos).unavailable == ()
        with pytest.raises(wl.BadInput, match="clear cannot be called now: list"):
            tools.call("clear")
        with pytest.raises(wl.BadInput, match="has no action 'cook'"):
            shop.todos.action("cook")
        assert world.act(shop.todos.action("add")(title=1)).error is not None


@pytest.mark.parametrize(
    ("answer", "code"), [(RuntimeError("no funds"), "RuntimeError"), (wl.Script.never(), "EFFECT_TIMEOUT")]
)
def test_what_fails_goes_where_fail_says(answer: Any, code: str) -> None:
    shop = Shop()
    with opened(shop, answer) as world:
        world.act(Order.fill(5), key="o")
        done = world.act(Order.pay("tok"), key="o")
        assert done.status == "complete"
        assert done.state.refused is not None
        assert done.state.refused.code == code


def test_the_total_timeout_of_what_is_required_comes_from_the_state() -> None:
    """The program that runs a step may have another one by now, or not have the effect at all."""
    shop, other = Shop(), wl.Program("other")
    with opened(shop, wl.Script.never()) as world:
        world.act(Order.fill(5), key="o")
        shop.app.effects["charge"] = other.effect(name="charge", total_timeout=1)(shop.charge.function)
        world.submit(Order.pay("tok"), key="o")
        [pending] = world.machine.work.open.values()
        assert pending.deadline_us - pending.due_us == 60_000_000
        alone = Machine(wl.Program.without_code(shop.app.hash))
        for entries in replay.steps(world.life.filled()):
            replay.check(alone, entries, world.address, world.life.load, PARTS)
        assert alone.work.open == world.machine.work.open


def test_bad_input_is_refused_and_nothing_is_changed() -> None:
    shop = Shop()
    with opened(shop) as world:
        before = world.machine.state
        for act, key, said in (
            (Order.fill(1), "", "a cell for each key: give one"),
            (shop.todos.action("add")(title="x"), "k", "Todos has no keys"),
            (Order.fill(1), "k" * 5_000, "4096"),
        ):
            with pytest.raises(wl.BadInput, match=said):
                world.act(act, key=key)
        for data in (b"", canonical.encode(["k", "", True, []]), canonical.encode(["k", 1])):
            stepped = world.step(inbox.InboxEvent("Order.fill", payload.inline(data)), data)
            assert stepped.dead.startswith("Order.fill: ")
        assert world.machine.state == before
        with pytest.raises(wl.BadInput, match="is no such call"):
            world.act(Order.fill)  # type: ignore[arg-type]


# --- One intent at a time, and once --------------------------------------------------------------------------------


def test_the_same_id_is_one_intent_and_another_input_is_refused() -> None:
    shop = Shop()
    with opened(shop, wl.Script.later(5, "r-1")) as world:
        world.act(Order.fill(5), key="o")
        first = world.submit(Order.pay("tok"), key="o", id="try")
        again = world.submit(Order.pay("tok"), key="o", id="try")
        with pytest.raises(wl.errors.IdReused):
            world.act(Order.pay("other"), key="o", id="try")
        assert len(intents(world)) == 1
        world.advance(10)
        told = {each.correlation: each.payload for each in world.journal() if each.kind is Kind.ANSWERED}
        assert told[first] == told[again]
        assert world.act(Order.pay("tok"), key="o", id="try").state.receipt == "r-1"
        with pytest.raises(wl.errors.IdReused):
            world.act(Order.pay("other"), key="o", id="try")
        asked = [each for each in world.journal() if each.kind is Kind.EFFECT_REQUESTED]
        assert len(asked) == 1


def test_intents_wait_for_the_one_on_its_way_and_their_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLOW_QUEUE_MAX", 2)
    shop = Shop()
    with opened(shop, wl.Script.later(5, "r-1")) as world:
        world.act(Order.fill(5), key="o")
        world.submit(Order.pay("tok"), key="o", id="a")
        for number in (7, 8):
            world.submit(Order.fill(number), key="o", id=f"f{number}")
        assert (waiting(world, "o"), world.state(Order, "o").cents) == (["f7", "f8"], 5)
        with pytest.raises(wl.errors.Closed, match="2 intents wait"):
            world.act(Order.fill(9), key="o")
        assert world.act(Order.fill(1), key="other").state.cents == 1
        world.crash()
        world.advance(10)
        assert (world.state(Order, "o").receipt, world.state(Order, "o").cents, waiting(world, "o")) == ("r-1", 8, [])


def test_results_of_chosen_ids_are_kept_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLOW_DONE_KEPT_MAX", 2)
    with opened(Shop()) as world:
        for number in range(4):
            world.act(Order.fill(number), key="o", id=f"f{number}")
            world.act(Order.fill(number), key="o")
        done = domain_cell.decode(world.machine.cells["Order", "o"].data)[0].done
        assert [each.id for each in done] == ["f2", "f3"]


# --- By hand -----------------------------------------------------------------------------------------------------


def test_an_intent_is_abandoned_and_its_late_answer_changes_nothing() -> None:
    shop = Shop()
    with opened(shop, wl.Script.later(5, "r-1")) as world:
        world.act(Order.fill(5), key="o")
        world.submit(Order.pay("tok"), key="o", id="a")
        world.submit(Order.pay("tok"), key="o", id="b")
        world.abandon(Order, "b", key="o")
        [intent] = world.machine.work.open
        world.abandon(Order, "a", key="o")
        assert intents(world) == []
        with pytest.raises(wl.NotFound, match="no intent 'a' is on its way"):
            world.abandon(Order, "a", key="o")
        before = world.machine.cells["Order", "o"].data
        data = canonical.encode("late")
        world.step(inbox.EffectReceipt(intent, ReceiptStatus.OK, payload.inline(data), 1), data)
        assert world.machine.cells["Order", "o"].data == before
        assert [each.kind for each in world.journal()][-1] is Kind.LATE_ANSWER
        assert world.act(Order.pay("tok"), key="o", id="a").error is not None
        assert world.act(Order.fill(6), key="o").state.cents == 6


@pytest.mark.probe("domains.outcome-stale")
def test_an_outcome_of_what_is_not_pending_is_journaled_as_stale() -> None:
    """FULFILL-0: also if the work is still open."""
    shop = Shop()
    with opened(shop, wl.Script.never()) as world:
        world.act(Order.fill(5), key="o")
        world.submit(Order.pay("tok"), key="o", id="a")
        [pending] = world.machine.work.open.values()
        target = msgspec.structs.replace(AnsweredRequirement.of(pending.event), requirement="r-gone")
        before, head = world.snapshot(Order, "o"), world.head
        now = world.machine.begin_step(
            steps.StepContext(world.address, head.step + 1, head.time_us), steps.Input(None, b"")
        )
        domain_part.fulfil(world.machine, target.text(), runs.failed("error", "no"))
        assert [(each.kind, canonical.decode(each.payload)) for each in now.drafts] == [
            (Kind.LATE_ANSWER, ["receipt", "Order", "o", "r-gone", "dropped:stale"])
        ]
        world.machine.end_step()
        assert world.snapshot(Order, "o") == before


def test_what_a_persons_answer_leads_to_comes_before_the_answer_to_the_person() -> None:
    shop = Shop()
    with opened(shop, wl.Script.never()) as world:
        world.act(Order.fill(5), key="o")
        world.submit(Order.pay("tok"), key="o", id="a")
        world.submit(Order.fill(7), key="o", id="b")
        [intent] = world.machine.work.open
        height = world.head.height
        world.command(
            run_repair.ANSWER_EFFECT, run_repair.AnswerEffect(intent, canonical.encode("by hand"), running=True)
        )
        assert (world.state(Order, "o").receipt, world.state(Order, "o").cents) == ("by hand", 7)
        control, *derived = [each for each in world.journal() if each.height > height]
        assert control.kind is Kind.CONTROL
        assert [each.kind for each in derived] == [Kind.EFFECT_CANCELLED, *[Kind.ANSWERED] * 3]
        assert derived[-1].correlation == control.correlation


def test_patches_come_from_outside_while_an_intent_is_on_its_way() -> None:
    shop = Shop()
    with opened(shop, wl.Script.later(5, "r-1")) as world:
        world.act(Order.fill(5), key="o")
        world.submit(Order.pay("tok"), key="o")
        world.patch(Order, [flow.set("cents", 9), flow.set("nowhere", 1)], key="o")
        assert (world.state(Order, "o").cents, len(world.snapshot(Order, "o").system.errors)) == (9, 1)
        world.advance(10)
        assert world.state(Order, "o").receipt == "r-1"
        with pytest.raises(wl.BadInput, match="no handler may write"):
            world.patch(Order, [flow.set("system.status", "idle")], key="o")


def test_the_environment_is_journaled_and_read_by_flows() -> None:
    app = wl.Program("app")
    flow_ = seq(when(op("isNull", get("note")), effect("system.get", key=lit("env.REGION"), into=lit("note"))))
    where = app.domain(document({"ask": flow_}, {"note": field("string")}), name="Where")
    with testing.world(app) as world:
        world.env({"REGION": "north"})
        assert world.act(where.action("ask")()).state["note"] == "north"
        with pytest.raises(wl.BadInput):
            world.env({"x": "y" * limits.FLOW_ENV_BYTES_MAX})
        world.crash()
        world.prove()
    with testing.world(wl.Program("none")) as world, pytest.raises(wl.NotFound, match="no flow domains"):
        world.env({})


# --- What goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.probe("domains.cell-fatal")
def test_a_requirement_that_cannot_be_cleared_is_fatal_for_its_cell_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop()
    break_clearing(monkeypatch, cents=13)
    with opened(shop) as world:
        for key, cents in (("bad", 13), ("good", 5)):
            world.act(Order.fill(cents), key=key)
        with pytest.raises(wl.Error, match="cannot be cleared: disk full"):
            world.act(Order.pay("tok"), key="bad")
        with pytest.raises(wl.Error, match="takes nothing any more"):
            world.act(Order.fill(1), key="bad")
        with pytest.raises(wl.errors.Closed):
            world.patch(Order, [flow.set("cents", 1)], key="bad")
        assert "takes nothing any more" in str(world.explain(Order.pay, key="bad"))
        assert world.act(Order.pay("tok"), key="good").state.receipt == "r-1"


def test_the_state_of_a_document_is_plain_data() -> None:
    shop = Shop()
    with opened(shop) as world:
        before = world.head.height
        world.act(shop.todos.action("add")(title="milk"))
        assert world.state(shop.todos) == {"count": 0, "list": ["milk"], "computed.doubled": 0}
        assert world.state(shop.todos, at=before)["list"] == []


def test_a_state_that_is_large_is_read_and_not_answered() -> None:
    shop = Shop()
    with opened(shop) as world:
        done = world.act(shop.todos.action("add")(title="x" * limits.FLOW_STATE_BYTES_MAX))
        assert len(done.state["list"][0]) == limits.FLOW_STATE_BYTES_MAX
        [told] = [each for each in world.journal() if each.kind is Kind.ANSWERED]
        assert len(told.payload) < 100


# --- The same, whatever happens to the process -----------------------------------------------------------------------


def lived(shop: Shop, world: TestWorld) -> None:
    world.env({"REGION": "north"})
    for number in range(2):
        world.act(Order.fill(5 + number), key=f"o{number}", id=f"f{number}")
        world.submit(Order.pay("tok"), key=f"o{number}")
        world.submit(Order.fill(9), key=f"o{number}")
    world.act(shop.todos.action("add")(title="milk"))
    world.advance(10)


def test_a_crash_at_any_height_changes_nothing() -> None:
    shop = Shop()
    with opened(shop, wl.Script.later(5, "r-1")) as world:
        lived(shop, world)
        head = world.head
    for height in range(2, head.height + 1):
        with opened(shop, wl.Script.later(5, "r-1"), twice=False) as world:
            world.crash(at=height)
            lived(shop, world)
            assert (world.head, world.crashes) == (head, 1), height
