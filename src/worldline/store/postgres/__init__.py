"""PostgreSQL as a store: `open` gives a `kv.Engine`."""

from __future__ import annotations

from worldline.store.postgres import postgres_engine, postgres_settings

PostgresEngine = postgres_engine.PostgresEngine
Settings = postgres_settings.PostgresSettings
open = postgres_engine.open
