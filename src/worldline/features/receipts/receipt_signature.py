"""Receipts that are signed by the process that performed the effect, and checking them (ADR 30).

What is signed names the world, the intent, the attempt, how it ended and the whole payload, so that a signature proves
nothing else. A receipt of the runtime's own has none: a message that left with its step, an effect that a rule refused
before it was tried, an answer from a world of another universe. Which those are, the record of the work says.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from worldline.codec import digest, ed25519, structs
from worldline.model import ids, inbox
from worldline.runtime.signed_receipts import ReceiptCheck, ReceiptSigner, ReceiptSigning

KEY_BYTES, SIGNATURE_BYTES = 32, 64


class Signer(ReceiptSigner):
    """The key of a process that performs effects."""

    def __init__(self, private: bytes) -> None:
        self._private = private
        self.public = ed25519.public_of(private)

    def sign(self, at: ids.Address, receipt: inbox.EffectReceipt) -> inbox.SignedReceipt:
        """The receipt with a signature, for the world of this address."""
        fields = {name: getattr(receipt, name) for name in inbox.EffectReceipt.__struct_fields__}
        # The signature does not cover itself, so its place may be empty until it is made.
        found = inbox.SignedReceipt(
            **fields, correlation_id=inbox.correlation_id_of(receipt), key=self.public, signature=bytes(SIGNATURE_BYTES)
        )
        return msgspec.structs.replace(found, signature=ed25519.sign(self._private, _signed(at, found)))


class TrustedKeys(ReceiptCheck):
    """The keys that a process that runs worlds trusts."""

    def __init__(self, trusted: Collection[bytes]) -> None:
        assert trusted, "without keys nothing is checked"
        self._trusted = trusted

    def why_not(self, at: ids.Address, receipt: inbox.EffectReceipt) -> str:
        return why_not(at, receipt, self._trusted)


class Ed25519Receipts(ReceiptSigning):
    """Signing and checking by keys of Ed25519."""

    def signer(self, private: bytes) -> Signer:
        return Signer(private)

    def check(self, trusted: Collection[bytes]) -> TrustedKeys:
        return TrustedKeys(trusted)


def why_not(at: ids.Address, receipt: inbox.EffectReceipt, keys: Collection[bytes]) -> str:
    """Why a receipt is not one of these keys'; empty if it is. Without keys: only that its own signature is right."""
    if not isinstance(receipt, inbox.SignedReceipt):
        return "the receipt is not signed by an effect worker" if keys else ""
    if keys and receipt.key not in keys:
        return f"the receipt is signed by {receipt.key.hex()}, which is no key that is trusted here"
    if not ed25519.is_signed(receipt.key, _signed(at, receipt), receipt.signature):
        return "the receipt is forged or damaged: the signature is not that of its key"
    return ""


def _signed(at: ids.Address, receipt: inbox.SignedReceipt) -> bytes:
    return digest.hash_parts(
        b"receipt",
        at.universe,
        at.world,
        receipt.intent,
        int(receipt.status).to_bytes(1, "big"),
        receipt.attempt.to_bytes(8, "big"),
        receipt.correlation_id.encode(),
        structs.encode(receipt.payload),
    )
