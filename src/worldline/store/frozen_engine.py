"""A frozen state of a store as an engine, for what reads through one. It cannot be written; nothing happens in it."""

from __future__ import annotations

from typing import NoReturn

from worldline.base import errors
from worldline.store import kv


class FrozenEngine:
    def __init__(self, frozen: kv.Frozen) -> None:
        self.read = frozen.read
        self.close = frozen.close

    async def commit(self, *batches: kv.Batch) -> NoReturn:
        raise errors.BatchRefused(f"{len(batches)} batches for the store as it was: it is only read")

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        del prefix, seen, timeout_ms
        return False

    async def durability(self) -> kv.Durability:
        return kv.Durability(full=False, settings={"engine": "frozen"})
