"""JSON that comes from outside: arguments, lines, bodies, files. Anything may be in it.

`decode` returns or raises `BadInput` (`TooLarge`, if it is too long); never `RecursionError`, `UnicodeError` or what
the parser raises. Depth is counted before the parser sees the text, so that what is accepted does not depend on how
much of the stack is in use: a workflow that reads an answer replays the same.

What the parser itself refuses: `NaN`, `Infinity`, numbers out of range, lone surrogates, bytes that are no UTF-8. Of a
key that stands twice in an object the last one counts. An accepted value may still have no canonical form (an integer
of more than 64 bits, deeper than stored values may be): that is said where it is encoded.
"""

from __future__ import annotations

import itertools
from array import array
from typing import Any, Final

import msgspec

from worldline.base import errors, limits

_OPENING: Final = b"[{"
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: one deeper, one up
_OTHER: Final = bytes(each for each in range(256) if each not in b"[]{}")


def decode(data: bytes | str, *, what: str, type: Any = Any, bytes_max: int = limits.JSON_BYTES_MAX) -> Any:
    """The value of a JSON text. `what`: how an error calls the text."""
    try:
        raw = data.encode() if isinstance(data, str) else data
        if len(raw) > bytes_max:
            raise errors.TooLarge(what, size=len(raw), limit=bytes_max)
        if is_too_deep(raw):
            raise errors.BadInput(f"{what} is nested deeper than {limits.JSON_DEPTH_MAX}")
        return msgspec.json.decode(raw, type=type)
    except UnicodeError as error:  # its own text would quote the data
        raise errors.BadInput(f"{what} is not JSON: it is not UTF-8 text") from error
    except msgspec.DecodeError as error:
        raise errors.BadInput(f"{what} is not JSON: {error}") from error


def is_too_deep(raw: bytes) -> bool:
    """Whether a parser would nest too deep, in whatever part of the text is JSON. In linear time, without a stack."""
    if sum(raw.count(each) for each in _OPENING) <= limits.JSON_DEPTH_MAX:
        return False  # what nearly every text has: not enough brackets
    # Brackets in strings do not count. Without escapes, every other part between quotes is outside of strings. Pairs of
    # backslashes go first, so that the one before a quote is an escape.
    parts = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    steps = array("b", b"".join(parts[::2]).translate(_STEPS, _OTHER))
    return max(itertools.accumulate(steps), default=0) > limits.JSON_DEPTH_MAX
