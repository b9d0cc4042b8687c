"""Words of a command line as an event or as a workflow's arguments.

`account=bob cents=5` are fields by name, `--data` takes them all as JSON. Where the program is known, values become
what their annotations say and the whole is checked before anything is sent. Where it is not, a value is JSON if it can
be read so, else text.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from worldline.base import errors, limits
from worldline.codec import outside_json
from worldline.kernel import user_values
from worldline.kernel.authoring import reducers
from worldline.kernel.authoring.calls import Signature
from worldline.kernel.authoring.program import Program
from worldline.terminal import suggest


class Given(msgspec.Struct, frozen=True):
    """What was typed: words without a name, words with one, and what `--data` holds."""

    words: list[str]
    named: dict[str, str]
    data: Any = None


def given(words: Sequence[str], data: str | None) -> Given:
    plain: list[str] = []
    named: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        # `https://x?a=b` is a word: what stands before its first equals sign is no name.
        if equals and name.isidentifier():
            if name in named:
                raise errors.BadInput(f"{name} is given twice")
            named[name] = value
        else:
            plain.append(word)
    if data is not None and (plain or named):
        raise errors.BadInput("give fields, or --data, and not both")
    return Given(plain, named, None if data is None else read(data))


def labels_of(words: Sequence[str]) -> dict[str, str]:
    """Labels as they were typed: `name=value`, or a name alone."""
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def read(data: str) -> Any:
    """JSON: given right here, from a file (`@file.json`), or from stdin (`-`)."""
    if data == "-":
        # One byte more than allowed: the decoder can refuse it, and an endless pipe is not read to its end.
        return outside_json.decode(sys.stdin.buffer.read(limits.JSON_BYTES_MAX + 1), what="--data")
    if data.startswith("@"):
        return read_file(Path(data[1:]))
    return outside_json.decode(data, what="--data")


def read_file(path: Path, *, advice: str = "") -> Any:
    """The value in a JSON file."""
    return outside_json.decode(read_bytes(path, limits.JSON_BYTES_MAX, advice=advice), what=str(path))


def read_bytes(path: Path, bytes_max: int, *, advice: str = "") -> bytes:
    """Return what a file holds, or one byte more than it may: it may be a device that never ends."""
    try:
        with path.open("rb") as file:
            return file.read(bytes_max + 1)
    except OSError as error:
        raise errors.BadInput(f"{path} cannot be read: {error.strerror}{advice}") from error


def loose(text: str) -> Any:
    """A value without a type: JSON if it can be read so, else text."""
    try:
        return outside_json.decode(text, what="it")
    except errors.BadInput:
        return text


def typed(kind: Any, text: str) -> Any:
    """Make a value of a type. Text stays as it is where text is wanted."""
    if kind is str:  # `5` and `true` are text here, though they are JSON
        return text
    try:
        return user_values.rebuild(kind, loose(text))
    except errors.DecodeError as error:
        try:
            # Text that happens to be JSON, such as an id `123`, for a type made of text.
            return user_values.rebuild(kind, text)
        except errors.DecodeError:
            raise error from None  # the first failure says more: it knows what the JSON was


def event(program: Program | None, schema: str, said: Given) -> bytes:
    """An event's canonical bytes."""
    if said.words:
        raise errors.BadInput(f"{said.words[0]!r} has no name; write FIELD=VALUE")
    kind = None if program is None else _event_type(program, schema)
    if kind is None:
        return user_values.dump(said.data if said.data is not None else _loose_fields(said))
    if said.data is not None:
        return user_values.dump(_checked(kind, said.data, schema))
    hints = _fields(kind)
    found: dict[str, Any] = {}
    for name, text in said.named.items():
        if name not in hints:
            known = ", ".join(hints) or "none"
            raise errors.BadInput(f"{schema} has no field {name!r}; it has {known}{suggest.near(name, hints)}")
        found[name] = user_values.plain(_field(hints[name], text, name))
    return user_values.dump(_checked(kind, found, schema))


def answer(program: Program | None, schema: str) -> Any:
    """The type of the answer to a request, if it is known."""
    if program is None:
        return Any
    handlers = program.routes.handlers.get(schema, [])
    return handlers[0].answers if handlers and handlers[0].is_request else Any


def check_request(program: Program | None, schema: str) -> None:
    """Refuse to ask what is known to be no request, before it is sent."""
    kind = None if program is None else _event_type(program, schema)
    if kind is not None:
        reducers.check_request(kind)


def arguments(program: Program | None, workflow: str, said: Given) -> bytes:
    """A workflow's arguments, by name, as canonical bytes."""
    if program is None:
        if said.words:
            raise errors.BadInput(
                f"{said.words[0]!r} has no name; write NAME=VALUE, or name the program with --app FILE"
            )
        return user_values.dump(said.data if said.data is not None else _loose_fields(said))
    flow = program.workflows.get(workflow)
    if flow is None:
        known = ", ".join(program.workflows) or "none"
        meant = suggest.near(workflow, program.workflows)
        raise errors.NotFound(f"program {program.name!r} has no workflow {workflow!r}; it has {known}{meant}")
    if said.data is not None:
        return _bound(flow.signature, [], _as_object(said.data), workflow)
    hints = flow.signature.hints
    parameters = list(flow.signature.parameters.parameters)
    _check_names(flow.signature, workflow, said.named)
    words = [
        _field(hints.get(parameters[min(index, len(parameters) - 1)], Any) if parameters else Any, text, str(index + 1))
        for index, text in enumerate(said.words)
    ]
    return _bound(
        flow.signature,
        words,
        {name: _field(hints.get(name, Any), text, name) for name, text in said.named.items()},
        workflow,
    )


def _check_names(signature: Signature, workflow: str, named: dict[str, str]) -> None:
    known = signature.parameters.parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values()):  # it takes any name
        return
    for name in named:
        if name not in known:
            listed = ", ".join(known) or "none"
            meant = suggest.near(name, known)
            raise errors.BadInput(f"{workflow}() has no parameter {name!r}; it has {listed}{meant}")


def _bound(signature: Signature, words: list[Any], named: dict[str, Any], workflow: str) -> bytes:
    try:
        packed = signature.pack(tuple(words), named)
        signature.parameters.bind(*words, **named)
        # Taken apart again: values that pack may still not be what the annotations say, and the world would find it too
        # late.
        signature.unpack(packed)
    except (errors.DecodeError, TypeError) as error:
        raise errors.BadInput(f"{workflow}(): {error}") from error
    return packed


def _as_object(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise errors.BadInput("--data must be a JSON object: the arguments by name")
    return data


def _field(kind: Any, text: str, name: str) -> Any:
    try:
        return typed(kind, text)
    except errors.DecodeError as error:
        raise errors.BadInput(f"{name}: {error}") from error


def _checked(kind: Any, data: Any, schema: str) -> Any:
    try:
        return user_values.rebuild(kind, data)
    except errors.DecodeError as error:
        raise errors.BadInput(f"{schema}: {error}") from error


def _loose_fields(said: Given) -> dict[str, Any]:
    return {name: loose(text) for name, text in said.named.items()}


def _event_type(program: Program, schema: str) -> Any:
    known = program.routes.types
    if schema in known:
        return known[schema]
    if program.routes.any_flows:
        return None  # some workflow waits for events that its source does not name
    listed = ", ".join(known) or "none"
    raise errors.NotFound(
        f"program {program.name!r} has no event {schema!r}; it has {listed}{suggest.near(schema, known)}"
    )


def _fields(kind: Any) -> dict[str, Any]:
    return {name: hint for name, hint in typing.get_type_hints(kind).items() if not name.startswith("_")}
