"""What must hold of garbage collection when a run has come to rest: all that is referred to is there, and no more."""

from __future__ import annotations

from worldline.base import errors
from worldline.client.connection import Connection
from worldline.keys import cas as cas_keys
from worldline.roles.collection import collector
from worldline.roles.collection.marked import Marked
from worldline.roles.collection.marker import Marker
from worldline.sim.check.audit import Audit
from worldline.store import kv

BLOBS_MAX = 100_000


class _Noted(Marked):
    """Remembers whole addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: dict[bytes, None] = {}

    def add(self, address: bytes) -> bool:
        self.addresses[address] = None
        return super().add(address)


async def check(universe: Connection, audit: Audit) -> None:
    """Everything that is referred to can be read, also after a collection without a grace, which leaves no more."""
    found = await _readable(universe, audit)
    store = universe.store
    for _ in range(2):  # what was condemned and used again is condemned anew by the next
        await collector.collect(store.engine, store.env, universe.blobs, universe.id, grace_ms=0)
    await _readable(universe, audit)
    wanted = kv.Range(*cas_keys.blobs(universe.id), count_max=BLOBS_MAX, bytes_max=1 << 40)
    page = (await store.engine.read(wanted)).page(0)
    left = [key for key, _ in page.items if cas_keys.blob_address(universe.id, key) not in found]
    if left and found:
        audit.broken("C5", f"{len(left)} blobs are left that nothing refers to")


async def _readable(universe: Connection, audit: Audit) -> dict[bytes, None]:
    noted = _Noted()
    marker = Marker(universe.store.engine, universe.blobs, universe.id, noted)
    try:
        while not await marker.turn():
            pass
        for address in noted.addresses:
            await universe.blobs.get(address)
    except (errors.Corrupt, errors.NotFound) as error:
        audit.broken("C3", f"something that is referred to cannot be read: {error}"[:500])
        return {}
    return noted.addresses
