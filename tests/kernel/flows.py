"""A program whose workflow is chosen by the test, for tests of runs that do not go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import worldline as wl
from worldline import testing
from worldline.model.journal import Kind


@dataclass(frozen=True)
class Go:
    number: int = 0


@dataclass(frozen=True)
class Said:
    text: str


def program(body: Callable[..., Any], **more: Callable[..., Any]) -> Any:
    """A program whose workflow `flow` is this function, with effects `first` and `second`, and what was said."""
    app = wl.Program("p")

    @app.effect
    async def first(text: str) -> str:
        return text

    @app.effect
    async def second(text: str) -> str:
        return text

    @app.effect(retry=wl.Retry(attempts=1, on_exhausted="park"))
    async def shaky(text: str) -> int:
        return len(text)

    @app.reducer
    @dataclass
    class Log:
        said: list[str] = field(default_factory=list)

        @wl.on
        def note(self, event: Said) -> None:
            self.said.append(event.text)

    effects = {"first": first, "second": second, "shaky": shaky}
    for name, function in more.items():
        effects[name] = app.workflow(name=name)(function)

    @app.workflow
    async def flow() -> Any:
        return await body(**{name: effects[name] for name in body.__code__.co_varnames if name in effects})

    app.log = Log  # type: ignore[attr-defined]
    return app


def world(app: Any, **answers: Any) -> Any:
    script = wl.Script()
    for name in ("first", "second"):
        script = script.on(app.effects[name], answers.get(name, name))
    if "shaky" in answers:
        script = script.on(app.effects["shaky"], answers["shaky"])
    return testing.world(app, script)


def flow(app: Any) -> Any:
    return app.workflows["flow"]()


def asked(world: testing.TestWorld, name: str) -> int:
    return sum(entry.kind is Kind.EFFECT_REQUESTED and name.encode() in entry.payload for entry in world.journal())


async def two(first: Any, second: Any) -> list[str]:
    return [await first("a"), (await wl.wait(Go)).number, await second("b")]


async def edited(first: Any, second: Any) -> list[str]:
    return [await first("a"), await second("before"), (await wl.wait(Go)).number]
