"""Effects that raise hostile exceptions: each is a failed attempt in plain text, and ends nothing else."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import worldline as wl
from tests.kernel import test_hostile_exceptions as hostile
from worldline.effects import attempt as attempts
from worldline.effects.open_resources import Resources
from worldline.effects.retry_policy import policy_of
from worldline.kernel import user_errors, user_values
from worldline.kernel.authoring.calls import PLAIN

app = wl.Program("hostile effects")


@app.effect
async def on_the_loop() -> None:
    hostile.hostile()


@app.effect
def in_a_thread() -> None:
    hostile.hostile()


@app.effect
def answers() -> Any:
    return hostile.Odd()


class Bare(wl.Fatal):
    """Has none of the fields that its base class would have given it."""

    def __init__(self) -> None:
        pass


class Unclear(wl.TryAgain):
    def __init__(self, after: Any) -> None:
        self.after = after


async def attempt(effect: wl.Effect[..., Any]) -> attempts.AttemptResult:
    this = attempts.Attempt("key", 1, lambda _: None)
    with ThreadPoolExecutor(1) as threads:
        return await attempts.run(
            effect, user_values.dump({}), this, policy_of(effect, PLAIN), threads=threads, resources=Resources()
        )


@pytest.mark.parametrize("effect", [on_the_loop, in_a_thread, answers], ids=lambda effect: effect.name)
@pytest.mark.parametrize("name", hostile.HOSTILE)
async def test_it_is_a_failed_attempt(name: str, effect: wl.Effect[..., Any]) -> None:
    hostile.which[0] = name
    ended = await asyncio.wait_for(attempt(effect), 20)
    assert not ended.ok
    assert type(ended.code) is str
    assert type(ended.message) is str
    assert len(ended.message) < 3 * user_errors.TEXT_CHARACTERS_MAX
    assert ended.final == (effect is answers)


@pytest.mark.parametrize(
    ("error", "final"),
    [(Bare(), True), (Unclear("soon"), False), (Unclear(float("nan")), False), (Unclear(None), False)],
    ids=lambda given: type(given).__name__,
)
async def test_fields_that_are_missing_or_wrong(error: Exception, final: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hostile.HOSTILE, "fields", lambda: error)
    hostile.which[0] = "fields"
    ended = await attempt(on_the_loop)
    assert (ended.ok, ended.final, ended.after_us) == (False, final, 0)
