"""Looking for a secret in everything that a store holds: keys, values, objects, and what is compressed in them."""

from __future__ import annotations

from collections.abc import Iterator

import zstandard

from tests.kits.kit import Kit
from worldline.store import kv

_ZSTD = b"\x28\xb5\x2f\xfd"
_BYTES_MAX = 64 * 1024 * 1024


async def everything(kit: Kit) -> list[tuple[str, bytes]]:
    """Every key with its value, and every object with its body."""
    engine = await kit.engine()
    found: list[tuple[str, bytes]] = []
    begin = b"\x00"
    while True:
        page = (await engine.read(kv.Range(begin, b"\xff", count_max=500))).page(0)
        found += [(key.hex(), key + value) for key, value in page.items]
        if not page.more:
            break
        begin = page.items[-1][0] + b"\x00"
    await engine.close()
    bodies = await kit._bodies()
    found += [(each.name, await bodies.get(each.name)) for each in await bodies.list("", count_max=10_000)]
    return found


async def places(kit: Kit, *secrets: str) -> list[str]:
    """Where one of these texts stands, as it is or compressed."""
    wanted = [each.encode() for each in secrets]
    return [
        name for name, data in await everything(kit) if any(each in form for form in _forms(data) for each in wanted)
    ]


def _forms(data: bytes) -> Iterator[bytes]:
    yield data
    at = data.find(_ZSTD)
    while at >= 0:
        try:
            reading = zstandard.ZstdDecompressor().decompressobj()
            yield reading.decompress(data[at:])
        except zstandard.ZstdError:
            pass
        at = data.find(_ZSTD, at + 1)
