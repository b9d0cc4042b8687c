"""A program whose effects take other arguments than before: what was asked for was asked for, and blocks no run."""

from __future__ import annotations

from typing import Any

import pytest

import worldline as wl
from worldline import testing
from worldline.base import limits

COUNT = limits.STEP_EFFECTS_MAX + 10


def program(kind: Any) -> wl.Program:
    app = wl.Program("paying")

    def pay(amount: Any) -> int:
        return int(amount)

    pay.__annotations__["amount"] = kind
    effect = app.effect(pay)

    @app.workflow
    async def one() -> int:
        return await effect(5)

    @app.workflow
    async def many() -> int:
        return sum(await wl.gather(*[effect(5) for _ in range(COUNT)]))

    return app


@pytest.mark.parametrize("flow", ["one", "many"])
def test_other_types_of_arguments_do_not_block_a_run(flow: str) -> None:
    app = program(int)
    script = wl.Script().on(app.effects["pay"], wl.Script.later(100, 5))
    with testing.world(app, script) as world:
        run = world.start(app.workflows[flow](), id="r")
        assert world.adopt(program(list[str])) == {}
        world.advance(200)
        assert run.result() == (5 if flow == "one" else 5 * COUNT)


def test_an_answered_call_does_not_count() -> None:
    app = program(int)

    @app.workflow
    async def paid() -> int:
        amount: int = await app.effects["pay"](5)
        await wl.sleep(50)
        return amount

    other = program(list[str])

    @other.workflow(name="paid")
    async def paid_other() -> int:
        amount: int = await other.effects["pay"](5)
        await wl.sleep(50)
        return amount

    with testing.world(app, wl.Script().on(app.effects["pay"], 5)) as world:
        run = world.start(paid(), id="r")
        world.advance(1)
        assert world.adopt(other) == {}
        world.advance(60)
        assert run.result() == 5
