"""Which other universes may send to the worlds of a universe: allowing, denying, and what was changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from worldline.base import errors, limits
from worldline.client import name_patterns
from worldline.client.connection import Connection
from worldline.layers import universes
from worldline.model import ids, policy
from worldline.model import world_records as model
from worldline.store import kv, transact

_ID = re.compile(r"[0-9a-f]{32}")


class Allowed(msgspec.Struct, frozen=True):
    """Worlds of another universe may send some messages to some worlds here. `worlds`, `to` and `events` are names, or
    the beginnings of names with a `*` behind; `events` are schemas, or `inbox:` and the name of an inbox.
    """

    universe: str  # as it was called when it was allowed
    universe_id: str
    worlds: str = policy.ANY
    to: str = policy.ANY
    events: str = policy.ANY


class AllowedChange(msgspec.Struct, frozen=True):
    """One change: `allowed`, or not any more. Changes are counted from 1."""

    change: int
    allowed: bool
    what: list[Allowed]
    time_us: int


def _reads(connection: Connection) -> tuple[kv.Get, kv.Range]:
    return universes.get_grants(connection.id), universes.newest_grant_change(connection.id)


async def allow(connection: Connection, sender: str, *, worlds: str, to: str, events: str) -> bool:
    """Allow it. False if it was allowed just so already."""
    id_, label = await _sender(connection, sender)
    if id_ == connection.id:
        raise errors.BadInput(
            "worlds of one universe may send to each other unless a rule is against it (`worldline policy`): name "
            "another universe"
        )
    wanted = model.Grant(
        id_,
        label,
        name_patterns.check(worlds, "worlds"),
        name_patterns.check(to, "to"),
        name_patterns.check(events, "events"),
    )

    async def attempt() -> transact.NothingToWrite[bool] | transact.Write[bool]:
        read = await connection.store.engine.read(*_reads(connection))
        record = universes.decode_grants(connection.id, read.value(0), read.page(1))
        if any(_same(each, wanted) for each in record.grants.grants):
            return transact.NothingToWrite(False)
        batch = kv.Batch()
        universes.allow(batch, record, wanted, time_us=read.time_us)
        return transact.Write(batch, lambda _: True)

    return await transact.run(connection.store.engine, connection.store.env, attempt)


async def deny(
    connection: Connection, sender: str, *, worlds: str | None, to: str | None, events: str | None
) -> list[Allowed]:
    """Take back what was allowed to a universe: all of it, or that with these very patterns. Returns what was."""
    id_ = await _known_sender(connection, sender)
    chosen = {"worlds": worlds, "to": to, "events": events}

    async def attempt() -> transact.NothingToWrite[list[Allowed]] | transact.Write[list[Allowed]]:
        read = await connection.store.engine.read(*_reads(connection))
        record = universes.decode_grants(connection.id, read.value(0), read.page(1))
        taken = [
            each
            for each in record.grants.grants
            if each.universe == id_
            and all(value is None or getattr(each, name) == value for name, value in chosen.items())
        ]
        if not taken:
            return transact.NothingToWrite([])
        batch = kv.Batch()
        universes.deny(batch, record, taken, time_us=read.time_us)
        return transact.Write(batch, lambda _: _shown(taken))

    return await transact.run(connection.store.engine, connection.store.env, attempt)


async def allowed(connection: Connection) -> list[Allowed]:
    """What is allowed now, in the order in which it was."""
    read = await connection.store.engine.read(*_reads(connection))
    return _shown(universes.decode_grants(connection.id, read.value(0), read.page(1)).grants.grants)


async def changes(connection: Connection) -> list[AllowedChange]:
    """The last changes, the newest first."""
    wanted = universes.grant_log_range(connection.id, count_max=limits.GRANT_CHANGES_SHOWN_MAX)
    found = universes.decode_grant_log((await connection.store.engine.read(wanted)).page(0))
    return [
        AllowedChange(each.change, each.allowed, _shown(each.grants), each.time_us) for each in found if each.grants
    ]


def _shown(grants: Sequence[model.Grant]) -> list[Allowed]:
    return [Allowed(each.label, each.universe.hex(), each.worlds, each.to, each.events) for each in grants]


def _same(one: model.Grant, other: model.Grant) -> bool:
    # The label is for people: the universe may have been renamed since.
    return msgspec.structs.replace(one, label="") == msgspec.structs.replace(other, label="")


async def _known_sender(connection: Connection, sender: str) -> ids.UniverseId:
    """Also one that is gone: what was allowed to it is found under the name that it had."""
    try:
        return (await _sender(connection, sender))[0]
    except (errors.NotFound, errors.StoreError):
        found = {each.universe_id for each in await allowed(connection) if each.universe == sender}
        # Two universes may have had this name: then only an id says which one is meant.
        if len(found) != 1:
            raise
        return ids.UniverseId(bytes.fromhex(found.pop()))


async def _sender(connection: Connection, sender: Any) -> tuple[ids.UniverseId, str]:
    """A universe of this store by name, one of a peer as `peer:universe`, or one by its id; and what it is called."""
    if not isinstance(sender, str):
        raise errors.BadInput(f"a universe is named by text, not {sender!r}")
    if _ID.fullmatch(sender):
        return ids.UniverseId(bytes.fromhex(sender)), sender
    peer, _, name = sender.rpartition(":")
    place = await connection.peers.find(peer)
    found = universes.decode((await place.engine.read(universes.get(name))).value(0))
    if found is None:
        where = f"store {peer!r}" if peer else "this store"
        raise errors.NotFound(f"no universe {name!r} in {where}; one that is elsewhere is named by its id")
    return found, sender
