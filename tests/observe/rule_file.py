"""Reads the little YAML that our rule file is written in: mappings, lists of mappings, texts. It refuses the rest."""

from __future__ import annotations

import re
from typing import Any

_ENTRY = re.compile(r"(?P<key>[a-z_]+):(?: (?P<value>.+))?")


def read(text: str) -> Any:
    lines = [(len(line) - len(line.lstrip()), line.strip()) for line in text.splitlines()]
    rest = [(indent, line) for indent, line in lines if line and not line.startswith("#")]
    value = _block(rest, 0)
    assert not rest, f"cannot read {rest[0]}"
    return value


def _block(rest: list[tuple[int, str]], indent: int) -> Any:
    if rest[0][1].startswith("- "):
        found = []
        while rest and rest[0][0] == indent and rest[0][1].startswith("- "):
            rest[0] = (indent + 2, rest[0][1][2:])
            found.append(_block(rest, indent + 2))
        return found
    mapping: dict[str, Any] = {}
    while rest and rest[0][0] == indent and not rest[0][1].startswith("- "):
        line = rest.pop(0)[1]
        match = _ENTRY.fullmatch(line)
        assert match is not None, f"cannot read {line!r}"
        assert match["key"] not in mapping, f"{match['key']} stands there twice"
        mapping[match["key"]] = _value(match["value"], rest, indent)
    return mapping


def _value(text: str | None, rest: list[tuple[int, str]], indent: int) -> Any:
    if text is None:
        assert rest[0][0] > indent, "a key without a value"
        return _block(rest, rest[0][0])
    if text == ">-":
        folded = []
        while rest and rest[0][0] > indent:
            folded.append(rest.pop(0)[1])
        return " ".join(folded)
    if text.startswith('"'):
        assert re.fullmatch(r'"[^"\\]*"', text), f"cannot read {text}"
        return text[1:-1]
    assert not re.search(r"^['&*!|>%@`\[{]|: | #", text), f"quote {text}"
    return text
