"""Erasing personal values: of a subject, or those in the payload of one entry.

First the values go, in one commit for each subject, in the whole lineage at once: the world, the worlds it was forked
from and all their forks have them in one place. Then every world of it that takes input is told, and says so in its
journal when it next runs. Erasing again finds what an erasure that was cut off left undone, and does that.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors, limits
from worldline.client import listing, send_door
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.codec import sealed_token as tokens
from worldline.codec import structs
from worldline.features.erasure import batches, ledger_file
from worldline.kernel import control_commands
from worldline.layers import personal_records
from worldline.layers.history import history_line
from worldline.model import ids, inbox, payload
from worldline.model import world_records as world_model
from worldline.model.personal_records import Erase, Erasures
from worldline.runtime import world_restore
from worldline.runtime.personal import outside_desk, value_check
from worldline.store import kv, paging, transact

PAGE = 500


class Erasure(msgspec.Struct, frozen=True):
    """What was erased, or would be. `values`: how many; 0 if all were erased before. `worlds`: those that have them in
    their histories, by name; `untold`: those among them that take no input now, whose journals do not say it.
    """

    values: int
    subjects: int
    worlds: list[str]
    untold: list[str]


class _Wanted(msgspec.Struct, frozen=True):
    """Of one subject: all values, or a part of those that a payload has, as many as one input names."""

    subject: bytes
    values: list[bytes] | None  # None: all
    there: int  # of these


async def erase(world: Handle, *, key: str | None, height: int | None, dry_run: bool) -> Erasure:
    """Erase what is personal of a subject, or in one payload. `NotFound` if there never was anything."""
    if (key is None) == (height is None):
        raise errors.BadInput("say what to erase: key= for all of one subject, or height= for one payload")
    connection, at = world.connection, await world.address()
    engine = connection.store.engine
    root = await outside_desk.root_of(engine, at)
    wanted = [await _of_subject(world, root, key)] if key is not None else await _at_height(world, root, height)
    lineage = await worlds_of(connection, root)
    names = [meta.name for _, meta in lineage]
    untold = [meta.name for _, meta in lineage if meta.status not in world_model.TAKES_INPUT]
    if not dry_run:
        # All values go before any world is told: cut off between, a repeated call tells what was done.
        done = [Erase(each.subject, each.values or [], await _erase(connection, root, each)) for each in wanted]
        for place, meta in lineage:
            if meta.status in world_model.TAKES_INPUT:
                for each in done:
                    await _tell(connection, place, each)
        await ledger_file.keep(connection.store)
    subjects = len(dict.fromkeys(each.subject for each in wanted))
    return Erasure(sum(each.there for each in wanted), subjects, names, untold)


async def _of_subject(world: Handle, root: ids.Address, key: str) -> _Wanted:
    if type(key) is not str or not key:
        raise errors.BadInput(f"key= is whose values are erased: text, as in wl.Personal(of=), not {key!r}")
    engine, subject = world.connection.store.engine, tokens.subject_of(key)
    if (await engine.read(personal_records.get_subject(root, subject))).value(0) is None:
        raise errors.NotFound(f"world {world.name!r} has no personal value of {key!r}: no wl.Personal(..., of={key!r})")
    values = paging.RangePages(engine, personal_records.subject_range(root, subject, count_max=PAGE))
    return _Wanted(subject, None, sum([len(page.items) async for page in values]))


async def _at_height(world: Handle, root: ids.Address, height: object) -> list[_Wanted]:
    if type(height) is not int or height < 1:
        raise errors.BadInput(f"height= is the height of an entry, from 1 on, not {height!r}")
    engine, blobs = world.connection.store.engine, world.connection.blobs
    head = await world.head()
    if height > head.height:
        raise errors.NotFound(f"world {world.name!r} has no entry at height {height}: its head is {head.height}")
    entries = await world_restore.read_entries(engine, blobs, await world.address(), above=height - 1, up_to=height)
    loaded = await world_restore.load_referenced(blobs, entries)
    found = tokens.find(b"".join([each.payload for each in entries] + list(loaded.values())))
    if not found:
        raise errors.NotFound(f"the payload at height {height} of world {world.name!r} has no personal value in it")
    there = {each.value: raw is not None for each, raw in await value_check.stored(engine, root, found)}
    by_subject: dict[bytes, list[bytes]] = {}
    for each in found:
        by_subject.setdefault(each.subject, []).append(each.value)
    parts = [
        (subject, numbers[start : start + PAGE])
        for subject, numbers in by_subject.items()
        for start in range(0, len(numbers), PAGE)
    ]
    return [_Wanted(subject, part, sum(there[number] for number in part)) for subject, part in parts]


async def worlds_of(connection: Connection, root: ids.Address) -> list[tuple[ids.Address, world_model.WorldMeta]]:
    # Pins lead to forks only until these have a state of their own, so every world is asked.
    """The worlds whose histories have a common beginning, the oldest first."""
    every = [each async for each in listing.worlds_of(connection, listing.Filter())]
    every.reverse()  # the listing begins with the newest
    found: list[tuple[ids.Address, world_model.WorldMeta]] = []
    for start in range(0, len(every), PAGE):
        part = every[start : start + PAGE]
        read = await connection.store.engine.read(*(history_line.get(at) for at, _ in part))
        roots = [
            personal_records.root_of(history_line.decode(at, read.value(index))) for index, (at, _) in enumerate(part)
        ]
        found += [each for each, of in zip(part, roots, strict=True) if of == root]
    if len(found) > limits.ERASED_FORKS_MAX:
        raise errors.TooLarge("a lineage that is told of an erasure", size=len(found), limit=limits.ERASED_FORKS_MAX)
    return found


async def _erase(connection: Connection, root: ids.Address, request: _Wanted) -> int:
    """Erase what is there of it. Returns the number of the last erasure.

    A value that is written at the same time may survive the delete of a range. It is there when that has returned, and
    whatever is written later expects that it is known: so a second look finds all there can be.
    """
    await _erase_once(connection, root, request)
    return (await _erase_once(connection, root, request)).number


async def _erase_once(connection: Connection, root: ids.Address, request: _Wanted) -> Erasures:
    engine = connection.store.engine

    async def attempt() -> transact.NothingToWrite[Erasures] | transact.Write[Erasures]:
        values = [personal_records.get(root, request.subject, each) for each in request.values or []]
        read = await engine.read(
            personal_records.get_subject(root, request.subject),
            personal_records.subject_range(root, request.subject, count_max=1),
            *values,
        )
        was = personal_records.SubjectRecord(request.subject, read.value(0))
        if request.values is None:
            there = bool(read.page(1).items)
        else:
            there = any(read.value(2 + index) is not None for index in range(len(values)))
        if not there:
            return transact.NothingToWrite(was.erasures)
        batch = kv.Batch()
        if request.values is None:
            made = batches.erase_subject(batch, root, was, time_us=read.time_us)
        else:
            made = batches.erase_values(batch, root, was, request.values, time_us=read.time_us)
        return transact.Write(batch, lambda _: made)

    return await transact.run(engine, connection.store.env, attempt)


async def _tell(connection: Connection, at: ids.Address, erased: Erase) -> None:
    """Have a world say in its journal that values were erased: once for each erasure."""
    data = structs.encode(erased)
    item = inbox.Control(control_commands.ERASE, payload.inline(data))
    # Made of the number of the erasure: told twice, the world takes it once.
    known = f"erase {erased.subject.hex()} {erased.number}"
    await send_door.enqueue(connection, at, item, client_id=known, data=data)
