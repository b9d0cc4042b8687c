"""`Retry`: what may be declared, pauses with jitter, and exceptions that end the attempts at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import worldline as wl
from worldline import testing
from worldline.codec import canonical
from worldline.effects.retry_policy import policy_of
from worldline.kernel import run_requests
from worldline.kernel.authoring.calls import PLAIN, Options


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"attempts": 0}, r"Retry\(attempts=\) must be None or a number of at least 1, not 0"),
        ({"attempts": 1.5}, "attempts"),
        ({"initial_delay": -1}, r"Retry\(initial_delay=\) must be a timedelta or a number of seconds of at least 0"),
        ({"initial_delay": "5s"}, r"Retry\(initial_delay=\) must be a timedelta or a number of seconds .* not '5s'"),
        ({"max_delay": float("nan")}, r"Retry\(max_delay=\) must be"),
        ({"initial_delay": 90}, r"Retry\(max_delay=60\) is shorter than initial_delay=90; give max_delay= too"),
        ({"on_exhausted": "wait"}, r"Retry\(on_exhausted=\) must be 'fail' or 'park', not 'wait'"),
        ({"fatal": ValueError}, r"Retry\(fatal=\) must be a tuple of exception types, such as \(ValueError,\)"),
        ({"fatal": (ValueError, "KeyError")}, "must be a tuple of exception types"),
        ({"fatal": (KeyboardInterrupt,)}, "must be a tuple of exception types"),
        ({"jitter": 1.5}, r"Retry\(jitter=\) must be a number from 0 to 1, not 1.5"),
        ({"jitter": "a lot"}, "jitter"),
    ],
)
def test_mistakes_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(wl.BadInput, match=message):
        wl.Retry(**wrong)


def program(retry: wl.Retry) -> tuple[wl.Program, wl.Effect[[], str], wl.Workflow[[], str]]:
    app = wl.Program("retry")

    @app.effect(retry=retry)
    def touch() -> str:
        return "touched"

    @app.workflow
    async def flow() -> str:
        try:
            return await touch()
        except wl.EffectFailed as error:
            return f"{error.code} after {error.attempts}"

    return app, touch, flow


def test_jitter_shortens_pauses_the_same_way_every_time() -> None:
    _, touch, _ = program(wl.Retry(initial_delay=1, max_delay=8, jitter=0.5))
    policy = policy_of(touch, PLAIN)
    pauses = [[policy.delay_us(attempt, intent) for attempt in range(1, 6)] for intent in (b"a", b"b")]
    assert pauses == [[policy.delay_us(attempt, intent) for attempt in range(1, 6)] for intent in (b"a", b"b")]
    assert pauses[0] != pauses[1]
    for drawn in pauses:
        for pause_us, whole_us in zip(drawn, (1, 2, 4, 8, 8), strict=True):
            assert whole_us * 500_000 <= pause_us <= whole_us * 1_000_000
    assert drawn[3] != drawn[4]  # the same pause, drawn for another attempt
    own = policy_of(touch, Options.of(key=None, timeout=None, retry=wl.Retry(max_delay=8, jitter=0.5)))
    assert [own.delay_us(attempt, b"a") for attempt in range(1, 6)] == pauses[0]


def test_jitter_is_spread() -> None:
    _, touch, _ = program(wl.Retry(jitter=1))
    policy = policy_of(touch, PLAIN)
    drawn = sorted(policy.delay_us(1, number.to_bytes(16, "big")) for number in range(1_000))
    assert drawn[0] < 10_000
    assert drawn[-1] > 990_000
    assert 450_000 < drawn[500] < 550_000


def test_a_world_waits_as_long_as_drawn() -> None:
    app, touch, flow = program(wl.Retry(initial_delay=10, jitter=0.5))
    with testing.world(app, wl.Script().on(touch, ConnectionError("down"), "up")) as world:
        start = world.now
        assert world.run(flow()) == "up"
        assert timedelta(seconds=5) <= world.now - start < timedelta(seconds=10)


class Invalid(ValueError):
    pass


@pytest.mark.parametrize(
    ("fatal", "raised", "expected"),
    [
        ((ValueError,), Invalid("no"), "Invalid after 1"),
        ((KeyError, Invalid), Invalid("no"), "Invalid after 1"),
        ((Invalid,), ValueError("no"), "ValueError after 3"),
        ((), Invalid("no"), "Invalid after 3"),
        ((TimeoutError,), TimeoutError("slow"), "timeout after 1"),
        ((wl.TryAgain,), wl.TryAgain("busy", code="busy"), "busy after 1"),
    ],
)
@pytest.mark.parametrize("how", ["declared", "by the call"])
def test_fatal_types_end_the_attempts(
    fatal: tuple[type[Exception], ...], raised: Exception, expected: str, how: str
) -> None:
    retry = wl.Retry(attempts=3, fatal=fatal)
    app = wl.Program("fatal")

    @app.effect(retry=retry if how == "declared" else wl.Retry(attempts=9))
    def touch() -> str:
        return "touched"

    @app.workflow
    async def flow() -> str:
        try:
            return await (touch() if how == "declared" else touch.options(retry=retry)())
        except wl.EffectFailed as error:
            return f"{error.code} after {error.attempts}"

    with testing.world(app, wl.Script().on(touch, raised)) as world:
        assert world.run(flow()) == expected
        world.prove()


def test_a_parked_effect_is_not_parked_by_a_fatal_exception() -> None:
    app, touch, flow = program(wl.Retry(on_exhausted="park", fatal=(ValueError,)))
    with testing.world(app, wl.Script().on(touch, ValueError("no"))) as world:
        assert world.run(flow()) == "ValueError after 1"


def test_options_are_journaled_as_before_where_they_say_nothing_new() -> None:
    _, touch, _ = program(wl.Retry())
    plain = touch.options(key="k", timeout=2)()
    assert plain.options is not None
    assert canonical.decode(plain.options.pack()) == ["k", 2_000_000, None, None, None, None, None]
    retried = touch.options(retry=wl.Retry())()
    assert retried.options is not None
    assert canonical.decode(retried.options.pack()) == [None, None, 5, 1_000_000, 2.0, 60_000_000, False]
    more = touch.options(retry=wl.Retry(fatal=(Invalid,), jitter=0.25))()
    assert more.options is not None
    assert canonical.decode(more.options.pack())[7:] == [["Invalid"], 250_000]  # type: ignore[index]
    for call in (plain, retried, more):
        assert run_requests.unpack_effect(run_requests.pack_effect(call, call.pack()))[1] == call.options
