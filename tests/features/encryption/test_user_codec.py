"""Codecs of users' own: called for what is sealed, and kept from doing harm."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.features.encryption import encrypted
from tests.features.encryption.encrypted import SECRET, Notes, app, live, opened
from worldline.base import errors
from worldline.host.feature_list import FEATURES
from worldline.runtime import store_opening


class Reversing:
    """Not a good one. It notes what it is told."""

    def __init__(self, name: str = "reversing") -> None:
        self.name = name
        self.told: list[wl.ops.CodecContext] = []

    def encode(self, data: bytes, context: wl.ops.CodecContext) -> bytes:
        self.told.append(context)
        return data[::-1]

    def decode(self, data: bytes, context: wl.ops.CodecContext) -> bytes:
        return data[::-1]


async def test_a_codec_of_ones_own(place: str, tmp_path: Path) -> None:
    own, objects = Reversing(), str(tmp_path / "objects")
    async with opened(place, own, host=app, objects=objects) as universe:
        world = await live(universe)
        at = await world._handle.address()
    assert {b"", at.world} < {context.world for context in own.told}
    assert {context.universe for context in own.told} == {b"", at.universe}
    async with opened(place, Reversing(), programs=app, objects=objects) as universe:
        assert len((await universe.world("w").state(Notes)).texts) == 2
        found = await encrypted.everything(universe._connection.store)
        assert [key for key, value in found.items() if SECRET.encode() in value] == []
    with pytest.raises(errors.CodecMismatch, match="does not decode what this store was encoded with"):
        await store_opening.open_store(place, codec=Keeping("reversing"), features=FEATURES)


class Keeping(Reversing):
    """Another codec under the same name."""

    def encode(self, data: bytes, context: wl.ops.CodecContext) -> bytes:
        return data

    def decode(self, data: bytes, context: wl.ops.CodecContext) -> bytes:
        return data


class Broken(Reversing):
    """Does `instead` in place of encode or decode, from when it is told to."""

    def __init__(self, call: str, instead: Any, *, name: str = "broken", broken: bool = True) -> None:
        super().__init__(name)
        self.broken = broken
        self._call, self._instead = call, instead

    def encode(self, data: bytes, context: wl.ops.CodecContext) -> bytes:
        made: bytes = self._instead(data) if self.broken and self._call == "encode" else data[::-1]
        return made

    def decode(self, data: bytes, context: wl.ops.CodecContext) -> bytes:
        made: bytes = self._instead(data) if self.broken and self._call == "decode" else data[::-1]
        return made


def _raise(data: bytes) -> bytes:
    raise KeyError("no such key")


BROKEN: list[tuple[str, str, Any, str]] = [
    ("raises", "encode", _raise, "raised KeyError: 'no such key'"),
    ("returns text", "encode", lambda data: data.hex(), "encoded bytes as str"),
    ("returns nothing", "encode", lambda data: None, "encoded bytes as NoneType"),
    ("loses bytes", "encode", lambda data: data[:-1], "does not decode what it has encoded"),
    ("is too long", "encode", lambda data: data[::-1] + b" " * 2000, "does not decode|is the limit"),
    ("cannot decode", "decode", _raise, "raised KeyError"),
    ("decodes to something else", "decode", lambda data: b"other", "does not decode what it has encoded"),
]


@pytest.mark.parametrize(("call", "instead", "said"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
async def test_a_codec_that_fails_writes_nothing(tmp_path: Path, call: str, instead: Any, said: str) -> None:
    own = Broken(call, instead, broken=False)
    async with opened(tmp_path, own, create=True) as universe:
        before = await encrypted.everything(universe._connection.store)
        own.broken = True
        with pytest.raises(errors.CodecFailed, match=said):
            await universe.ensure("w", app)
        with pytest.raises(errors.CodecFailed, match=said):
            await universe._connection.store.objects.put(f"{universe._connection.id.hex()}/cas/aa/1-1", b"body")
        own.broken = False
        assert await encrypted.everything(universe._connection.store) == before


def test_what_is_no_codec_is_refused(tmp_path: Path) -> None:
    wrong: list[tuple[Any, str]] = [(object(), "codec= takes"), (type("C", (), {"name": "c"})(), "lacks encode")]
    for given, said in wrong:
        with pytest.raises(errors.BadInput, match=said):
            asyncio.run(store_opening.open_store(str(tmp_path), codec=given, features=FEATURES))
