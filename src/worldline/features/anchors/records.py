"""Anchors: where a world's history stood, in a line that is kept outside of the store.

The chain digest of a head covers all entries below it. A person who keeps one elsewhere can tell later whether the
world still has that history. The line is JSON, written in one way only: keys sorted, no spaces. A signature is over the
line without it, so it covers the key, too (`docs/format.md`).
"""

from __future__ import annotations

import json
from typing import Final

import msgspec

from worldline.base import errors, limits
from worldline.model import ids

FORMAT: Final = "worldline-anchor-1"
LINE_BYTES_MAX: Final = 4 * limits.KIB
KEY_BYTES: Final = 32  # of a public key, and of a private one (Ed25519)
SIGNATURE_BYTES: Final = 64
_NUMBER_MAX: Final = 2**63 - 1


class Anchor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A world's head at a time. Ids, digests, the public key and the signature are hexadecimal digits; the last two are
    empty if it is not signed. `name` is for people: the ids say which world it is.
    """

    universe: str
    world: str
    name: str
    step: int
    height: int
    chain: str
    time_us: int
    key: str = ""
    signature: str = ""

    def __post_init__(self) -> None:
        sizes = ((self.universe, limits.ID_BYTES), (self.world, limits.ID_BYTES), (self.chain, limits.DIGEST_BYTES))
        if self.key or self.signature:
            sizes += ((self.key, KEY_BYTES), (self.signature, SIGNATURE_BYTES))  # type: ignore[assignment]
        if not all(_is_hex(text, size) for text, size in sizes):
            raise ValueError("ids, digests, keys and signatures are lower-case hexadecimal digits, all of them")
        if not (0 <= self.step <= self.height <= _NUMBER_MAX and 0 <= self.time_us <= _NUMBER_MAX):
            raise ValueError("a step has at least one entry, and both count from 0")
        try:
            ids.check_name(self.name, "a world's name")
        except errors.BadInput as error:
            raise ValueError(str(error)) from error

    def __str__(self) -> str:
        return line(self)

    @property
    def is_signed(self) -> bool:
        """Whether a key has signed it."""
        return bool(self.key)


class _Line(Anchor, frozen=True, forbid_unknown_fields=True):
    format: str = ""


def line(anchor: Anchor) -> str:
    """The anchor, as it is kept."""
    found = {"format": FORMAT, **msgspec.structs.asdict(anchor)}
    return json.dumps(
        {key: value for key, value in found.items() if value != ""}, sort_keys=True, separators=(",", ":")
    )


def signed_bytes(anchor: Anchor, key: str) -> bytes:
    """What a key signs: the line without the signature."""
    found = {"format": FORMAT, **msgspec.structs.asdict(anchor), "key": key}
    del found["signature"]
    return json.dumps(found, sort_keys=True, separators=(",", ":")).encode()


def read(data: bytes) -> Anchor:
    """The anchor of a line. `BadAnchor` if it is none, or is written in another way."""
    # Before it is decoded: a line comes from elsewhere, and may have any size.
    if len(data) > LINE_BYTES_MAX:
        raise errors.BadAnchor(f"no anchor: a line of {len(data)} bytes")
    try:
        found = msgspec.json.decode(data, type=_Line, strict=True)
        anchor = Anchor(**{name: getattr(found, name) for name in Anchor.__struct_fields__})
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise errors.BadAnchor(f"no anchor: {error}") from None
    # An anchor has one line alone: what a signature covers must not have two forms.
    if line(anchor).encode() != data or found.format != FORMAT:
        raise errors.BadAnchor(f"no anchor: not written as one of {FORMAT} is")
    return anchor


def read_all(data: bytes) -> list[Anchor]:
    """The anchors of a file, one on each line."""
    return [read(each) for each in data.split(b"\n") if each]


def _is_hex(text: str, size: int) -> bool:
    return len(text) == 2 * size and all(each in "0123456789abcdef" for each in text)
