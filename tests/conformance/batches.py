"""Small batches and reads that the cases are written with."""

from __future__ import annotations

from worldline.store import kv


def create(key: bytes, value: bytes) -> kv.Batch:
    batch = kv.Batch()
    batch.absent(key)
    batch.put(key, value)
    return batch


def replace(key: bytes, old: bytes, new: bytes) -> kv.Batch:
    batch = kv.Batch()
    batch.expect(key, old)
    batch.put(key, new)
    return batch


def once(name: bytes | str | int) -> kv.Batch:
    """A batch whose guard is an id nobody else uses; the case adds what it is about."""
    text = name if isinstance(name, bytes) else str(name).encode()
    return create(b"once/" + text, b"")


def after(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`."""
    assert prefix[-1] < 0xFF
    return prefix[:-1] + bytes([prefix[-1] + 1])


def under(prefix: bytes, *, begin: bytes | None = None, reverse: bool = False) -> kv.Range:
    return kv.Range(prefix if begin is None else begin, after(prefix), 100_000, 1 << 30, reverse)


async def ok(engine: kv.Engine, batch: kv.Batch) -> kv.Ok:
    [outcome] = await engine.commit(batch)
    assert isinstance(outcome, kv.Ok), outcome
    return outcome


async def conflict(engine: kv.Engine, batch: kv.Batch) -> kv.Conflict:
    [outcome] = await engine.commit(batch)
    assert isinstance(outcome, kv.Conflict), outcome
    return outcome


async def fill(engine: kv.Engine, values: dict[bytes, bytes]) -> None:
    """Create these keys by one batch."""
    batch = kv.Batch()
    for key, value in values.items():
        batch.absent(key)
        batch.put(key, value)
    await ok(engine, batch)


async def get(engine: kv.Engine, key: bytes) -> bytes | None:
    return (await engine.read(kv.Get(key))).value(0)


async def scan(engine: kv.Engine, prefix: bytes) -> dict[bytes, bytes]:
    page = (await engine.read(under(prefix))).page(0)
    assert not page.more
    return dict(page.items)


async def counter(engine: kv.Engine, key: bytes) -> int:
    value = await get(engine, key)
    return 0 if value is None else kv.counter(value)


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")
