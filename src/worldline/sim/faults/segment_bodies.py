"""Segments that are damaged before they are stored: by memory, or by a compressor that is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from worldline.layers.history import segment_body
from worldline.sim.faults.faulty_store import Faults


@contextlib.contextmanager
def damaged(faults: Faults) -> Iterator[None]:
    """For the length of a block, some bodies have one bit turned over. Their address is that of the damaged bytes."""
    real = segment_body.SegmentBuilder.body

    def body(writer: segment_body.SegmentBuilder) -> bytes:
        made = real(writer)
        if not faults.hit(faults.profile.bodies, faults.loop.host_of(None), "segment damaged", "write"):
            return made
        # Before it is addressed: the digest is right, so only reading the segment back finds it.
        return made[:-1] + bytes([made[-1] ^ 1])

    with mock.patch.object(segment_body.SegmentBuilder, "body", body):
        yield
