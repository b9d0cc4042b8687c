"""Data keys: making, wrapping again, destroying. Wrapping itself is not done here: what is stored comes from the
caller.

A data key that is destroyed leaves a record that says so: no writer makes another one in its place.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors, limits
from worldline.features.encryption import keyspace as keys
from worldline.features.encryption import master_key_batches
from worldline.features.encryption.keyspace import DataKey
from worldline.model import ids
from worldline.store import kv


def get(at: ids.Address) -> kv.Get:
    return kv.Get(keys.world_key(at))


def decode(raw: bytes | None) -> DataKey | None:
    return keys.VALUE.get(raw)


def checked(key: bytes, raw: bytes | None) -> DataKey:
    """The data key, which must be there. `KeyDestroyed` if it was destroyed."""
    found = keys.VALUE.get(raw)
    if found is None:
        raise errors.DecodeError("the data key of this value is missing")
    if not found.wrapped:
        _, world = keys.owner(key)
        raise errors.KeyDestroyed(f"erased: the key of world {'' if world is None else world.hex()} was destroyed")
    return found


def is_destroyed(raw: bytes | None) -> bool:
    found = decode(raw)
    return found is not None and not found.wrapped


def check_kept(at: ids.Address, raw: bytes | None) -> None:
    """`KeyDestroyed` if the key of a world was destroyed. A world of a plain store has none."""
    if raw is not None:
        checked(keys.world_key(at), raw)


def make(batch: kv.Batch, key: bytes, made: DataKey, *, marker: bytes) -> None:
    """Guard: there is none. Expects that the master key is in use."""
    # A master key that was retired meanwhile must not wrap another data key.
    master_key_batches.expect(batch, marker)
    batch.absent(key)
    batch.put(key, keys.VALUE.pack(made))


def rewrap(batch: kv.Batch, key: bytes, raw: bytes, wrapped: DataKey, *, marker: bytes) -> None:
    """Guard: its record. Expects that the master key is in use."""
    master_key_batches.expect(batch, marker)
    batch.expect(key, raw)
    batch.put(key, keys.VALUE.pack(wrapped))


def follow(batch: kv.Batch, key: bytes, raw: bytes, made: DataKey, *, marker: bytes) -> None:
    """Another data key seals from now on; the one before opens what it sealed. Guard: its record."""
    assert made.rewriting
    assert made.older
    rewrap(batch, key, raw, made, marker=marker)
    batch.delete(keys.seals_key(key))  # the count is that of one key


def rewritten(batch: kv.Batch, key: bytes, raw: bytes, *, keep: bool) -> None:
    """Nothing in the store is sealed with older keys any more. `keep`: bodies of objects may be. Guard: its record."""
    found: DataKey = keys.VALUE.unpack(raw)
    after = msgspec.structs.replace(found, rewriting=False, older=found.older if keep else [])
    batch.expect(key, raw)
    batch.put(key, keys.VALUE.pack(after))


def destroy(batch: kv.Batch, key: bytes, raw: bytes | None, *, time_us: int) -> bool:
    """Destroy it permanently. Returns whether it was there. Guard: its record, or that there is none."""
    found = keys.VALUE.get(raw)
    # Destroyed before: the record keeps the time of the first call.
    if found is not None and not found.wrapped:
        return False
    # A world that has sealed nothing gets a record without a key, too: no writer makes a key in its place.
    if raw is None:
        batch.absent(key)
    else:
        batch.expect(key, raw)
    made_us = time_us if found is None else found.made_us
    batch.put(key, keys.VALUE.pack(DataKey("", b"", made_us, max(1, time_us))))
    batch.delete(keys.seals_key(key))  # it seals nothing more
    return True


def get_shared(universe: ids.UniverseId) -> kv.Get:
    """Of what the worlds of a universe share."""
    return kv.Get(keys.universe_key(universe))


def of_worlds(universe: ids.UniverseId) -> kv.Range:
    """Data keys of the worlds of a universe."""
    return kv.Range(*keys.world_keys(universe), count_max=limits.DATA_KEYS_PAGE)
