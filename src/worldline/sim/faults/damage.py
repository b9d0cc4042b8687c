"""Changes of steps that are damaged on the way to a host: one bit of them, under a checksum that is right.

So no reader of entries notices, and no checksum does: only the digests over the changes tell. A world is damaged a few
times in a row at most; afterwards its bytes are whole again.
"""

from __future__ import annotations

import random

import msgspec

from worldline.base import errors
from worldline.codec import frame
from worldline.keys import journal as journal_keys
from worldline.keys import space
from worldline.sim.runtime import keyspaces
from worldline.store import kv

IN_A_ROW_MAX = 2


class Damage:
    def __init__(self, seed: int) -> None:
        self._draws = random.Random(f"{seed}:damage")
        self._in_a_row: dict[bytes, int] = {}  # of each world

    def may_hit(self, request: kv.Request) -> bool:
        """Whether it asks for frames that have not been damaged too often. Asked once for each read."""
        if not isinstance(request, kv.Range) or not keyspaces.is_journal(request.begin):
            return False
        world = self._world(request)
        if self._in_a_row.get(world, 0) < IN_A_ROW_MAX:
            return True
        self._in_a_row[world] = 0  # bounded in a row: a reader that reads again must get whole bytes in the end
        return False

    def hit(self, request: kv.Request, page: kv.Page) -> kv.Page:
        """The answer with one bit of the changes of one frame turned over."""
        assert isinstance(request, kv.Range)
        found = [index for index, (_, raw) in enumerate(page.items) if _changes_of(raw)]
        if not found:
            return page
        world, index = self._world(request), self._draws.choice(found)
        self._in_a_row[world] = self._in_a_row.get(world, 0) + 1
        key, raw = page.items[index]
        size = _changes_of(raw)
        place = len(raw) - self._draws.randint(1, size)
        damaged = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
        items = list(page.items)
        # Wrapped again, so the checksum is right: only the digests over the changes can find this.
        items[index] = (key, frame.wrap(space.ValueKind.JOURNAL, damaged[frame.OVERHEAD_BYTES :]))
        return msgspec.structs.replace(page, items=items)

    def _world(self, request: kv.Range) -> bytes:
        at = keyspaces.place(request.begin).at
        assert at is not None
        return at.world


def _changes_of(raw: bytes) -> int:
    """Return how many bytes at the end of a frame are changes."""
    try:
        read = journal_keys.unpack_frame(raw)
    except errors.Corrupt:  # a frame that is damaged already is left as it is
        return 0
    return len(read.changes) if read.entries else 0
