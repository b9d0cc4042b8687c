"""What there is to see of a universe without any program: worlds, leases, open work, dead letters, names.

Records made for showing: ids as hexadecimal text, times as `datetime`. Everything is read from the store; nothing here
writes, and nothing needs the code of a world.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from worldline.base import errors
from worldline.client.universe import Universe
from worldline.host import compose, process_lock
from worldline.inspect import render
from worldline.inspect.render import when
from worldline.keys import inbox as inbox_keys
from worldline.keys import work as work_keys
from worldline.keys import worlds as world_keys
from worldline.layers import inbox as inboxes
from worldline.layers import journal as journals
from worldline.layers import leases, snapshots, worlds
from worldline.layers import work as works
from worldline.model import ids
from worldline.model import world as world_model
from worldline.model.work import WorkKind, WorkState
from worldline.store import kv

PAGE = 500
COUNT_MAX = 10_000  # how far things are counted before "or more" is said
ID_CHARACTERS_MIN = 4


class Holder(msgspec.Struct, frozen=True):
    """Who has the lease. `alive`: its life sign has not run out, and its process is not known to be gone."""

    worker: str
    epoch: int
    since: datetime
    last_sign: datetime | None
    alive: bool


class World(msgspec.Struct, frozen=True):
    """A line of the listing."""

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


class Saved(msgspec.Struct, frozen=True):
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
    holder: Holder | None
    baseline: Saved
    unread: int
    effects: int
    timers: int
    parked: int
    dead: int


class Work(msgspec.Struct, frozen=True):
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


class Dead(msgspec.Struct, frozen=True):
    """A dead letter."""

    id: str
    world: str
    reason: str
    step: int
    time: datetime
    item: dict[str, Any]


class Name(msgspec.Struct, frozen=True):
    """A name and the world it points to. `own`: the one the world was created under, or renamed to."""

    name: str
    world: str
    id: str
    own: bool


# --- Worlds --------------------------------------------------------------------------------------------------


async def list_worlds(
    universe: Universe, *, label: str | None, status: str | None, program: str | None, limit: int
) -> list[World]:
    """Worlds, newest first."""
    found: list[World] = []
    before: ids.WorldId | None = None
    while len(found) < limit:
        read = await universe.store.engine.read(worlds.newest_range(universe.id, before=before, count_max=PAGE))
        page = worlds.listed(universe.id, read.page(0))
        chosen = [(at, meta) for at, meta in page if _wanted(meta, label, status, program)]
        found += await _rows(universe, chosen[: limit - len(found)])
        if not read.page(0).more:
            break
        before = page[-1][0].world
    return found


def _wanted(meta: world_model.WorldMeta, label: str | None, status: str | None, program: str | None) -> bool:
    key, _, value = (label or "").partition("=")
    if key and (key not in meta.labels or (value and meta.labels[key] != value)):
        return False
    return (not status or meta.status.name.lower() == status) and (not program or meta.program == program)


async def _rows(universe: Universe, chosen: Sequence[tuple[ids.Address, world_model.WorldMeta]]) -> list[World]:
    if not chosen:
        return []
    requests = [each for at, _ in chosen for each in (journals.get_head(at), *leases.reads(at))]
    read = await universe.store.engine.read(*requests)
    states = [
        leases.decode(at, *(read.value(4 * index + number) for number in (1, 2, 3)))
        for index, (at, _) in enumerate(chosen)
    ]
    holders = await _holders(universe, states)
    rows = []
    for index, (at, meta) in enumerate(chosen):
        head = journals.decode_head(read.value(4 * index))
        holder = holders[index]
        row = World(
            meta.name, at.world.hex(), meta.program, meta.status.name.lower(), holder is not None and holder.alive,
            head.step, head.height, when(head.time_us) if head.step else None, when(meta.created_us), meta.labels,
        )  # fmt: skip
        rows.append(row)
    return rows


async def show_world(universe: Universe, at: ids.Address) -> Whole:
    engine = universe.store.engine
    read = await engine.read(worlds.get(at), journals.get_head(at), snapshots.get_baseline(at), *leases.reads(at))
    meta = worlds.decode(at, read.value(0)).meta
    head = journals.decode_head(read.value(1))
    baseline = snapshots.decode_baseline(read.value(2))
    state = leases.decode(at, read.value(3), read.value(4), read.value(5))
    opened = [each async for each in open_work(universe, at)]
    return Whole(
        name=meta.name,
        id=at.world.hex(),
        program=meta.program,
        program_hash=meta.program_hash.hex(),
        status=meta.status.name.lower(),
        created=when(meta.created_us),
        changed=when(head.time_us) if head.step else None,
        labels=meta.labels,
        names=[each.name async for each in names(universe) if each.id == at.world.hex()],
        step=head.step,
        height=head.height,
        chain=head.chain.hex(),
        state=head.state.hex(),
        epoch=state.epoch.number,
        holder=(await _holders(universe, [state]))[0],
        baseline=Saved(
            baseline.step, baseline.height, when(baseline.time_us), baseline.size, baseline.program_hash.hex()
        ),
        unread=await count(universe, inboxes.read_range(at, count_max=1_000)),
        effects=sum(each.work.kind is WorkKind.EFFECT for each in opened),
        timers=sum(each.work.kind is WorkKind.TIMER for each in opened),
        parked=sum(each.work.state is WorkState.PARKED for each in opened),
        dead=await count(universe, inboxes.dead_range(at, count_max=1_000)),
    )


async def holder(universe: Universe, at: ids.Address) -> Holder | None:
    """Who has the world's lease, if anyone."""
    read = await universe.store.engine.read(*leases.reads(at))
    state = leases.decode(at, read.value(0), read.value(1), read.value(2))
    return (await _holders(universe, [state]))[0]


async def _holders(universe: Universe, states: Sequence[leases.State]) -> list[Holder | None]:
    workers = [ids.WorkerId(worker) for worker in dict.fromkeys(each.holder.worker for each in states if each.holder)]
    read = await universe.store.engine.read(*(leases.get_life(worker) for worker in workers))
    lives = {worker: leases.decode_life(worker, read.value(index)) for index, worker in enumerate(workers)}
    gone = {worker: is_gone(universe, worker) for worker in workers}
    found: list[Holder | None] = []
    for each in states:
        held = each.holder
        if held is None:
            found.append(None)
            continue
        worker = ids.WorkerId(held.worker)
        life = lives[worker]
        mine = life is not None and life.sign.incarnation == held.incarnation
        sign = when(life.sign.heartbeat_us) if life is not None and mine else None
        alive = life is not None and mine and life.alive(read.time_us) and not gone[worker]
        found.append(Holder(worker.hex(), held.epoch, when(held.acquired_us), sign, alive))
    return found


def is_gone(universe: Universe, worker: ids.WorkerId) -> bool:
    """Whether the worker's process is known to have ended: only an embedded store can tell."""
    url = universe.store.url
    return compose.scheme(url) == "" and process_lock.Presence(Path(url)).is_dead(worker)


async def count(universe: Universe, request: kv.Range) -> int:
    """How many keys a range holds, up to a bound."""
    total = 0
    while total < COUNT_MAX:
        page = (await universe.store.engine.read(request)).page(0)
        total += len(page.items)
        if not page.more:
            break
        request = msgspec.structs.replace(request, begin=page.items[-1][0] + b"\x00")
    return total


# --- Open work -------------------------------------------------------------------------------------------------


async def open_work(universe: Universe, at: ids.Address | None) -> AsyncIterator[works.Open]:
    """What one world has open, or all of them."""
    begin, end = work_keys.open_all(universe.id) if at is None else work_keys.open_work(at)
    async for key, raw in items(universe, kv.Range(begin, end)):
        address, intent = work_keys.open_address(universe.id, key)
        yield works.Open(address, intent, work_keys.WORK.unpack(raw), raw)


async def list_work(
    universe: Universe, at: ids.Address | None, *, kind: WorkKind, limit: int, state: str | None = None
) -> list[Work]:  # fmt: skip
    """Open effects, the newest first; or timers, the next first."""
    found = [each async for each in open_work(universe, at) if each.work.kind is kind]
    if state is not None:
        found = [each for each in found if each.work.state.name.lower() == state]
    if kind is WorkKind.TIMER:
        found.sort(key=lambda each: (each.work.due_us, each.intent))
    else:
        found.sort(key=lambda each: (each.work.opened_us, each.work.step, each.work.ordinal), reverse=True)
    return await work_rows(universe, found[:limit])


async def find_work(universe: Universe, text: str, *, kind: WorkKind) -> works.Open:
    """The one open effect or timer whose id begins so."""
    what = kind.name.lower()
    wanted = text.lower()
    if len(wanted) < ID_CHARACTERS_MIN:
        raise errors.BadInput(f"an {what}'s id needs at least {ID_CHARACTERS_MIN} characters, not {text!r}")
    found = [
        each async for each in open_work(universe, None)
        if each.work.kind is kind and each.intent.hex().startswith(wanted)
    ]  # fmt: skip
    if not found:
        raise errors.NotFound(f"no open {what} has an id that begins with {text!r}")
    if len(found) > 1:
        raise errors.BadInput(f"{len(found)} open {what}s have ids that begin with {text!r}; give more of it")
    return found[0]


async def work_rows(universe: Universe, found: Sequence[works.Open]) -> list[Work]:
    names_of = await world_names(universe, [each.at for each in found])
    return [await _work_row(universe, each, names_of[each.at]) for each in found]


async def _work_row(universe: Universe, opened: works.Open, world: str) -> Work:
    work = opened.work
    args = None
    if work.kind is WorkKind.EFFECT:
        args = render.arguments(await universe.blobs.load(work.params))
    return Work(
        opened.intent.hex(), world, work.kind.name.lower(), work.name, work.state.name.lower(), work.correlation,
        work.attempt, when(work.opened_us), when(work.due_us), when(work.deadline_us) if work.deadline_us else None,
        work.worker.hex(), work.error, args,
    )  # fmt: skip


async def world_names(universe: Universe, addresses: Sequence[ids.Address]) -> dict[ids.Address, str]:
    """The name of each world; its id for one that is gone."""
    known = list(dict.fromkeys(addresses))
    found: dict[ids.Address, str] = {}
    for start in range(0, len(known), PAGE):
        part = known[start : start + PAGE]
        read = await universe.store.engine.read(*(worlds.get(at) for at in part))
        for index, at in enumerate(part):
            world = worlds.find(at, read.value(index))
            found[at] = at.world.hex() if world is None else world.meta.name
    return found


# --- Dead letters and names ------------------------------------------------------------------------------------


async def letters(universe: Universe, at: ids.Address) -> AsyncIterator[inboxes.Letter]:
    """A world's dead letters, the newest first."""
    begin, end = inbox_keys.dead(at)
    async for key, raw in items(universe, kv.Range(begin, end, reverse=True)):
        yield inboxes.decode_dead([(key, raw)])[0]


async def list_dead(universe: Universe, addresses: Sequence[ids.Address], *, limit: int) -> list[Dead]:
    """Dead letters of these worlds, the newest first."""
    names_of = await world_names(universe, addresses)
    found: list[Dead] = []
    for at in addresses:
        rows: list[Dead] = []
        async for letter in letters(universe, at):
            rows.append(dead_row(letter, names_of[at]))
            if len(rows) >= limit:
                break
        found += rows
    found.sort(key=lambda each: (each.time, each.id), reverse=True)
    return found[:limit]


def dead_row(letter: inboxes.Letter, world: str) -> Dead:
    try:
        item = render.item(inbox_keys.ITEM.unpack(letter.dead.item))
    except errors.DecodeError:
        item = {"bytes": letter.dead.item.hex()}
    return Dead(letter.stamp.hex(), world, letter.dead.reason, letter.dead.step, when(letter.dead.time_us), item)


async def named(universe: Universe, name: str) -> ids.Address | None:
    """Where a name points."""
    return worlds.named(universe.id, (await universe.store.engine.read(worlds.get_name(universe.id, name))).value(0))


async def names(universe: Universe) -> AsyncIterator[Name]:
    """Every name, in order, and where it points. One that points to a deleted world is left out."""
    begin, end = world_keys.names(universe.id)
    page: list[tuple[str, ids.Address]] = []
    async for key, raw in items(universe, kv.Range(begin, end)):
        at = worlds.named(universe.id, raw)
        assert at is not None
        page.append((world_keys.name_of(universe.id, key), at))
        if len(page) >= PAGE:
            for row in await _name_rows(universe, page):
                yield row
            page = []
    for row in await _name_rows(universe, page):
        yield row


async def _name_rows(universe: Universe, page: Sequence[tuple[str, ids.Address]]) -> list[Name]:
    known = await world_names(universe, [at for _, at in page])
    return [
        Name(name, known[at], at.world.hex(), own=known[at] == name)
        for name, at in page
        if known[at] != at.world.hex() or name == at.world.hex()
    ]


async def items(universe: Universe, request: kv.Range) -> AsyncIterator[tuple[bytes, bytes]]:
    """All keys of a range, page by page."""
    while True:
        page = (await universe.store.engine.read(request)).page(0)
        for item in page.items:
            yield item
        if not page.more:
            return
        last = page.items[-1][0]
        if request.reverse:
            request = msgspec.structs.replace(request, end=last)
        else:
            request = msgspec.structs.replace(request, begin=last + b"\x00")
