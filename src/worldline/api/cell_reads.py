"""A world's state as a client reads it: a cell as an object of its class, or all cells as plain data.

Nothing of the world's program runs but the class that a cell is read with. Plain data needs no program at all: cells
are canonical values, which say themselves what they hold.
"""

from __future__ import annotations

from typing import Any, TypeVar

from worldline.base import errors
from worldline.client import client_desk
from worldline.client.world_handle import Handle
from worldline.features.domains.calls import snapshot_at
from worldline.flow_core.authoring.document_domain import Document
from worldline.flow_core.authoring.domain_class import Domain
from worldline.kernel import user_values
from worldline.kernel.authoring import reducers

S = TypeVar("S")


async def typed(world: Handle, cls: type[S] | Document, key: str, *, at: int | None) -> S | dict[str, Any]:
    """The value of one cell; one that does not exist yet is a fresh instance. `CellUnfit` if the class does not take
    what the cell holds.
    """
    if isinstance(cls, Document):
        return cls.read(await snapshot_at(world, cls, key, at=at))
    if not isinstance(cls, type):  # before issubclass, which raises a TypeError of its own for anything else
        raise errors.BadInput(f"a state is read by a class or a flow domain, not by {cls!r}")
    if issubclass(cls, Domain):
        read: S = cls.read(await snapshot_at(world, cls, key, at=at))
        return read
    reducer = await _reducer_of(world, cls)
    data = await world.cell(reducer, key, at=at)
    if data is None:  # as a handler would get it: reading a cell does not create it
        return cls()
    try:
        found: S = await client_desk.opened(world, data, lambda: reducers.value_of(cls, reducer, key, data))
    except errors.CellUnfit as error:
        raise errors.CellUnfit(f"{error}; `state()` without a class gives it as plain data") from error
    return found


async def plain(world: Handle, *, at: int | None) -> dict[str, dict[str, Any]]:
    """Every cell as plain data: by reducer, then by key."""
    found: dict[str, dict[str, Any]] = {}
    for (reducer, key), data in (await world.cells(at=at)).items():
        found.setdefault(reducer, {})[key] = await client_desk.plain(world, data)
    return found


async def _reducer_of(world: Handle, cls: type) -> str:
    """The name under which a class is a reducer of the world's program."""
    name = (await world.describe()).meta.program
    program = world.connection.programs.get(name)
    if program is None:
        raise errors.NotFound(
            f"program {name!r} is not known here: open the universe with programs=..., or read plain data with state()"
        )
    # By class, not by name: a reducer may be declared under another name than its class has.
    for reducer in program.reducers.values():
        if reducer.cls is cls:
            return reducer.name
    raise errors.BadInput(f"{user_values.name_of(cls)} is not a reducer of program {name!r}")
