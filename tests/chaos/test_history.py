"""The judge is judged: a history that was tampered with is noticed, by the invariant that it breaks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests import aio
from tests.chaos import history, opening
from tests.chaos.history import Committed
from tests.kits import scenario
from worldline.codec import tuples
from worldline.keys import journal as journal_keys
from worldline.model import ids
from worldline.runtime import store_opening
from worldline.sim.check import checkers
from worldline.sim.check.audit import Audit
from worldline.sim.runtime import keyspaces
from worldline.store import kv

Tamper = Callable[[list[Committed]], list[Committed]]
Found = tuple[list[Committed], dict[bytes, bytes]]


async def told(folder: Path) -> Found:
    """The canonical scenario in a folder, hosted here, and everything that was recorded of it."""
    universe = await opening.recorded(str(folder), str(folder / "objects"), host="host", hosts=scenario.PROGRAMS)
    try:
        await scenario.drive(universe)
    finally:
        await opening.end(universe)
    everything = await checkers.contents(universe._connection.store.engine)
    await universe._connection.store.close()
    return history.split(everything)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return aio.run(told(tmp_path_factory.mktemp("recorded") / "store"))


def broken(found: Found, tamper: Tamper) -> list[str]:
    """The invariants that a history breaks, the first first."""
    committed, contents = found
    audit = Audit()
    copy = history.replay(tamper(committed), audit)
    checkers.same_contents(contents, copy, audit)
    return [violation.invariant for violation in audit.violations]


def of_kind(committed: list[Committed], kind: str, number: int) -> int:
    """Where the so-many-th commit of a kind stands."""
    return [at for at, each in enumerate(committed) if keyspaces.about(each.record.batch()) == kind][number]


def changed(committed: list[Committed], at: int, **values: object) -> list[Committed]:
    record = msgspec.structs.replace(committed[at].record, **values)
    return [*committed[:at], msgspec.structs.replace(committed[at], record=record), *committed[at + 1 :]]


def lost(kind: str, committed: list[Committed]) -> list[Committed]:
    at = of_kind(committed, kind, 1)
    return [*committed[:at], *committed[at + 1 :]]


def swapped(committed: list[Committed]) -> list[Committed]:
    first, second = of_kind(committed, "step", 3), of_kind(committed, "step", 4)
    order = list(committed)
    order[first], order[second] = order[second], order[first]
    return order


def by_another(kind: str, committed: list[Committed]) -> list[Committed]:
    return changed(committed, of_kind(committed, kind, 2), host="somebody else")


def unguarded_epoch(committed: list[Committed]) -> list[Committed]:
    """A worker takes a world again, and its earlier life goes on writing."""
    at = of_kind(committed, "acquire", 0)
    return changed(committed, at, life=2)


def kept_items(committed: list[Committed]) -> list[Committed]:
    """A step that leaves in the inbox what it has taken from there."""
    for at, each in enumerate(committed):
        kept = [key for key in each.record.deletes if keyspaces.place(key).what != "inbox"]
        if len(kept) < len(each.record.deletes) and keyspaces.about(each.record.batch()) == "step":
            return changed(committed, at, deletes=kept)
    raise AssertionError


TAMPERED: dict[str, tuple[Tamper, str]] = {
    "a lost step": (functools.partial(lost, "step"), "K1"),
    "a lost lease": (functools.partial(lost, "acquire"), "K1"),
    "steps in another order": (swapped, "K1"),
    "a step by somebody else": (functools.partial(by_another, "step"), "L3"),
    "a lease that another life took": (unguarded_epoch, "L3"),
    "items that stay in the inbox": (kept_items, "J6"),
}


def test_what_happened_is_in_order(recorded: Found) -> None:
    assert broken(recorded, lambda committed: committed) == []
    assert len(recorded[0]) > 25


def test_an_expectation_that_never_held_is_noticed() -> None:
    at = ids.Address(ids.UniverseId(bytes(16)), ids.WorldId(bytes(16)))
    record = history.Record("host", 1, 5, [(journal_keys.head_key(at), b"seen")], [], [], [], [])
    audit = Audit()
    history.replay([Committed(record, (), 1, 1)], audit)
    assert [each.invariant for each in audit.violations] == ["K1"]


@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_is_noticed(name: str, recorded: Found) -> None:
    tamper, invariant = TAMPERED[name]
    assert broken(recorded, tamper)[0] == invariant


async def test_records_of_any_size_come_back_as_they_were(tmp_path: Path) -> None:
    engine = await store_opening.open_engine(str(tmp_path / "store"), opening.ENV, create=True)
    recording = history.Recording(engine, lambda: 7, host="h", life=3)
    batch = kv.Batch()
    batch.absent(tuples.pack((9,)))
    batch.put(tuples.pack((9,)), b"g", stamp=1)
    for index in range(5):
        batch.put(tuples.pack((9, index)), bytes([index]) * 60_000)
        batch.append(tuples.pack((10,)), b"%d" % index)
    [outcome] = await recording.commit(batch)
    assert isinstance(outcome, kv.Ok)
    assert len(outcome.stamps) == 5
    [made], contents = history.split(await checkers.contents(engine))
    await recording.close()
    assert made.stamps == outcome.stamps
    assert (made.record.host, made.record.life, made.record.time_us) == ("h", 3, 7)
    assert repr(made.record.batch()) == repr(batch)
    assert len(contents) == 11
    assert contents[tuples.pack((9,))] == b"g" + outcome.stamps[1]
