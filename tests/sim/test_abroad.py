"""Messages between universes and stores in the simulator: what is checked of them, and seeds with another store."""

from __future__ import annotations

import msgspec
import pytest

from tests.campaign.faults import ablations
from tests.campaign.suite import SUITE
from tests.keys import samples
from worldline.keys import inbox as inbox_keys
from worldline.keys import universes as universe_keys
from worldline.keys import work as work_keys
from worldline.keys import worlds as world_keys
from worldline.model import ids, inbox, payload
from worldline.model import work as work_model
from worldline.model import world_records as world_model
from worldline.sim import seed_run
from worldline.sim.check.audit import Audit
from worldline.sim.check.message_checks import Messages
from worldline.sim.faults import boundaries, profiles
from worldline.sim.runtime.sim_loop import SimMachine
from worldline.sim.runtime.truth import AppliedBatch
from worldline.store import kv

SENDING = ablations.SENDING + ",focus=deliver,chaos_seconds=8"
SENDER = ids.Address(ids.UniverseId(b"s" * 16), ids.WorldId(b"a" * 16))
AT = ids.Address(ids.UniverseId(b"d" * 16), ids.WorldId(b"w" * 16))
INTENT = ids.IntentId(b"m" * 16)
GRANT = world_model.Grant(SENDER.universe, "home", "office-*", "open-*", "*")
WINDOW_US = 10_000_000


@pytest.mark.parametrize("seed", range(3))
def test_another_store_among_faults(seed: int) -> None:
    result = seed_run.run(seed, SUITE, profile=profiles.of(SENDING, seed))
    assert result.failures == []


def test_ids_that_are_forgotten_soon() -> None:
    """The janitor of the other store forgets messages while some are still on their way."""
    result = seed_run.run(4, SUITE, profile=profiles.of(ablations.SENDING + ablations.SHORT_WINDOW, 4))
    assert result.failures == []


def test_where_hosts_are_stopped() -> None:
    """B20: between the item at the destination and the sender's receipt."""
    cells = [(name, fault) for name in boundaries.BOUNDARIES["deliver"] for fault in boundaries.FAULTS]
    assert set(cells) <= set(boundaries.reachable())
    found: dict[tuple[str, str], int] = {}
    for seed in range(20):  # which seeds hit what changes with the code
        found |= seed_run.run(seed, SUITE, profile=profiles.of(SENDING, seed)).cells
        if len(set(cells) & set(found)) >= 3:
            return
    raise AssertionError(f"only {found}")


class Stage:
    """Two stores whose commits the checker is told."""

    def __init__(self) -> None:
        self.audit = Audit()
        self.messages = Messages([self.audit, Audit(violations=self.audit.violations)], window_us=WINDOW_US)
        self.copy: dict[bytes, bytes] = {}
        self.messages.know([self])  # type: ignore[list-item]
        self._number = 0

    def apply(self, batch: kv.Batch, *, time_us: int = 1) -> kv.Stamp:
        self._number += 1
        stamps = tuple(kv.stamp(self._number, index) for index in range(len(batch.appends)))
        self.messages.look(AppliedBatch(self._number, time_us, SimMachine("h"), batch, stamps, {}))
        return stamps[0] if stamps else kv.ZERO_STAMP

    def broken(self) -> list[str]:
        return [each.invariant for each in self.audit.violations]


def message() -> inbox.Message:
    return inbox.Message(
        INTENT,
        SENDER.universe,
        SENDER.world,
        1,
        inbox.MessageMode.TYPED,
        "parcel",
        payload.EMPTY,
        universe="home",
        world="office-0",
    )


def delivering() -> kv.Batch:
    batch = kv.Batch()
    batch.put(inbox_keys.seen_key(AT, "id"), b"seen")
    batch.append(inbox_keys.item_prefix(AT), inbox_keys.ITEM.pack(message()))
    return batch


def granting(*grants: world_model.Grant) -> kv.Batch:
    batch = kv.Batch()
    batch.put(universe_keys.grants_key(AT.universe), universe_keys.GRANTS.pack(world_model.Grants(1, list(grants))))
    batch.put(world_keys.meta_key(AT), world_keys.META.pack(msgspec.structs.replace(samples.META, name="open-0")))
    return batch


def test_one_item_for_each_message() -> None:
    stage = Stage()
    stage.audit._life(SENDER).intents[INTENT] = work_model.WorkKind.EFFECT
    stage.apply(granting(GRANT))
    first = stage.apply(delivering())
    stage.messages.receipt("op", [INTENT.hex(), first.hex(), "again"])
    assert stage.broken() == []
    stage.messages.receipt("op", [INTENT.hex(), kv.stamp(9, 9).hex(), "first"])
    assert stage.broken() == ["F2"]
    stage.apply(delivering())
    assert stage.broken() == ["F2", "F1"]


def test_who_may_send() -> None:
    """A grant that covers it, as the store has it now, and a sender that has asked for it."""
    stage = Stage()
    life = stage.audit._life(SENDER)
    for grants, asked, expected in (
        ([GRANT], True, True),
        ([GRANT], False, False),
        ([], True, False),
        ([msgspec.structs.replace(GRANT, to="sealed-*")], True, False),
        ([msgspec.structs.replace(GRANT, worlds="others")], True, False),
        ([msgspec.structs.replace(GRANT, universe=b"x" * 16)], True, False),
    ):
        stage.apply(granting(*grants))
        life.intents = {INTENT: work_model.WorkKind.EFFECT} if asked else {}
        before = len(stage.broken())
        stage.apply(delivering())
        assert ("F4" not in stage.broken()[before:]) == expected, (grants, asked)


@pytest.mark.parametrize(
    ("state", "age_us", "expected"),
    [
        (work_model.WorkState.CLAIMED, WINDOW_US // 2, ["E8"]),
        (work_model.WorkState.CLAIMED, WINDOW_US // 2 + 1, []),
        (work_model.WorkState.SETTLED, 1, []),
        (None, 1, []),
    ],
)
def test_what_is_forgotten_cannot_be_brought_again(
    state: work_model.WorkState | None, age_us: int, expected: list[str]
) -> None:
    stage = Stage()
    stage.audit._life(SENDER).intents[INTENT] = work_model.WorkKind.EFFECT
    stage.apply(granting(GRANT))
    stage.apply(delivering())
    if state is not None:
        opened = msgspec.structs.replace(samples.WORK, state=state, opened_us=1_000)
        stage.copy[work_keys.open_key(SENDER, INTENT)] = work_keys.WORK.pack(opened)
    batch = kv.Batch()
    batch.delete(inbox_keys.seen_key(AT, "id"))
    stage.apply(batch, time_us=1_000 + age_us)
    assert stage.broken() == expected
