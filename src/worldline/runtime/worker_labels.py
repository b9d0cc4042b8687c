"""Whether a worker can run a world: what workers say of themselves by labels, and what worlds need.

`runtime.placement` says which label of a world needs which of a worker. Every worker obeys needs by itself, so an
assignment to a worker that does not meet them is void.
"""

from __future__ import annotations

from collections.abc import Mapping

from worldline.model import ids
from worldline.model import world_records as world_model

NAME = "name"
UNIVERSE = "universe"
EVERY = "*"  # said of universes: all of the store
PIN = "pin"
PROGRAM = "program:"
NEEDS = "needs:"


def unfit(at: ids.Address, meta: world_model.WorldMeta, labels: Mapping[str, str]) -> str | None:
    """Why a worker with these labels cannot run a world, or None if it can. An assignment to such a worker is void."""
    if not serves(labels, at.universe):
        return "does not serve its universe"
    need = unmet(needs_of(meta), labels)
    if need is None:
        return None
    if need == program_label(meta.program):
        return f"does not have its program {meta.program!r}"
    return f"does not have the label {need}"


def serves(labels: Mapping[str, str], universe: ids.UniverseId) -> bool:
    """Whether a worker with these labels runs worlds of a universe."""
    said = labels.get(UNIVERSE, "")
    return said == EVERY or universe.hex() in said.split(",")


def needs_of(meta: world_model.WorldMeta) -> dict[str, str]:
    """The labels that a worker must have to run such a world."""
    # Any version of it: which one may take the world is decided by `program_versions`.
    needs = {PROGRAM + meta.program: ""}
    for name, value in meta.labels.items():
        if name == PIN and value:
            needs[NAME] = value
        elif name.startswith(NEEDS):
            needs[name.removeprefix(NEEDS)] = value
    return needs


def unmet(needs: Mapping[str, str], labels: Mapping[str, str]) -> str | None:
    """The first need that these labels do not meet, or None if they meet all."""
    for name, value in needs.items():
        if name not in labels or (value and labels[name] != value):
            return f"{name}={value}" if value else name
    return None


def program_label(program: str) -> str:
    """The label that says which code of a program a worker has."""
    return PROGRAM + program


def places(label: str) -> bool:
    """Whether a world's label says where it may run."""
    return label == PIN or label.startswith(NEEDS)
