"""How much each data key has sealed, and refusing what one that is worn out would seal.

Sealed bytes whose beginning is a fixed one stand for as many as there are other beginnings: a nonce is as good as
random. So one value of many is counted, by the batch that writes it, once, whichever process that is; and no other
costs anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from worldline.base import errors, limits, probes
from worldline.features.encryption import envelope
from worldline.features.encryption.cipher_interface import CipherVault
from worldline.store import kv


class Wear:
    def __init__(self, inner: kv.Engine, vault: CipherVault) -> None:
        self._inner = inner
        self._vault = vault
        self._counted = vault.counted
        self._worn: dict[bytes, bytes | None] = {}  # scopes of keys that seal nothing more, and their records

    def count(self, batch: kv.Batch, scope: bytes, value: bytes) -> None:
        """In a batch that writes this sealed value."""
        if self._counted and value.startswith(self._counted, envelope.HEAD_BYTES):
            probes.hit("encryption.value-counted")
            batch.add(self._vault.count_key(scope), 1)

    async def look(self, scopes: Iterable[bytes], batches: Sequence[kv.Batch]) -> None:
        """Behind a commit: what these keys may still seal, where something was counted."""
        if not self._counted or not any(each.counts for each in batches):
            return
        added = dict.fromkeys(key for each in batches for key in each.counts)
        for scope in dict.fromkeys(scopes):
            if self._vault.count_key(scope) in added:
                count, record = await self._read(scope)
                try:
                    self._vault.check_count(scope, count)
                except errors.KeyWorn:
                    # With its record: another one tells later that a new key has followed.
                    self._worn[scope] = record

    async def check(self, scopes: Iterable[bytes]) -> None:
        """`KeyWorn` if one of these keys seals nothing more, and no other has followed it."""
        for scope in dict.fromkeys(each for each in scopes if each in self._worn):
            count, record = await self._read(scope)
            # The same record: no other key has followed.
            if record == self._worn[scope]:
                self._vault.check_count(scope, count)
            self._worn.pop(scope, None)

    async def _read(self, scope: bytes) -> tuple[int, bytes | None]:
        read = await self._inner.read(kv.Get(self._vault.count_key(scope)), kv.Get(scope))
        return kv.counter(read.value(0) or bytes(limits.COUNTER_BYTES)), read.value(1)
