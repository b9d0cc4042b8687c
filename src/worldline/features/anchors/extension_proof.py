"""Proofs that one anchor's history continues another's, for a reader with the two anchors and no store.

The chain digest of a step is H(previous chain, H(entries, digest of the changes)). So the proof is the digest of each
step between the two, and the last step itself, which says its own height. Hashed on from the older anchor's chain they
give the newer one's, or the proof is wrong. `tools/check_anchor.py` does so, without this package.

It needs the entries above the older anchor, or the digests of what they changed: made in time, it stays good when
entries are not kept any more.
"""

from __future__ import annotations

import json
from typing import Final

import msgspec

from worldline.base import errors
from worldline.client.world_handle import Handle
from worldline.features.anchors import anchor_check
from worldline.features.anchors.records import Anchor
from worldline.layers import journal as journals
from worldline.layers.history import step_reader

FORMAT: Final = "worldline-proof-1"
KIND: Final = "extension"


class Extension(msgspec.Struct, frozen=True):
    """`previous`: the older chain. `steps`: the digests of the steps above it but the last one, of which `entries` are
    the bytes, the chain field of the last empty, and `changes` the digest. Height, step and `chain` are the newer ones.
    """

    previous: bytes
    steps: list[bytes]
    entries: list[bytes]
    changes: bytes
    height: int
    step: int
    chain: bytes

    def text(self) -> str:
        """The file. Every byte of it counts, as in other proofs."""
        said = {
            "format": FORMAT,
            "kind": KIND,
            "previous": self.previous.hex(),
            "changes": self.changes.hex(),
            "steps": [each.hex() for each in self.steps],
            "entries": [each.hex() for each in self.entries],
        }
        return json.dumps(said, indent=1, sort_keys=True) + "\n"


async def prove(world: Handle, older: Anchor, *, up_to: int | None = None) -> Extension:
    """The proof that the history continues from an anchor to the head, or to the step end at or below a height."""
    found = await anchor_check.check(world, older)
    if not found.holds:
        raise errors.BadInput(
            f"the history of {world.name!r} does not go on from the anchor ({found.verdict}): {found.why}"
        )
    # Up to the head that was checked: the world may have made steps since.
    end = found.height if up_to is None else min(up_to, found.height)
    last: anchor_check.Passed | None = None
    steps: list[bytes] = []
    async for passed in anchor_check.steps_above(world, anchor_check.anchored_head(older), end):
        # The last step is given whole, because it says its own height; for the others a digest is enough.
        if last is not None:
            steps.append(journals.step_digest(step_reader.hashed(last.step), last.covered))
        last = passed
    if last is None:
        raise errors.BadInput(f"no step ends above height {older.height} and up to {end}: there is nothing to prove")
    entries, head = step_reader.hashed(last.step), last.head
    previous = bytes.fromhex(older.chain)
    return Extension(previous, steps, entries, last.covered, head.height, head.step, head.chain)
