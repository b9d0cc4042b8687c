"""Wake-up hints between processes, by LISTEN and NOTIFY on a connection of their own.

Notifications are sent after the commit they tell of, never inside it: NOTIFY takes a server-wide lock at commit. What
is written while one is on its way goes into the next: many commits, few notifications. A payload names the sender and
the keys, or everything (`*`) if they do not fit.

An engine without peers sends nothing. Every connection begins by a greeting, and each peer answers "everything": so the
newcomer knows that it is not alone, and looks again at what was written before the others knew of it. An engine that
has had no answer for a while after its own greeting keeps silent, until a peer greets.

The connection comes back by itself. What was told meanwhile is unknown, so all waiting callers are woken then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from worldline.base import env as envs
from worldline.base import errors, limits, probes
from worldline.store import hints
from worldline.store.postgres import postgres_connections, sql
from worldline.store.postgres.postgres_connections import PostgresSession
from worldline.store.postgres.postgres_settings import PostgresSettings

PAYLOAD_CHARACTERS_MAX = 7_900  # the server stops at 8000 bytes
_EVERYTHING = "*"
_GREETING = "hello"
STOP_SECONDS = 2.0


class Notices:
    """Feeds `hints` with what others wrote, and tells others what this process wrote."""

    def __init__(
        self,
        noted: hints.HintBoard,
        connect: Callable[[], Awaitable[PostgresSession]],
        env: envs.Env,
        schema: str,
        settings: PostgresSettings,
    ) -> None:
        self._hints = noted
        self._connect = connect
        self._env = env
        self._channel = sql.channel(schema)
        self._settings = settings
        # The server sends notifications back to their sender, too, which knows its own by this.
        self._me = env.random_bytes(8).hex()
        self._heard_others = False
        self._alone_from_us = 0
        self._pending: dict[bytes, None] | None = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        session = await self._open()
        self._task = asyncio.create_task(self._run(session), name="worldline postgres notices")

    async def stop(self) -> None:
        """End, after what is pending has been sent: a process that writes and goes is heard, too."""
        if self._task is not None:
            self._stopping = True
            self._wake.set()
            await asyncio.wait([self._task], timeout=STOP_SECONDS)
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def tell(self, keys: Iterable[bytes]) -> None:
        """These keys were written here. Sent soon, with what else is written until then, unless there are no peers."""
        if self._is_alone():
            return
        if self._pending is not None:
            self._pending.update(dict.fromkeys(keys))
            if len(self._pending) > limits.HINT_KEYS_MAX:
                # Too many for a payload: the next notification says "everything".
                self._pending = None
        if self._pending is None or self._pending:
            self._wake.set()

    async def _open(self) -> PostgresSession:
        session = await self._connect()
        try:
            # A notification writes nothing that must last: its commit need not wait for the disk.
            await session.execute("SET synchronous_commit = off")
            await session.listen(self._channel, self._heard, self._wake.set)
            await session.row(sql.NOTIFY, self._channel, f"{self._me} {_GREETING}")
        except BaseException:
            session.abort()
            raise
        self._alone_from_us = self._env.monotonic_us() + self._settings.alone_after_ms * 1000
        return session

    def _is_alone(self) -> bool:
        return not self._heard_others and self._env.monotonic_us() > self._alone_from_us

    async def _run(self, session: PostgresSession) -> None:
        try:
            while True:
                await self._serve(session)
                if self._stopping:
                    return
                session = await self._reopen()
                probes.hit("postgres.listener-reopened")
                self._hints.note(None)
        finally:
            await session.close()

    async def _serve(self, session: PostgresSession) -> None:
        """Send what is pending until the connection ends. What was not sent by then is left for the next one."""
        while True:
            await self._woken()
            if session.closed:
                return
            self._wake.clear()
            message = self._payload()
            if message is None and self._stopping:
                return
            try:
                if message is None:
                    await session.row(sql.PING)
                else:
                    await session.row(sql.NOTIFY, self._channel, message)
            except (postgres_connections.Again, postgres_connections.BrokenConnection, errors.StoreError):
                # Whether the message arrived is unknown, and its keys are gone: the next one says "everything".
                self._pending = None
                self._wake.set()
                session.abort()
                return
            if self._stopping:
                return
            # What is written in this pause goes into one notification.
            await self._env.sleep(self._settings.notify_pause_ms / 1000)

    async def _woken(self) -> None:
        """Wait until there is something to do: at the latest, to see whether the connection still works."""
        try:
            async with asyncio.timeout(self._settings.ping_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _reopen(self) -> PostgresSession:
        """Try for as long as the store is open: hints may be late, but must not stop permanently."""
        while True:
            try:
                return await self._open()
            except (errors.Error, postgres_connections.Again, postgres_connections.BrokenConnection):
                await self._env.sleep(limits.RETRY_MOST_MS / 1000)

    def _payload(self) -> str | None:
        """What to send now, if anything. Takes what is pending."""
        pending, self._pending = self._pending, {}
        if pending is not None and not pending:
            return None
        names = _EVERYTHING if pending is None else ",".join(key.hex() for key in pending)
        message = f"{self._me} {names}"
        return message if len(message) <= PAYLOAD_CHARACTERS_MAX else f"{self._me} {_EVERYTHING}"

    def _heard(self, payload: str) -> None:
        sender, _, names = payload.partition(" ")
        if sender == self._me:
            return
        # The newcomer has missed what was written before, also what was kept silent while this one was alone.
        if names == _GREETING or self._is_alone():
            self._pending = None
            self._wake.set()
        self._heard_others = True
        if names != _GREETING:
            self._hints.note(_keys(names))


def _keys(names: str) -> list[bytes] | None:
    """The keys that a payload names; None for everything, and for what no sender of ours would write."""
    try:
        return None if names in (_EVERYTHING, "") else [bytes.fromhex(name) for name in names.split(",")]
    except ValueError:
        return None
