"""Effects that declare `snapshot`: they see the cell as it was when they were asked for, frozen, wherever and whenever
they are performed; other effects are given nothing of it, and no entry has it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.features.domains.shop import Order, Shop
from tests.flow_core.documents import document, effect, field, get, lit, op, put, seq, when
from tests.kits.fixtures import lmdb_kit
from tests.kits.kit import Kit
from worldline import flow, testing
from worldline.base import limits
from worldline.codec import canonical, structs
from worldline.features.domains.pure import part as domain_part
from worldline.features.proofs import calls as proof_calls
from worldline.flow_core import flow_records as flow_snapshots
from worldline.inspect import doctor
from worldline.kernel import part_inputs, state_rows, user_values
from worldline.kernel.authoring.calls import Signature
from worldline.kernel.rows.row_records import Parked, Pending
from worldline.layers.history import step_reader
from worldline.model import row_keys
from worldline.model.journal import Kind
from worldline.model.rows import Rows
from worldline.model.work import WorkKind, WorkState
from worldline.runtime import world_reader, world_restore
from worldline.testing.tested_world import TestWorld

__all__ = ["lmdb_kit"]


class Seeing:
    """A shop whose effect looks at the order that it is paid for, and keeps what it saw."""

    def __init__(self) -> None:
        self.saw: list[flow.Snapshot] = []
        self.app = app = wl.Program("shop")

        @app.effect(retry=wl.Retry(attempts=3))
        async def charge(card: str, cents: int, *, snapshot: flow.Snapshot = flow.GIVEN) -> str:
            self.saw.append(snapshot)
            return f"{cents} from {card} for {Order.read(snapshot).cents}"

        @app.effect
        async def plain(card: str) -> str:
            return card

        self.charge = charge
        self.plain = plain
        app.domain(keyed=True, name="Order")(Order)

    def seen(self) -> Any:
        """A function for scripts that looks as the effect does."""

        def look(card: str, cents: int, *, snapshot: flow.Snapshot) -> str:
            self.saw.append(snapshot)
            return f"{cents} from {card}"

        return look


def asked(world: TestWorld) -> Pending:
    [pending] = world.machine.work.open.values()
    return pending


# --- What it is given --------------------------------------------------------------------------------------------


def test_an_effect_sees_its_cell_frozen_and_no_entry_has_it() -> None:
    shop = Seeing()
    with testing.world(shop.app, wl.Script().on(shop.charge, shop.charge)) as world:
        world.act(Order.fill(5), key="o")
        assert world.act(Order.pay("tok"), key="o").state.receipt == "5 from tok for 5"
        [saw] = shop.saw
        assert (saw.data["cents"], saw.computed["computed.paid"], saw.system.status) == (5, False, "pending")
        [required] = saw.system.pending_requirements
        assert (required.type, required.params["cents"]) == ("charge", 5)
        for change in (
            lambda: saw.data.__setitem__("cents", 6),
            lambda: saw.data["$host"]["intentSlots"].clear(),
            lambda: saw.computed.update(paid=True),
            lambda: required.params.pop("cents"),
            lambda: setattr(saw, "data", {}),
        ):
            with pytest.raises((TypeError, AttributeError)):
                change()
        assert flow.Snapshot is type(saw)
        assert msgspec.json.decode(msgspec.json.encode(world.snapshot(Order, "o", at=5)))["data"]["cents"] == 5
        [entry] = [each for each in world.journal() if each.kind is Kind.EFFECT_REQUESTED]
        assert b"pendingRequirements" not in entry.payload
        world.prove()


def test_others_are_given_nothing() -> None:
    shop, seeing = Shop(), Seeing()
    with testing.world(shop.app, wl.Script().on(shop.charge, wl.Script.never())) as world:
        world.act(Order.fill(5), key="o")
        world.submit(Order.pay("tok"), key="o")
        assert (asked(world).attached, asked(world).leaving) == (b"", asked(world).params)
        assert world.machine.domains.snapshots == []
    with testing.world(seeing.app, wl.Script().on(seeing.charge, wl.Script.never())) as world:
        assert world.machine.domains.snapshots == ["charge"]
        world.act(Order.fill(5), key="o")
        world.submit(Order.pay("tok"), key="o")
        assert b"pendingRequirements" not in asked(world).params
        assert b"pendingRequirements" in asked(world).leaving


def test_a_retry_sees_what_was_dispatched_though_the_cell_has_changed() -> None:
    shop = Seeing()
    answers = (ConnectionError("down"), shop.seen())
    with testing.world(shop.app, wl.Script().on(shop.charge, *answers)) as world:
        world.act(Order.fill(5), key="o")
        world.submit(Order.pay("tok"), key="o")
        world.play(limit_us=world._stage.now_us)  # the first attempt fails
        world.patch(Order, [flow.set("cents", 9)], key="o")
        world.crash()
        world.advance(10)
        assert [each.data["cents"] for each in shop.saw] == [5]
        assert (world.state(Order, "o").cents, world.state(Order, "o").receipt) == (9, "5 from tok")
        world.prove()


def test_effects_side_by_side_each_see_their_own_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that a step has no room for: they are asked for by the next."""
    monkeypatch.setattr(limits, "STEP_EFFECTS_MAX", 1)
    app = wl.Program("app")
    saw: list[int] = []

    @app.effect
    async def look(n: int, *, snapshot: flow.Snapshot = flow.GIVEN) -> int:
        saw.append(snapshot.data["count"])
        return n

    asks = [when(op("isNull", get(f"r{n}")), effect("look", n=lit(n), into=lit(f"r{n}"))) for n in (1, 2, 3)]
    fields = {"count": field("number", 0), **{f"r{n}": field("number") for n in (1, 2, 3)}}
    made = app.domain(document({"go": seq(put("count", lit(7)), *asks)}, fields), name="Made", effects="parallel")
    with testing.world(app, wl.Script().on(look, wl.Script.later(5, look))) as world:
        world.submit(made.action("go")())
        world.crash()
        world.advance(10)
        assert (world.snapshot(made).data["r3"], saw) == (3, [7, 7, 7])
        world.prove()


@pytest.mark.probe("domains.snapshots-too-large")
def test_more_snapshots_than_a_turn_may_ask_for_end_the_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    app = wl.Program("app")

    @app.effect
    async def look(n: int, *, snapshot: flow.Snapshot = flow.GIVEN) -> int:
        return n

    asks = [when(op("isNull", get(f"r{n}")), effect("look", n=lit(n), into=lit(f"r{n}"))) for n in (1, 2)]
    fields = {f"r{n}": field("number") for n in (1, 2)}
    made = app.domain(document({"go": seq(*asks)}, fields), name="Made", effects="parallel")
    with testing.world(app, wl.Script().on(look, look)) as world:
        size = len(canonical.encode(flow_snapshots.plain(world.snapshot(made))))
        monkeypatch.setattr(limits, "FLOW_ATTACHED_BYTES_MAX", 2 * size)
        done = world.act(made.action("go")())
        assert (done.status, done.state["r1"]) == ("error", None)
        assert done.error is not None
        assert "the snapshots for effects that are asked for at once" in done.error.message
        assert (world.machine.work.open, world.snapshot(made).system.pending_requirements) == ({}, ())
        world.prove()
        monkeypatch.setattr(limits, "FLOW_ATTACHED_BYTES_MAX", 20 * size)
        assert world.act(made.action("go")()).state["r2"] == 2


@pytest.mark.parametrize("policy", ["reissue", "script"])
def test_a_fork_asks_again_with_the_snapshot(policy: Any) -> None:
    shop = Seeing()
    with testing.world(shop.app, wl.Script().on(shop.charge, wl.Script.later(5, shop.seen()))) as world:
        world.act(Order.fill(5), key="o")
        world.submit(Order.pay("tok"), key="o")
        script = wl.Script().on(shop.charge, "scripted") if policy == "script" else None
        fork = world.fork("f", effects=policy, live=policy == "reissue", script=script)
        world.advance(10)
        expected = {"reissue": ("5 from tok", [5, 5]), "script": ("scripted", [5])}[policy]
        assert (fork.state(Order, "o").receipt, [each.data["cents"] for each in shop.saw]) == expected
        fork.prove()


def test_a_document_that_names_the_parameter_itself_does_not_reach_it() -> None:
    app = wl.Program("app")

    @app.effect
    async def look(*, snapshot: flow.Snapshot = flow.GIVEN) -> int:
        return int(snapshot.data["count"])

    with pytest.raises(flow.BadDomain, match="'look' is given its snapshot by the host"):

        @app.domain
        class Bad(flow.Domain):
            count: int = 0

            @flow.action
            def go(self) -> None:
                flow.perform(look(snapshot=self.count), into=self.count)  # type: ignore[arg-type]


# --- Who else calls it -------------------------------------------------------------------------------------------


def test_a_workflow_cannot_call_what_needs_a_snapshot_and_can_what_does_without() -> None:
    shop = Seeing()

    @shop.app.effect
    async def maybe(n: int, snapshot: flow.Snapshot | None = None) -> str:
        return f"{n} {snapshot}"

    @shop.app.workflow
    async def pays() -> str:
        return await shop.charge("tok", 5)

    @shop.app.workflow
    async def asks() -> str:
        return await maybe(5)

    with testing.world(shop.app, wl.Script().on(maybe, maybe).on(shop.charge, "r")) as world:
        with pytest.raises(wl.RunFailed, match=r"charge\(\) takes the snapshot of a flow domain: only an action"):
            world.run(pays())
        assert world.run(asks()) == "5 None"
        assert world.machine.domains.snapshots == ["charge", "maybe"]


async def test_outside_a_world_it_is_passed() -> None:
    shop = Seeing()
    with testing.world(shop.app) as world:
        snapshot = world.snapshot(Order, "o")
    with pytest.raises(wl.errors.OutsideWorkflow, match="pass snapshot="):
        await shop.charge("tok", 5)
    assert await shop.charge("tok", 5, snapshot=snapshot) == "5 from tok for 0"


async def test_a_standalone_host_gives_the_same() -> None:
    shop = Seeing()
    host = flow.Host(Order)
    host.register("charge", flow.answering(shop.charge.function))
    await host.act(Order.fill(5))
    done = await host.act(Order.pay("tok"))
    assert done.snapshot.data["receipt"] == "5 from tok for 5"
    with pytest.raises(TypeError):
        shop.saw[0].data["cents"] = 6
    script = wl.Script().on(shop.charge, shop.seen())
    scripted = flow.Host(Order)
    scripted.register("charge", testing.scripted(script)["charge"])
    await scripted.act(Order.fill(6))
    assert (await scripted.act(Order.pay("tok"))).snapshot.data["receipt"] == "6 from tok"
    assert [each.data["cents"] for each in shop.saw] == [5, 6]


async def test_both_hosts_give_the_snapshot_of_the_dispatch() -> None:
    """Not of the end of the turn: what the context answers beside it has changed the head by then."""
    beside = document(
        {
            "go": seq(
                when(op("isNull", get("r")), effect("look", into=lit("r"))),
                when(op("isNull", get("now")), effect("system.get", key=lit("seed"), into=lit("now"))),
            )
        },
        {"r": field("number"), "now": field("string")},
    )
    saw: list[flow.Snapshot] = []
    app = wl.Program("app")

    @app.effect
    async def look(*, snapshot: flow.Snapshot = flow.GIVEN) -> int:
        saw.append(snapshot)
        return 1

    made = app.domain(beside, name="Beside", effects="parallel")
    with testing.world(app, wl.Script().on(look, look)) as world:
        world.act(made.action("go")(), id="go")
        host = flow.Host(beside, effects="parallel")
        host.register("look", flow.answering(look.function))
        assert (await host.dispatch("go", id="go")).snapshot.data == world.snapshot(made).data
    assert (saw[0].data, saw[0].meta.version) == (saw[1].data, saw[1].meta.version)
    assert len(saw[0].system.pending_requirements) == 2


def test_which_parameters_are_meant() -> None:
    def named(snapshot: str) -> None: ...
    def annotated(n: int, snapshot: flow.Snapshot) -> None: ...
    def first(snapshot: flow.Snapshot, n: int) -> None: ...
    def only(snapshot: flow.Snapshot, /) -> None: ...
    def unknown(snapshot: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert [Signature(each, {}, of_effect=True).snapshot for each in (named, unknown)] == [None, None]
    found = Signature(annotated, {}, of_effect=True)
    assert (found.needs_snapshot, list(found.parameters.parameters)) == (True, ["n"])
    assert Signature(annotated, {}).snapshot is None  # of a workflow
    with pytest.raises(wl.BadInput, match="put it behind 'n', or behind"):
        Signature(first, {}, of_effect=True)
    with pytest.raises(wl.BadInput, match=r"put it behind \*"):
        Signature(only, {}, of_effect=True)
    with pytest.raises(wl.BadInput, match="'snapshot' is passed by the host"):
        found.pack((1,), {"snapshot": None})


# --- What is stored ----------------------------------------------------------------------------------------------


def test_rows_of_worlds_without_such_effects_name_none() -> None:
    with testing.world(Shop().app, wl.Script()) as world:
        rows = Rows(state_rows.rows_of(world.machine))
        row = rows.get(row_keys.DOMAINS)
        assert row is not None
        found: Any = canonical.decode(row.meaning)
        assert found[4:] == [[], True], "places are fixed, and the rows of its cells say their kind"
    older = structs.decode(part_inputs.DomainDeclarations, canonical.encode([{}, {}, True, {}]))
    assert older == part_inputs.DomainDeclarations({}, {}, True, {}, [], kinds=False)


def test_a_world_is_told_if_that_alone_has_changed() -> None:
    with testing.world(Looking(needs=False).app) as world:
        told = domain_part.news(world.machine, Looking().app)
        assert told is not None
        assert (told.documents, told.snapshots) == ({}, ["look"])
        world.adopt(Looking().app)
        assert world.machine.domains.snapshots == ["look"]
        assert domain_part.news(world.machine, Looking().app) is None


@pytest.mark.parametrize("parked", [None, Parked(3, "down")])
@pytest.mark.parametrize("attached", [b"", b"x" * 20])
def test_open_work_comes_back_with_what_is_attached(parked: Parked | None, attached: bytes) -> None:
    params = user_values.pack([user_values.dump({"n": 1}), b""])
    pending = Pending(7, WorkKind.EFFECT, "look", params, 1, 2, 3, 4, 5, "", -1, "target", parked, attached)
    meaning, placement, payload = pending.write()
    assert state_rows._pending(7, meaning, placement) == pending
    assert payload == (attached or params)
    assert len(meaning) == 6 + (2 if parked else 0) + (1 if attached else 0)


# --- In a store --------------------------------------------------------------------------------------------------


BIG = "x" * (2 * limits.INLINE_BYTES_MAX)
NOTES = document(
    {"go": when(op("isNull", get("r")), effect("look", n=get("count"), into=lit("r")))},
    {"note": field("string", ""), "count": field("number", 0), "r": field("number")},
)


class Looking:
    """A program of one document, whose effect looks at the cell; until it is let go on, it waits."""

    def __init__(self, *, held: bool = False, needs: bool = True) -> None:
        self.saw: list[flow.Snapshot] = []
        self.began, self.free = asyncio.Event(), asyncio.Event()
        self.app = app = wl.Program("notes")
        if not held:
            self.free.set()

        @app.effect(name="look", retry=wl.Retry(attempts=5))
        async def look(n: int, *, snapshot: flow.Snapshot = flow.GIVEN) -> int:
            self.saw.append(snapshot)
            self.began.set()
            await self.free.wait()
            return n

        if not needs:
            app.effects["look"] = wl.Program("other").effect(name="look")(_blind)
        self.notes = app.domain(NOTES, name="Notes")


async def _blind(n: int) -> int:
    await asyncio.Event().wait()
    return n


async def steps_of(world: wl.World) -> list[step_reader.StoredStep]:
    connection, at = world._universe, await world._handle.address()
    line, top = await world_reader.line_of(connection.store.engine, at), await world.head()
    return await world_restore.read_steps(connection.store.engine, connection.blobs, line, above=0, up_to=top.height)


async def test_a_large_snapshot_is_stored_apart_and_reaches_another_process(lmdb_kit: Kit) -> None:
    """The first process dies over the effect. The second sees the cell of the dispatch, though it has changed since."""
    first, second = Looking(held=True), Looking()
    process = await lmdb_kit.process(first.app)
    world = await process.universe.ensure("w", first.app)
    await world.patch(first.notes, [flow.set("note", BIG), flow.set("count", 5)])
    acting_ = asyncio.create_task(world.act(first.notes.action("go")(), id="go"))
    await first.began.wait()
    await world.patch(first.notes, [flow.set("count", 6)])
    dispatched = next(
        each for each in await steps_of(world) if any(e.kind is Kind.EFFECT_REQUESTED for e in each.entries())
    )
    assert len(dispatched.changes) < 2_000
    assert sum(len(each.payload) for each in dispatched.entries()) < 2_000
    assert (await doctor.examine(process.universe._connection, repair=False)).findings == []
    acting_.cancel()
    await process.kill()
    async with lmdb_kit.hosting(second.app) as universe:
        done = await universe.world("w").act(second.notes.action("go")(), id="go", timeout=30)
        assert (done.state["r"], done.state["count"]) == (5, 6)
        assert [(each.data["note"], each.data["count"]) for each in second.saw] == [(BIG, 5)]
    async with lmdb_kit.hosting() as client:
        proof = await proof_calls.prove(client.world("w")._handle)
        assert (proof.holds, proof.unverifiable) == (True, [])


async def test_work_that_was_asked_for_without_a_snapshot_is_parked(lmdb_kit: Kit) -> None:
    """The program has changed since: nothing fails, and a person decides."""
    before, after = Looking(needs=False), Looking()
    process = await lmdb_kit.process(before.app)
    world = await process.universe.ensure("w", before.app)
    acting_ = asyncio.create_task(world.act(before.notes.action("go")(), id="go"))
    await aio.until(lambda: _open(world))
    acting_.cancel()
    await process.kill()
    async with lmdb_kit.hosting(after.app) as universe:
        world = universe.world("w")
        await aio.until(lambda: _open(world, WorkState.PARKED))
        [parked] = await world.effects(state=WorkState.PARKED)
        assert "takes the snapshot of a flow domain, and was asked for without one" in parked.error
        await parked.answer(3)
        assert (await world.act(after.notes.action("go")(), id="go", timeout=30)).state["r"] == 3
        assert after.saw == []


async def _open(world: wl.World, state: WorkState | None = None) -> bool:
    return bool(await world.effects(state=state))
