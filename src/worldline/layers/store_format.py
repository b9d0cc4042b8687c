"""The store-format guard: a store is opened only by a release that speaks its format.

The marker is the first key ever written. Missing, it is created only when asked, and only in a store that is empty:
data without a marker is not ours, or has lost it, and is refused. There and different in major, or of a newer minor, or
not readable, the store is refused too. So is one that is encoded otherwise than this process was told. A refused store
is left untouched.

A store of an older minor is opened, and marked with the minor of this release: what this release writes is not for
releases of that minor, which refuse the store from then on. Nothing else is brought up to date here: records of the
older minor are read as they are.
"""

from __future__ import annotations

from typing import Protocol

from worldline.base import env as envs
from worldline.base import errors
from worldline.codec import tuples
from worldline.keys import schema, space
from worldline.model import world_records
from worldline.store import kv, transact

CURRENT = world_records.Schema(space.FORMAT_MAJOR, space.FORMAT_MINOR)
# Every key there can be: none is empty, and no tuple's key starts with 0xff.
_FIRST = b"\x00"
_END = b"\xff"
_ENCODING = tuples.pack((int(space.KeyRoot.STORE), int(space.InStore.ENCRYPTION)))


class EncodingMarker(Protocol):
    """The second marker of a store, which says what its values are encoded with. A plain store has none."""

    def get(self) -> kv.Get: ...

    def check(self, raw: bytes | None) -> None:
        """Refuse a store that is encoded otherwise. `raw`: the marker as it was read."""

    def create(self, batch: kv.Batch) -> None:
        """Write the marker in the batch that makes the store. Guard: there is none yet."""


class PlainMarker:
    """Of stores that are opened where nothing can decode values: all that are encoded are refused."""

    def get(self) -> kv.Get:
        return kv.Get(_ENCODING)

    def check(self, raw: bytes | None) -> None:
        if raw is not None:
            raise errors.CodecMismatch("this store is encoded; open it with the codec that it was made with")

    def create(self, batch: kv.Batch) -> None:
        """Write nothing: a plain store has no such marker."""


PLAIN = PlainMarker()


async def ensure(
    engine: kv.Engine, env: envs.Env, *, create: bool, encoding: EncodingMarker = PLAIN
) -> world_records.Schema:
    """The store's format, which this release speaks; written now if the store is new and `create` is set. `encoding`:
    what its values are encoded with.
    """

    async def attempt() -> transact.NothingToWrite[world_records.Schema] | transact.Write[world_records.Schema]:
        # One snapshot: a store that another process is making now must not look like data without a marker.
        read = await engine.read(kv.Get(schema.KEY), kv.Range(_FIRST, _END, count_max=1), encoding.get())
        raw = read.value(0)
        if raw is not None:
            found = check(raw)
            encoding.check(read.value(2))
            return transact.NothingToWrite(found) if found == CURRENT else _raised(raw)
        if read.page(1).items:
            raise errors.StoreVersion(
                "there is data here but no format marker: either another program's, or a damaged store; "
                "restore the marker from a backup, or use an empty place"
            )
        if not create:
            raise errors.StoreMissing("there is no Worldline store here; create one by opening it with create=True")
        batch = kv.Batch()
        batch.absent(schema.KEY)
        batch.put(schema.KEY, schema.VALUE.pack(CURRENT))
        encoding.create(batch)
        return transact.Write(batch, lambda _: CURRENT)

    return await transact.run(engine, env, attempt)


def _raised(raw: bytes) -> transact.Write[world_records.Schema]:
    """Before anything else is written, so that no older release reads what it does not know."""
    batch = kv.Batch()
    batch.expect(schema.KEY, raw)
    batch.put(schema.KEY, schema.VALUE.pack(CURRENT))
    return transact.Write(batch, lambda _: CURRENT)


def check(raw: bytes) -> world_records.Schema:
    """Refuse a format this release does not speak."""
    try:
        found = schema.VALUE.unpack(raw)
    except errors.DecodeError as error:
        raise errors.StoreVersion(f"the store's format marker is not readable: {error}") from error
    # An older minor passes: this release reads its records as they are.
    if found.major != CURRENT.major or found.minor > CURRENT.minor:
        raise errors.StoreVersion(
            f"the store has format {found.major}.{found.minor}, this release speaks {CURRENT.major}.{CURRENT.minor}; "
            "use a matching release"
        )
    return found
