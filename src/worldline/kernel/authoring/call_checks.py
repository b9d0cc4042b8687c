"""What is given where a call is wanted: a call, or the mistake that was made, named with what to write instead."""

from __future__ import annotations

import inspect
from typing import Any

from worldline.base import errors, grammar
from worldline.kernel import user_errors, user_values
from worldline.kernel.authoring.calls import Call, Target, answer_type
from worldline.kernel.code import source


def check_call(given: object, what: str, *, wanted: str = "a call of a workflow, such as greet('Ada')") -> None:
    """Refuse what is no call. `what` was given it: `world.run()`, for example."""
    if not isinstance(given, Call):
        raise errors.BadInput(f"{what} takes {wanted}, {_mistake(given)}")


def check_event_class(given: object, what: str) -> None:
    """Refuse what is no class of events."""
    if not isinstance(given, type):
        name = user_errors.name_of(type(given))
        hint = f"not an object of it: pass {name}" if hasattr(type(given), "__annotations__") else f"not {name}"
        raise errors.BadInput(f"{what} takes the class of an event, {hint}")


def result_of(call: Call[Any], data: bytes) -> Any:
    """Read what a workflow returned. `BadInput` if that is not of the type that it declares."""
    try:
        return call.target.signature.result(data)
    except errors.DecodeError as error:
        if type(error) is not errors.DecodeError:
            raise  # what cannot be read at all
        place = source.place_of(call.target.function)
        where = f" ({place})" if place else ""
        raise errors.BadInput(f"{call.target.name}(){where} did not return what it declares: {error}") from error


def answer_of(request: type, data: bytes) -> Any:
    """Read what the handler of a request answered. `BadInput` if that is not of the type that it declares."""
    try:
        return user_values.load(answer_type(request), data)
    except errors.DecodeError as error:
        if type(error) is not errors.DecodeError:
            raise  # what cannot be read at all, as above
        name = user_errors.name_of(request)
        raise errors.BadInput(f"the handler of {name} did not answer what it declares: {error}") from error


def check_workflow(given: object, what: str, *, program: str, world: str) -> None:
    """Refuse what is no call of a workflow of this program, which the world has."""
    check_call(given, what)
    assert isinstance(given, Call)  # `check_call` refuses anything else
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
        # Only text that could be a workflow's name is worth a suggestion.
        return f"not text{hint}; a workflow is run by its name with `worldline run`"
    if inspect.isroutine(given):
        name = user_errors.plain_text(given.__name__)
        return f"not a function: declare {name} with @program.workflow above it, and pass {name}(...)"
    if isinstance(given, list | tuple):
        return f"not {grammar.an(user_errors.name_of(type(given)))}: write * before it"
    return f"not {user_errors.name_of(type(given))}"
