"""Anchors of a world, as users ask for them. `World` has these methods."""

from __future__ import annotations

from worldline.client.world_handle import Handle
from worldline.features.anchors import anchor_check
from worldline.features.anchors.anchor_check import AnchorCheck
from worldline.features.anchors.anchor_signature import SigningKey
from worldline.features.anchors.records import Anchor


class Anchored:
    """What of a world concerns where its history stood."""

    _handle: Handle

    async def anchor(self, *, sign: SigningKey | None = None) -> Anchor:
        """Note where its history stands, to be kept outside of the store: `str(anchor)` is a line of JSON."""
        return await anchor_check.make(self._handle, sign)

    async def check_anchor(self, anchor: Anchor | str, /, *, key: str = "") -> AnchorCheck:
        """Check whether its history goes on from an anchor, or what was done to it. `key`: the public key, in
        hexadecimal digits, that must have signed it.
        """
        return await anchor_check.check(self._handle, anchor, key)
