"""Signed receipts of effects, as far as the core asks: a feature signs and checks (`runtime/feature.py`).

A process signs if its settings name a key, and checks if they list some. Without keys there is no signer and no check.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from worldline.model import ids, inbox


class ReceiptSigner(Protocol):
    """The key of a process that performs effects."""

    def sign(self, at: ids.Address, receipt: inbox.EffectReceipt) -> inbox.SignedReceipt:
        """Sign a receipt, for the world of this address."""
        ...


class ReceiptCheck(Protocol):
    """The keys that a process trusts, at least one."""

    def why_not(self, at: ids.Address, receipt: inbox.EffectReceipt) -> str:
        """Say why a receipt is not one of these keys'; empty if it is."""
        ...


class ReceiptSigning(Protocol):
    """Makes both of keys."""

    def signer(self, private: bytes) -> ReceiptSigner: ...

    def check(self, trusted: Collection[bytes]) -> ReceiptCheck: ...
