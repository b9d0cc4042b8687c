"""The index of a world's segments."""

from __future__ import annotations

import pytest

from tests.layers.histories import AT
from worldline.base import errors
from worldline.keys import segments as keys
from worldline.layers.history import segment_index
from worldline.model.journal import Segment
from worldline.store import kv

RECORD = Segment(1, 7, 1, 3, bytes(32), 100, False)
LAST = segment_index.Indexed(RECORD, keys.SEGMENT.pack(RECORD))


def test_the_last_segment() -> None:
    page = kv.Page([(keys.segment_key(AT, 7), LAST.raw)], more=False, stable=kv.ZERO_STAMP)
    assert segment_index.decode_last(AT, page) == LAST
    assert segment_index.decode_last(AT, kv.Page([], more=False, stable=kv.ZERO_STAMP)) is None
    with pytest.raises(errors.DecodeError, match="filed elsewhere"):
        segment_index.decode_last(AT, kv.Page([(keys.segment_key(AT, 8), LAST.raw)], more=False, stable=kv.ZERO_STAMP))
