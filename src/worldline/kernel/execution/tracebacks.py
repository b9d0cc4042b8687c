"""Tracebacks of users' exceptions, as bounded text for people.

They stand beside the journal: in no digest, no comparison and no replay. So making one must change nothing, and no code
of the user's is called for it: the message is the one that is journaled, other exceptions of a chain are shown by their
class and their plain arguments, and values of variables are never shown. Frames of this package are left out. Of many
frames the last are kept, and the last that are in the user's own code. Lines of source are read as Python itself reads
them for tracebacks; nothing depends on them.
"""

from __future__ import annotations

import linecache
from types import TracebackType
from typing import Any, Final

import msgspec

from worldline.base import limits
from worldline.kernel import user_errors
from worldline.kernel.machine import Machine
from worldline.model.traces import TracedFailure, TraceSource

FRAMES_SEEN_MAX: Final = 100_000
FRAMES_LAST: Final = 12
FRAMES_OWN: Final = 12  # of the user's own code, before the last ones
CHAIN_MAX: Final = 4
NOTES_MAX: Final = 8
LINE_CHARACTERS_MAX: Final = 200
MESSAGE_BYTES_MAX: Final = limits.TRACE_BYTES_MAX // 4
SUBJECT_CHARACTERS_MAX: Final = limits.CHOSEN_ID_BYTES_MAX
CUT: Final = "  ...\n"

_OURS: Final = __file__.rpartition("/kernel/")[0] + "/"
_CAUSE: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"
# Read by the base class's own descriptors, because a user's class may override every one of these.
_get_traceback: Final[Any] = BaseException.__dict__["__traceback__"].__get__
_get_cause: Final[Any] = BaseException.__dict__["__cause__"].__get__
_get_context: Final[Any] = BaseException.__dict__["__context__"].__get__
_get_suppressed: Final[Any] = BaseException.__dict__["__suppress_context__"].__get__
_get_args: Final[Any] = BaseException.__dict__["args"].__get__
_get_fields: Final[Any] = BaseException.__dict__["__dict__"].__get__
_PLAIN: Final = (str, int, float, bool, bytes, type(None))


class CodeFrame(msgspec.Struct, frozen=True):
    """Where a function was when the exception passed through it. `number` counts frames from the outermost."""

    number: int
    file: str
    line: int
    function: str


def record(machine: Machine, source: TraceSource, subject: str, error: BaseException, message: str) -> str:
    """Keep where user code failed in this step, unless the step has happened before. Returns what is kept."""
    if machine.replaying or len(machine.now.traces) >= limits.STEP_TRACES_MAX:
        return ""
    text = of(error, message)
    if text:
        keep(machine, source, subject, text)
    return text


def keep(machine: Machine, source: TraceSource, subject: str, text: str) -> None:
    """Keep a traceback that was made elsewhere, of an effect."""
    if not machine.replaying and len(machine.now.traces) < limits.STEP_TRACES_MAX:
        cut = user_errors.plain_text(subject, characters_max=SUBJECT_CHARACTERS_MAX)
        machine.now.traces.append(TracedFailure(source, cut, _bounded(text, limits.TRACE_BYTES_MAX)))


def of(error: BaseException, message: str) -> str:
    """The traceback of an exception whose class and text are known as `message`. Empty if it passed no other code than
    this package's.
    """
    try:
        return _of(error, message)
    # Making a traceback must change nothing: if it fails, there is none.
    except BaseException as raised:
        if user_errors.let_pass(raised):
            raise
        return ""


def of_attempt(error: BaseException, message: str) -> str:
    """Return the traceback of what an effect raised. Its message may begin with the class or not."""
    name = user_errors.name_of(type(error))
    return of(error, message if message.startswith(name) else f"{name}: {message}" if message else name)


def _of(error: BaseException, message: str) -> str:
    chain = _chain(error)
    parts: list[str] = []
    for number, (each, link) in enumerate(chain):
        said = message if number == 0 else _described(each)
        # The exception itself gets half of the room, and those that led to it share the rest.
        room = limits.TRACE_BYTES_MAX // 2 if number == 0 and len(chain) > 1 else limits.TRACE_BYTES_MAX // len(chain)
        parts.append(link + _one(each, said, room))
    # Frames of this package alone tell users nothing.
    if not any("  File " in part for part in parts):
        return ""
    return _bounded("".join(reversed(parts)), limits.TRACE_BYTES_MAX)


def _chain(error: BaseException) -> list[tuple[BaseException, str]]:
    """An exception and those that led to it, the last first; each with what links it to the one before in time."""
    found: list[BaseException] = []
    links: list[str] = []
    current: BaseException | None = error
    # The loop is bounded, and checked by identity: code can make a chain that leads to itself.
    while current is not None and len(found) < CHAIN_MAX and not any(current is each for each in found):
        found.append(current)
        cause = _get_cause(current)
        following = cause if cause is not None or _get_suppressed(current) else _get_context(current)
        links.append("" if following is None else _CAUSE if cause is not None else _CONTEXT)
        current = following
    links[-1] = ""
    return list(zip(found, links, strict=True))


def _one(error: BaseException, message: str, bytes_max: int) -> str:
    ending = _bounded(f"{message}\n", min(MESSAGE_BYTES_MAX, bytes_max // 2))
    notes = "".join(f"{_bounded(each, bytes_max // 2).rstrip()}\n" for each in _notes(error))
    frames = _lines(_frames(_get_traceback(error)))
    head = "Traceback (most recent call last):\n" if frames else ""
    room = bytes_max - len((head + ending + notes + CUT).encode())
    # The outermost frames give way: the last ones say most.
    while frames and sum(len(each.encode()) for each in frames) > max(room, len(frames[-1].encode())):
        frames.pop(0)
        head = f"Traceback (most recent call last):\n{CUT}"
    return head + "".join(frames) + ending + notes


def _frames(trace: TracebackType | None) -> list[CodeFrame]:
    """Return the frames that are shown: the last, and the last of the user's own."""
    last: list[CodeFrame] = []
    own: list[CodeFrame] = []
    number = 0
    # A traceback is as long as the recursion was deep, so not all of it is walked.
    while trace is not None and number < FRAMES_SEEN_MAX:
        code = trace.tb_frame.f_code
        file = user_errors.plain_text(code.co_filename)
        if not file.startswith(_OURS):
            frame = CodeFrame(number, file, trace.tb_lineno, user_errors.plain_text(code.co_name))
            last.append(frame)
            if len(last) > FRAMES_LAST:
                before = last.pop(0)
                if user_errors.is_user_code(before.file):
                    own.append(before)
                    del own[:-FRAMES_OWN]
            number += 1
        trace = trace.tb_next
    return own + last


def _lines(frames: list[CodeFrame]) -> list[str]:
    lines: list[str] = []
    expected = 0
    for frame in frames:
        gap = frame.number - expected
        left_out = f"  ... {gap} {'call' if gap == 1 else 'calls'} left out ...\n" if gap else ""
        source = _source(frame)
        code = f"    {source}\n" if source else ""
        where = f'  File "{shown(frame.file)}", line {frame.line}, in {frame.function}\n'
        lines.append(left_out + where + code)
        expected = frame.number + 1
    return lines


def shown(file: str) -> str:
    """A file as tracebacks name it. A simulation names it otherwise: its runs do not depend on where files stand."""
    return file


def _source(frame: CodeFrame) -> str:
    if not frame.file.endswith(".py") and not frame.file.startswith("<"):
        return ""  # code can say that it is of any file, also of one that has no end
    linecache.checkcache(frame.file)  # `worldline dev` reads programs again when they are edited
    return user_errors.plain_text(linecache.getline(frame.file, frame.line).strip(), characters_max=LINE_CHARACTERS_MAX)


def _described(error: BaseException) -> str:
    """Return an exception by its class and its plain arguments, without calling anything of its own."""
    name = user_errors.name_of(type(error))
    given = [each for each in _get_args(error) if type(each) in _PLAIN]
    if len(given) == 1 and type(given[0]) is str:
        return f"{name}: {user_errors.plain_text(given[0])}"
    return f"{name}: {', '.join(map(user_errors.repr_of, given))}" if given else name


def _notes(error: BaseException) -> list[str]:
    """What was added to an exception by `add_note`, as far as it is plain text."""
    notes = dict.get(_get_fields(error), "__notes__")
    # User code can set `__notes__` to anything.
    if type(notes) is not list:
        return []
    return [
        user_errors.plain_text(each, characters_max=limits.TRACE_BYTES_MAX)
        for each in notes[:NOTES_MAX]
        if type(each) is str
    ]


def _bounded(text: str, bytes_max: int) -> str:
    """Text of at most so many bytes. What is cut is the middle of it."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= bytes_max:
        return data.decode()
    # Cuts may fall into the middle of a character: what is left of it is dropped.
    half = (bytes_max - len(CUT) - 2) // 2
    return f"{data[:half].decode(errors='ignore')}\n{CUT}{data[-half:].decode(errors='ignore')}"
