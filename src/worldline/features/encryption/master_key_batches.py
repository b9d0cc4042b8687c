"""The store's encryption marker: what opening a store checks of it, and how it changes.

A master key is *in use* from before it wraps its first data key until no data key is wrapped by it. Retiring one takes
two changes of the marker with a look at all data keys between them: every batch that writes a data key expects the
marker, so a data key that the look has not met makes the second change conflict.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors
from worldline.features.encryption import master_key_keyspace as keys
from worldline.features.encryption.master_key_keyspace import Encryption, MasterKey
from worldline.store import kv

_PLAIN = "this store is not encoded; open it without a codec (codec=, --keys, WORLDLINE_KEYS)"
_NEEDS = "give the same codec as before: codec= in wl.open, or --keys FILE or WORLDLINE_KEYS on the command line"


def get() -> kv.Get:
    return kv.Get(keys.KEY)


def decode(raw: bytes | None) -> Encryption | None:
    return keys.VALUE.get(raw)


def check(raw: bytes | None, codec: str) -> Encryption | None:
    """Refuse a store that is encoded otherwise. `codec`: the name of what was given, or nothing."""
    try:
        found = decode(raw)
    except errors.DecodeError as error:
        raise errors.StoreVersion(f"the store's encryption marker is not readable: {error}") from error
    if found is None and codec:
        raise errors.CodecMismatch(_PLAIN)
    if found is not None and not codec:
        raise errors.CodecMismatch(f"this store is encoded with {found.codec!r}; {_NEEDS}")
    if found is not None and found.codec != codec:
        raise errors.CodecMismatch(f"this store is encoded with {found.codec!r}, not with {codec!r}; {_NEEDS}")
    return found


def create(batch: kv.Batch, made: Encryption) -> None:
    """In the batch that makes the store. Guard: there is none yet."""
    batch.absent(keys.KEY)
    batch.put(keys.KEY, keys.VALUE.pack(made))


def use(batch: kv.Batch, raw: bytes, key: MasterKey) -> bool:
    """A master key is in use from now on. Returns whether that changes anything. Guard: the marker."""
    found = keys.VALUE.unpack(raw)
    if key in found.masters:
        return False
    # A key that was retiring is used again: its entry is replaced, so its retirement conflicts.
    others = [each for each in found.masters if each.id != key.id]
    _change(batch, raw, found, [*others, key])
    return True


def retire(batch: kv.Batch, raw: bytes, key_ids: list[str]) -> None:
    """These master keys shall wrap no further data key. Guard: the marker."""
    found = keys.VALUE.unpack(raw)
    masters = [msgspec.structs.replace(each, retiring=each.retiring or each.id in key_ids) for each in found.masters]
    _change(batch, raw, found, masters)


def retired(batch: kv.Batch, raw: bytes, key_id: str) -> None:
    """No data key is wrapped by this master key. Guard: the marker as `retire` left it."""
    found = keys.VALUE.unpack(raw)
    _change(batch, raw, found, [each for each in found.masters if each.id != key_id])


def expect(batch: kv.Batch, raw: bytes) -> None:
    """In a batch that writes a data key: the master keys in use are still these."""
    batch.expect(keys.KEY, raw)


def _change(batch: kv.Batch, raw: bytes, encryption: Encryption, masters: list[MasterKey]) -> None:
    batch.expect(keys.KEY, raw)
    # A new value with each change: the second step of a retirement sees every change that came between.
    batch.put(
        keys.KEY, keys.VALUE.pack(Encryption(encryption.codec, encryption.changes + 1, masters, encryption.probe))
    )
