"""random() and uuid(): the same on every replay, and independent of each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import worldline as wl
from worldline import testing


def program(*, extra: bool = False, label: str = "") -> tuple[wl.Program, Any]:
    app = wl.Program("draws")

    def numbers() -> float:
        return wl.random(label).random()

    def names() -> str:
        if extra:
            wl.random()
            wl.uuid()
        return str(wl.uuid())

    async def later_names() -> list[str]:
        first = str(wl.uuid())
        await wl.sleep(1)
        return [first, str(wl.uuid()), str(wl.uuid("named"))]

    @app.workflow
    async def draws() -> list[Any]:
        names()
        found: list[Any] = [numbers(), numbers()]
        await wl.sleep(1)
        return [*found, numbers(), *await later_names(), str(wl.uuid())]

    return app, draws


def drawn(**options: Any) -> list[Any]:
    app, draws = program(**options)
    with testing.world(app) as world:
        run = world.start(draws(), id="d")
        world.crash()
        found: list[Any] = run.result()
        world.prove()
    return found


def test_draws_replay_and_differ() -> None:
    found = drawn()
    assert found == drawn()
    assert len(set(map(str, found))) == len(found)
    assert all(0 <= number < 1 for number in found[:3])
    assert all(UUID(text).version == 4 for text in found[3:])


def test_a_draw_added_in_one_function_does_not_shift_those_of_another() -> None:
    assert drawn(extra=True) == drawn()


def test_a_label_draws_the_same_again() -> None:
    found = drawn(label="dice")
    assert found[0] == found[1] == found[2] != drawn()[0]


def test_two_runs_draw_differently_and_children_too() -> None:
    app = wl.Program("draws")

    @app.workflow
    async def draw() -> str:
        return str(wl.uuid())

    @app.workflow
    async def both() -> list[str]:
        return [await draw(), await draw(), *await wl.gather(draw(), draw())]

    with testing.world(app) as world:
        found = [world.run(draw()), world.run(draw(), id="named"), *world.run(both())]
        assert len(set(found)) == 6


def test_handlers_draw_by_event() -> None:
    app = wl.Program("draws")

    @dataclass(frozen=True)
    class Rolled:
        dice: int

    @app.reducer()
    @dataclass
    class Table:
        eyes: list[int] = field(default_factory=list)
        ids: list[str] = field(default_factory=list)

        @wl.on
        def rolled(self, event: Rolled) -> None:
            self.eyes += [wl.random().randint(1, 1_000_000) for _ in range(event.dice)]
            self.ids.append(str(wl.uuid()))

    with testing.world(app) as world:
        world.send(Rolled(3))
        world.send(Rolled(3))
        table = world.state(Table)
        assert len(set(table.eyes)) == 6
        assert len(set(table.ids)) == 2
        world.prove()
