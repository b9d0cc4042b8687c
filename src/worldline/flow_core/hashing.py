"""Canonical JSON, and the hashes and ids made of it.

`canonical` is RFC 8785 and what this project uses. The other two forms exist because the documents of others are hashed
with them: `schema_text` puts keys that look like integers first, as JavaScript's objects do, and `legacy_text` orders
keys by code point and writes null for what JSON does not have.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from worldline.base import limits
from worldline.flow_core import faults, js_values

_INTEGER_KEY = re.compile(r"0|[1-9][0-9]{0,9}")
_ESCAPED = re.compile('["\\\\\x00-\x1f\ud800-\udfff]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_TARGETS = ("into", "pass", "fail")  # parameters of effects that name where results are written

Order = Callable[[str], Any]


def utf16(key: str) -> bytes:
    """Sorts as JavaScript sorts text, by UTF-16 units."""
    return key.encode("utf-16-be", "surrogatepass")


def integers_first(key: str) -> tuple[int, int, bytes]:
    """Sorts as the keys of a JavaScript object that was filled in order of UTF-16 units."""
    # JavaScript takes names below 2^32-1 for indexes of an array.
    if _INTEGER_KEY.fullmatch(key) and int(key) < 2**32 - 1:
        return 0, int(key), b""
    return 1, 0, utf16(key)


def code_points(key: str) -> str:
    return key


def canonical(value: object) -> str:
    """RFC 8785. What has no JSON raises `faults.NotJson`."""
    if type(value) is dict and _is_simple(value):
        return msgspec.json.encode(value, order="sorted").decode()
    return _written(value, utf16, strict=True, depth=0)


def _is_simple(value: dict[Any, Any]) -> bool:
    """Return whether an object has members of ASCII text, small integers and the like alone, as most parameters of
    effects: a writer of JSON in its keys' order writes that in the canonical form.
    """
    for name, each in value.items():
        kind = type(each)
        if type(name) is not str or not name.isascii():
            return False
        if kind is str:
            if not each.isascii():
                return False
        elif kind is int:
            if not -js_values.INTEGER_MAX <= each <= js_values.INTEGER_MAX:
                return False
        elif each is not None and kind is not bool:
            return False
    return True


def schema_text(value: object) -> str:
    """Return the text that a schema is hashed by."""
    return _written(value, integers_first, strict=False, depth=0)


def legacy_text(value: object) -> str:
    """Return the text that intent keys are made of."""
    return _written(value, code_points, strict=False, depth=0)


def _written(value: object, order: Order, *, strict: bool, depth: int) -> str:
    if depth > 4 * limits.FLOW_DEPTH_MAX:
        raise faults.NotJson(f"a value nested deeper than {4 * limits.FLOW_DEPTH_MAX}")
    if value is None or value is js_values.MISSING:
        return "null"
    if type(value) is str:
        return _quoted(value, strict=strict)
    if value is True or value is False:
        return "true" if value else "false"
    if type(value) is int or type(value) is float:
        return _numeral(js_values.normal(value), strict=strict)
    if isinstance(value, Mapping):
        if not all(type(name) is str for name in value):
            raise faults.NotJson("an object with a key that is no text")
        # Text of ASCII sorts the same by code points, and faster.
        names = sorted(value) if order is utf16 and "".join(value).isascii() else sorted(value, key=order)
        members = [(name, value[name]) for name in names if value[name] is not js_values.MISSING]
        pairs = [
            f"{_quoted(name, strict=strict)}:{_written(each, order, strict=strict, depth=depth + 1)}"
            for name, each in members
        ]
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_written(each, order, strict=strict, depth=depth + 1) for each in value) + "]"
    raise faults.NotJson(f"a value of type {type(value).__name__} is no JSON")


def _numeral(number: js_values.Number, *, strict: bool) -> str:
    text = js_values.number_text(number)
    # NaN and the infinities end with a letter.
    if text[-1].isdigit():
        return text
    if strict:
        raise faults.NotJson(f"{text} is no JSON")
    return "null"


def _quoted(value: str, *, strict: bool) -> str:
    if value.isascii() and value.isprintable():  # as most are: nothing else in it is escaped
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if strict and not js_values.is_whole(value):
        raise faults.NotJson("a text with half of a character (a lone surrogate)")
    return '"' + _ESCAPED.sub(_escape, value) + '"'


def _escape(match: re.Match[str]) -> str:
    return _SHORT.get(match[0]) or f"\\u{ord(match[0]):04x}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# --- What is made of it -----------------------------------------------------------------------------------------------


def schema_hash(document: Mapping[str, Any], *, effective: bool = False) -> str:
    """Return the hash of a document without its own `hash`.

    What hosts keep in it, the fields of state whose names begin with `$`, is no part of its meaning; `effective` hashes
    it too.
    """
    hashed = {name: each for name, each in document.items() if name != "hash"}
    state = hashed.get("state")
    # A host that adds a field of its own must not change what intents and requirements are named by.
    if not effective and isinstance(state, Mapping) and isinstance(state.get("fields"), Mapping):
        fields = {name: each for name, each in state["fields"].items() if not str(name).startswith("$")}
        hashed["state"] = {**state, "fields": fields}
    return _sha256(schema_text(hashed))


def requirement_id(
    *, schema_hash: str, intent_id: str, action_id: str, node_path: str, effect: str, params: Mapping[str, Any]
) -> str:
    """Return the id of section 8.2: SHA-256 of the canonical form of everything that makes the requirement."""
    of_node = _of_node(schema_hash, action_id, node_path, effect)
    args, intent = _quoted(canonical(params), strict=True), _quoted(intent_id, strict=True)
    targets = ",".join([_quoted(each, strict=True) for each in write_targets(params)])
    return _sha256(f'{of_node[0]}{args},"writeTargets":[{targets}]{of_node[1]}{intent}{of_node[2]}')


# All requirements of a node have this in common; only arguments and intents differ.
@functools.lru_cache(maxsize=1_024)
def _of_node(schema_hash: str, action_id: str, node_path: str, effect: str) -> tuple[str, str, str]:
    """What all requirements of a node have in common: before the arguments, before the intent, and behind it."""
    action, name, path, schema = (_quoted(each, strict=True) for each in (action_id, effect, node_path, schema_hash))
    return (
        f'{{"actionId":{action},"effectSignature":{{"name":{name},"normalizedArgs":',
        f'}},"flowNodePath":{path},"intentId":',
        f',"schemaHash":{schema}}}',
    )


def write_targets(params: Mapping[str, Any]) -> list[str]:
    """Return the paths that the parameters of an effect declare as its targets, sorted."""
    named: list[str] = []
    for name in _TARGETS:
        target = params.get(name)
        named += [target] if isinstance(target, str) else []
        named += [each for each in target if isinstance(each, str)] if isinstance(target, list) else []
    return sorted(named, key=utf16) if len(named) > 1 else named


def legacy_requirement_id(*, schema_hash: str, intent_id: str, action_id: str, node_path: str) -> str:
    """Return the id as the reference makes it, for cross-checking."""
    return "req-" + _sha256(f"{schema_hash}:{intent_id}:{action_id}:{node_path}")[:16]


def intent_key(*, schema_hash: str, type: str, input: object = None, scope: object = None) -> str:
    """Hash an intent: equal for every intent with this body, whatever its id."""
    return _sha256(f"{schema_hash}:{type}:{legacy_text(input)}:{legacy_text(scope)}")


def uuid_of(intent_id: str, number: int) -> str:
    """`$system.uuid` as the reference draws it: the `number`-th of an intent."""
    drawn = 0
    for unit in js_values.units(f"{intent_id}-{number}"):
        drawn = (drawn * 31 + ord(unit)) & 0xFFFFFFFF
    # The number without the sign that it has as an integer of 32 bits.
    drawn = min(drawn, 2**32 - drawn)
    second, third, fourth = (f"{drawn * factor:04x}" for factor in (31, 37, 41))
    return f"{drawn:08x}-{second[:4]}-4{third[1:4]}-{fourth[:4]}-{drawn * 43:012x}"


def uuid_like(seed: Sequence[str]) -> str:
    """A version-4 UUID that depends on its seed alone."""
    # Version 4, and the variant of RFC 4122.
    digits = list(_sha256(canonical(list(seed)))[:32])
    digits[12] = "4"
    digits[16] = "89ab"[int(digits[16], 16) % 4]
    drawn = "".join(digits)
    return f"{drawn[:8]}-{drawn[8:12]}-{drawn[12:16]}-{drawn[16:20]}-{drawn[20:]}"
