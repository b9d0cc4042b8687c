"""The rows of flow domains' cells say what they are, since format 2.4; those of before are read, and proved, as they
are.

`orders_2_3.world` is a world that a release of format 2.3 has exported: the orders "o", whose payment is open and for
which one intent waits, "idle" and "later", and a list of to-dos. Its steps, and its snapshot, have rows without a
kind.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests.features.domains.shop import Order, Shop, without_charge
from tests.features.domains.shop_worlds import opened
from tests.kits.kit import Kit
from worldline.codec import canonical
from worldline.features.domains import checks
from worldline.features.domains.pure import domain_cell
from worldline.features.domains.pure import part as domain_part
from worldline.features.proofs import calls as proof_calls
from worldline.inspect import verify, why
from worldline.kernel import part_inputs, state_rows
from worldline.kernel.authoring.program import Program
from worldline.kernel.machine import Machine
from worldline.model import cell_rows, row_keys
from worldline.model.cell_rows import CellKind
from worldline.model.rows import Rows
from worldline.testing.tested_world import NotTaken, TestWorld

OLD_WORLD = Path(__file__).with_name("orders_2_3.world")

Kinds = dict[tuple[str, str], CellKind]


def kinds(rows: Rows) -> Kinds:
    """What the rows of all cells say."""
    return {
        (domain, key): cell_rows.decode(row.meaning).kind
        for name, row in rows.under(row_keys.CELL)
        for domain, key in [row_keys.parse(name).texts]
    }


def rows_of(world: TestWorld) -> Rows:
    return Rows(state_rows.rows_of(world.machine))


def declared(rows: Rows) -> list[Any]:
    """What the state says of all domains."""
    row = rows.get(row_keys.DOMAINS)
    assert row is not None
    found: Any = canonical.decode(row.meaning)
    return found  # type: ignore[no-any-return]


@contextmanager
def before_2_4() -> Iterator[None]:
    """Worlds are given their domains as releases before format 2.4 did."""
    news = domain_part.news

    def older(machine: Machine, program: Program) -> part_inputs.DomainDeclarations | None:
        said = news(machine, program)
        return None if said is None else msgspec.structs.replace(said, kinds=False)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(domain_part, "news", older)
        yield


@contextmanager
def old_world(*answers: Any) -> Iterator[TestWorld]:
    """A world that was given its domains before, with two orders. It is proved at its end."""
    with ExitStack() as stack:
        with before_2_4():
            world = stack.enter_context(opened(Shop(), *answers))
            world.act(Order.fill(5), key="o")
            world.act(Order.fill(7), key="idle")
        assert len(declared(rows_of(world))) == 4
        assert set(kinds(rows_of(world)).values()) == {CellKind.REDUCER}
        yield world


# --- Worlds of now -----------------------------------------------------------------------------------------------


def test_a_cell_of_a_domain_says_so_and_a_reducers_keeps_its_bytes() -> None:
    app = wl.Program("both")

    @dataclass(frozen=True)
    class Added:
        key: str

    @app.reducer(key="key")
    @dataclass
    class Sum:
        count: int = 0

        @wl.on
        def added(self, event: Added) -> None:
            self.count += 1

    app.domain(keyed=True, name="Order")(Order)
    with wl.testing.world(app, wl.Script()) as world:
        world.send(Added("o"))
        world.act(Order.fill(5), key="o")
        rows = rows_of(world)
        assert kinds(rows) == {("Order", "o"): CellKind.DOMAIN, ("Sum", "o"): CellKind.REDUCER}
        assert declared(rows)[4:] == [[], True]
        reducers = rows.get(row_keys.cell("Sum", "o"))
        assert reducers is not None
        assert reducers.meaning.hex() == "820148a165636f756e7401", "as before format 2.4"
        world.crash()
        assert kinds(rows_of(world)) == kinds(rows)
        world.prove()


@dataclass(frozen=True)
class Taken:
    key: str
    fails: bool = False


def test_a_cell_that_a_reducer_takes_over_is_a_reducers() -> None:
    """A failed event leaves it what it was."""
    app = wl.Program("shop")

    @app.reducer(key="key", name="Order")
    @dataclass
    class Reads:
        snapshot: dict[str, Any] = field(default_factory=dict)
        count: int = 0

        @wl.on
        def taken(self, event: Taken) -> None:
            self.count += 1

    @app.reducer(key="key")
    @dataclass
    class Then:  # its handler is called behind the other's
        @wl.on
        def taken(self, event: Taken) -> None:
            if event.fails:
                raise ValueError("not now")

    with opened(Shop()) as world:
        world.act(Order.fill(5), key="o")
        world.adopt(app)
        with pytest.raises(NotTaken):
            world.send(Taken("o", fails=True))
        assert kinds(rows_of(world)) == {("Order", "o"): CellKind.DOMAIN}
        world.send(Taken("o"))
        assert kinds(rows_of(world)) == dict.fromkeys([("Order", "o"), ("Then", "o")], CellKind.REDUCER)


async def test_what_changes_in_a_large_cell_is_stored_as_a_difference_of_rows_with_their_kind(memory_kit: Kit) -> None:
    """The base of the difference is the row as it was written."""
    shop, texts = Shop(), [random.Random(number).randbytes(5_000).hex() for number in range(3)]
    async with memory_kit.hosting(shop.app) as universe:
        world = await universe.ensure("w", shop.app)
        heights = []
        for text in texts:
            await world.act(shop.todos.action("add")(title=text))
            heights.append((await world.head()).height)
    async with memory_kit.hosting() as universe:
        for count, height in enumerate(heights, 1):
            rows, _ = await universe.world("w")._handle.rows_at(height)
            row = rows.get(row_keys.cell("Todos", ""))
            assert row is not None
            found = cell_rows.decode(row.meaning)
            assert found.kind is CellKind.DOMAIN
            assert domain_cell.decode(found.data)[1].data["list"] == texts[:count]


# --- Worlds of before ----------------------------------------------------------------------------------------------


def test_steps_of_before_write_what_they_wrote() -> None:
    """Nothing but a declaration changes that: what is made in between is proved with the rest."""
    with old_world() as world:
        with before_2_4():
            world.act(Order.fill(6), key="o")
            world.crash()
            world.act(Order.pay("tok"), key="o")
        assert set(kinds(rows_of(world)).values()) == {CellKind.REDUCER}
        world.prove()


def test_a_cell_of_before_gets_its_kind_when_it_changes() -> None:
    with old_world() as world:
        height = world.head.height
        before = rows_of(world)
        world.adopt(Shop().app)
        told = domain_part.news(world.machine, world.life.program)
        assert told is None, "it has been told"
        rows = rows_of(world)
        assert declared(rows)[4:] == [[], True]
        assert kinds(rows) == kinds(before), "a declaration alone changes no cell"
        world.act(Order.fill(6), key="o")
        mixed = {("Order", "o"): CellKind.DOMAIN, ("Order", "idle"): CellKind.REDUCER}
        assert kinds(rows_of(world)) == mixed
        world.crash()
        assert kinds(rows_of(world)) == mixed
        assert world.state(Order, "idle").cents == 7
        assert world.state(Order, "o", at=height).cents == 5
        world.prove()


def test_once_written_kinds_are_never_left_out_again() -> None:
    with opened(Shop()) as world:
        world.act(Order.fill(5), key="o")
        with before_2_4():
            world.adopt(Shop(2).app)
        world.act(Order.fill(6), key="new")
        assert set(kinds(rows_of(world)).values()) == {CellKind.DOMAIN}


def test_a_fork_of_a_world_of_before_is_told_as_well() -> None:
    with old_world() as world:
        fork = world.fork("other", effects="drop")
        assert len(declared(rows_of(fork))) == 4, "it begins with its parent's state"
        fork.adopt(Shop(2).app)
        fork.act(Order.fill(6), key="o")
        assert kinds(rows_of(fork))["Order", "o"] is CellKind.DOMAIN
        assert kinds(rows_of(world))["Order", "o"] is CellKind.REDUCER
        fork.prove()


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize("is_declared", [True, False])
def test_a_held_up_cell_is_found_by_its_kind_or_its_name(is_old: bool, is_declared: bool) -> None:
    with ExitStack() as stack:
        if is_old:
            world = stack.enter_context(old_world(wl.Script.later(50, "r")))
        else:
            world = stack.enter_context(opened(Shop(), wl.Script.later(50, "r")))
            world.act(Order.fill(5), key="o")
        with before_2_4() if is_old else ExitStack():
            world.submit(Order.pay("tok"), key="o", id="try")
            world.submit(Order.fill(6), key="o", id="next")
            kind = CellKind.REDUCER if is_old else CellKind.DOMAIN
            assert kinds(rows_of(world))["Order", "o"] is kind
            if not is_declared:
                shop = Shop()
                del shop.app.domains["Order"]
                world.adopt(shop.app)
        [cell] = checks.waiting(world.machine)
        assert (cell.name, cell.is_declared, cell.on_its_way) == ("Order['o']", is_declared, ["try"])
        assert [each.id for each in cell.queue] == ["next"]


# --- What a release of before has made -----------------------------------------------------------------------------


async def test_a_world_of_before_is_imported_proved_and_continued(memory_kit: Kit) -> None:
    waits = without_charge()
    async with memory_kit.hosting(waits.app) as universe:
        world = await universe.import_world(OLD_WORLD, name="orders", effects="reissue")
        handle = world._handle
        head = await world.head()
        assert (head.step, head.height) == (8, 14)
        rows, _ = await handle.rows_at(head.height)
        assert len(declared(rows)) == 4
        cells = {("Order", "idle"), ("Order", "later"), ("Order", "o"), ("Todos", "")}
        assert kinds(rows) == dict.fromkeys(cells, CellKind.REDUCER)
        proof = await proof_calls.prove(handle, programs=())
        assert (proof.holds, proof.proved, proof.unverifiable) == (True, 8, [])

        await world.resume()
        assert (await world.act(Order.fill(10), key="later")).state.cents == 10
        assert (await world.state(Order, "idle")).cents == 7
        told = [each for each in (await why.why(handle)).reasons if each.kind == "queued"]
        assert [each.cell for each in told] == ["Order['o']"]
        now = await world.head()
        rows, _ = await handle.rows_at(now.height)
        assert declared(rows)[4:] == [[], True]
        assert kinds(rows) == {**dict.fromkeys(cells, CellKind.REDUCER), ("Order", "later"): CellKind.DOMAIN}

        await world.revert(head.height)
        now = await world.head()
        rows, _ = await handle.rows_at(now.height)
        assert declared(rows)[4:] == [[], True], "what is declared does not go back"
        # The payment was dropped with it, which has changed "o"; "later" is what it was.
        assert kinds(rows) == {**dict.fromkeys(cells, CellKind.REDUCER), ("Order", "o"): CellKind.DOMAIN}
        assert (await world.act(Order.fill(11), key="later")).state.cents == 11
        assert (await world.act(Order.fill(12), key="idle")).state.cents == 12
        fork = await world.fork("then", at=head.height)
        assert (await fork.act(Order.fill(13), key="later")).state.cents == 13
        found = await world.diff(fork)
        assert {"idle", "later"} <= {each.key for each in found.cells}, "one side has a kind, the other may have none"
    async with memory_kit.hosting() as universe:
        for name in ("orders", "then"):
            handle = universe.world(name)._handle
            proof = await proof_calls.prove(handle, programs=())
            assert (proof.holds, proof.unverifiable) == (True, [])
            await verify.verify(universe._connection, await handle.address())
