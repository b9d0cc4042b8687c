"""Who signed a webhook, under which id, and when. Pure: the caller says what time it is.

Three forms, told apart before anything is compared:

========== ====================================================== ==========================================
form       what is signed, with HMAC-SHA256                       where it stands
========== ====================================================== ==========================================
ours       `worldline.v1:`, then id, timestamp and body, each as  id, timestamp and signature headers; `sha256=`
           `LENGTH:BYTES,`                                        and hex
standard   `id.timestamp.body` (Standard Webhooks 1.0)            `webhook-id`, `webhook-timestamp`,
                                                                  `webhook-signature`: `v1,` and base64, several
                                                                  separated by spaces
body       the body alone                                         signature header; `sha256=` and hex
========== ====================================================== ==========================================

No bytes can be read as two different requests. In our form lengths stand before the fields. In the standard form an id
has no full stop and a timestamp is digits, else it is refused. What is signed in our form begins with `worldline.v1:`,
where the standard form has an id, a full stop and digits; so a signature of one form is none of the other, though both
are accepted with the same secrets. A server that takes the body form takes no other.

A request that is seen on its way and sent again has the same id, which is taken once for as long as ids are remembered
(the dedupe window), and its timestamp is too old long before that. The body form signs no id: the digest of the body is
the id. Its timestamp, if any, is a field of the body; without one, a body that is sent again after the dedupe window is
taken again.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import enum
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from worldline.base import errors, limits

PREFIX = "sha256="
DOMAIN = b"worldline.v1:"
WHSEC = b"whsec_"
STANDARD_ID, STANDARD_TIMESTAMP, STANDARD_SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
_TIMESTAMP = re.compile(r"0|[1-9][0-9]{0,11}", re.ASCII)
_ID = re.compile(r"[\x21-\x7e]+")  # visible ASCII


class Form(enum.Enum):
    SIGNED_ID = "signed id"  # ours, and the standard one beside it
    BODY = "body"


class Headers(msgspec.Struct, frozen=True):
    """Where our form stands. Names are in lower case."""

    id: str = "idempotency-key"
    timestamp: str = "x-timestamp"
    signature: str = "x-signature-256"


class Signed(msgspec.Struct, frozen=True):
    """A request that a holder of a secret signed. `secret` is the number of that secret, `timestamp` in seconds."""

    id: str
    secret: int
    timestamp: int | None = None


class Malformed(Exception):
    """What is signed cannot be read in one way only, or not at all."""


class Unsigned(Exception):
    """No signature of any secret, or one of another time."""


class Verifier:
    """Checks requests against all secrets that are in use: old and new ones, while they are exchanged."""

    def __init__(
        self,
        secrets: Sequence[bytes],
        *,
        form: Form = Form.SIGNED_ID,
        headers: Headers | None = None,
        tolerance_seconds: int = limits.WEBHOOK_TOLERANCE_SECONDS,
    ) -> None:
        if not 0 < len(secrets) <= limits.WEBHOOK_SECRETS_MAX:
            raise errors.BadInput(f"webhooks have 1 to {limits.WEBHOOK_SECRETS_MAX} secrets, not {len(secrets)}")
        if any(len(each) < limits.WEBHOOK_SECRET_BYTES_MIN for each in secrets):
            raise errors.BadInput(f"a secret has at least {limits.WEBHOOK_SECRET_BYTES_MIN} bytes")
        if not 0 < tolerance_seconds <= limits.WEBHOOK_TOLERANCE_SECONDS_MAX:
            most = limits.WEBHOOK_TOLERANCE_SECONDS_MAX
            raise errors.BadInput(f"the tolerance is 1 to {most} s: ids are remembered for twice as long")
        self._secrets = tuple(secrets)
        self._form = form
        self._headers = headers or Headers()
        self._tolerance_seconds = tolerance_seconds

    def check(self, headers: Mapping[str, str], body: bytes, *, now_seconds: int) -> Signed:
        """Who signed it. The time is looked at last: only a sender that is known is told about clocks."""
        if self._form is Form.BODY:
            given = _texts([headers.get(self._headers.signature, "")])
            secret = self._matching(given, lambda each: body_signature(each, body))
            return Signed(hashlib.sha256(body).hexdigest(), secret)
        signed = self._standard(headers, body) if STANDARD_SIGNATURE in headers else self._ours(headers, body)
        assert signed.timestamp is not None
        self.check_time(signed.timestamp, now_seconds=now_seconds)
        return signed

    def check_time(self, timestamp: int, *, now_seconds: int) -> None:
        away = abs(now_seconds - timestamp)
        if away > self._tolerance_seconds:
            raise Unsigned(f"the timestamp is {away} s away from this clock; {self._tolerance_seconds} s are tolerated")

    def _ours(self, headers: Mapping[str, str], body: bytes) -> Signed:
        id, timestamp = _id(headers, self._headers.id), _timestamp(headers, self._headers.timestamp)
        given = _texts([headers.get(self._headers.signature, "")])
        secret = self._matching(given, lambda each: signature(each, id=id, timestamp=timestamp, body=body))
        return Signed(id, secret, timestamp)

    def _standard(self, headers: Mapping[str, str], body: bytes) -> Signed:
        id, timestamp = _id(headers, STANDARD_ID), _timestamp(headers, STANDARD_TIMESTAMP)
        if "." in id:
            # "a.1.2" and a body could also be the id "a" at second 1 with "2." before the body.
            raise Malformed(f"an id in {STANDARD_ID} has no full stop: it is what ends the id in what is signed")
        given = _texts(headers[STANDARD_SIGNATURE].split(" "))
        secret = self._matching(given, lambda each: standard_signature(each, id=id, timestamp=timestamp, body=body))
        return Signed(id, secret, timestamp)

    def _matching(self, signatures: list[bytes], sign: Callable[[bytes], str]) -> int:
        """The number of the secret that signed. All are compared, whichever matches: the time taken tells nothing."""
        found = -1
        for number, secret in enumerate(self._secrets):
            expected = sign(secret).encode()
            for each in signatures:
                if hmac.compare_digest(expected, each) and found < 0:
                    found = number
        if found < 0:
            raise Unsigned("the signature is missing or wrong")
        return found


def signature(secret: bytes, *, id: str, timestamp: int, body: bytes) -> str:
    """Our form: what a sender puts into the signature header."""
    signed = hmac.new(secret, DOMAIN, hashlib.sha256)
    for field in (id.encode("ascii"), b"%d" % timestamp, body):
        signed.update(b"%d:" % len(field))
        signed.update(field)
        signed.update(b",")
    return PREFIX + signed.hexdigest()


def standard_signature(secret: bytes, *, id: str, timestamp: int, body: bytes) -> str:
    """The standard form: one of the signatures in `webhook-signature`."""
    signed = hmac.new(secret, b"%b.%d." % (id.encode("ascii"), timestamp), hashlib.sha256)
    signed.update(body)
    return "v1," + base64.b64encode(signed.digest()).decode()


def body_signature(secret: bytes, body: bytes) -> str:
    return PREFIX + hmac.new(secret, body, hashlib.sha256).hexdigest()


def read_secret(data: bytes, what: str) -> bytes:
    """A secret as a file has it: `whsec_` and base64, or the bytes themselves without space around them."""
    text = data.strip()
    if not text.startswith(WHSEC):
        return text
    coded = text.removeprefix(WHSEC)
    try:
        # Some senders leave the padding out, without which the decoder refuses it.
        secret = base64.b64decode(coded + b"=" * (-len(coded) % 4), validate=True)
    except binascii.Error as error:
        raise errors.BadInput(f"{what}: what stands behind whsec_ is not base64") from error
    if len(secret) < limits.WEBHOOK_STANDARD_SECRET_BYTES_MIN:
        raise errors.BadInput(f"{what}: a whsec_ secret has {limits.WEBHOOK_STANDARD_SECRET_BYTES_MIN} bytes at least")
    return secret


def time_in(value: Any, field: str) -> int:
    """The timestamp in a body: Unix seconds, or a date and time with its zone, in a field (`data.created`)."""
    found = value
    for name in field.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    if isinstance(found, int | float) and not isinstance(found, bool):
        return int(found)
    try:
        there = dt.datetime.fromisoformat(found) if isinstance(found, str) else None
    except ValueError:
        there = None
    # Without a zone it would be read in the zone of this machine.
    if there is None or there.tzinfo is None:
        raise Malformed(f"the body has no timestamp in {field}: Unix seconds, or a date and time with a zone")
    return int(there.timestamp())


def _id(headers: Mapping[str, str], name: str) -> str:
    id = headers.get(name, "")
    if not _ID.fullmatch(id):
        raise Malformed(f"no id: send one, in visible ASCII, in the header {name}")
    return id


def _timestamp(headers: Mapping[str, str], name: str) -> int:
    text = headers.get(name, "")
    if not _TIMESTAMP.fullmatch(text):
        raise Malformed(f"no timestamp: send Unix seconds in the header {name}")
    return int(text)


def _texts(signatures: Iterable[str]) -> list[bytes]:
    found = [each.encode("latin-1") for each in signatures if each]
    if len(found) > limits.WEBHOOK_SIGNATURES_MAX:
        raise Malformed(f"more than {limits.WEBHOOK_SIGNATURES_MAX} signatures")
    return found
