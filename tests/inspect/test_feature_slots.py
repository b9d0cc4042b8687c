"""doctor, verify and why ask the features of the store that they look at, in the order of its list."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pytest

import worldline as wl
from worldline.base import errors
from worldline.client.connection import Connection
from worldline.host.feature_list import FEATURES
from worldline.inspect import doctor, verify, why
from worldline.kernel.machine import Machine
from worldline.layers.history.history_line import HistoryLine
from worldline.model import ids, journal
from worldline.runtime.feature import Feature
from worldline.runtime.feature_checks import HistoryCheck, StepCheck, UniverseCheck, UniverseExam
from worldline.runtime.feature_reasons import AskedWorld, FeatureReasons, Reason
from worldline.store import kv

app = wl.Program("asked")


@dataclass(frozen=True)
class Noted:
    text: str


@app.reducer
@dataclass
class Notes:
    count: int = 0

    @wl.on
    def noted(self, event: Noted) -> None:
        self.count += len(event.text)


class NoisyCheck(UniverseCheck):
    def __init__(self, what: str) -> None:
        self.what = what

    async def look(self, exam: UniverseExam) -> None:
        exam.find("", self.what, "found", advice="none")
        exam.count_deletions(2)
        exam.count_finished(1)
        raise errors.DecodeError("damaged")


class NoisyReasons(FeatureReasons):
    def __init__(self, name: str) -> None:
        self._name = name

    async def of_status(self, asked: AskedWorld) -> str:
        return f"{self._name} stops {asked.name}"

    async def of_universe(self, asked: AskedWorld) -> list[Reason]:
        return [Reason(self._name, asked.command("universe"))]

    def of_state(self, asked: AskedWorld, machine: Machine) -> list[Reason]:
        return [Reason(self._name, asked.command(f"state {len(machine.cells)}"))]

    def of_effects(
        self, asked: AskedWorld, machine: Machine, effects: Mapping[ids.IntentId, Reason]
    ) -> Mapping[ids.IntentId, Reason]:
        return {**effects, ids.IntentId(self._name.encode()): Reason(self._name, "effect")}


class NoisySteps:
    signed = 3

    def __init__(self, wrong: str) -> None:
        self._wrong = wrong

    def see(self, step: Sequence[journal.JournalEntry]) -> str:
        assert step
        return self._wrong


class NoisyHistory(HistoryCheck):
    def __init__(self, wrong: str = "") -> None:
        self._wrong = wrong

    def steps(self, line: HistoryLine, receipt_keys: Collection[bytes]) -> StepCheck:
        assert receipt_keys == (b"key",)
        return NoisySteps(self._wrong)


class ErasedHistory(HistoryCheck):
    async def begin(self, engine: kv.Engine, at: ids.Address) -> None:
        raise errors.KeyDestroyed("erased")


def with_features(connection: Connection, *features: Feature) -> None:
    connection.store = msgspec.structs.replace(connection.store, features=(*FEATURES, *features))


NOISY = [Feature(name=each, checks=(NoisyCheck(each),), reasons=(NoisyReasons(each),)) for each in ("one", "two")]


async def test_doctor_makes_each_check_also_behind_one_that_cannot_read() -> None:
    async with wl.open("memory://", create=True) as universe:
        with_features(universe._connection, *NOISY)
        report = await doctor.examine(universe._connection, repair=False)
    assert [each.kind for each in report.findings] == ["damaged", "one", "damaged", "two"]
    assert report.findings[2].what == "two cannot be looked at: damaged"
    assert (report.deletions, report.deletions_finished) == (4, 2)


async def test_why_has_what_each_feature_says_at_its_place() -> None:
    async with wl.open("memory://", create=True) as universe:
        world = await universe.create("alice", app)
        with_features(universe._connection, *NOISY)
        said = [(each.kind, each.what) for each in (await why.why(world._handle, option=" --x")).reasons]
        await world.pause()
        [paused, *_] = (await why.why(world._handle)).reasons
    universes = [("one", "worldline universe --x"), ("two", "worldline universe --x")]
    states = [("one", "worldline state 0 --x"), ("two", "worldline state 0 --x")]
    assert [each for each in said if each[0] in ("one", "two")] == [
        *universes,
        *states,
        ("one", "effect"),
        ("two", "effect"),
    ]
    assert (paused.kind, paused.what) == ("paused", "one stops alice")


async def test_verify_walks_with_the_checks_of_features() -> None:
    async with wl.open("memory://", host=app) as universe:
        connection = universe._connection
        world = await universe.create("alice", app)
        await (await world.send(Noted("one"))).applied()
        at = await world._handle.address()
        with_features(connection, Feature(name="steps", history_checks=(NoisyHistory(), NoisyHistory())))
        assert (await verify.verify(connection, at, receipt_keys=(b"key",))).signed == 6
        with_features(connection, Feature(name="steps", history_checks=(NoisyHistory(), NoisyHistory("is noisy"))))
        with pytest.raises(verify.Damaged, match="is noisy"):
            await verify.verify(connection, at, receipt_keys=(b"key",))
        with_features(connection, Feature(name="erased", history_checks=(ErasedHistory(),)))
        with pytest.raises(errors.KeyDestroyed):
            await verify.verify(connection, at)
