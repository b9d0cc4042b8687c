"""Forking a world: one commit, nothing is copied, and the worker that runs the world is not asked.

A fork is a world of its own. Its history is that of its parent up to a step; above, it continues in a journal of its
own (`worldline.layers.history.history_line`). Its first step says what happens to work that was open
(`worldline.features.forks.pure`).

Both calls may be repeated, as those in `runtime/operator_calls.py`: a caller that has lost the answer makes the same
call again and gets the world that the first one has made, wherever its parent is by now. The same name with anything
else asked for is refused (`Exists`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.codec import canonical, digest
from worldline.kernel import replay, user_values
from worldline.layers import blobs as blob_layer
from worldline.layers import cas, ready, universes, worlds
from worldline.layers import journal as journals
from worldline.layers import snapshots as snapshot_layer
from worldline.layers.history import history_line, journal_pages, saved_state
from worldline.model import ids, inbox, journal
from worldline.model import world_records as model
from worldline.model.journal import Kind
from worldline.runtime import universe_admission, world_reader, world_restore
from worldline.runtime.universe_admission import Admission, NewWorld
from worldline.store import kv, transact

REACH_BYTES = 4_096  # of one page of them
REACH = 16  # entries that are looked through first for the end of a step
PAGE = 10_000  # entries that are looked through at once, from the newest on


class ForkRequest(msgspec.Struct, frozen=True):
    """What a fork is asked for with. `script`: rules, each canonical bytes."""

    name: str
    at: int | None
    policy: model.ForkPolicy
    live: bool
    script: list[bytes]
    labels: dict[str, str] | None
    before: str = ""  # instead of a height: what happened last there

    def digest(self, parent: ids.Address) -> bytes:
        asked = [
            self.name,
            -1 if self.at is None else self.at,
            int(self.policy),
            self.live,
            self.script,
            None if self.labels is None else self.labels,
            self.before,
        ]
        return digest.hash_parts(b"fork", parent.universe, parent.world, user_values.dump(asked))


async def world_fork(
    engine: kv.Engine,
    env: envs.Env,
    blobs: blob_layer.Blobs,
    parent: ids.Address,
    asked: ForkRequest,
    *,
    admissions: Sequence[Admission],
) -> ids.Address:
    """Make the fork. Returns its address. `Exists` if the name is in use for something else. `admissions`: what decides
    whether its universe takes one more.
    """
    request = asked.digest(parent)
    script = canonical.encode(list(asked.script)) if asked.script else b""
    at = ids.Address(parent.universe, ids.WorldId(envs.new_id(env)))  # once: each attempt makes the same world

    async def attempt() -> transact.NothingToWrite[ids.Address] | transact.Write[ids.Address]:
        read = await engine.read(
            worlds.get_name(at.universe, asked.name),
            worlds.get(parent),
            journals.get_head(parent),
            history_line.get(parent),
            universes.get_meta(at.universe),
            *universe_admission.reads(admissions, at.universe),
        )
        # The name decides whether this call was made before.
        known = worlds.named(at.universe, read.value(0))
        if known is not None:
            return transact.NothingToWrite(await _made_before(engine, known, asked.name, request))
        world, line = worlds.decode(parent, read.value(1)), history_line.decode(parent, read.value(3))
        top = journals.decode_head(read.value(2))
        height = await height_before(engine, blobs, world, asked.before) if asked.before else asked.at
        start = await _start(engine, blobs, line, top, height)
        head = start.head
        lineage = model.Lineage(
            parent.world,
            world.meta.name,
            head.step,
            head.height,
            list(line.up_to(step=head.step, height=head.height)),
            asked.policy,
            asked.live,
            read.time_us,
            request,
            cas.address(script) if script else b"",
            list(line.origins_up_to(step=head.step, height=head.height)),
            # The head is noted with the fork: the entries of the parent that say it may go.
            head.chain,
            head.state,
            head.time_us,
            start.saved.record.root,
        )
        meta = _meta(world.meta, asked, created_us=read.time_us)
        batch = kv.Batch()
        if script:
            # Read before the blob is put, as publishers must: a collection may begin between the two.
            generation = await blobs.generation()
            await blobs.put(script)
            generation.expect(batch)
        owners = await _owners(engine, world, snapshot_layer.leaned_on(at.universe, lineage, start.saved.record.height))
        worlds.fork(batch, world, at, meta=meta, lineage=lineage, head=head, baseline=start.saved.record, owners=owners)
        universes.expect_there(batch, at.universe, read.value(4))  # in one that is closed meanwhile, no world is made
        wanted = NewWorld(at.universe, pins=True)
        await universe_admission.admit(admissions, wanted, batch, read, first=5, engine=engine, env=env)
        snapshot_layer.pin(batch, start.owner, start.saved, lineage, at.world, frames=start.frames)
        ready.leave(batch, at, priority=ready.NORMAL)  # its first step decides about the work that was open
        return transact.Write(batch, lambda _: at)

    return await transact.run(engine, env, attempt)


def _meta(parent: model.WorldMeta, asked: ForkRequest, *, created_us: int) -> model.WorldMeta:
    """What the fork is; its program is that of its parent."""
    return msgspec.structs.replace(
        parent,
        name=asked.name,
        status=model.Status.ACTIVE,
        created_us=created_us,
        revision=0,
        labels=parent.labels if asked.labels is None else asked.labels,
        dry=not asked.live,
    )


async def world_create_from_seed(
    engine: kv.Engine,
    env: envs.Env,
    blobs: blob_layer.Blobs,
    seed: ids.Address,
    *,
    name: str,
    program: str,
    at: int | None = None,
    labels: dict[str, str] | None = None,
    admissions: Sequence[Admission],
) -> ids.Address:
    """A world that begins where another one is, or was at a height: a live fork. What is open there is dropped."""
    meta = worlds.decode(seed, (await engine.read(worlds.get(seed))).value(0)).meta
    if meta.program != program:
        raise errors.BadInput(f"world {meta.name!r} is one of program {meta.program!r}, not {program!r}")
    asked = ForkRequest(name, at, model.ForkPolicy.DROP, live=True, script=[], labels=labels)
    return await world_fork(engine, env, blobs, seed, asked, admissions=admissions)


async def _made_before(engine: kv.Engine, at: ids.Address, name: str, request: bytes) -> ids.Address:
    lineage = history_line.decode_lineage((await engine.read(history_line.get(at))).value(0))
    if lineage is None:
        raise errors.Exists(f"there is a world named {name!r} already")
    if lineage.request != request:
        raise errors.Exists(
            f"there is a world named {name!r} already: a {'live' if lineage.live else 'dry'} fork of "
            f"{lineage.parent_name!r} at height {lineage.height}, which was asked for with other arguments"
        )
    return at


async def _owners(
    engine: kv.Engine, parent: worlds.WorldRecord, addresses: Sequence[ids.Address]
) -> list[worlds.WorldRecord]:
    """The worlds besides its parent that a fork needs something of. One that was deleted meanwhile has nothing left."""
    others = [at for at in addresses if at != parent.at]
    read = await engine.read(*(worlds.get(at) for at in others)) if others else None
    return [] if read is None else [worlds.decode(at, read.value(index)) for index, at in enumerate(others)]


# --- Where it begins -------------------------------------------------------------------------------------------------


class _Start(msgspec.Struct, frozen=True):
    """The end of a step, and the snapshot from which that is reached."""

    head: journal.Head
    saved: snapshot_layer.StoredSnapshot
    owner: ids.Address
    frames: list[tuple[bytes, bytes]] = []  # those that must be there still: the first of each journal it needs


async def _start(
    engine: kv.Engine, blobs: blob_layer.Blobs, line: history_line.HistoryLine, top: journal.Head, at: int | None
) -> _Start:
    """At the head, or at the last step end at or below a height. `NotRetained` if its state is not kept any more."""
    found = await _found(engine, blobs, line, top, at)
    above, up_to = found.saved.record.height, found.head.height
    try:
        frames = await journal_pages.first_frames(engine, line, above=above, up_to=up_to)
    except errors.NotRetained:
        raise await world_reader.not_retained(engine, line, up_to) from None
    return msgspec.structs.replace(found, frames=frames)


async def _found(
    engine: kv.Engine, blobs: blob_layer.Blobs, line: history_line.HistoryLine, top: journal.Head, at: int | None
) -> _Start:
    if at is None:
        return _Start(top, *await world_reader.owned_below(engine, line, top.height))
    if at > top.height:
        raise errors.BadInput(f"no height {at}: the journal's head is at height {top.height}")
    saved, owner = await world_reader.owned_below(engine, line, at)
    record = saved.record
    end = await _step_end(engine, blobs, line.at, above=record.height, up_to=at)
    if end is not None:
        return _Start(journal.Head(end.step, end.height, end.chain, end.state, end.time_us), saved, owner)
    # No step ends behind the snapshot, so the fork begins at the snapshot itself.
    header = await saved_state.header_of(blobs, record.root)
    return _Start(snapshot_layer.head_of(record, state=header.state), saved, owner)


async def _step_end(
    engine: kv.Engine, blobs: blob_layer.Blobs, at: ids.Address, *, above: int, up_to: int
) -> journal.JournalEntry | None:
    """The last entry of the last step that ends in (above, up_to]. Looked for backwards: most steps are short."""
    reach = REACH
    while up_to > above:
        found = await world_restore.read_entries(
            engine, blobs, at, above=max(above, up_to - reach), up_to=up_to, bytes_max=REACH_BYTES
        )
        end = next((entry for entry in reversed(found) if entry.chain), None)
        if end is not None or up_to - reach <= above:
            return end
        reach *= REACH
    return None


async def height_before(engine: kv.Engine, blobs: blob_layer.Blobs, world: worlds.WorldRecord, what: object) -> int:
    """The end of the step before the last one in which this happened: "effect charge", "event Approved"."""
    kind, name = named_before(what)
    above = (await world_reader.head(engine, world.at)).height
    kept = (await world_reader.kept(engine, world.at)).above
    while above > kept:
        top, above = above, max(kept, above - PAGE)
        found = await world_restore.read_entries(engine, blobs, world.at, above=above, up_to=top)
        loaded = await world_restore.load_referenced(blobs, found)
        for entry in reversed([world_restore.filled(each, loaded) for each in found]):
            if happened(entry, kind, name):
                # The height where the step before ends
                return await _first_of_step(engine, blobs, world.at, entry, kept=kept) - 1
    since = f" above height {kept}; earlier entries are not kept" if kept else ""
    raise errors.NotFound(f"world {world.meta.name!r} has no {kind} {name!r} in its history{since}")


def named_before(what: object) -> tuple[str, str]:
    """Whether an effect or an event is meant, and its name."""
    kind, _, name = what.partition(" ") if isinstance(what, str) else ("", "", "")
    if kind not in ("effect", "event") or not name.strip():
        raise errors.BadInput(f'say before what: "effect charge" or "event Approved"; not {what!r}')
    return kind, name.strip()


async def _first_of_step(
    engine: kv.Engine, blobs: blob_layer.Blobs, at: ids.Address, entry: journal.JournalEntry, *, kept: int
) -> int:
    """The height at which the step of an entry begins. A step's entries are few."""
    above = max(kept, entry.height - limits.STEP_ENTRIES_MAX - 1)
    around = await world_restore.read_entries(engine, blobs, at, above=above, up_to=entry.height)
    return next(each.height for each in around if each.step == entry.step)


def happened(entry: journal.JournalEntry, kind: str, name: str) -> bool:
    """Whether an entry says that this effect was asked for, or that this event came."""
    match kind, entry.kind:
        case "effect", Kind.EFFECT_REQUESTED:
            return bool(user_values.load(list[Any], entry.payload)[1] == name)
        case "event", Kind.EVENT_RAISED:
            return bool(user_values.load(list[Any], entry.payload)[0] == name)
        case "event", Kind.EVENT | Kind.MESSAGE:
            item = replay.item_of(entry)
            said = item.schema if isinstance(item, inbox.InboxEvent) else getattr(item, "name", "")
            return bool(said == name)
    return False
