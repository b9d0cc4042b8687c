"""Changing master keys: every data key is wrapped by the current one, and the others are retired.

It can be cut off at any time and begun again: a data key that is wrapped by the current master key is left alone. It
takes as long a pause after each page as the page took, so that hosts keep half of the store's time. A master key that
a process is still told to use as its current one comes back into use; then it is not retired, and the answer says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import msgspec

from worldline.base import errors
from worldline.features.encryption import batches, codec_opening, master_key_batches
from worldline.features.encryption.key_ring import KeyRing
from worldline.keys import universes as universe_keys
from worldline.model import ids
from worldline.runtime import store_opening
from worldline.store import kv, paging, transact


class Rotated(msgspec.Struct, frozen=True):
    """What a rotation did: data keys that were wrapped again; master keys that are not needed any more; and those that
    are in use beside the current one.
    """

    rewrapped: int
    retired: list[str]
    kept: list[str]


class MasterKeyUse(msgspec.Struct, frozen=True):
    """A master key in use, and how many data keys it wraps."""

    id: str
    data_keys: int
    current: bool


async def rotate(ring: KeyRing) -> Rotated:
    current = ring.codec.current
    rewrapped = 0
    # Said before the look: what wraps a data key with one of them from now on changes the marker.
    marker = await _retiring(ring)
    async for key, raw in all_keys(ring, paced=True):
        rewrapped += await _rewrap(ring, key, raw)
    # Counted again: a data key that changed while it was wrapped anew was left alone.
    left = await _wrapped_by(ring)
    found = master_key_batches.decode(marker)
    assert found is not None
    retired: list[str] = []
    for each in found.masters:
        if each.id != current and not left[each.id]:
            batch = kv.Batch()
            master_key_batches.retired(batch, marker, each.id)
            if not await transact.applied(ring.engine, ring.env, batch):
                break  # a process has taken a key into use meanwhile
            retired.append(each.id)
            marker = batch.puts[master_key_batches.get().key].value  # the next batch expects what this one has left
    kept = [each.id for each in found.masters if each.id not in (current, *retired)]
    return Rotated(rewrapped, retired, kept)


async def in_use(ring: KeyRing) -> list[MasterKeyUse]:
    found = master_key_batches.decode((await ring.engine.read(master_key_batches.get())).value(0))
    assert found is not None
    counted = await _wrapped_by(ring)
    return [MasterKeyUse(each.id, counted[each.id], each.id == ring.codec.current) for each in found.masters]


async def _retiring(ring: KeyRing) -> bytes:
    """The marker, which says that all master keys but the current one are retiring."""

    async def attempt() -> transact.NothingToWrite[bytes] | transact.Write[bytes]:
        raw = (await ring.engine.read(master_key_batches.get())).value(0)
        found = master_key_batches.decode(raw)
        assert raw is not None
        assert found is not None
        others = [each.id for each in found.masters if each.id != ring.codec.current and not each.retiring]
        if not others:
            return transact.NothingToWrite(raw)
        batch = kv.Batch()
        master_key_batches.retire(batch, raw, others)
        return transact.Write(batch, lambda _: batch.puts[master_key_batches.get().key].value)

    return await transact.run(ring.engine, ring.env, attempt)


async def _rewrap(ring: KeyRing, key: bytes, raw: bytes) -> bool:
    """Whether this call wrapped the data key again. One that changed meanwhile is met again by the next rotation."""
    found = batches.decode(raw)
    assert found is not None
    if not found.wrapped or found.master == ring.codec.current:
        return False
    marker = (await ring.engine.read(master_key_batches.get())).value(0)
    assert marker is not None
    batch = kv.Batch()
    batches.rewrap(batch, key, raw, ring.rewrapped(key, found), marker=marker)
    return await transact.applied(ring.engine, ring.env, batch)


async def _wrapped_by(ring: KeyRing) -> Counter[str]:
    """How many data keys each master key wraps."""
    counted: Counter[str] = Counter()
    async for _, raw in all_keys(ring):
        found = batches.decode(raw)
        if found is not None and found.wrapped:
            counted[found.master] += 1
    return counted


async def all_keys(ring: KeyRing, *, paced: bool = False) -> AsyncIterator[tuple[bytes, bytes]]:
    """The data keys of all universes."""
    # A universe without a name is being deleted, and its data keys with it.
    async for _, raw in paging.RangeItems(ring.engine, kv.Range(*universe_keys.names())):
        universe = ids.UniverseId(universe_keys.NAME.unpack(raw).universe)
        async for item in _of(ring, universe, paced=paced):
            yield item


async def _of(ring: KeyRing, universe: ids.UniverseId, *, paced: bool) -> AsyncIterator[tuple[bytes, bytes]]:
    shared = batches.get_shared(universe)
    raw = (await ring.engine.read(shared)).value(0)
    if raw is not None:
        yield shared.key, raw
    began_us = ring.env.monotonic_us()
    async for page in paging.RangePages(ring.engine, batches.of_worlds(universe)):
        for item in page.items:
            yield item
        if paced and page.more:
            await ring.env.sleep((ring.env.monotonic_us() - began_us) / 1_000_000)
        began_us = ring.env.monotonic_us()


def ring_of(store: store_opening.Store) -> KeyRing:
    """The keys of a store that is encrypted by `AesGcm`."""
    vault = store.wrapping.vault if isinstance(store.wrapping, codec_opening.SealedStore) else None
    if not isinstance(vault, KeyRing):
        raise errors.CodecMismatch("this store has no keys of its own: it is plain, or encoded with a user's codec")
    return vault
