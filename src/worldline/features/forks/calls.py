"""Forking a world as a user asks for it: arguments checked, then one call (`worldline.features.forks.fork_commit`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from worldline.base import errors
from worldline.client import snapshot_calls, world_changes
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.features.forks import fork_commit, script_rules
from worldline.features.forks.fork_commit import ForkRequest
from worldline.layers import worlds
from worldline.layers.history import history_line
from worldline.model import ids
from worldline.model import world_records as model

POLICIES = {policy.name.lower(): policy for policy in model.ForkPolicy}


def wanted(
    name: str,
    *,
    at: object,
    effects: object,
    live: bool,
    script: script_rules.Given | None,
    labels: Mapping[str, str] | None,
    connection: Connection,
    program: str,
    before: object = None,
) -> ForkRequest:
    """Check what is asked for."""
    if before is not None:
        if at is not None:
            raise errors.BadInput("give at= or before=, not both")
        fork_commit.named_before(before)
    ids.check_name(name, "a world's name")
    world_changes.check_labels(labels)
    policy, height = policy_of(effects, script), check_height(at)
    given = script_rules.rules_of(script, connection.programs.get(program))
    return ForkRequest(
        name,
        height,
        policy,
        bool(live),
        given,
        None if labels is None else dict(labels),
        before if isinstance(before, str) else "",
    )


async def height_of_snapshot(source: Handle, snapshot: str, *, at: object, before: object) -> int:
    """Where the saved state of this hash stands."""
    if at is not None or before is not None:
        raise errors.BadInput("give one of at=, before= and snapshot=")
    return await snapshot_calls.height_of(source, snapshot)


def policy_of(effects: object, script: object) -> model.ForkPolicy:
    policy = POLICIES.get(effects) if isinstance(effects, str) else None
    if policy is None:
        raise errors.BadInput(f"effects must be one of {', '.join(POLICIES)}; not {effects!r}")
    if policy is model.ForkPolicy.SCRIPT and script is None:
        raise errors.BadInput('effects="script" needs a script: script=[{"effect": ..., "answer": ...}]')
    return policy


def check_height(at: object) -> int | None:
    if at is not None and (not isinstance(at, int) or isinstance(at, bool) or at < 0):
        raise errors.BadInput(f"a world is forked at a height, which is a number from 0 on; not {at!r}")
    return at


async def fork(source: Handle, asked: Callable[[str], ForkRequest]) -> ids.Address:
    """Make the fork. Returns its address. `Exists` if the name is in use for something else. `asked`: what is asked
    for, of a world of this program.
    """
    connection = source.connection
    store = connection.store
    try:
        program = (await source.describe()).meta.program
    # The world may be deleted since the call was first made: a repeated call gets the same fork all the same.
    except errors.NotFound:
        known = await _made_before(source, asked)
        if known is None:
            raise
        return known
    at = await source.address()
    made = await fork_commit.world_fork(
        store.engine, store.env, connection.blobs, at, asked(program), admissions=store.admissions
    )
    connection.wake()
    return made


async def _made_before(source: Handle, asked: Callable[[str], ForkRequest]) -> ids.Address | None:
    """The fork, if the same call has made it already, of a world that is deleted by now."""
    engine, universe = source.connection.store.engine, source.connection.id
    # Only the name is wanted here, for which no program needs to be known.
    at = worlds.named(universe, (await engine.read(worlds.get_name(universe, asked("").name))).value(0))
    if at is None:
        return None
    read = await engine.read(worlds.get(at), history_line.get(at))
    made, lineage = worlds.find(at, read.value(0)), history_line.decode_lineage(read.value(1))
    if made is None or lineage is None or lineage.parent_name != source.name:
        return None
    # The address of the parent is part of what was asked: by now only the lineage has it.
    request = asked(made.meta.program).digest(ids.Address(universe, ids.WorldId(lineage.parent)))
    return at if lineage.request == request else None


async def create_from_seed(
    connection: Connection, name: str, seed: object, *, program: str, labels: Mapping[str, str] | None
) -> ids.Address:
    """A world that begins with the state of another: "template", or "template@HEIGHT"."""
    source, at = seed_of(seed)
    ids.check_name(name, "a world's name")
    world_changes.check_labels(labels)
    store = connection.store
    made = await fork_commit.world_create_from_seed(
        store.engine,
        store.env,
        connection.blobs,
        await Handle(connection, source).address(),
        name=name,
        program=program,
        at=at,
        labels=None if labels is None else dict(labels),
        admissions=store.admissions,
    )
    connection.wake()
    return made


def seed_of(text: object) -> tuple[str, int | None]:
    """The world that a seed names, and the height, if it names one."""
    if not isinstance(text, str):
        raise errors.BadInput(f'a seed is the name of a world, or "NAME@HEIGHT"; not {text!r}')
    name, behind, height = text.rpartition("@")
    if behind and height.isascii() and height.isdigit():
        return name, int(height)
    return text, None
