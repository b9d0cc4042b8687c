"""The seam of a feature that encodes what stores are given: `Feature.wrap_store`, which encryption fills.

A store is opened with a codec, or without one. Its marker is checked first (`layers/store_format.py`). Then its engine
and its objects are wrapped; a store without a codec is used as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from worldline.base.env import Env
from worldline.layers import store_format
from worldline.store import kv
from worldline.store.objects import cached_objects, objects_interface


class StoreCodec(Protocol):
    """What users encode a store with. The core knows its name alone."""

    @property
    def name(self) -> str:
        """The name under which a store remembers it."""


class StoreWrapping(Protocol):
    """How the values of one opened store are encoded."""

    def wrap_engine(self, bare: kv.Engine) -> kv.Engine:
        """The engine, with values that are encoded on their way in and decoded on their way out."""

    def wrap_objects(self, bare: objects_interface.Objects, engine: kv.Engine) -> objects_interface.Objects:
        """The objects, likewise. `engine`: the bare one."""

    def cache_cipher(self) -> cached_objects.CacheSealer:
        """What seals blobs that are cached on disk."""


class WrapStore(Protocol):
    """What encodes stores, by the codecs that they are opened with."""

    def marker(self, codec: StoreCodec | None) -> store_format.EncodingMarker:
        """What a store that is opened so says of itself; without a codec, it is plain. `BadInput` if it is no codec."""

    async def wrapping(self, engine: kv.Engine, env: Env, codec: StoreCodec) -> StoreWrapping:
        """How the values of this store are encoded. Its marker was checked, and fits the codec."""

    def read_codec(self, path: Path) -> StoreCodec:
        """The codec that a key file is for, as the command line names one."""
