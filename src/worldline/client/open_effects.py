"""Open effects of a world, from outside: how each stands, and what can be done for one that makes no progress.

How an effect stands is read from the store, and no program is needed. Parking and trying again change its record and
tell the world, in one commit; an answer is a command to the world, so it waits for a process that runs the world.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from worldline.base import errors
from worldline.client import client_desk
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.effects import parking
from worldline.kernel import run_repair, user_values
from worldline.kernel import run_requests as kernel_work
from worldline.layers import work as works
from worldline.layers import worlds
from worldline.model.work import WorkKind, WorkState
from worldline.store import kv, paging, transact

PAGE = 500
ID_CHARACTERS_MIN = 4

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OpenEffect:
    """A call of an effect that has no answer yet, as it stood when it was read.

    `id` names it in its universe, `name` is the effect, `run` the run that called it. `state`: waiting for an attempt,
    claimed by a worker, parked until a person acts, or settled, when its answer is on the way. `attempt`: how many
    there were; `error`: what the last one failed with; `attempts`: the last that have ended, the oldest first: when, in
    which process, and how.
    """

    def __init__(self, world: Handle, opened: works.Open, args: Any) -> None:
        self.id = opened.intent.hex()
        self.name = opened.work.name
        self.run = opened.work.correlation
        self.state = opened.work.state
        self.attempt = opened.work.attempt
        self.error = opened.work.error
        self.attempts = opened.work.tried
        self.correlation = opened.work.correlation_id
        self.args = args  # by name, as plain data
        self.opened = _EPOCH + timedelta(microseconds=opened.work.opened_us)
        self._world = world
        self._intent = opened.intent

    async def answer(self, value: object = None, /, *, error: str | None = None, running: bool = False) -> None:
        """Answer it by hand, with a value or with an error, if it is parked. The same answer again changes nothing.

        `running`: also if it waits for its next attempt, or is being tried: then the attempt is stopped, and what it
        has done or still does is not undone. `Closed` if it is not parked and that was not said. `Exists` if it has
        another answer, `NotFound` if it is not open any more, `BadInput` if the value is not of the effect's type,
        `NotHosted` if no process has run the world for too long.
        """
        data = b"" if error is not None else user_values.dump(value)
        wanted = run_repair.AnswerEffect(self._intent, data, error, self.run, running)
        await self._world.command(run_repair.ANSWER_EFFECT, wanted)

    async def retry(self) -> None:
        """Try it again now, if it is parked or waits for its next attempt. `Closed` if it is being tried."""
        await retry(self._world.connection, await self._read())

    async def park(self) -> None:
        """Set it aside before its next attempt, until it is retried or answered. `Closed` if it is being tried."""
        await park(self._world.connection, await self._read())

    async def _read(self) -> works.Open:
        """Its record as it is now."""
        at = await self._world.address()
        read = await self._world.connection.store.engine.read(works.get(at, self._intent))
        found = works.decode(at, self._intent, read.value(0))
        if found is None:
            what = f"effect {self.name} {self.id[:12]} of world {self._world.name!r}"
            raise errors.NotFound(f"{what} is not open any more")
        return found

    def __repr__(self) -> str:
        return f"OpenEffect({self.name!r}, {self.id[:12]!r}, {self.state.name.lower()})"


async def effects(world: Handle, *, state: WorkState | None) -> list[OpenEffect]:
    """The open effects of a world, the newest first."""
    if state is not None and not isinstance(state, WorkState):
        raise errors.BadInput(f"state must be a worldline.WorkState, not {state!r}")
    found = [each for each in await _opened(world) if state in (None, each.work.state)]
    return await _shown(world, found)


async def effect(world: Handle, text: str) -> OpenEffect:
    """The open effect of this id, or whose id begins so."""
    wanted = user_values.text(text, "an effect's id").lower()
    if len(wanted) < ID_CHARACTERS_MIN:
        raise errors.BadInput(f"an effect's id needs at least {ID_CHARACTERS_MIN} characters, not {text!r}")
    found = [each for each in await _opened(world) if each.intent.hex().startswith(wanted)]
    if not found:
        raise errors.NotFound(f"world {world.name!r} has no open effect whose id begins with {text!r}")
    if len(found) > 1:
        raise errors.BadInput(f"{len(found)} open effects have ids that begin with {text!r}; give more of it")
    [shown] = await _shown(world, found)
    return shown


async def _opened(world: Handle) -> list[works.Open]:
    engine, at = world.connection.store.engine, await world.address()
    pages = paging.RangePages(engine, works.open_range(at, count_max=PAGE))
    opened = [each async for page in pages for each in works.decode_open(at, page)]
    chosen = [each for each in opened if each.work.kind is WorkKind.EFFECT]  # timers are in the same range
    # Several effects of one step are opened at the same time: step and ordinal make the order definite.
    return sorted(chosen, key=lambda each: (each.work.opened_us, each.work.step, each.work.ordinal), reverse=True)


async def _shown(world: Handle, opened: list[works.Open]) -> list[OpenEffect]:
    return [OpenEffect(world, each, await _arguments(world, each)) for each in opened]


async def _arguments(world: Handle, opened: works.Open) -> Any:
    data = await world.connection.blobs.load(opened.work.params)
    return await client_desk.plain(world, kernel_work.unpack_effect(data)[0])


# --- Its record ----------------------------------------------------------------------------------------------------


async def retry(connection: Connection, opened: works.Open) -> None:
    """Try a parked effect again, or one that waits for its next attempt now."""
    # No retry loop: if the record has changed since it was read, a person decides again on what it is now.
    world, now_us = await _told(connection, opened)
    batch = kv.Batch()
    if opened.work.state is WorkState.PARKED:
        parking.retry(batch, world, opened, now_us=now_us)
    elif opened.work.state is WorkState.WAITING and opened.work.due_us <= now_us:
        raise errors.Closed(
            f"effect {opened.intent.hex()[:12]} is due already; it is tried as soon as a worker hosts its program"
        )
    else:
        works.move_due(batch, opened, now_us=now_us, due_us=now_us)
    await _commit(connection, batch, opened)


async def park(connection: Connection, opened: works.Open) -> None:
    """Park an effect before its next attempt."""
    world, now_us = await _told(connection, opened)
    batch = kv.Batch()
    parking.set_aside(batch, world, opened, now_us=now_us)
    await _commit(connection, batch, opened)


async def _told(connection: Connection, opened: works.Open) -> tuple[worlds.WorldRecord, int]:
    """What is needed to tell a world that one of its effects has changed; and the store's time."""
    read = await connection.store.engine.read(worlds.get(opened.at))
    return worlds.decode(opened.at, read.value(0)), read.time_us


async def _commit(connection: Connection, batch: kv.Batch, opened: works.Open) -> None:
    if not await transact.applied(connection.store.engine, connection.store.env, batch):
        raise errors.Conflicted(f"effect {opened.intent.hex()[:12]} changed meanwhile; look at it again")
