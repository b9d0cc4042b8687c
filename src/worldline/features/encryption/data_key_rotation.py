"""Changing data keys: another key seals from now on, and what older ones have sealed is sealed anew.

For each data key::

    follow    the record says the new key, and the older ones, which open what they have sealed     one batch
    rewrite   every value of its scope that an older key has sealed is sealed anew                  a batch for each
    end       older keys of a world are forgotten: nothing is sealed with them                      one batch

Every batch that writes sealed values expects the record (`features/encryption/sealed_engine.py`), so nothing is sealed
with an older key behind `follow`. A value is replaced only as it was read: one that changes meanwhile is sealed with
the new key already. It can be cut off anywhere; begun again, it resumes with what is `rewriting`. It rests as long as
it works.

Bodies of objects are not sealed anew: the older keys of a universe are kept, and open them. What is sealed anew stays
in free pages, and in copies that were made before, as it was.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from worldline.base import errors
from worldline.features.encryption import aes_gcm, envelope, master_key_batches, master_key_rotation
from worldline.features.encryption import batches as data_keys
from worldline.features.encryption import keyspace as keys
from worldline.features.encryption.cipher_interface import KnownCipher
from worldline.features.encryption.key_ring import KeyRing
from worldline.model import ids
from worldline.store import kv, paging, transact

PAGE = 256


class DataRotated(msgspec.Struct, frozen=True):
    """`keys`: data keys that another one has followed; `resumed`: those that an earlier rotation had begun with.
    `values`: that were sealed anew.
    """

    keys: int
    resumed: int
    values: int


async def rotate(
    ring: KeyRing,
    *,
    universe: ids.UniverseId | None = None,
    world: ids.WorldId | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> DataRotated:
    """Rotate the data keys of all universes, or of one, with those of its worlds, or of one world."""
    made = resumed = values = 0
    async for scope, raw in master_key_rotation.all_keys(ring):
        owner, of_world = keys.owner(scope)
        if (universe is not None and owner != universe) or (world is not None and of_world != world):
            continue
        found = data_keys.decode(raw)
        if found is None or not found.wrapped:
            continue  # destroyed
        # Begun by an earlier rotation: another key on top would only add to those that are kept.
        if found.rewriting:
            resumed += 1
        elif await _follow(ring, scope):
            made += 1
        values += await _rewrite(ring, scope)
        progress(values)
    return DataRotated(made, resumed, values)


async def _follow(ring: KeyRing, scope: bytes) -> bool:
    async def attempt() -> transact.NothingToWrite[bool] | transact.Write[bool]:
        read = await ring.engine.read(master_key_batches.get(), kv.Get(scope))
        marker, raw = read.value(0), read.value(1)
        found = data_keys.decode(raw)
        if marker is None or raw is None or found is None or not found.wrapped or found.rewriting:
            return transact.NothingToWrite(False)
        batch = kv.Batch()
        data_keys.follow(batch, scope, raw, ring.followed(scope, found, made_us=read.time_us), marker=marker)
        return transact.Write(batch, lambda _: True)

    return await transact.run(ring.engine, ring.env, attempt)


async def _rewrite(ring: KeyRing, scope: bytes) -> int:
    """Returns how many values were sealed anew. A key that is destroyed meanwhile is left alone."""
    count, done = 0, False
    while not done:  # wrapped by another master key meanwhile, or destroyed: begin again
        anew, done = await _rewrite_once(ring, scope)
        count += anew
    return count


async def _rewrite_once(ring: KeyRing, scope: bytes) -> tuple[int, bool]:
    """How many values were sealed anew, and whether the key was the same all the time."""
    raw = (await ring.engine.read(kv.Get(scope))).value(0)
    try:
        known = ring.known(scope, raw)
    except errors.KeyDestroyed:
        return 0, True
    if not isinstance(known.cipher, aes_gcm.RotatedCipher):
        return 0, True  # no older key: nothing to seal anew
    count = 0
    for begin, end in keys.sealed_ranges(scope):
        began_us = ring.env.monotonic_us()
        async for page in paging.RangePages(ring.engine, kv.Range(begin, end, count_max=PAGE)):
            # These ranges hold values of other scopes, too.
            ours = [(key, stored) for key, stored in page.items if keys.sealing(key) == scope]
            anew = [_anew(ring, scope, known, key, stored) for key, stored in ours]
            batches = [batch for batch in anew if batch is not None]
            outcomes = await transact.commit(ring.engine, ring.env, *batches)
            count += sum(isinstance(outcome, kv.Ok) for outcome in outcomes)
            # A conflict at the value alone is none: its writer has sealed it with the new key.
            if any(isinstance(each, kv.Conflict) and each.at(scope)[0] for each in outcomes):
                return count, False
            if page.more:
                await ring.env.sleep((ring.env.monotonic_us() - began_us) / 1_000_000)
            began_us = ring.env.monotonic_us()
    await _end(ring, scope)
    return count, True


def _anew(ring: KeyRing, scope: bytes, known: KnownCipher, key: bytes, stored: bytes) -> kv.Batch | None:
    """The batch that replaces a value by itself, sealed with the current key. None if it is so."""
    assert isinstance(known.cipher, aes_gcm.RotatedCipher)
    try:
        form, place, sealed, stamp = envelope.take_apart(key, stored)
        made = known.cipher.seal_anew(place, sealed)
    except errors.DecodeError:
        return None  # damaged: its reader is told
    if made is None:
        return None
    # Written below the encryption: the value is sealed already.
    batch = kv.SealedBatch()
    batch.expect(scope, known.raw)
    batch.expect(key, stored)
    batch.put(key, envelope.head(form) + made + stamp)
    if made.startswith(ring.counted):
        batch.add(ring.count_key(scope), 1)
    return batch


async def _end(ring: KeyRing, scope: bytes) -> None:
    async def attempt() -> transact.NothingToWrite[None] | transact.Write[None]:
        raw = (await ring.engine.read(kv.Get(scope))).value(0)
        found = data_keys.decode(raw)
        if raw is None or found is None or not found.rewriting:
            return transact.NothingToWrite(None)
        batch = kv.Batch()
        data_keys.rewritten(batch, scope, raw, keep=not keys.is_world(scope))
        return transact.Write(batch, lambda _: None)

    await transact.run(ring.engine, ring.env, attempt)
