"""Every admission of a store is asked with what was read for it, in the order of the features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from tests.kits.kit import Kit
from worldline.base import env as envs
from worldline.base import errors
from worldline.client import backpressure
from worldline.model import ids, payload
from worldline.model.inbox import InboxEvent
from worldline.model.settings import PressureSettings
from worldline.runtime import facts, universe_admission
from worldline.runtime.feature import Feature
from worldline.runtime.universe_admission import NewWorld, RefusedMessage
from worldline.store import kv

UNIVERSE = ids.UniverseId(b"u" * 16)


class Strict(msgspec.Struct, frozen=True):
    """Bounds that refuse with a word of their own, from so many open effects on."""

    why: str
    effects_max: int | None = None

    def refuse_input(self, *, effects: int | None = None) -> errors.Error | None:
        bound = self.effects_max
        if bound is None or (effects is not None and effects >= bound):
            return errors.Closed(f"{self.why}: closed")
        return None

    def refuse_message(self) -> RefusedMessage | None:
        return None


@dataclass
class Asked:
    """An admission that notes what it was given."""

    keys: tuple[bytes, ...]
    limits: Strict = field(default_factory=lambda: Strict("strict", 10))
    refuses: bool = False
    seen: list[list[bytes | None]] = field(default_factory=list)

    def reads(self, universe: ids.UniverseId) -> list[kv.Get]:
        return [kv.Get(universe + key) for key in self.keys]

    def bounds(self, universe: ids.UniverseId, read: Sequence[bytes | None]) -> Strict:
        self.seen.append(list(read))
        return self.limits

    async def admit(
        self, engine: kv.Engine, env: envs.Env, batch: kv.Batch, world: NewWorld, read: Sequence[bytes | None]
    ) -> None:
        self.seen.append(list(read))
        if self.refuses:
            raise errors.Closed("no more worlds")


async def test_each_is_given_its_own_answers(memory_kit: Kit) -> None:
    store = (await memory_kit.process()).universe._connection.store
    one, none, two = Asked((b"a",)), Asked(()), Asked((b"b", b"c"))
    asked = [one, none, two]
    keys = [each.key for each in universe_admission.reads(asked, UNIVERSE)]
    assert keys == [UNIVERSE + key for key in (b"a", b"b", b"c")]
    read = kv.ReadResult([b"something else", b"A", b"B", None], 0, 0)
    assert universe_admission.bounds(asked, UNIVERSE, read, first=1) == [each.limits for each in asked]
    world = NewWorld(UNIVERSE)
    await universe_admission.admit(asked, world, kv.Batch(), read, first=1, engine=store.engine, env=store.env)
    assert [each.seen for each in asked] == [[[b"A"]] * 2, [[]] * 2, [[b"B", None]] * 2]
    none.refuses = True
    with pytest.raises(errors.Closed):
        await universe_admission.admit(asked, world, kv.Batch(), read, first=1, engine=store.engine, env=store.env)
    assert (len(one.seen), len(two.seen)) == (3, 2), "the first that refuses is the last that is asked"


async def test_inputs_are_refused_by_whatever_feature_bounds_them(memory_kit: Kit) -> None:
    connection = (await memory_kit.process()).universe._connection
    at, item = ids.Address(connection.id, ids.WorldId(b"w" * 16)), InboxEvent("Note", payload.EMPTY)
    for limits, closed in ((Strict("lenient", 10), False), (Strict("strict", 0), False), (Strict("shut"), True)):
        told: list[facts.Fact] = []
        feature = Feature(name="f", admissions=(Asked((b"a",), limits),))
        pressure = backpressure.Pressure(
            msgspec.structs.replace(connection.store, features=(feature,)),
            connection.id,
            PressureSettings(open_effects_max=0, sample_ms=0),
            telemetry=facts.Telling([("list", told.append)]),
        )
        await pressure.begin()
        if limits.why == "lenient":
            await pressure.check(at, item)
            await pressure.check_body(at)
            continue
        with pytest.raises(errors.Closed, match=limits.why):
            await pressure.check(at, item)
        assert told == [facts.InputRefused(at, limits.why, 0)]
        if closed:
            with pytest.raises(errors.Closed, match=limits.why):
                await pressure.check_body(at)
        else:
            await pressure.check_body(at)  # by the number of open effects, only inputs that ask for work are refused
