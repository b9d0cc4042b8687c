"""What a PostgreSQL store is told: its URL, and how it may use the server.

The URL alone says which store it is: `postgresql://user@host:port/database?schema=name`, where the schema (default
`worldline`) holds one store, so several share a database. All other parts mean what they mean to the driver; several
hosts may be given, and the one that takes writes is used. A pooler in between must keep one server session for each
connection, for settings, prepared statements and LISTEN. Passwords are never shown: messages use `Address.shown`.
"""

from __future__ import annotations

import re
import urllib.parse

import msgspec

from worldline.base import errors, limits
from worldline.store import urls

SCHEMA_DEFAULT = "worldline"
SCHEMES = ("postgresql", "postgres")

# A plain identifier needs no quoting. Forty-eight leave room for the channel's prefix within PostgreSQL's 63.
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_RESERVED = re.compile(r"pg_.*|information_schema")


class PostgresSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine uses the server. A statement is one group of batches, sent and synced together."""

    commit_connections: int = 4
    read_connections: int = 4
    connect_timeout_ms: int = 5_000
    connect_attempts: int = 20
    starting_attempts: int = 60
    statement_timeout_ms: int = 30_000
    read_attempts: int = 6
    commit_attempts: int = 24
    group_batches_max: int = 256
    group_bytes_max: int = 2 * limits.BATCH_BYTES_MAX
    scan_batches_max: int = 2_048
    notify_pause_ms: int = 10
    alone_after_ms: int = 2_000
    ping_ms: int = 30_000
    server_version_min: int = 140_000

    def __post_init__(self) -> None:
        least = {
            "starting_attempts": self.connect_attempts,
            "group_bytes_max": limits.BATCH_BYTES_MAX,  # the largest batch must fit into a group
        }
        for name in self.__struct_fields__:
            value, low = getattr(self, name), least.get(name, 1)
            if type(value) is not int or not low <= value <= limits.SETTING_COUNT_MAX:
                whole = f"a whole number from {low} to {limits.SETTING_COUNT_MAX}"
                raise errors.BadInput(f"PostgreSQL's {name} is {value!r}; use {whole}")


DEFAULTS = PostgresSettings()


class PostgresUrl(msgspec.Struct, frozen=True):
    """A store's URL, taken apart. `dsn` is the driver's and may hold a password; `shown` is for messages."""

    dsn: str
    schema: str
    shown: str

    def __repr__(self) -> str:
        return f"Address({self.shown})"


def parse(url: str) -> PostgresUrl:
    try:
        parts = urllib.parse.urlsplit(url)
        query = urllib.parse.parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        # The cause would quote the URL, and with it the password.
        raise errors.BadUrl("not a URL; use postgresql://user@host:port/database?schema=name") from None
    if parts.scheme not in SCHEMES:
        raise errors.BadUrl(f"not a PostgreSQL URL (scheme {parts.scheme!r}); use postgresql://user@host:port/database")
    schemas = query.pop("schema", [SCHEMA_DEFAULT])
    if len(schemas) != 1:
        raise errors.BadUrl("the URL names more than one schema; a store lives in one")
    schema = check_schema(schemas[0])
    # Without `schema`, which is ours: the driver sends what it does not know to the server, as a setting.
    rest = urllib.parse.urlencode(query, doseq=True)
    dsn = urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path, rest, ""))
    return PostgresUrl(dsn, schema, urls.shown(url))


def check_schema(name: str) -> str:
    """A name that is the same quoted and unquoted, and not one of PostgreSQL's own."""
    if not _SCHEMA.fullmatch(name) or _RESERVED.fullmatch(name):
        raise errors.BadUrl(
            f"not a usable schema name: {name!r}; use a-z, 0-9 and _, at most 48, not beginning with pg_"
        )
    return name
