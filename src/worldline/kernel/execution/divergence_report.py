"""Reports of how a run's code departs from its record, for people.

A report names the run, shows the last operations that agree, then the first that does not: what the journal has and
what the code asks for, with arguments as values, and the line of code that asked. Last comes what to do.

Everything here is text: nothing is decided by it. A report is journaled when it blocks a run, so it names files as a
traceback does, without the folders of a machine.
"""

from __future__ import annotations

import linecache
import re
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import CodeType, FrameType
from typing import Any, Protocol

from worldline.base import errors
from worldline.codec import canonical
from worldline.kernel import user_errors, user_values
from worldline.kernel.execution import stack
from worldline.kernel.run_operations import OpKind

AGREEING_SHOWN = 3
VALUE_CHARACTERS_MAX = 160
LINE_CHARACTERS_MAX = 160
UNFIT = "the recorded answer does not fit the type that is declared now"
_FRAMES_MAX = 200
_TO_GO_ON = "  to go on:"  # what advice begins with
_TO_WORLD = re.compile(r"(worldline runs \w+) WORLD ")

_NAMES = {
    OpKind.EFFECT: "effect",
    OpKind.TIMER: "timer",
    OpKind.WAIT: "wait",
    OpKind.CHILD: "child",
    OpKind.START: "start",
    OpKind.SEND: "send",
    OpKind.ASK: "ask",
    OpKind.VALUE: "value",
    OpKind.PATCH: "patch",
    OpKind.AFTER: "after",
    OpKind.ACT: "act",
}


class RecordedOperation(Protocol):
    """An operation: one recorded, or one that the code asks for."""

    @property
    def kind(self) -> OpKind: ...
    @property
    def name(self) -> str: ...
    @property
    def params(self) -> bytes: ...
    @property
    def step(self) -> int: ...


# --- Whole reports -------------------------------------------------------------------------------------------------


def another(
    run: str, workflow: str, ops: Sequence[RecordedOperation], number: int, wanted: RecordedOperation, *, asked_at: str
) -> str:
    """Report that the code asks for `wanted` as operation `number`, where the journal has another one, or none."""
    recorded = ops[number] if number < len(ops) else None
    journal = "nothing more" if recorded is None else _recorded(recorded)
    lines = [
        f"run {run!r} ({workflow}), operation {number + 1}: the code asks for something else than the journal has",
        *_agreeing(ops, number),
        f"  {number + 1:>4}  journal: {journal}",
        f"        code:    {describe(wanted)}",
    ]
    return _whole(lines, asked_at, run, number + 1)


def arguments_differ(
    run: str, workflow: str, number: int, recorded: RecordedOperation, wanted: RecordedOperation, *, asked_at: str
) -> str:
    """Operation `number` is the same, with other arguments. That alone blocks no run; strict checks report it."""
    lines = [
        f"run {run!r} ({workflow}), operation {number + 1}: the code passes other arguments than the journal has",
        f"  {number + 1:>4}  journal: {_recorded(recorded)}",
        f"        code:    {describe(wanted)}",
    ]
    return "\n".join([*lines, *_asked(asked_at)])


def stops(run: str, workflow: str, ops: Sequence[RecordedOperation], number: int, how: str, *, at: str) -> str:
    """The code does nothing more where the journal has operation `number`: `how` says what it does instead."""
    lines = [
        f"run {run!r} ({workflow}), operation {number + 1}: the code {how} where the journal goes on",
        *_agreeing(ops, number),
    ]
    if number < len(ops):
        lines.append(f"  {number + 1:>4}  journal: {_recorded(ops[number])}")
        lines.append(f"        code:    {how}")
    return _whole(lines, at, run, number + 1)


def unfit_answer(
    run: str, workflow: str, ops: Sequence[RecordedOperation], number: int, *, answer: bytes, why: str, asked_at: str
) -> str:
    """Report that the answer of operation `number` is not of the type that the code has for it."""
    return "\n".join(
        [
            f"run {run!r} ({workflow}), operation {number + 1}: {UNFIT}",
            *_agreeing(ops, number),
            f"  {number + 1:>4}  journal: {_recorded(ops[number])}",
            f"        answer:  {value_text(answer)}",
            f"        code:    {why}",
            *_asked(asked_at),
            f"{_TO_GO_ON} host code that takes this answer, which is kept;",
            f"      hosted code that changes is tried at once, and so by: worldline runs retry WORLD {run}",
            f"  or: worldline runs answer WORLD {run} {number + 1} VALUE  (another answer in the place of this one)",
            f"  or: worldline runs reset WORLD {run} --to {number + 1}  (ask again: what it does may happen twice)",
            f"  or: worldline runs terminate WORLD {run}  (end it; no code of it runs)",
        ]
    )


def no_workflow(run: str, workflow: str, program: str, known: Sequence[str]) -> str:
    """Report that the program has no such workflow any more."""
    there = ", ".join(sorted(known)) or "none"
    return (
        f"run {run!r} ({workflow}): program {program!r} has no workflow {workflow!r}; it has {there}\n"
        f"{_TO_GO_ON} host code that has it; a function of another name keeps it by @app.workflow(name={workflow!r}).\n"
        f"  Or end the run: worldline runs terminate WORLD {run}"
    )


def unfit_arguments(run: str, workflow: str, args: bytes, why: str) -> str:
    """Report that the workflow does not take the arguments that the run was started with."""
    return (
        f"run {run!r} ({workflow}): its arguments do not fit {workflow}(): {why}\n"
        f"  journal: {workflow}{value_text(args)}\n"
        f"{_TO_GO_ON} host code that takes these arguments, with defaults for new ones; then "
        f"worldline runs retry WORLD {run}.\n"
        f"  Or end the run: worldline runs terminate WORLD {run}"
    )


def finding(report: str) -> str:
    """A report without the advice below it."""
    return report.partition(_TO_GO_ON)[0].rstrip()


def addressed(report: str, world: str) -> str:
    """A report with a world's name in its commands. The kernel does not know the name: what it journals says WORLD."""
    # Arguments that are shown above may have the same words in them, so only the advice is replaced.
    found, to_go_on, advice = report.partition(_TO_GO_ON)
    return found + to_go_on + _TO_WORLD.sub(lambda each: f"{each[1]} {shlex.quote(world)} ", advice)


def _whole(lines: list[str], at: str, run: str, operation: int) -> str:
    return "\n".join([*lines, *_asked(at), *_advice(run, operation)])


def _agreeing(ops: Sequence[RecordedOperation], number: int) -> list[str]:
    """Return the last operations before this one, which code and journal have both."""
    first = max(0, number - AGREEING_SHOWN)
    shown = [f"  ...   {first} more that agree"] if first else []
    for index in range(first, min(number, len(ops))):
        shown.append(f"  {index + 1:>4}  both:    {describe(ops[index])}")
    return shown


def _asked(at: str) -> list[str]:
    return [f"        at:      {at}"] if at else []


def _advice(run: str, operation: int) -> list[str]:
    """What to do, as commands. WORLD stands for the world's name, which is not known here: see `addressed`."""
    return [
        f'{_TO_GO_ON} keep the old path for this run, `if wl.patched("..."):`, or host the code that wrote it;',
        f"      hosted code that changes is tried at once, and so by: worldline runs retry WORLD {run}",
        f"  or: worldline runs reset WORLD {run} --to {operation}  (go on from there under the code now)",
        f"  or: worldline runs terminate WORLD {run}  (end it; no code of it runs)",
    ]


# --- Operations ----------------------------------------------------------------------------------------------------


def describe(op: RecordedOperation) -> str:
    """Return an operation with its arguments, on one line."""
    said = arguments(op)
    return f"{_NAMES[op.kind]} {op.name!r}{f' {said}' if said else ''}"


def _recorded(op: RecordedOperation) -> str:
    """Describe an operation with the step that asked for it."""
    return f"{describe(op)}{f' (step {op.step})' if op.step else ''}"


def arguments(op: RecordedOperation) -> str:
    """What an operation was asked with, as text: empty if there is nothing."""
    params = op.params
    if not params:
        return ""
    try:
        match op.kind:
            case OpKind.EFFECT:
                given, _ = user_values.load(tuple[bytes, bytes], params)
                return value_text(given)
            case OpKind.TIMER:
                return _time_text(op.name, params)
            case OpKind.SEND | OpKind.ASK:
                schema, data, to = user_values.load(tuple[str, bytes, str], params)
                return f"{schema}{value_text(data)}{f' to run {to!r}' if to else ''}"
            case OpKind.ACT:
                key, _, _, given = user_values.load(tuple[str, str, bool, list[Any]], params)
                said = value_text(user_values.dump(given[0])) if given else "()"
                return f"{said}{f' for key {key!r}' if key else ''}"
            case _:
                return value_text(params)
    # Never an error: the report says why a run stands still, whatever its record has.
    except errors.DecodeError:
        return f"with {len(params)} bytes that cannot be read"


def _time_text(name: str, params: bytes) -> str:
    """Say how long a timer runs, or until when."""
    if name != "sleep_until":
        return f"{int.from_bytes(params, 'big') / 1_000_000:g} s"
    due = timedelta(microseconds=int.from_bytes(params, "big", signed=True))
    return (datetime(1970, 1, 1, tzinfo=UTC) + due).isoformat()


def value_text(data: bytes) -> str:
    """Canonical bytes as a person writes the value, bounded: arguments as in a call, other values in brackets."""
    try:
        found = canonical.decode(data)
    except errors.DecodeError:
        return f"({len(data)} bytes that cannot be read)"
    # Keys that could be parameters are shown as a call's arguments.
    if type(found) is dict and all(type(name) is str and name.isidentifier() for name in found):
        return f"({_cut(', '.join(f'{name}={_plain(each)}' for name, each in found.items()))})"
    return f"({_cut(_plain(found))})"


def _plain(value: Any) -> str:
    """A decoded value. Of a long one only as much is written as is shown."""
    # Cut before it is written out: a value may be of megabytes.
    if isinstance(value, str | bytes) and len(value) > VALUE_CHARACTERS_MAX:
        unit = "bytes" if isinstance(value, bytes) else "characters"
        return f"{value[: VALUE_CHARACTERS_MAX // 2]!r}... ({len(value)} {unit})"
    if isinstance(value, list):
        shown = ", ".join(_plain(each) for each in value[:20])
        return f"[{shown}{f', ... ({len(value)} in all)' if len(value) > 20 else ''}]"
    if isinstance(value, dict):
        shown = ", ".join(f"{name!r}: {_plain(each)}" for name, each in list(value.items())[:20])
        return f"{{{shown}{f', ... ({len(value)} in all)' if len(value) > 20 else ''}}}"
    return repr(value)


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}..."


# --- Places in code ------------------------------------------------------------------------------------------------


def asking_line() -> str:
    """The line of the user's code that is asking now: the innermost frame of it. Empty if there is none: what feeds the
    coroutine is not looked at, since it differs between processes.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to see who calls
    for _ in range(_FRAMES_MAX):
        if frame is None or frame.f_code.co_filename == stack.__file__:
            return ""
        if user_errors.is_user_code(frame.f_code.co_filename):
            return line_of(frame.f_code, frame.f_lineno, frame.f_globals)
        frame = frame.f_back
    return ""


def raising_line(error: BaseException) -> str:
    """Return the innermost line of the user's code that an exception passed through."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if user_errors.is_user_code(code.co_filename):
            found = line_of(code, trace.tb_lineno, trace.tb_frame.f_globals)
        trace = trace.tb_next
    return found


def line_of(code: CodeType, number: int, names: dict[str, Any]) -> str:
    """A line as a traceback shows it: file, number, function, and its text if the source is available."""
    text = linecache.getline(code.co_filename, number, names).strip()[:LINE_CHARACTERS_MAX]
    # Without folders: a report is journaled, and must not depend on a machine.
    file = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{file}:{number} in {code.co_name}(){f': {text}' if text else ''}"
