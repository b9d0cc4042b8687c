"""What the tests of the PostgreSQL engine share: fresh stores, raw connections beside them, and waiting on locks."""

from __future__ import annotations

import itertools
import os
from typing import Any, TypeAlias

import asyncpg

from tests import aio
from tests.servers import postgres as servers
from worldline.base import env_os
from worldline.store import postgres
from worldline.store.postgres import postgres_settings

Raw: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

ENV = env_os.OsEnv()
_NUMBERS = itertools.count()


def fresh_schema() -> str:
    return f"test_{os.getpid()}_{next(_NUMBERS)}"


class Place:
    """One fresh schema on a server, and everything opened there. Tests close it by `aclose`."""

    def __init__(self, server: servers.Server, *, port: int | None = None) -> None:
        self.server = server
        self.schema = fresh_schema()
        self.url = server.url(schema=self.schema, port=port)
        self._opened: list[Any] = []

    async def open(self, url: str | None = None, *, create: bool = True, **changes: int) -> postgres.PostgresEngine:
        engine = await postgres.open(
            url or self.url, ENV, create=create, settings=postgres_settings.PostgresSettings(**changes)
        )
        self._opened.append(engine)
        return engine

    async def raw(self) -> Raw:
        """A connection of the test's own, with the schema as its search path."""
        connection: Raw = await asyncpg.connect(
            self.server.url(), server_settings={"search_path": f"{self.schema}, pg_catalog"}
        )
        self._opened.append(connection)
        return connection

    async def blocked(self, raw: Raw, count: int = 1) -> None:
        """Wait until so many sessions of this store wait for a lock."""

        async def waiting() -> bool:
            # Inside a transaction the server shows the first look again and again, unless told to forget it.
            await raw.execute("SELECT pg_stat_clear_snapshot()")
            found = await raw.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = $1",
                f"worldline {self.schema}",
            )
            return bool(found >= count)

        await aio.until(waiting)

    async def sessions(self, raw: Raw) -> list[int]:
        rows = await raw.fetch(
            "SELECT pid FROM pg_stat_activity WHERE application_name = $1 ORDER BY pid", f"worldline {self.schema}"
        )
        return [row[0] for row in rows]

    async def aclose(self) -> None:
        while self._opened:
            await self._opened.pop().close()
