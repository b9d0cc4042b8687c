"""Forking a world: one commit, nothing is copied, and the worker that runs the world is not asked.

A fork is a world of its own. Its history is that of its parent up to a step; above, it goes on in a journal of its own
(`worldline.layers.stored.lines`). Its first step says what becomes of work that was open (`worldline.kernel.branches`).

Every call may be repeated: the same request under the same name finds the world that it has made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.client import changes
from worldline.client.branches import rules
from worldline.client.connection import Connection
from worldline.client.handle import Handle
from worldline.codec import canonical, digest
from worldline.kernel import replay, values
from worldline.layers import journal as journals
from worldline.layers import ready, worlds
from worldline.layers import snapshots as snapshot_layer
from worldline.layers.stored import journal_pages, lines
from worldline.model import ids, inbox, journal
from worldline.model import world as model
from worldline.model.journal import Kind
from worldline.roles import reader, restore
from worldline.store import kv, transact

POLICIES = {policy.name.lower(): policy for policy in model.Policy}
REACH_BYTES = 4_096  # of one page of them
REACH = 16  # entries that are looked through first for the end of a step
PAGE = 10_000  # entries that are looked through at once, from the newest on


class Wanted(msgspec.Struct, frozen=True):
    """What a fork is asked for with."""

    name: str
    at: int | None
    policy: model.Policy
    live: bool
    script: list[bytes]
    labels: dict[str, str] | None
    before: str = ""  # instead of a height: what happened last there

    def digest(self, parent: ids.Address) -> bytes:
        asked = [
            self.name, -1 if self.at is None else self.at, int(self.policy), self.live, self.script,
            None if self.labels is None else self.labels, self.before,
        ]  # fmt: skip
        return digest.hash_parts(b"fork", parent.universe, parent.world, values.dump(asked))


def wanted(
    name: str, *, at: object, effects: object, live: bool, script: rules.Given | None,
    labels: Mapping[str, str] | None, universe: Connection, program: str, before: object = None,
) -> Wanted:  # fmt: skip
    """Check what is asked for."""
    if before is not None:
        if at is not None:
            raise errors.BadInput("give at= or before=, not both")
        named_before(before)
    ids.check_name(name, "a world's name")
    changes.check_labels(labels)
    policy, height = policy_of(effects, script), check_height(at)
    given = rules.rules_of(script, universe.programs.get(program))
    return Wanted(
        name, height, policy, bool(live), given, None if labels is None else dict(labels),
        before if isinstance(before, str) else "",
    )  # fmt: skip


def policy_of(effects: object, script: object) -> model.Policy:
    policy = POLICIES.get(effects) if isinstance(effects, str) else None
    if policy is None:
        raise errors.BadInput(f"effects must be one of {', '.join(POLICIES)}; not {effects!r}")
    if policy is model.Policy.SCRIPT and script is None:
        raise errors.BadInput('effects="script" needs a script: script=[{"effect": ..., "answer": ...}]')
    return policy


def check_height(at: object) -> int | None:
    if at is not None and (not isinstance(at, int) or isinstance(at, bool) or at < 0):
        raise errors.BadInput(f"a world is forked at a height, which is a number from 0 on; not {at!r}")
    return at


async def fork(source: Handle, asked: Wanted) -> ids.Address:
    """Make the fork. Returns its address. `Exists` if the name is taken by something else."""
    universe, parent = source.universe, await source.address()
    engine, env = universe.store.engine, universe.store.env
    request = asked.digest(parent)
    script = await universe.blobs.put(canonical.encode(list(asked.script))) if asked.script else b""
    at = ids.Address(universe.id, ids.WorldId(envs.new_id(env)))

    async def attempt() -> transact.Done[ids.Address] | transact.Write[ids.Address]:
        read = await engine.read(
            worlds.get_name(universe.id, asked.name), worlds.get(parent), journals.get_head(parent), lines.get(parent)
        )
        known = worlds.named(universe.id, read.value(0))
        if known is not None:
            return transact.Done(await _made_before(universe, known, asked.name, request))
        world, line = worlds.decode(parent, read.value(1)), lines.decode(parent, read.value(3))
        height = await height_before(source, asked.before) if asked.before else asked.at
        start = await _start(universe, line, journals.decode_head(read.value(2)), height)
        head = start.head
        lineage = model.Lineage(
            parent.world, world.meta.name, head.step, head.height,
            list(line.up_to(step=head.step, height=head.height)), asked.policy, asked.live, read.time_us, request,
            script,
        )  # fmt: skip
        meta = msgspec.structs.replace(
            world.meta, name=asked.name, status=model.Status.ACTIVE, created_us=read.time_us, revision=0,
            labels=world.meta.labels if asked.labels is None else asked.labels, dry=not asked.live,
        )  # fmt: skip
        batch = kv.Batch()
        worlds.fork(batch, world, at, meta=meta, lineage=lineage, head=head, baseline=start.saved.record)
        snapshot_layer.pin(batch, start.owner, start.saved, lineage, at.world, frames=start.frames)
        ready.leave(batch, at, priority=ready.NORMAL)
        return transact.Write(batch, lambda _: at)

    made = await transact.run(engine, env, attempt)
    if universe.host is not None:
        universe.host.worlds.wake()
    return made


class _Start(msgspec.Struct, frozen=True):
    """Where a fork begins: the end of a step, and the snapshot from which that is reached."""

    head: journal.Head
    saved: snapshot_layer.Saved
    owner: ids.Address
    frames: list[tuple[bytes, bytes]] = []  # those that must be there still: the first of each journal it needs


async def _start(universe: Connection, line: lines.Line, top: journal.Head, at: int | None) -> _Start:
    """At the head, or at the last step end at or below a height. `NotRetained` if its state is not kept any more."""
    found = await _found(universe, line, top, at)
    engine, above, up_to = universe.store.engine, found.saved.record.height, found.head.height
    try:
        frames = await journal_pages.first_frames(engine, line, above=above, up_to=up_to)
    except errors.NotRetained:
        raise await reader.not_retained(engine, line, up_to) from None
    return msgspec.structs.replace(found, frames=frames)


async def _found(universe: Connection, line: lines.Line, top: journal.Head, at: int | None) -> _Start:
    engine, blobs = universe.store.engine, universe.blobs
    if at is None:
        return _Start(top, *await reader.owned_below(engine, line, top.height))
    if at > top.height:
        raise errors.BadInput(f"no height {at}: the journal's head is at height {top.height}")
    saved, owner = await reader.owned_below(engine, line, at)
    record = saved.record
    end = await _step_end(universe, line.at, above=record.height, up_to=at)
    if end is not None:
        return _Start(journal.Head(end.step, end.height, end.chain, end.state, end.time_us), saved, owner)
    if not record.height:
        return _Start(snapshot_layer.head_of(record, state=journal.GENESIS.state), saved, owner)
    [last] = await restore.read_entries(engine, blobs, line.at, above=record.height - 1, up_to=record.height)
    return _Start(snapshot_layer.head_of(record, state=last.state), saved, owner)


async def _step_end(universe: Connection, at: ids.Address, *, above: int, up_to: int) -> journal.Entry | None:
    """The last entry of the last step that ends in (above, up_to]. Looked for backwards: most steps are short."""
    reach = REACH
    while up_to > above:
        found = await restore.read_entries(
            universe.store.engine, universe.blobs, at, above=max(above, up_to - reach), up_to=up_to,
            bytes_max=REACH_BYTES,
        )  # fmt: skip
        end = next((entry for entry in reversed(found) if entry.chain), None)
        if end is not None or up_to - reach <= above:
            return end
        reach *= REACH
    return None


async def _made_before(universe: Connection, at: ids.Address, name: str, request: bytes) -> ids.Address:
    lineage = lines.decode_lineage((await universe.store.engine.read(lines.get(at))).value(0))
    if lineage is None or lineage.request != request:
        raise errors.Exists(f"there is a world named {name!r} already")
    return at


def seed_of(text: object) -> tuple[str, int | None]:
    """The world that a seed names, and the height, if it names one."""
    if not isinstance(text, str):
        raise errors.BadInput(f'a seed is the name of a world, or "NAME@HEIGHT"; not {text!r}')
    name, behind, height = text.rpartition("@")
    if behind and height.isascii() and height.isdigit():
        return name, int(height)
    return text, None


# --- Where to fork ---------------------------------------------------------------------------------------------------


async def height_before(source: Handle, what: object) -> int:
    """The end of the step before the last one in which this happened: "effect charge", "event Approved"."""
    kind, name = named_before(what)
    universe, at = source.universe, await source.address()
    above = (await source.head()).height
    while above > 0:
        top, above = above, max(0, above - PAGE)
        found = await restore.read_entries(universe.store.engine, universe.blobs, at, above=above, up_to=top)
        loaded = await restore.load_referenced(universe.blobs, found)
        for entry in reversed([restore.filled(each, loaded) for each in found]):
            if happened(entry, kind, name):
                return await _first_of_step(universe, at, entry) - 1
    raise errors.NotFound(f"world {source.name!r} has no {kind} {name!r} in its history")


def named_before(what: object) -> tuple[str, str]:
    """Whether an effect or an event is meant, and its name."""
    kind, _, name = what.partition(" ") if isinstance(what, str) else ("", "", "")
    if kind not in ("effect", "event") or not name.strip():
        raise errors.BadInput(f'say before what: "effect charge" or "event Approved"; not {what!r}')
    return kind, name.strip()


async def _first_of_step(universe: Connection, at: ids.Address, entry: journal.Entry) -> int:
    """The height at which the step of an entry begins. A step's entries are few."""
    above = max(0, entry.height - limits.STEP_ENTRIES_MAX - 1)
    around = await restore.read_entries(universe.store.engine, universe.blobs, at, above=above, up_to=entry.height)
    return next(each.height for each in around if each.step == entry.step)


def happened(entry: journal.Entry, kind: str, name: str) -> bool:
    """Whether an entry says that this effect was asked for, or that this event came."""
    match kind, entry.kind:
        case "effect", Kind.EFFECT_REQUESTED:
            return bool(values.load(list[Any], entry.payload)[1] == name)
        case "event", Kind.EVENT_RAISED:
            return bool(values.load(list[Any], entry.payload)[0] == name)
        case "event", Kind.EVENT | Kind.MESSAGE:
            item = replay.item_of(entry)
            said = item.schema if isinstance(item, inbox.Event) else getattr(item, "name", "")
            return bool(said == name)
    return False
