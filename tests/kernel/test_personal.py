"""Personal values in steps: sealed, opened, replayed, and erased, with every disturbance that must not matter."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

import worldline as wl
from tests.kits import people
from tests.kits.people import SECRET, Joined, MailOf, Shouted
from worldline import testing
from worldline.base import errors, limits
from worldline.codec import sealed_token
from worldline.kernel import user_values
from worldline.kernel.personal import personal_value
from worldline.model.journal import Kind


def script(names: dict[str, Any]) -> wl.Script:
    def deliver(to: wl.Personal[str], text: str) -> wl.Personal[str]:
        return wl.Personal(f"{text} to {to.value}", of="ada")

    return wl.Script().on(names["deliver"], deliver)


def test_a_world_in_a_test_seals_and_opens() -> None:
    """Every step is done twice, coroutines are dropped, and the whole journal is replayed: the tokens are the same."""
    app, names = people.program()
    with testing.world(app, script(names)) as world:
        world.send(people.ada())
        world.send(Shouted("ada"))
        run = world.start(names["greet"]("ada", wl.Personal(SECRET, of="ada")))
        world.send(people.Go())
        assert run.result().value == f"hello ada to {SECRET}!"
        answer = world.ask(MailOf("ada"))
        assert answer is not None
        assert answer.value == SECRET
        assert world.state()["Person"]["ada"]["loud"] == [SECRET.upper()]
        assert world.state(names["Person"], "ada").mail.value == SECRET
        stored = b"".join(each.payload for each in world.journal())
        assert SECRET.encode() not in stored
        assert sealed_token.MAGIC in stored
        assert world.prove() > 3


def test_what_is_erased_in_a_test() -> None:
    app, names = people.program()
    with testing.world(app, script(names)) as world:
        world.send(people.ada())
        world.erase("ada")
        assert world.state()["Person"]["ada"]["mail"] is wl.errors.Erased.TEXT
        world.send(Shouted("ada"))
        person: Any = world.state(names["Person"], "ada")
        assert person.erased == 1
        kinds = [each.kind for each in world.journal()]
        assert kinds[-2:] == [Kind.EVENT, Kind.ERASED_READ]
        assert Kind.ERASED in kinds


def test_a_run_that_needs_what_was_erased_is_blocked() -> None:
    """Its coroutine is dropped with the erasure, so it does not matter whether it was in memory."""
    app = wl.Program("p")

    @app.workflow
    async def measure(text: wl.Personal[str]) -> int:
        length = len(text.value)
        await wl.wait(people.Go)
        return length

    with testing.world(app, twice=False, drops=False) as world:
        run, other = (world.start(measure(wl.Personal(SECRET, of=of))) for of in ("ada", "bob"))
        world.erase("ada")
        world.send(people.Go())
        assert other.result() == len(SECRET)
        assert run.status is wl.RunStatus.BLOCKED


def test_a_run_that_reads_what_was_erased_fails() -> None:
    app, names = people.program()
    with testing.world(app, script(names)) as world:
        run = world.start(names["greet"]("ada", wl.Personal(SECRET, of="ada")))
        world.erase("ada")
        world.send(people.Go())
        with pytest.raises(wl.RunFailed, match="was erased") as failed:
            run.result()
        assert failed.value.code == "erased"


@dataclass(frozen=True)
class Big:
    data: wl.Personal[str]


def test_a_value_has_a_limit() -> None:
    with testing.world(people.program()[0]) as world, pytest.raises(errors.EncodeError, match="the limit is"):
        world.send(Big(wl.Personal("x" * limits.PERSONAL_BYTES_MAX, of="ada")))


def test_without_a_desk_nothing_is_written() -> None:
    with pytest.raises(personal_value.NoDesk, match="here it cannot be stored"):
        user_values.dump(people.ada())


@pytest.mark.parametrize("of", ["", None, 7])
def test_a_subject_is_text(of: Any) -> None:
    with pytest.raises(errors.BadInput, match="names whose value it is"):
        wl.Personal("x", of=of)


def test_what_was_not_sealed_is_refused() -> None:
    for data in (SECRET, SECRET.encode(), b"\x00wl-seal", {"of": "ada"}):
        with pytest.raises(errors.DecodeError):
            user_values.load(Joined, user_values.dump({"user": "ada", "mail": data, "notes": []}))


def test_nothing_of_it_shows() -> None:
    value = wl.Personal(SECRET, of="ada")
    assert SECRET not in f"{value!r} {value} {people.ada()!r}"
    with pytest.raises(TypeError):
        hash(value)
    with pytest.raises(errors.BadInput, match="not another"):
        wl.Personal(value, of="ada")
    assert value == wl.Personal(SECRET, of="bob")
    assert value != wl.Personal("other", of="ada")
    assert value != SECRET


def test_a_default_of_a_field() -> None:
    """The one object of the class is written in many cells, each under its own number."""
    app = wl.Program("p")

    @app.reducer(key="user")
    @dataclass
    class Cell:
        text: wl.Personal[str] = field(default_factory=lambda: wl.Personal("nothing yet", of="nobody"))
        count: int = 0

        @wl.on
        def take(self, event: Shouted) -> None:
            self.count += 1

    with testing.world(app) as world:
        world.send(Shouted("a"))
        world.send(Shouted("b"))
        world.send(Shouted("a"))
        assert world.state(Cell, "a").text.value == "nothing yet"
        assert world.prove() == 3


def test_a_process_that_did_not_expect_any_does_the_step_again() -> None:
    """Code that makes one without declaring any: the step is dropped, and done again."""
    app = wl.Program("p")

    @app.reducer
    @dataclass
    class Cell:
        text: Any = None

        @wl.on
        def take(self, event: Shouted) -> None:
            try:
                self.text = wl.Personal(SECRET, of=event.user)
            except errors.Error:
                self.text = "caught"

    with testing.world(app, twice=False) as world:
        personal_value.use.seen = False
        try:
            with pytest.raises(errors.CannotStep, match="did not expect"):
                world.send(Shouted("ada"))
        finally:
            personal_value.use.note()
        world.machine.close()


def test_worlds_of_tests_are_closed_in_any_order() -> None:
    """A desk that stayed behind took the values of whatever the thread wrote next, and kept them nowhere."""
    app = wl.Program("empty")
    with ExitStack() as outer:
        inner = outer.enter_context(ExitStack())
        first = inner.enter_context(ExitStack())
        first.enter_context(testing.world(app))
        inner.enter_context(testing.world(app))
        first.close()
        assert personal_value.desk.get() is not None
    assert personal_value.desk.get() is None
