"""Connections to PostgreSQL: opening them, and what their failures mean. The only file that knows the driver.

A `PostgresSession` is one connection with its settings and prepared statements; it runs one statement at a time and is
thrown away after any failure that leaves its state in doubt. A `Pool` lends sessions and opens them as they are needed.

What a failed statement means is decided here, once:

* `Again`: the server undid it because of other writers, or it was not sent. Certainly not applied; run it again.
* a `StoreError`: the server refused it. Certainly not applied.
* `BrokenConnection`: the connection ended, or the answer did not come in time. It may have been applied, or may yet be.

An error that ends the session as well (FATAL) counts as `BrokenConnection`: it may come after the commit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.store.postgres import sql
from worldline.store.postgres.postgres_settings import PostgresSettings, PostgresUrl

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Statement: TypeAlias = "asyncpg.prepared_stmt.PreparedStatement[asyncpg.Record]"
Row: TypeAlias = "asyncpg.Record"
T = TypeVar("T")

CLOSE_SECONDS = 5.0
# The server's own limit should end a statement first: its refusal is certain, the client's silence is not.
MARGIN_MS = 1_000

_SERIALIZATION, _DEADLOCK, _UNIQUE = "40001", "40P01", "23505"
_AGAIN = (_SERIALIZATION, _DEADLOCK, _UNIQUE, sql.HASTY)
_MISSING = ("42P01", "42883", "3F000")
_LOGIN = ("28000", "28P01")
# Where the server waits for synchronous standbys, and warns if it stops to.
_STANDBY_WAIT = "SyncRepWaitForLSN"
# What the driver says, before it sends anything, on a connection that the server has ended but not closed yet.
_UNSENT = "cannot switch to state"


class Again(Exception):
    """Undone by the server because of other writers, or never sent; nothing was applied."""


class BrokenConnection(Exception):
    """The connection is gone or silent; what the statement did is unknown."""


class PostgresSession:
    """One connection. `base` is what its cluster's transaction ids are added to."""

    def __init__(self, connection: Connection, address: PostgresUrl, settings: PostgresSettings) -> None:
        self._connection = connection
        self._address = address
        self._settings = settings
        self._commit: Statement | None = None
        self._reads: dict[bool, Statement] = {}
        self._warned = False
        self._patient = False
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.base = 0
        connection.add_log_listener(self._note_warning)

    @property
    def closed(self) -> bool:
        return self._connection.is_closed()

    async def identify(self) -> Row:
        """What `sql.IDENTITY` asks."""
        return await self.row(sql.IDENTITY, self._address.schema, sql.commit_name())

    async def settle(self) -> None:
        """Make the session's settings those that the statements rest on."""
        await self.execute(f"{sql.SESSION} SET statement_timeout = {self._settings.statement_timeout_ms}")

    async def take_time(self) -> None:
        """The statements from here on may take as long as they do."""
        await self.execute("SET statement_timeout = 0")
        self._patient = True

    async def prepare(self, base: int) -> None:
        """Prepare the statements.

        The driver prepares without ending the server's transaction, whose time then runs while the session is idle. One
        statement more ends it.
        """
        self.base = base
        self._commit = await self._run(self._connection.prepare, sql.commit_call(self._address.schema))
        await self._prepare_read(backwards=False)
        await self.row(sql.PING)

    async def commit(self, arguments: Sequence[object]) -> Row:
        """Run one group.

        The server warns if it was made to stop waiting for a synchronous standby: committed here, perhaps not there.
        That is no `Ok`. Asking again is the right answer to it too, since a repeat waits for the standby again.
        """
        assert self._commit is not None
        self._warned = False
        [row] = await self._run(self._commit.fetch, *arguments)
        if self._warned:
            raise BrokenConnection("the server warned that the commit may not have reached its standby")
        return row

    async def read(self, arguments: Sequence[object], *, backwards: bool) -> Sequence[Row]:
        statement = self._reads.get(backwards) or await self._prepare_read(backwards=backwards)
        return await self._run(statement.fetch, *arguments)

    async def _prepare_read(self, *, backwards: bool) -> Statement:
        text = sql.read(self._address.schema, backwards=backwards)
        self._reads[backwards] = statement = await self._run(self._connection.prepare, text)
        return statement

    async def row(self, text: str, *arguments: object) -> Row:
        row = await self._run(self._connection.fetchrow, text, *arguments)
        assert row is not None
        return row

    async def rows(self, text: str, *arguments: object) -> Sequence[Row]:
        return await self._run(self._connection.fetch, text, *arguments)

    async def execute(self, text: str, *arguments: object) -> None:
        await self._run(self._connection.execute, text, *arguments)

    async def listen(self, channel: str, heard: Callable[[str], None], ended: Callable[[], None]) -> None:
        """Call `heard` with each payload, and `ended` when the connection ends."""
        self._connection.add_termination_listener(lambda _: ended())
        await self._run(self._connection.add_listener, channel, lambda *event: heard(str(event[-1])))

    def abort(self) -> None:
        """Drop the connection without a word to the server."""
        self._stop_timer()
        self._connection.terminate()

    async def close(self) -> None:
        self._stop_timer()
        if not self.closed:
            try:
                await self._connection.close(timeout=CLOSE_SECONDS)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                self._connection.terminate()

    async def _run(self, function: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """Call the driver; anything but an answer or a plain refusal ends the session."""
        try:
            call = function(*arguments)
        except asyncpg.InterfaceError as error:  # a connection that ended while it was idle or handed over
            self.abort()
            raise Again(_text(error)) from error
        if not self._patient:
            self._start_timer()
        try:
            return await call
        except asyncpg.PostgresError as error:
            if error.sqlstate in _AGAIN:
                raise Again(_text(error)) from error
            if _ends_session(error):
                self.abort()
                raise BrokenConnection(_text(error)) from error
            raise refused(error, self._address) from error
        except asyncpg.InternalClientError as error:
            self.abort()
            if str(error).startswith(_UNSENT):
                raise Again(_text(error)) from error
            raise BrokenConnection(_text(error)) from error
        except (OSError, TimeoutError, asyncpg.InterfaceError) as error:
            self.abort()
            raise BrokenConnection(_text(error)) from error
        # The statement may still run on the server: this connection must not be lent again.
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            # The timer is left running, and finds no deadline: cheaper than stopping one for each statement.
            self._deadline = None

    def _start_timer(self) -> None:
        """Give the statement its time. One timer serves many statements: it is not stopped by their ends."""
        loop = asyncio.get_running_loop()
        seconds = (self._settings.statement_timeout_ms + MARGIN_MS) / 1000
        self._deadline = loop.time() + seconds
        if self._timer is None:
            self._timer = loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        loop = asyncio.get_running_loop()
        # A later statement has moved the deadline since the timer was set.
        if loop.time() < self._deadline:
            self._timer = loop.call_at(self._deadline, self._expire)
        else:
            self.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _note_warning(self, _: object, message: asyncpg.PostgresLogMessage) -> None:
        """Not every warning is about the commit. Texts are translated, the names of the server's functions are not."""
        if message.server_source_function == _STANDBY_WAIT:
            self._warned = True


class Pool:
    """Lends up to `size` sessions; idle ones are lent again, the last used first: its server process is the warmest.

    A caller that finds none idle waits for the next one, whether it is given back or newly opened, first come first
    served. New ones are opened one at a time, while callers wait. If that fails, the callers that wait get the error,
    unless sessions are lent that may come back to them.
    """

    def __init__(self, connect: Callable[[], Awaitable[PostgresSession]], size: int) -> None:
        self._connect = connect
        self._size = size
        self._idle: list[PostgresSession] = []
        self._lent = 0
        self._waiting: deque[asyncio.Future[PostgresSession]] = deque()
        self._opening: asyncio.Task[None] | None = None

    async def take(self) -> PostgresSession:
        while self._idle:
            session = self._idle.pop()
            # Its server may have ended it while it was idle: then it is forgotten, and the next one is tried.
            if not session.closed:
                self._lent += 1
                return session
        waiter: asyncio.Future[PostgresSession] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._grow()
        try:
            return await waiter
        except asyncio.CancelledError:
            # Handed over and cancelled in one turn: without this the pool would be one session smaller for ever.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give(waiter.result())
            raise

    def give(self, session: PostgresSession) -> None:
        """Take back a session that was lent."""
        self._lent -= 1
        self.add(session)

    def add(self, session: PostgresSession) -> None:
        """Have a session more, unless it is broken."""
        if not session.closed and not self._hand_over(session):
            self._idle.append(session)
        self._grow()

    def _hand_over(self, session: PostgresSession) -> bool:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                # Counted here, before the waiter runs: `_grow` must not take it for one that is missing.
                self._lent += 1
                waiter.set_result(session)
                return True
        return False

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        await self.close_idle()

    async def close_idle(self) -> None:
        """Those that are lent stay; new ones are opened as they are needed."""
        while self._idle:
            await self._idle.pop().close()

    def _grow(self) -> None:
        if self._waiting and self._opening is None and self._lent + len(self._idle) < self._size:
            self._opening = asyncio.create_task(self._open(), name="worldline postgres connection")

    async def _open(self) -> None:
        try:
            session = await self._connect()
        except errors.Error as error:
            self._opening = None
            self._fail(error)
            return
        # Before `add`, which opens the next one if more callers wait.
        self._opening = None
        self.add(session)

    def _fail(self, error: errors.Error) -> None:
        while self._waiting and not self._lent:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(error)


async def connect(address: PostgresUrl, settings: PostgresSettings, env: envs.Env) -> PostgresSession:
    """A connection, not yet identified. Tries several times, unless the refusal is one that time does not heal.

    A server that says it is starting, after a crash perhaps, is given more time than one that is not there.
    """
    attempt = 0
    while True:
        try:
            return PostgresSession(await _connect_once(address, settings), address, settings)
        except asyncpg.PostgresError as error:
            _raise_if_final(error, address)
            failure: Exception = error
        except asyncpg.TargetServerAttributeNotMatched as error:
            raise read_only(address) from error
        except ValueError:
            # Raised before any connection is tried. The cause may quote the URL, and with it the password.
            raise errors.BadUrl(f"the driver cannot read the URL of {address.shown}; check its parts") from None
        except (OSError, TimeoutError, asyncpg.InterfaceError) as error:
            failure = error
        attempt += 1
        starting = isinstance(failure, asyncpg.CannotConnectNowError)
        if attempt >= (settings.starting_attempts if starting else settings.connect_attempts):
            raise errors.StoreUnavailable(
                f"cannot connect to {address.shown}: {_text(failure)}; check that the server runs and takes connections"
            ) from failure
        delay_ms = envs.backoff_ms(env, attempt, first_ms=limits.RETRY_FIRST_MS, most_ms=limits.RETRY_MOST_MS)
        await env.sleep(delay_ms / 1000)


async def _connect_once(address: PostgresUrl, settings: PostgresSettings) -> Connection:
    return await asyncpg.connect(
        address.dsn,
        timeout=settings.connect_timeout_ms / 1000,
        target_session_attrs=SessionAttribute.read_write,
        server_settings={"application_name": f"worldline {address.schema}"},
    )


def _raise_if_final(error: asyncpg.PostgresError, address: PostgresUrl) -> None:
    state = error.sqlstate
    if state in _LOGIN:
        raise errors.StoreUnavailable(
            f"{address.shown} refused the login ({state}); check user, password and the server's pg_hba.conf"
        ) from error
    if state == "3D000":
        raise errors.StoreMissing(
            f"{address.shown}: no such database; create it (createdb) or correct the URL"
        ) from error
    if state in ("42704", "22023"):
        raise errors.BadUrl(f"{address.shown}: the URL sets what the server does not know: {_text(error)}") from error
    if state == "42501":
        raise refused(error, address) from error


def refused(error: asyncpg.PostgresError, address: PostgresUrl) -> errors.StoreError:
    """What a refused statement means for the caller. Nothing of it was applied."""
    state, text = error.sqlstate, _text(error)
    if state == "53100":
        return errors.StoreFull(f"{address.shown}: the server's disk is full; make room: {text}")
    if state == "25006":
        return read_only(address)
    if state in _MISSING:
        return errors.StoreMissing(f"{address.shown}: the store's tables are gone; was the schema dropped? {text}")
    if state == "42501":
        return errors.StoreUnavailable(f"{address.shown}: the role may not do this; grant it: {text}")
    if state == "57014":
        return errors.StoreUnavailable(f"{address.shown}: the statement was cancelled or took too long: {text}")
    if state[:2] in ("53", "55", "57", "58"):
        return errors.StoreUnavailable(f"{address.shown}: the server cannot do this now: {text}")
    return errors.StoreFailed(f"{address.shown}: the server refused a statement ({state}): {text}")


def read_only(address: PostgresUrl) -> errors.StoreUnavailable:
    return errors.StoreUnavailable(
        f"{address.shown} is a standby or read-only; name the primary in the URL (replicas are never used)"
    )


def _ends_session(error: asyncpg.PostgresError) -> bool:
    """FATAL and PANIC end the session. Class 08 is the driver's own word for a connection that ended."""
    return error.severity_en in ("FATAL", "PANIC") or error.sqlstate[:2] == "08"


def _text(error: BaseException) -> str:
    """The first line, which is the message; servers may add more."""
    return (str(error) or type(error).__name__).splitlines()[0]
