"""What is given where a call is wanted: a call, or the mistake that was made, named with what to write instead."""

from __future__ import annotations

import inspect
from typing import Any

from worldline.base import errors
from worldline.kernel import user_errors
from worldline.kernel.authoring.calls import Call, Target


def check_call(given: object, what: str) -> None:
    """Refuse what is no call. `what` was given it: `world.run()`, for example."""
    if not isinstance(given, Call):
        raise errors.BadInput(f"{what} takes a call of a workflow, such as greet('Ada'), {_mistake(given)}")


def check_workflow(given: object, what: str, *, program: str, world: str) -> None:
    """Refuse what is no call of a workflow of this program, which the world has."""
    check_call(given, what)
    assert isinstance(given, Call)
    target = given.target
    if target.kind != "workflow":
        raise errors.BadInput(f"{given!r} is an effect; a world runs workflows, which call effects")
    if target.program and target.program != program:
        raise errors.BadInput(
            f"{given!r} is a call of program {target.program!r}, and world {world!r} has program {program!r}; call a "
            f"workflow of {program!r}, or run it in a world of {target.program!r}"
        )


def _mistake(given: Any) -> str:
    if isinstance(given, Target):
        return f"not {given.name} itself: write {given.name}(...), with its arguments"
    if inspect.iscoroutine(given):
        given.close()  # it would be reported as never awaited, which says less
        name = user_errors.plain_text(given.__name__)
        return f"not a coroutine: declare `async def {name}` with @program.workflow above it, and pass {name}(...)"
    if isinstance(given, str):
        name = user_errors.plain_text(given, characters_max=100)
        hint = f": pass {name}(...)" if name.isidentifier() else ""
        return f"not text{hint}; a workflow is run by its name with `worldline run`"
    if inspect.isroutine(given):
        name = user_errors.plain_text(given.__name__)
        return f"not a function: declare {name} with @program.workflow above it, and pass {name}(...)"
    return f"not {user_errors.name_of(type(given))}"
