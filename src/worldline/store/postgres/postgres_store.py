"""Making a store, finding it, and knowing it again: what stands between a connection and a usable session.

A store is a schema with the tables and functions of `sql`. `prepare` makes what is missing if it may, under a lock, so
that processes which start together do not collide; `connect` is for all later connections and only looks. Both refuse
a server that is too old, that takes no writes, or whose schema holds something else.
"""

from __future__ import annotations

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.store.postgres import postgres_connections, sql
from worldline.store.postgres.postgres_connections import Again, BrokenConnection, PostgresSession
from worldline.store.postgres.postgres_settings import PostgresSettings, PostgresUrl

# A server that breaks this many connections in a row, right after accepting them, is not available.
_ATTEMPTS = 6


class Identity(msgspec.Struct, frozen=True):
    """What the server and the schema are; the columns of `sql.IDENTITY`."""

    version: int
    read_only: bool
    system: int
    has_table: bool
    has_store: bool
    has_function: bool
    has_schema: bool
    timeline: int  # 0 on a standby


async def connect(
    address: PostgresUrl, settings: PostgresSettings, env: envs.Env, *, statements: bool = True
) -> PostgresSession:
    """A usable session of a store that is known to exist; without `statements`, one that neither reads nor commits."""
    reason: Exception | None = None
    for attempt in range(_ATTEMPTS):
        # A restarting server accepts connections and drops them: it is given time.
        if attempt:
            delay_ms = envs.backoff_ms(env, attempt, first_ms=limits.RETRY_FIRST_MS, most_ms=limits.RETRY_MOST_MS)
            await env.sleep(delay_ms / 1000)
        session = await postgres_connections.connect(address, settings, env)
        try:
            base = await _recognise(session, address, settings)
            if statements:
                await session.prepare(base)
        except (Again, BrokenConnection) as error:
            reason = error
            continue
        except BaseException:
            session.abort()
            raise
        return session
    raise errors.StoreUnavailable(
        f"{address.shown} breaks every new connection; check the server: {reason}"
    ) from reason


async def prepare(address: PostgresUrl, settings: PostgresSettings, env: envs.Env, *, create: bool) -> PostgresSession:
    """Find or make the store, then give the session that did so."""
    session = await postgres_connections.connect(address, settings, env)
    try:
        identity = await _identify(session, address, settings)
        _check_found(identity, address, create=create)
        await session.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        await session.row(sql.CREATE_LOCK, address.schema)
        # Looked at again under the lock: another process may have made the store since.
        await _complete(session, address, await _identify(session, address, settings))
        await session.execute("COMMIT")
        await session.prepare(await _recognise(session, address, settings))
    except (Again, BrokenConnection) as error:
        session.abort()
        raise errors.StoreUnavailable(f"{address.shown} broke the connection while opening: {error}") from error
    except BaseException:
        session.abort()
        raise
    return session


async def _recognise(session: PostgresSession, address: PostgresUrl, settings: PostgresSettings) -> int:
    """Where the stamps of this cluster's timeline begin, if this is still the store that was opened."""
    identity = await _identify(session, address, settings)
    if not (identity.has_table and identity.has_store and identity.has_function):
        raise errors.StoreMissing(f"{address.shown}: the store is gone; was the schema dropped?")
    layout, system, base = await session.row(sql.store_row(address.schema))
    if system != identity.system or layout != sql.LAYOUT:
        raise errors.StoreFailed(f"{address.shown} was replaced by another store; open it again")
    assert isinstance(base, int)
    return base + (identity.timeline - 1) * sql.TIMELINE_STEP


def _check_found(identity: Identity, address: PostgresUrl, *, create: bool) -> None:
    if not identity.has_table and not create:
        raise errors.StoreMissing(f"{address.shown}: no store there; create it, or correct the URL")


async def _identify(session: PostgresSession, address: PostgresUrl, settings: PostgresSettings) -> Identity:
    identity = Identity(*await session.identify())
    if identity.version < settings.server_version_min:
        raise errors.StoreVersion(
            f"{address.shown} runs PostgreSQL {_release(identity.version)}; "
            f"at least {_release(settings.server_version_min)} is needed"
        )
    if identity.read_only:
        raise postgres_connections.read_only(address)
    await session.settle()
    return identity


async def _complete(session: PostgresSession, address: PostgresUrl, identity: Identity) -> None:
    """Make what is missing. Runs in a transaction that holds the lock."""
    if identity.has_table != identity.has_store:
        raise errors.StoreVersion(f"{address.shown} holds tables that are no Worldline store; use another schema")
    if not identity.has_schema:
        await session.execute(sql.create_schema(address.schema))
    if not identity.has_table:
        await session.execute(sql.create(address.schema))
    if not identity.has_function:
        await session.execute(sql.commit_functions(address.schema))
    layout, system, _ = await session.row(sql.store_row(address.schema))
    if layout != sql.LAYOUT:
        raise errors.StoreVersion(f"{address.shown} has table layout {layout}; this release knows {sql.LAYOUT}")
    # Restored into another cluster, whose transaction ids begin anew: stamps must stay above the old ones.
    if system != identity.system:
        await session.execute(sql.store_moved(address.schema), identity.system)


def _release(version: int) -> str:
    return f"{version // 10_000}.{version % 10_000}"
