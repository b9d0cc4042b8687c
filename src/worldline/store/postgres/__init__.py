"""PostgreSQL as a store: `open` gives a `kv.Engine`."""

from __future__ import annotations

from worldline.store.postgres import engine, settings

PostgresEngine = engine.PostgresEngine
Settings = settings.PostgresSettings
open = engine.open
