"""What must hold of garbage collection. With every batch: what it refers to is there (C3), a blob is swept as it was
condemned (C4), and not while something refers to it (C3). When a run has come to rest: all that is referred to can be
read (C3), and there is no more (C5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from worldline.base import errors
from worldline.client.connection import Connection
from worldline.features.collection import collector, references
from worldline.features.collection import keyspace as collection_keys
from worldline.features.collection import mark_phase as marker
from worldline.features.collection.address_set import Marked
from worldline.features.collection.mark_phase import Marker
from worldline.keys import cas as cas_keys
from worldline.keys import keyspace_table
from worldline.model import blobs, ids
from worldline.sim.check.audit import Audit
from worldline.sim.load.history import Broken
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.truth import AppliedBatch
from worldline.store import kv

BLOBS_MAX = 100_000

_PLACES = {keyspace_table.row(place.keyspace).metric: place for place in references.PLACES}
_Found = tuple[str, ids.Address, references.Reference]  # where a reference stands


# --- Each commit ------------------------------------------------------------------------------------------------------


class Sweeps:
    """`contents`: what the store holds now."""

    def __init__(self, broken: Broken, contents: Callable[[], Mapping[bytes, bytes]]) -> None:
        self._broken = broken
        self._contents = contents

    def look(self, applied: AppliedBatch) -> None:
        batch, contents = applied.batch, self._contents()
        appended = [each.prefix + stamp for each, stamp in zip(batch.appends, applied.stamps, strict=True)]
        for what, at, each in _references([*batch.puts, *appended], contents):
            if cas_keys.blob_key(at.universe, each.address) not in contents:
                self._broken("C3", f"{applied.host.label} wrote {what} that refers to a blob which is not there")
        # Only with a sweep is everything followed: that reads the whole store, which no ordinary batch is worth.
        swept = {key: None for key in batch.deletes if keyspaces.place(key).what == "cas"}
        if swept:
            self._is_as_condemned(applied, swept)
            self._is_unneeded(applied, swept)

    def _is_as_condemned(self, applied: AppliedBatch, swept: Mapping[bytes, None]) -> None:
        before = {keyspaces.place(key).rest: raw for key, raw in applied.before.items() if _is_condemned(key)}
        for key in swept:
            record = cas_keys.BLOB.get(applied.before[key])
            condemned = collection_keys.CONDEMNED.get(before.get(keyspaces.place(key).rest))
            if record is None or condemned is None or record.generation != condemned.generation:
                self._broken("C4", f"{applied.host.label} swept a blob that is not as it was condemned")

    def _is_unneeded(self, applied: AppliedBatch, swept: Mapping[bytes, None]) -> None:
        contents = self._contents()
        for what, at, each in _followed(_references(contents, contents), contents):
            if cas_keys.blob_key(at.universe, each.address) in swept:
                self._broken("C3", f"{applied.host.label} swept a blob that {what} of a world refers to")
                return


def _is_condemned(key: bytes) -> bool:
    return keyspaces.place(key).what == "condemned"


def _references(keys: Iterable[bytes], contents: Mapping[bytes, bytes]) -> Iterator[_Found]:
    """Yield what stands under these keys and refers to blobs."""
    found: dict[tuple[str, ids.Address], list[bytes]] = {}
    for key in keys:
        where = keyspaces.place(key)
        if where.what in _PLACES and where.at is not None:
            found.setdefault((where.what, where.at), []).append(key)
    for (what, at), its in found.items():
        read = _PLACES[what].reader()
        for each in read([(key, contents[key]) for key in sorted(its)]):
            yield what, at, each


def _followed(references: Iterable[_Found], contents: Mapping[bytes, bytes]) -> Iterator[_Found]:
    """The same, and what they lead to, as far as that is in the store."""
    left, known = list(references), dict[bytes, None]()
    while left:
        what, at, each = left.pop()
        key = cas_keys.blob_key(at.universe, each.address)
        if key in known:  # blobs refer to blobs, and many to the same one
            continue
        known[key] = None
        yield what, at, each
        record: blobs.Blob | None = cas_keys.BLOB.get(contents.get(key))
        if record is not None and record.inline is not None and each.kind in marker.READERS:
            left += [(what, at, its) for its in marker.READERS[each.kind](record.inline)]


# --- At the end -------------------------------------------------------------------------------------------------------


class _Noted(Marked):
    """Remembers whole addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: dict[bytes, None] = {}

    def add(self, address: bytes) -> bool:
        self.addresses[address] = None
        return super().add(address)


async def check(connection: Connection, audit: Audit) -> None:
    """Everything that is referred to can be read, also after a collection without a grace, which leaves no more."""
    # Before collecting: else damage that was there would be blamed on the collection.
    found = await _readable(connection, audit)
    store = connection.store
    for _ in range(2):  # what was condemned and used again is condemned anew by the next
        await collector.collect(store.engine, store.env, connection.blobs, connection.id, grace_ms=0)
    await _readable(connection, audit)
    wanted = kv.Range(*cas_keys.blobs(connection.id), count_max=BLOBS_MAX, bytes_max=1 << 40)
    page = (await store.engine.read(wanted)).page(0)
    left = [key for key, _ in page.items if cas_keys.blob_address(connection.id, key) not in found]
    if left and found:  # nothing found: the damage was reported, and says nothing of what is needed
        audit.broken("C5", f"{len(left)} blobs are left that nothing refers to")


async def _readable(connection: Connection, audit: Audit) -> dict[bytes, None]:
    noted = _Noted()
    marker = Marker(connection.store.engine, connection.blobs, connection.id, noted)
    try:
        while not await marker.turn():
            pass
        for address in noted.addresses:
            await connection.blobs.get(address)
    except (errors.Corrupt, errors.NotFound) as error:
        audit.broken("C3", f"something that is referred to cannot be read: {error}"[:500])
        return {}
    return noted.addresses
