"""Where two canonical values differ: field by field, through nested maps and lists.

A field is named by its path from the root: keys of maps and places in lists. Maps are compared key by key. Of two
lists, what is equal at both ends is left out, and the rest is compared place by place; what one of them has more is
added or removed behind that. So a change of one element, an append and a removal each are one field.

Applied in order to the left value, added fields being put in at their places and removed ones taken out from the last
to the first, the fields make the right value. Places of removed fields are those of the left list, all others those of
the right one; both count the same, because no field is added and none removed before another in one list.

`differences` gives values that have more than `FIELDS_MAX` of them whole.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from worldline.codec import canonical

FIELDS_MAX: Final = 1_000

_WORD: Final = re.compile(r"\w+")

How = Literal["added", "removed", "changed"]
Path = tuple[str | int, ...]


class Field(msgspec.Struct, frozen=True):
    """One difference: `left` is None where it was added, `right` where it was removed."""

    path: Path
    change: How
    left: Any = None
    right: Any = None


def differences(left: Any, right: Any) -> list[Field]:
    """Every field in which two values differ, which `canonical.decode` has returned. None if they are the same."""
    found = list(itertools.islice(each_difference(left, right), FIELDS_MAX + 1))
    return found if len(found) <= FIELDS_MAX else [Field((), "changed", left, right)]


def each_difference(left: Any, right: Any, path: Path = ()) -> Iterator[Field]:
    """The same one by one, however many there are. `path`: where these two values are."""
    if type(left) is type(right) is dict:
        yield from _maps(path, left, right)
    elif type(left) is type(right) is list:
        yield from _lists(path, left, right)
    elif type(left) is not type(right) or not same(left, right):
        yield Field(path, "changed", left, right)


def same(left: Any, right: Any) -> bool:
    """Whether two values have the same bytes: 1, 1.0 and True are three values, 0.0 and -0.0 two."""
    # Equality first, which is quick to say no; only the bytes tell 1 from True.
    return bool(left == right) and canonical.encode_flat(left) == canonical.encode_flat(right)


def path_text(path: Path) -> str:
    """`lines[2].price`; a key that is no word in quotes; nothing for the root."""
    said = ""
    for part in path:
        if isinstance(part, str) and _WORD.fullmatch(part):
            said += f".{part}" if said else part
        else:
            said += f"[{part!r}]"
    return said


def _maps(path: Path, left: dict[str, Any], right: dict[str, Any]) -> Iterator[Field]:
    # Sorted, so that two values always give one list, whatever the order of their keys is.
    for key in sorted({**left, **right}):
        if key not in right:
            yield Field((*path, key), "removed", left=left[key])
        elif key not in left:
            yield Field((*path, key), "added", right=right[key])
        else:
            yield from each_difference(left[key], right[key], (*path, key))


def _lists(path: Path, left: list[Any], right: list[Any]) -> Iterator[Field]:
    shorter = min(len(left), len(right))
    first = 0
    while first < shorter and same(left[first], right[first]):
        first += 1
    behind = 0
    # Not into what is equal at the beginning: each element counts once.
    while behind < shorter - first and same(left[-1 - behind], right[-1 - behind]):
        behind += 1
    end = shorter - behind
    for place in range(first, end):
        yield from each_difference(left[place], right[place], (*path, place))
    for place in range(end, len(left) - behind):
        yield Field((*path, place), "removed", left=left[place])
    for place in range(end, len(right) - behind):
        yield Field((*path, place), "added", right=right[place])
