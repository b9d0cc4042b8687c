"""Getting answers out of worlds, wherever they are hosted.

An answer is an entry of the journal: told by the hub if the world is here, found by following the journal if not. If
the world comes here or leaves while a caller waits, the journal is read once more: the entry may have been written
elsewhere. If no process runs the world, the wait ends after a while (`no_host`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import msgspec

from worldline.base import errors, failures
from worldline.client import no_host, send_door
from worldline.client.connection import Connection
from worldline.codec import canonical, printable, structs
from worldline.kernel.event_dispatch import Answer
from worldline.kernel.rows.row_records import JournaledFailure
from worldline.layers import inbox as inboxes
from worldline.model import ids, inbox, journal
from worldline.model.journal import Kind
from worldline.model.traces import TraceSource
from worldline.runtime import live_hub, traceback_reader, world_reader, world_restore
from worldline.runtime.live_hub import Chunk
from worldline.worker.waiting_input import handed_stamp

_NOT_TAKEN = (Kind.UNDECODABLE_INPUT, Kind.HANDLER_FAILED)
_BESIDE = (Kind.CLOCK, Kind.POISON, Kind.ERASED_READ, Kind.SECRET_DRAWN)  # may stand between an input and its failure

CHECK_SECONDS = 2.0  # how often a caller that waits for a world held here checks that its host is well
ELSEWHERE_SECONDS = 0.1  # how often the journal of a world that is not held here is read


class Halts(Protocol):
    """A caller that waits for the end of a run or an intent, which may wait for a person (`halted_runs.RunWatch`,
    `flow.halted_acts.ActWatch`).
    """

    is_due: bool

    def saw(self, entry: journal.JournalEntry) -> None: ...
    def missed(self) -> None: ...
    async def told(self) -> None: ...
    async def look(self) -> None: ...


class TakenInput(msgspec.Struct, frozen=True):
    """The height at which an input is journaled. `dead`: why it was not taken, if it was not, and is the dead letter
    `letter`.
    """

    height: int
    dead: str = ""
    letter: str = ""


async def taken(connection: Connection, sending: send_door.Sending) -> TakenInput:
    """Wait until an input is journaled, and return where. An event's own failure stands right behind it."""
    if sending.applied is not None:
        return TakenInput(sending.applied.height, sending.applied.dead, handed_stamp(sending.applied).hex())
    since, height = await _since(connection, sending, sending.id), 0
    async for each in _entries(connection, sending.at, above=since):
        is_input = each.stamp == sending.stamp
        height = each.height if is_input else height
        if height and each.kind in _NOT_TAKEN:
            return TakenInput(height, _reason(each.kind, await payload_of(connection, each)), sending.stamp.hex())
        # A step's last entry has the chain: behind it no failure of this input can come.
        if height and (each.chain or (not is_input and each.kind not in _BESIDE)):
            return TakenInput(height)
    raise AssertionError("following a journal does not end")


def _reason(kind: Kind, data: bytes) -> str:
    """Return why an input was not accepted by its world, as its step journals it."""
    if kind is Kind.HANDLER_FAILED:
        return structs.decode(JournaledFailure, data).message
    match canonical.decode(data):
        case [str(reason), *_]:
            return reason
        case _:
            return "it cannot be read"


async def ask(
    connection: Connection,
    at: ids.Address,
    item: inbox.Item,
    data: bytes,
    correlation: str,
    *,
    client_id: bytes | str | None = None,
    halts: Halts | None = None,
) -> tuple[bytes, int]:
    """Give an input that is answered, and wait for the answer. Returns it with the height at which it stands. `halts`:
    the answer is the end of an intent, which may wait for a person.
    """
    # Asked for before the input is delivered: the answer may be told before `deliver` returns.
    with expecting(connection, at, Kind.ANSWERED, correlation) as expected:
        sending = await send_door.deliver(connection, at, item, data, client_id=client_id)
        with Durable():
            if sending.applied is not None:  # taken just now, so its answer has been told or will be
                since = sending.since - 1
                found = await entry(connection, at, Kind.ANSWERED, correlation, since, expected=expected, halts=halts)
            else:
                since = await _since(connection, sending, client_id)
                found = await entry(connection, at, Kind.ANSWERED, correlation, since, halts=halts)
            answer = structs.decode(Answer, await payload_of(connection, found))
    if answer.ok:
        return answer.data, found.height
    error = error_of(structs.decode(JournaledFailure, answer.data))
    if isinstance(error, failures.RunFailed):
        await add_trace(connection, at, error, TraceSource.HANDLER, step=found.step)
    raise error


async def _since(connection: Connection, sending: send_door.Sending, client_id: bytes | str | None) -> int:
    """The height above which an input is looked for. One that was sent before may have been taken long ago:
    `NotRetained` if that can have been in entries that are not kept any more.
    """
    # A first delivery: its answer is above the head that the door has seen.
    if not sending.repeated or client_id is None:
        return sending.since
    engine = connection.store.engine
    kept = await world_reader.kept(engine, sending.at)
    if not kept.above or kept.head is None:
        return kept.above
    seen = (await engine.read(inboxes.get_seen(sending.at, client_id))).value(0)
    if seen is None or inboxes.seen_us(seen) <= kept.head.time_us:
        raise errors.NotRetained(
            kept.above,
            f"id {sending.id} was used before, and what came of it may be in entries up to here, which are "
            "not kept any more; send again under a new id if that is safe",
        )
    return kept.above


async def add_trace(
    connection: Connection,
    at: ids.Address,
    error: errors.Error,
    source: TraceSource,
    *,
    step: int | None,
    run: str = "",
) -> None:
    """Note on an error where in the world it was raised, if that is kept. The error counts, with or without it."""
    engine = connection.store.engine
    with contextlib.suppress(errors.StoreError):
        if source is TraceSource.RUN:
            text = await traceback_reader.of_run(engine, at, run, step=step)
        else:
            text = traceback_reader.find(await traceback_reader.of_step(engine, at, step or 0), source) if step else ""
        traceback_reader.note(error, text)


class Durable:
    """Around the waiting for an answer: if that fails, the error must not say that the input was not processed."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, errors.StoreError):
            raise errors.StoreUncertain(f"the input is durable, and its answer cannot be read now: {error}") from error


def expecting(
    connection: Connection, at: ids.Address, kind: Kind, correlation: str
) -> AbstractContextManager[asyncio.Future[journal.JournalEntry] | None]:
    """An entry that is awaited, asked for before what leads to it is sent. None if no worlds are run here."""
    return nullcontext() if connection.host is None else connection.host.live.expecting(at, kind, correlation)


async def entry(
    connection: Connection,
    at: ids.Address,
    kind: Kind,
    correlation: str,
    since: int,
    *,
    expected: asyncio.Future[journal.JournalEntry] | None = None,
    halts: Halts | None = None,
) -> journal.JournalEntry:
    """The first entry of a kind with a correlation, above a height; waiting for it if need be. For the end of a run, or
    the entry that says that the world has gone back: the run may be gone.

    `expected`: it was asked for before what leads to it was sent. Else it may have been written already. `halts`: the
    entry is the end of a run or an intent, which may wait for a person.
    """
    if connection.host is None:
        return await _find(connection, at, kind, correlation, since, halts=halts)
    if expected is not None and is_told(expected):
        return expected.result()  # as mostly: the step that has taken an input has told its answer
    told = None if expected is None else await _told(connection, at, expected, halts)
    # Ask the hub first, then read the journal: an entry between the two would be seen by neither in the other order.
    while told is None and connection.host.worlds.holds(at):
        with connection.host.live.expecting(at, kind, correlation) as asked:
            found = await _already(connection, at, kind, correlation, since)
            told = found or await _told(connection, at, asked, halts)
    return told or await _find(connection, at, kind, correlation, since, halts=halts)


def is_told(expected: asyncio.Future[journal.JournalEntry] | None) -> bool:
    """Whether what was asked for before the sending has come."""
    return expected is not None and expected.done() and expected.exception() is None


async def _told(
    connection: Connection, at: ids.Address, expected: asyncio.Future[journal.JournalEntry], halts: Halts | None
) -> journal.JournalEntry | None:
    """What the hub tells. None if the journal tells more: the world is not held here, or was not all the time, or the
    run waits for a person.
    """
    assert connection.host is not None
    while expected.done() or connection.host.worlds.holds(at):
        if not expected.done():  # the step that has taken an input has told its answer already, if it gives one
            if halts is not None:
                await halts.look()
            await asyncio.wait([expected], timeout=CHECK_SECONDS)
        if expected.done():
            try:
                return expected.result()
            # The world has left this process: its next steps are told by another hub, so the journal has to be read.
            except errors.Fenced:
                if halts is not None:
                    halts.missed()
                return None
            except live_hub.RunHalted:
                if halts is not None:
                    await halts.told()
                return None
        connection.host.check()  # a host that has failed tells nothing any more: without this the wait would not end
    return None


async def _already(
    connection: Connection, at: ids.Address, kind: Kind, correlation: str, since: int
) -> journal.JournalEntry | None:
    top = await world_reader.head(connection.store.engine, at)
    if top.height <= since:
        return None
    found = await world_restore.read_entries(
        connection.store.engine, connection.blobs, at, above=since, up_to=top.height
    )
    return next((each for each in found if live_hub.ends_wait(each, kind, correlation)), None)


async def _find(
    connection: Connection,
    at: ids.Address,
    kind: Kind,
    correlation: str,
    since: int,
    *,
    halts: Halts | None = None,
) -> journal.JournalEntry:
    async for each in _entries(connection, at, above=since, halts=halts):
        if live_hub.ends_wait(each, kind, correlation):
            return each
        if halts is not None:
            halts.saw(each)
            if each.chain and halts.is_due:  # at once, and not when nothing more comes
                await halts.look()
    raise AssertionError("following a journal does not end")


async def _entries(
    connection: Connection,
    at: ids.Address,
    *,
    above: int,
    patient: bool = False,
    halts: Halts | None = None,
) -> AsyncIterator[journal.JournalEntry]:
    """Follow a journal. Unless `patient`, `NotHosted` when no process has run the world for too long."""
    watch = no_host.HostWatch(connection, at, patient=patient)
    async for each in world_reader.entries(connection.store.engine, connection.blobs, at, above=above):
        if each is not None:
            yield each
        else:
            await watch.look()
            if halts is not None:
                await halts.look()


async def follow(
    connection: Connection, at: ids.Address, above: int | None
) -> AsyncIterator[journal.JournalEntry | Chunk]:
    start = (await world_reader.head(connection.store.engine, at)).height if above is None else above
    async for each in follow_or_rest(connection, at, start):
        if each is not None:
            yield each


async def follow_or_rest(
    connection: Connection, at: ids.Address, above: int, *, rest_seconds: float = CHECK_SECONDS
) -> AsyncIterator[journal.JournalEntry | Chunk | None]:
    """The same from a height on; None when nothing has come for a while."""
    if connection.host is None:
        watch = no_host.HostWatch(connection, at, patient=True)
        async for each in world_reader.entries(connection.store.engine, connection.blobs, at, above=above):
            if each is None:
                await watch.look()
            yield each
        return
    with connection.host.live.following(at) as queue:
        async for live in _both(connection, at, above, queue, rest_seconds):
            yield live


async def _both(
    connection: Connection,
    at: ids.Address,
    above: int,
    queue: asyncio.Queue[journal.JournalEntry | Chunk | None],
    rest_seconds: float,
) -> AsyncIterator[journal.JournalEntry | Chunk | None]:
    """The journal first, then the live queue; back to the journal where the queue has a gap."""
    while True:
        top = await world_reader.head(connection.store.engine, at)
        if top.height > above:
            for each in await world_restore.read_entries(
                connection.store.engine, connection.blobs, at, above=above, up_to=top.height
            ):
                above = each.height
                yield each
        while True:
            held = connection.host is not None and connection.host.worlds.holds(at)
            try:
                async with asyncio.timeout(rest_seconds if held else ELSEWHERE_SECONDS):
                    live = await queue.get()
            except TimeoutError:
                yield None
                break
            if live is None:  # too slow, so the hub has dropped entries: the journal has them
                break
            if isinstance(live, Chunk):
                yield live
            elif live.height > above:
                # A gap: another process has written between. The outer loop reads the missing entries from the journal.
                if live.height != above + 1:
                    break
                above = live.height
                yield live


async def payload_of(connection: Connection, entry: journal.JournalEntry) -> bytes:
    return await connection.blobs.get(entry.blob) if entry.blob else entry.payload


def error_of(why: JournaledFailure) -> errors.Error:
    """The exception that an answer's failure is raised as. Its text is one that a terminal may get: Python
    writes an exception there that no caller catches.
    """
    why = msgspec.structs.replace(why, message=printable.shown(why.message))
    if why.code == failures.Refused.code:
        return failures.Refused(why.message, data=why.data)
    for kind in (errors.NotFound, errors.Closed, errors.Exists, errors.BadInput, errors.StepFailed):
        if why.code == kind.code:
            return kind(why.message)
    if why.code == errors.IdReused.code:
        return errors.IdReused.of(why.message)
    if why.code in (errors.TooLarge.code, errors.EncodeError.code, errors.DecodeError.code):
        return errors.BadInput(why.message)
    return failures.RunFailed(why.message, code=why.code, data=why.data)
