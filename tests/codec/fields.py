"""Applying what `worldline.codec.differences` has found: the left value, changed into the right one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from worldline.codec.differences import Field


def applied(value: Any, fields: Sequence[Field]) -> Any:
    """Changed fields are replaced, removed ones are taken out from the last to the first, then the others put in."""
    root = [copy.deepcopy(value)]
    for each in fields:
        if each.change == "changed":
            holder, name = _at(root, each)
            holder[name] = each.right
    for each in reversed(fields):
        if each.change == "removed":
            holder, name = _at(root, each)
            del holder[name]
    for each in fields:
        if each.change == "added":
            holder, name = _at(root, each)
            if isinstance(holder, list):
                holder.insert(name, each.right)
            else:
                holder[name] = each.right
    return root[0]


def _at(root: list[Any], field: Field) -> tuple[Any, Any]:
    """What holds the field, and its name there."""
    path = (0, *field.path)
    holder: Any = root
    for part in path[:-1]:
        holder = holder[part]
    return holder, path[-1]
