"""Proofs that one entry is part of a world's history, for a reader with the chain digest and nothing else.

The chain digest of a step is H(previous chain, H(entries, digest of the changes)). So the proof of an entry is its
whole step, the chain before it, and the digest of each later step up to the head. Hashed together they give the chain
digest of the head, or the proof is wrong. `tools/check_proof.py` does so, without this package. `docs/format.md` has
the format.

What is proved is that the world whose chain digest is known has this entry at this height. The digest says nothing of
the world's name: it has to come from where it can be trusted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from worldline.base import errors
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.layers import journal as journals
from worldline.layers import snapshots as snapshot_layer
from worldline.layers.history import history_line, journal_pages, saved_state, step_reader
from worldline.model import ids, journal
from worldline.runtime import world_reader, world_restore

FORMAT: Final = "worldline-proof-1"
ENTRY: Final = "entry"  # "state": one row (`row_proof.py`)


class Inclusion(msgspec.Struct, frozen=True):
    """A proof of one entry. `entries`: the bytes of its whole step, the last one's chain field empty; `place`: which of
    them it is, counted from 0. `payload`: of the entry, if that is stored apart. `later`: the digest of each step
    behind it, up to the head, whose chain is `chain`.
    """

    height: int
    place: int
    step: int
    previous: bytes
    entries: list[bytes]
    changes: bytes
    later: list[bytes]
    payload: bytes
    chain: bytes

    def text(self) -> str:
        """The file."""
        own = {"height": self.height, "place": self.place, "payload": self.payload.hex()}
        return written({"format": FORMAT, "kind": ENTRY, **self.step_fields(), **own})

    def step_fields(self) -> dict[str, Any]:
        """What shows that its step is part of the history."""
        return {
            "previous": self.previous.hex(),
            "entries": [each.hex() for each in self.entries],
            "changes": self.changes.hex(),
            "later": [each.hex() for each in self.later],
        }


def written(proof: dict[str, Any]) -> str:
    """A proof as a file. Every byte of it counts: the keys are sorted, and the spaces and line ends are these."""
    return json.dumps(proof, indent=1, sort_keys=True) + "\n"


async def prove_entry(world: Handle, height: int, *, up_to: int | None = None) -> Inclusion:
    """The proof of the entry at a height, for the chain digest of the head, or of the last step end at or below the
    height `up_to`. The chain is recomputed all the way.
    """
    connection = world.connection
    engine, run = connection.store.engine, asyncio.get_running_loop().run_in_executor
    top = (await world.head()).height
    for wanted in (height, top if up_to is None else up_to):
        if not 1 <= wanted <= top:
            raise errors.BadInput(f"world {world.name!r} has no entry {wanted}: its heights are 1 to {top}")
    end = top if up_to is None else up_to
    line = await world_reader.line_of(engine, await world.address())
    walk = _Walk(height, await _head_below(connection, line, height))
    pages = world_restore.step_pages(engine, connection.blobs, line, above=walk.head.height, up_to=end, changes=False)
    async for page in pages:
        loaded: dict[bytes, bytes] = {}
        steps = await world_restore.load_changes(connection.blobs, page, loaded)
        await run(connection.executor, walk.take, steps, loaded)
    if walk.step is None:
        raise errors.BadInput(f"the step of height {height} has not ended at height {end}: name a later one")
    entry = next(each for each in walk.step.entries() if each.height == height)
    payload = await connection.blobs.get(ids.Digest(entry.blob)) if entry.blob else b""
    place = height - walk.step.first_height
    return Inclusion(
        height, place, entry.step, walk.previous, walk.entries, walk.changes, walk.later, payload, walk.head.chain
    )


async def _head_below(connection: Connection, line: history_line.HistoryLine, height: int) -> journal.Head:
    """That of a snapshot below an entry, or that from which on entries are kept. `NotRetained` if this one is not."""
    engine = connection.store.engine
    kept = await journal_pages.kept(engine, line)
    if height <= kept.above:
        raise journal_pages.gone(height, kept.above)
    try:
        saved = await world_reader.saved_below(engine, line, height - 1)
    except errors.NotRetained:
        if kept.head is None or not kept.above:
            raise
        # The head where entries begin serves as a snapshot: only its chain is needed.
        return kept.head
    header = await saved_state.header_of(connection.blobs, saved.root)
    return snapshot_layer.head_of(saved, state=header.state)


class _Walk:
    """From a snapshot below the entry to the head. The digests of changes suffice: they may have been dropped."""

    def __init__(self, height: int, head: journal.Head) -> None:
        self._height = height
        self.head = head
        self.step: step_reader.StoredStep | None = None  # the entry's
        self.previous = b""
        self.entries: list[bytes] = []
        self.changes = b""
        self.later: list[bytes] = []

    def take(self, steps: Sequence[step_reader.StoredStep], loaded: Mapping[bytes, bytes]) -> None:
        blobs = dict(loaded)
        for step in steps:
            covered = step_reader.covered(step, blobs)
            before, self.head = self.head, step_reader.link(self.head, step, covered)
            if step.height < self._height:
                continue  # only linked: the proof begins at its own step
            if self.step is None:
                self.step, self.previous, self.changes = step, before.chain, covered
                self.entries = step_reader.hashed(step)
            else:
                self.later.append(journals.step_digest(step_reader.hashed(step), covered))
