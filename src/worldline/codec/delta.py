"""Deltas: bytes in terms of other bytes, which the reader has too; and bytes compressed by themselves.

A delta is a zstandard frame whose dictionary is the old image. It says how long the new one is, and nothing longer is
ever made of it: a reader names the length it expects. Compressors differ between versions, so nothing is compared that
was made here; what was compressed is.
"""

from __future__ import annotations

from typing import Final

import zstandard

from worldline.base import errors, limits

_LEVEL: Final = 3


def encode(image: bytes, base: bytes) -> bytes:
    """`image` in terms of `base`."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL,
        source_size=len(image),
        dict_size=len(base),
        write_dict_id=False,
        write_checksum=False,  # what is made is checked by its sha256
        write_content_size=True,
    )
    return zstandard.ZstdCompressor(compression_params=parameters, dict_data=_dictionary(base)).compress(image)


def decode(data: bytes, base: bytes, *, length: int) -> bytes:
    """The image of this length. `DecodeError` for anything else; no more than `length` bytes are ever made."""
    if not 0 <= length <= limits.CBOR_BYTES_MAX:
        raise errors.DecodeError(f"a delta of {length} bytes; the limit is {limits.CBOR_BYTES_MAX}")
    try:
        # Before anything is unpacked: a frame may say that it makes far more than belongs here.
        declared = zstandard.frame_content_size(data)
        if declared != length:
            raise errors.DecodeError(f"a delta that makes {declared} bytes where {length} belong")
        made: bytes = zstandard.ZstdDecompressor(dict_data=_dictionary(base)).decompress(
            data, max_output_size=length, allow_extra_data=False
        )
    except (zstandard.ZstdError, ValueError) as error:
        raise errors.DecodeError(f"not a delta: {error}") from None
    if len(made) != length:
        raise errors.DecodeError(f"a delta that makes {len(made)} bytes where {length} belong")
    return made


def pack(data: bytes) -> bytes:
    """`data`, compressed."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=False, write_content_size=True).compress(data)


def unpack(data: bytes, *, length: int) -> bytes:
    """What was packed, of this length. `DecodeError` for anything else; no more than `length` bytes are ever made."""
    try:
        if zstandard.frame_content_size(data) != length:
            raise errors.DecodeError(f"compressed bytes that do not make {length}")
        made: bytes = zstandard.ZstdDecompressor().decompress(data, max_output_size=length, allow_extra_data=False)
    except (zstandard.ZstdError, ValueError) as error:
        raise errors.DecodeError(f"not compressed bytes: {error}") from None
    if len(made) != length:
        raise errors.DecodeError(f"compressed bytes that make {len(made)} where {length} belong")
    return made


def _dictionary(base: bytes) -> zstandard.ZstdCompressionDict:
    # Any row may be a base: its bytes must not be looked at for the header of a trained dictionary.
    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
