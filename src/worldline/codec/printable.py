r"""Text of users as a terminal may get it: what a terminal would act on stands there as an escape.

A payload, an exception's message or a name may hold sequences that move the cursor, set the title, hide or reorder what
is around them. `shown` leaves letters, newlines and tabs, and writes `\x1b`, `\u202e` for the rest. `json` does the
same in a JSON text, where such characters can only be in strings: it still means the same. `logger` has lines of logs
shown so, whichever handler writes them: in a program of a user's own, Python's writes them to the terminal.

Escaped are: control characters of both ranges (C0 without newline and tab, DEL, C1), marks that change the direction of
text, line and paragraph separators, invisible tags and annotations, and lone surrogates, which have no bytes at all.
Joiners stay: scripts and emoji need them.
"""

from __future__ import annotations

import json as json_of_python
import logging
import re
from typing import Any, Final

import msgspec

_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_BYTE_MAX: Final = 0xFF
_PLANE_MAX: Final = 0xFFFF


def shown(text: str) -> str:
    """Text for people, which may be of several lines."""
    # Nearly every text is plain, and is not searched.
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_escape, text)


def json(value: Any) -> str:
    """A value as one line of JSON, without a raw character that a terminal would act on."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # a lone surrogate, which no JSON can hold: of an argument that is no UTF-8, say
        text = msgspec.json.encode(_without_surrogates(msgspec.to_builtins(value))).decode()
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_escape_in_json, text)


def logger(name: str) -> logging.Logger:
    """A logger of this package."""
    found = logging.getLogger(name)
    found.addFilter(_SHOWN)  # once, however often
    return found


class _Shown(logging.Filter):
    """Lets every line through, as `shown`, with its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            said = record.getMessage()
        except Exception:  # noqa: BLE001 - of a user's own; a handler says so without raising
            return True
        if said.isascii() and said.isprintable() and not record.exc_info:
            return True
        # Without arguments, a handler does not read the percent signs of the text as places for them.
        record.msg, record.args = shown(said), ()
        if record.exc_info and not record.exc_text:  # what formatters take, if it is there
            record.exc_text = shown(logging.Formatter().formatException(record.exc_info))
        return True


_SHOWN: Final = _Shown()


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code <= _BYTE_MAX else f"\\u{code:04x}" if code <= _PLANE_MAX else f"\\U{code:08x}"


def _without_surrogates(value: Any) -> Any:
    """The same value with what has no bytes shown as an escape. Errors are shallow: there is no bound on depth."""
    if isinstance(value, str):
        return _SURROGATES.sub(_escape, value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(each) for key, each in value.items()}
    return [_without_surrogates(each) for each in value] if isinstance(value, list) else value


def _escape_in_json(match: re.Match[str]) -> str:
    return json_of_python.dumps(match[0])[1:-1] if match[0] != "\x7f" else "\\u007f"
