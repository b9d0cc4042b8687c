"""What a universe shows without any program: worlds, leases, open work, dead letters, names.

Records made for showing: ids as hexadecimal text, times as `datetime`. Everything is read from the store; nothing here
writes, and nothing needs the code of a world.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from worldline.base import errors, grammar
from worldline.client import dead_letters, listing
from worldline.client import world_names as refs
from worldline.client.connection import Connection
from worldline.inspect import entry_text
from worldline.inspect.entry_text import rfc3339, when
from worldline.keys import inbox as inbox_keys
from worldline.keys import segments as segment_keys
from worldline.keys import work as work_keys
from worldline.layers import inbox as inboxes
from worldline.layers import journal as journals
from worldline.layers import leases, snapshots, trial, worlds
from worldline.layers import work as works
from worldline.layers.history import history_line, journal_pages, segment_index
from worldline.model import ids
from worldline.model import world_records as world_model
from worldline.model.leases import CrashTrial
from worldline.model.work import EffectAttempt, WorkKind, WorkState
from worldline.runtime import world_holders
from worldline.runtime.personal import value_check
from worldline.store import kv, paging

PAGE = 500
COUNT_MAX = 10_000  # counting stops here
ID_CHARACTERS_MIN = 4


class HolderRow(msgspec.Struct, frozen=True):
    """The worker that has the lease. `alive`: its heartbeat has not run out, and its process is not proven dead."""

    worker: str
    epoch: int
    since: datetime
    last_sign: datetime | None
    alive: bool
    name: str = ""  # the worker's, as its heartbeat says


class WorldRow(msgspec.Struct, frozen=True):
    """A row of the listing."""

    name: str
    id: str
    program: str
    status: str
    hosted: bool
    step: int
    height: int
    changed: datetime | None  # the logical time of its last step
    created: datetime
    labels: dict[str, str]
    quarantined: int = 0  # as in `Whole`
    quarantined_until: datetime | None = None
    resume: str = ""


class SnapshotRow(msgspec.Struct, frozen=True):
    step: int
    height: int
    time: datetime
    bytes: int
    program_hash: str


class Whole(msgspec.Struct, frozen=True):
    """Everything about one world."""

    name: str
    id: str
    program: str
    program_hash: str
    status: str
    created: datetime
    changed: datetime | None
    labels: dict[str, str]
    names: list[str]
    step: int
    height: int
    chain: str
    state: str
    epoch: int
    holder: HolderRow | None
    baseline: SnapshotRow
    unread: int
    effects: int
    timers: int
    parked: int
    dead: int
    quarantined: int = 0  # processes that died in a row while they restored it, if it is paused because of that
    quarantined_until: datetime | None = None  # when that ends by itself
    resume: str = ""  # the command that ends it now
    compacted: int = 0  # the height up to which entries are in segments
    segments: int = 0
    states_above: int = 0  # the height above which every state can be read
    entries_above: int = 0  # the height above which entries are kept
    assigned: str = ""  # the worker that should run it, why, and whether that counts


class AttemptRow(msgspec.Struct, frozen=True):
    """One attempt at an effect, for people."""

    number: int
    began: datetime
    ended: datetime
    worker: str
    how: str
    error: str

    @staticmethod
    def of(attempt: EffectAttempt) -> AttemptRow:
        return AttemptRow(
            attempt.number,
            when(attempt.began_us),
            when(attempt.ended_us),
            attempt.worker.hex(),
            attempt.ended,
            attempt.error,
        )

    def __str__(self) -> str:
        said = f": {self.error}" if self.error else ""
        took = (self.ended - self.began).total_seconds()
        return f"{self.number:>4}  {rfc3339(self.began)}  {took:.3f} s  worker {self.worker[-8:]}  {self.how}{said}"


class WorkRow(msgspec.Struct, frozen=True):
    """An open effect or timer."""

    id: str
    world: str
    kind: str
    name: str
    state: str
    run: str
    attempt: int
    opened: datetime
    due: datetime
    deadline: datetime | None
    worker: str
    error: str
    args: Any
    trace: str = ""  # where in its code the last attempt failed
    attempts: list[AttemptRow] = []  # the last that have ended, the oldest first
    correlation: str = ""


class DeadLetterRow(msgspec.Struct, frozen=True):
    """A dead letter."""

    id: str
    world: str
    reason: str
    step: int
    time: datetime
    item: dict[str, Any]


# --- Worlds --------------------------------------------------------------------------------------------------


async def list_worlds(
    connection: Connection, *, label: str | None, status: str | None, program: str | None, limit: int, option: str = ""
) -> list[WorldRow]:
    """Worlds, newest first. `option`: what commands need to be about this store."""
    key, _, value = (label or "").partition("=")
    wanted = listing.Filter(_status(status), {key: value} if key else {}, program or "")
    found: list[WorldRow] = []
    chosen: list[tuple[ids.Address, world_model.WorldMeta]] = []
    async for each in listing.worlds_of(connection, wanted):
        # Before reading the worlds: a limit of 20 must not cost a page of 500 heads and leases.
        if len(found) + len(chosen) >= limit:
            break
        chosen.append(each)
        if len(chosen) >= PAGE:
            found += await _rows(connection, chosen, option)
            chosen = []
    return found + await _rows(connection, chosen, option)


def _status(name: str | None) -> world_model.Status | None:
    return None if not name else world_model.Status[name.upper()]


async def _rows(
    connection: Connection, chosen: Sequence[tuple[ids.Address, world_model.WorldMeta]], option: str
) -> list[WorldRow]:
    if not chosen:
        return []
    requests = [each for at, _ in chosen for each in (journals.get_head(at), *leases.reads(at))]
    # One read for all worlds of the page: on a server, a read for each would be a round trip for each.
    read = await connection.store.engine.read(*requests)
    states = [
        leases.decode(at, *(read.value(4 * index + number) for number in (1, 2, 3)))
        for index, (at, _) in enumerate(chosen)
    ]
    held = await world_holders.of_states(connection.store, states)
    rows = []
    for index, (at, meta) in enumerate(chosen):
        head = journals.decode_head(read.value(4 * index))
        holder = held[index]
        row = WorldRow(
            meta.name,
            at.world.hex(),
            meta.program,
            meta.status.name.lower(),
            holder is not None and holder.alive,
            head.step,
            head.height,
            when(head.time_us) if head.step else None,
            when(meta.created_us),
            meta.labels,
            **await _held_back(connection, at, meta, option),
        )
        rows.append(row)
    return rows


async def show_world(connection: Connection, at: ids.Address, *, option: str = "") -> Whole:
    engine = connection.store.engine
    read = await engine.read(worlds.get(at), journals.get_head(at), snapshots.get_baseline(at), *leases.reads(at))
    meta = worlds.decode(at, read.value(0)).meta
    head = journals.decode_head(read.value(1))
    baseline = snapshots.decode_baseline(read.value(2))
    state = leases.decode(at, read.value(3), read.value(4), read.value(5))
    opened = [each async for each in open_work(connection, at)]
    return Whole(
        name=meta.name,
        id=at.world.hex(),
        program=meta.program,
        program_hash=meta.program_hash.hex(),
        status=meta.status.name.lower(),
        created=when(meta.created_us),
        changed=when(head.time_us) if head.step else None,
        labels=meta.labels,
        # No index leads from a world to its names.
        names=[each.name async for each in refs.refs(connection) if each.id == at.world.hex()],
        step=head.step,
        height=head.height,
        chain=head.chain.hex(),
        state=head.state.hex(),
        epoch=state.epoch.number,
        holder=_shown((await world_holders.of_states(connection.store, [state]))[0]),
        baseline=SnapshotRow(
            baseline.step, baseline.height, when(baseline.time_us), baseline.size, baseline.program_hash.hex()
        ),
        unread=await count(connection, inboxes.read_range(at, count_max=1_000)),
        effects=sum(each.work.kind is WorkKind.EFFECT for each in opened),
        timers=sum(each.work.kind is WorkKind.TIMER for each in opened),
        parked=sum(each.work.state is WorkState.PARKED for each in opened),
        dead=await count(connection, inboxes.dead_range(at, count_max=1_000)),
        assigned=_assigned(await world_holders.assigned(connection.store, at)),
        **await _held_back(connection, at, meta, option),
        **await _compacted(connection, at),
    )


async def _compacted(connection: Connection, at: ids.Address) -> dict[str, Any]:
    """Return how far a world is compacted."""
    engine = connection.store.engine
    read = await engine.read(segment_index.last_range(at), history_line.get(at))
    last = segment_index.decode_last(at, read.page(0))
    line = history_line.decode(at, read.value(1))
    kept = {"entries_above": (await journal_pages.kept(engine, line)).above}
    if last is None:
        return kept
    return kept | {
        "compacted": last.record.last_height,
        "segments": await count(connection, kv.Range(*segment_keys.segments(at))),
        "states_above": await journal_pages.changes_above(engine, line),
    }


async def holder(connection: Connection, at: ids.Address) -> HolderRow | None:
    """The worker that has the world's lease, if one has."""
    return _shown(await world_holders.find(connection.store, at))


def _shown(holder: world_holders.WorldHolder | None) -> HolderRow | None:
    if holder is None:
        return None
    last = None if holder.heartbeat_us is None else when(holder.heartbeat_us)
    return HolderRow(holder.worker.hex(), holder.epoch, when(holder.acquired_us), last, holder.alive, holder.name)


def _assigned(assigned: world_holders.Assigned | None) -> str:
    if assigned is None:
        return ""
    said = f"worker {assigned.name} ({assigned.worker.hex()}), {assigned.reason}, priority {assigned.priority}"
    return f"{said}; void: it {assigned.void}" if assigned.void else said


async def quarantined(connection: Connection, at: ids.Address, status: world_model.Status) -> CrashTrial | None:
    """What was counted against a world that is paused because of it; None if a person has paused it, or it is not."""
    if status is not world_model.Status.PAUSED:
        return None
    found = await trial_of(connection, at)
    # Deaths within steps quarantine no world; a world that is paused with only those was paused by a person.
    return found if found is not None and found.restore_deaths else None


async def _held_back(
    connection: Connection, at: ids.Address, meta: world_model.WorldMeta, option: str
) -> dict[str, Any]:
    """Return what is said of a world that is quarantined."""
    found = await quarantined(connection, at, meta.status)
    if found is None:
        return {}
    return {
        "quarantined": found.restore_deaths,
        "quarantined_until": when(found.until_us) if found.until_us else None,
        "resume": f"worldline resume {meta.name}{option}",
    }


async def trial_of(connection: Connection, at: ids.Address) -> CrashTrial | None:
    """Return what is counted against a world and its next input, if anything may be."""
    return trial.decode_trial((await connection.store.engine.read(trial.get(at))).value(0))


async def count(connection: Connection, request: kv.Range) -> int:
    """Count the keys of a range, up to a bound."""
    total = 0
    # Bounded: an inbox of millions is shown as large, and is not read to its end for a number.
    async for page in paging.RangePages(connection.store.engine, request):
        total += len(page.items)
        if total >= COUNT_MAX:
            break
    return total


# --- Open work -------------------------------------------------------------------------------------------------


async def open_work(connection: Connection, at: ids.Address | None) -> AsyncIterator[works.Open]:
    """Yield what one world has open, or all of them."""
    begin, end = work_keys.open_all(connection.id) if at is None else work_keys.open_work(at)
    async for key, raw in paging.RangeItems(connection.store.engine, kv.Range(begin, end)):
        address, intent = work_keys.open_address(connection.id, key)
        yield works.Open(address, intent, work_keys.WORK.unpack(raw), raw)


async def list_work(
    connection: Connection, at: ids.Address | None, *, kind: WorkKind, limit: int, state: str | None = None
) -> list[WorkRow]:
    """Open effects, the newest first; or timers, the next first."""
    found = [each async for each in open_work(connection, at) if each.work.kind is kind]
    if state is not None:
        found = [each for each in found if each.work.state.name.lower() == state]
    if kind is WorkKind.TIMER:
        # The intent makes the order definite where times are equal.
        found.sort(key=lambda each: (each.work.due_us, each.intent))
    else:
        found.sort(key=lambda each: (each.work.opened_us, each.work.step, each.work.ordinal), reverse=True)
    return await work_rows(connection, found[:limit])


async def find_work(connection: Connection, text: str, *, kind: WorkKind) -> works.Open:
    """The one open effect or timer whose id begins so."""
    what = kind.name.lower()
    wanted = text.lower()
    if len(wanted) < ID_CHARACTERS_MIN:
        raise errors.BadInput(f"{grammar.an(what)}'s id needs at least {ID_CHARACTERS_MIN} characters, not {text!r}")
    found = [
        each
        async for each in open_work(connection, None)
        if each.work.kind is kind and each.intent.hex().startswith(wanted)
    ]
    if not found:
        raise errors.NotFound(f"no open {what} has an id that begins with {text!r}")
    if len(found) > 1:
        raise errors.BadInput(f"{len(found)} open {what}s have ids that begin with {text!r}; give more of it")
    return found[0]


async def work_rows(connection: Connection, opened: Sequence[works.Open]) -> list[WorkRow]:
    names_of = await world_names(connection, [each.at for each in opened])
    return [await _work_row(connection, each, names_of[each.at]) for each in opened]


async def _work_row(connection: Connection, opened: works.Open, world: str) -> WorkRow:
    work = opened.work
    args = None
    if work.kind is WorkKind.EFFECT:
        params = await connection.blobs.load(work.params)
        # Personal values are marked, not shown: a listing is no place to read them.
        args = entry_text.arguments(await value_check.marked(connection.store.engine, opened.at, params))
    return WorkRow(
        opened.intent.hex(),
        world,
        work.kind.name.lower(),
        work.name,
        work.state.name.lower(),
        work.correlation,
        work.attempt,
        when(work.opened_us),
        when(work.due_us),
        when(work.deadline_us) if work.deadline_us else None,
        work.worker.hex(),
        work.error,
        args,
        work.trace,
        [AttemptRow.of(each) for each in work.tried],
        work.correlation_id,
    )


async def world_names(connection: Connection, addresses: Sequence[ids.Address]) -> dict[ids.Address, str]:
    """The name of each world; its id for one that is deleted."""
    known = list(dict.fromkeys(addresses))
    found: dict[ids.Address, str] = {}
    for start in range(0, len(known), PAGE):
        part = known[start : start + PAGE]
        read = await connection.store.engine.read(*(worlds.get(at) for at in part))
        for index, at in enumerate(part):
            world = worlds.find(at, read.value(index))
            found[at] = at.world.hex() if world is None else world.meta.name
    return found


# --- Dead letters ----------------------------------------------------------------------------------------------


async def list_dead(connection: Connection, addresses: Sequence[ids.Address], *, limit: int) -> list[DeadLetterRow]:
    """Dead letters of these worlds, the newest first."""
    names_of = await world_names(connection, addresses)
    found: list[DeadLetterRow] = []
    for at in addresses:
        rows: list[DeadLetterRow] = []
        async for letter in dead_letters.letters(connection, at):
            rows.append(dead_row(letter, names_of[at]))
            if len(rows) >= limit:  # each world's newest are enough: the merged list is cut to `limit` as well
                break
        found += rows
    found.sort(key=lambda each: (each.time, each.id), reverse=True)
    return found[:limit]


def dead_row(letter: inboxes.DeadLetterRecord, world: str) -> DeadLetterRow:
    try:
        item = entry_text.item(inbox_keys.ITEM.unpack(letter.dead.item))
    except errors.DecodeError:
        item = {"bytes": letter.dead.item.hex()}  # it may be a dead letter because it cannot be read
    return DeadLetterRow(
        letter.stamp.hex(), world, letter.dead.reason, letter.dead.step, when(letter.dead.time_us), item
    )
