"""Failures as data: one code, and the fields of the exception, from where it is raised to where it is caught."""

from __future__ import annotations

import dataclasses
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

import worldline as wl
from tests.kernel import test_hostile_exceptions as hostile
from worldline import testing
from worldline.base import errors, limits
from worldline.codec import canonical
from worldline.inspect import entry_text
from worldline.kernel import failure_data, runs

app = wl.Program("failures")


class Declined(wl.Fatal):
    """As users write them: a code of its own, and what there is to know."""

    code = "declined"

    def __init__(self, reason: str, balance: int) -> None:
        super().__init__(f"declined: {reason}")
        self.reason_code = reason
        self.balance = balance
        self.at = datetime(2024, 5, 1, tzinfo=UTC)
        self.card = object()  # cannot be stored
        self._secret = "hidden"


class Broke(wl.Refused):
    def __init__(self, missing: int) -> None:
        super().__init__(f"{missing} cents are missing")
        self.missing = missing


@dataclasses.dataclass
class Busy(wl.TryAgain):
    shard: int

    def __post_init__(self) -> None:
        super().__init__(f"shard {self.shard} is busy", after=3)


class Plain(Exception):
    def __init__(self, **fields: Any) -> None:
        super().__init__("plain")
        self.__dict__.update(fields)


@app.effect(retry=wl.Retry(attempts=2))
async def charge(cents: int) -> str:
    return "ch"


@dataclasses.dataclass(frozen=True)
class Withdraw(wl.Request[int]):
    cents: int


@app.reducer
@dataclasses.dataclass
class Account:
    cents: int = 3

    @wl.on
    def withdraw(self, event: Withdraw) -> int:
        if event.cents > self.cents:
            raise Broke(event.cents - self.cents)
        self.cents -= event.cents
        return self.cents


@app.workflow
async def catches(cents: int) -> dict[str, Any]:
    try:
        await charge(cents)
    except wl.EffectFailed as error:
        return {"code": error.code, "attempts": error.attempts, **error.data}
    return {}


@app.workflow
async def passes_on(cents: int) -> str:
    return await charge(cents)


@app.workflow
async def raises() -> None:
    raise Plain(limit=5, tags={"b", "a"}, code=404)


@app.workflow
async def catches_a_run(cents: int) -> dict[str, Any]:
    try:
        await passes_on(cents)
    except wl.RunFailed as error:
        return {"code": error.code, **error.data}
    return {}


@app.workflow
async def asks(cents: int) -> dict[str, Any]:
    try:
        await wl.ask("bank", Withdraw(cents))
    except wl.Refused as error:
        return {"text": str(error), **error.data}
    return {}


KEPT = {"reason_code": "limit", "balance": 7, "at": "2024-05-01T00:00:00Z"}


def test_a_workflow_reads_code_and_fields() -> None:
    with testing.world(app, wl.Script().on(charge, Declined("limit", 7))) as world:
        assert world.run(catches(5)) == {"code": "declined", "attempts": 1, **KEPT}
        assert world.run(catches_a_run(5)) == {"code": "declined", **KEPT}
        with pytest.raises(wl.RunFailed) as caught:
            world.run(passes_on(5))
        assert caught.value.code == "declined"
        assert caught.value.data == KEPT
        world.prove()


def test_a_code_given_to_fatal_is_its_code() -> None:
    error = wl.Fatal("no", code="no_funds")
    assert error.code == "no_funds"
    assert failure_data.judge(error) == failure_data.Verdict("no_funds", "no", final=True)
    assert wl.Fatal("no").code == "fatal"
    assert failure_data.judge(ValueError("x")) == failure_data.Verdict("ValueError", "ValueError: x")
    assert failure_data.judge(TimeoutError()).code == "timeout"
    assert failure_data.judge(Busy(3)) == failure_data.Verdict(
        "try_again", "shard 3 is busy", {"shard": 3}, after_us=3_000_000
    )


def test_a_run_that_raises_and_a_code_that_is_no_text() -> None:
    with testing.world(app) as world:
        with pytest.raises(wl.RunFailed) as caught:
            world.run(raises())
        assert caught.value.code == "Plain"
        assert caught.value.data == {"limit": 5, "tags": ["a", "b"], "code": 404}
        world.prove()


def test_a_refusal_has_data_for_the_asker() -> None:
    with testing.world(app) as world:
        with pytest.raises(wl.Refused, match="2 cents are missing") as caught:
            world.ask(Withdraw(5))
        assert caught.value.data == {"missing": 2}
        world.also("bank", app)
        assert world.run(asks(4)) == {"text": "1 cents are missing", "missing": 1}


class Strange(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        raise SystemExit("no items")

    def items(self) -> Any:
        raise SystemExit("no items")


def strange() -> Exception:
    error = Plain()
    error.__dict__ = Strange(ok=1)
    return error


def cyclic() -> list[Any]:
    around: list[Any] = []
    around.append(around)
    return around


FIELDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (lambda: Plain(a=1, b="x", c=[1.5, None], d=b"y"), {"a": 1, "b": "x", "c": [1.5, None], "d": b"y"}),
    "not storable": (lambda: Plain(a=object(), b=threading.Lock(), c=1, d=float("nan"), e=2**80), {"c": 1}),
    "no zone": (lambda: Plain(a=datetime(2024, 1, 1), b=1), {"b": 1}),  # noqa: DTZ001
    "private": (lambda: Plain(_a=1, __notes__=["n"], b=1), {"b": 1}),
    "too large": (lambda: Plain(a="x" * 5_000_000, b=1), {"b": 1}),
    "too large together": (lambda: Plain(a="x" * 3_000, b="y" * 3_000, c=1), {"a": "x" * 3_000, "c": 1}),
    "an address": (lambda: Plain(a="<X object at 0x7f0123456789>"), {"a": "<X object at 0x...>"}),
    "no bytes": (lambda: Plain(a="\ud800", b=1), {"b": 1}),
    "lies": (lambda: Plain(a=hostile.Text("text"), b=1), {"b": 1}),
    "no name": (lambda: Plain(**{"a b": 1, "": 2, "c": 3}), {"c": 3}),
    "a dict of its own": (strange, {"ok": 1}),
    "cyclic": (lambda: Plain(a=cyclic(), b=1), {"b": 1}),
    "ours": (lambda: errors.TooLarge("it", size=5, limit=4), {}),
    "passed on": (lambda: wl.EffectFailed("x", code="c", attempts=3, data={"a": 1}), {"a": 1}),
}


@pytest.mark.parametrize("name", FIELDS)
def test_which_fields_are_kept(name: str) -> None:
    make, expected = FIELDS[name]
    for _ in range(2):
        kept = failure_data.data_of(make())
        assert kept == expected
        assert canonical.decode(runs.failure("code", "message", data=kept))


def test_fields_are_bounded() -> None:
    kept = failure_data.data_of(Plain(**{f"f{number:04}": "x" * 20 for number in range(5_000)}))
    assert list(kept) == [f"f{number:04}" for number in range(limits.FAILURE_FIELDS_MAX)]
    assert len(canonical.encode(kept)) <= limits.FAILURE_DATA_BYTES_MAX


@pytest.mark.parametrize("name", hostile.HOSTILE)
def test_hostile_exceptions_have_fields_that_can_be_stored(name: str) -> None:
    error = hostile.HOSTILE[name]()
    assert canonical.encode(failure_data.data_of(error))
    verdict = failure_data.judge(error, (ValueError,), ("KeyError",))
    assert type(verdict.code) is str
    assert verdict.final is issubclass(type(error), ValueError)


def test_a_failure_without_data_is_stored_as_before_there_was_any() -> None:
    assert canonical.decode(runs.failure("code", "message", attempts=2)) == ["code", "message", 2]


def test_people_are_shown_the_data() -> None:
    said = entry_text.failure(runs.failure("declined", "no", attempts=2, data={"balance": 7}))
    assert said == {"code": "declined", "message": "no", "data": {"balance": 7}, "attempts": 2}
    assert entry_text.failure(runs.failure("declined", "no")) == {"code": "declined", "message": "no"}
