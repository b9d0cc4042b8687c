"""Making an anchor of a world, and telling whether the world still has the history that an anchor is of.

A history that continues from the anchor has its chain digest at its height, and every later step leads on from there to
the head: both are looked at. Where it does not, there are three words for what was done to it:

* `rewritten`: there is another entry at that height, or another one below it;
* `rolled_back`: the world ends below the anchor, and nothing speaks of more: it is as it was before, as from a backup;
* `truncated`: it ends below the anchor, and its own records speak of more: its end was lost or taken away.

If the entry is not kept any more, nothing can be said of it (`not_kept`): the chain is known from where entries are
kept on. An anchor of that very height or a later one can be checked.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Sequence

import msgspec

from worldline.base import errors, limits
from worldline.client.world_handle import Handle
from worldline.features.anchors import anchor_signature
from worldline.features.anchors import records as anchors
from worldline.features.anchors.anchor_signature import SigningKey
from worldline.features.anchors.records import Anchor
from worldline.layers import journal as journals
from worldline.layers.history import history_line, journal_pages, step_reader
from worldline.model import ids, journal
from worldline.runtime import world_reader, world_restore
from worldline.store import frozen_engine as frozen
from worldline.store import kv


class AnchorVerdict(enum.StrEnum):
    """What became of the history that an anchor is of."""

    HOLDS = "holds"
    REWRITTEN = "rewritten"
    ROLLED_BACK = "rolled_back"
    TRUNCATED = "truncated"
    NOT_KEPT = "not_kept"


class AnchorCheck(msgspec.Struct, frozen=True):
    """What was found. `height`: of the world now; `why`: for people."""

    verdict: AnchorVerdict
    anchor: Anchor
    height: int
    why: str

    @property
    def holds(self) -> bool:
        """Whether the history goes on from the anchor."""
        return self.verdict is AnchorVerdict.HOLDS


async def make(world: Handle, sign: SigningKey | None = None) -> Anchor:
    """The anchor of a world's head, now."""
    connection, at = world.connection, await world.address()
    read = await connection.store.engine.read(journals.get_head(at))
    head = journals.decode_head(read.value(0))
    made = Anchor(at.universe.hex(), at.world.hex(), world.name, head.step, head.height, head.chain.hex(), read.time_us)
    return made if sign is None else sign.sign(made)


async def check(world: Handle, anchor_or_line: Anchor | str, key: str = "") -> AnchorCheck:
    """Whether the world's history goes on from an anchor, or the line of one. `BadInput` if that is of another world;
    `BadAnchor` if it is not signed as it should be; `Corrupt` if what is stored above it is damaged.
    """
    anchor = anchor_or_line if isinstance(anchor_or_line, Anchor) else anchors.read(anchor_or_line.strip().encode())
    # First of all: a forged anchor says nothing about any world.
    anchor_signature.check_signature(anchor, key)
    at = await world.address()
    if (anchor.universe, anchor.world) != (at.universe.hex(), at.world.hex()):
        raise errors.BadInput(
            f"the anchor is of world {anchor.name!r} with the id {anchor.world}; {world.name!r} is {at.world.hex()}"
        )
    engine = world.connection.store.engine
    # Of one moment: a world that runs may go on between a look at its head and one at its states.
    frozen_engine = frozen.FrozenEngine(await kv.freeze(engine))
    try:
        line = await world_reader.line_of(frozen_engine, at)
        head = journals.decode_head((await frozen_engine.read(journals.get_head(at))).value(0))
        found = await _ends(frozen_engine, line, anchor, head)
    finally:
        await frozen_engine.close()
    return found or await _above(world, line, anchor, head)


async def _above(world: Handle, line: history_line.HistoryLine, anchor: Anchor, head: journal.Head) -> AnchorCheck:
    """The same of a world that goes at least as far as the anchor."""
    found = await _end_at(world, line, anchor.height)
    if found is None:
        above = (await journal_pages.kept(world.connection.store.engine, line)).above
        why = f"entries up to height {above} are not kept any more: an anchor of height {above} or above can be checked"
        return AnchorCheck(AnchorVerdict.NOT_KEPT, anchor, head.height, why)
    step, chain = found
    if (step, chain.hex()) != (anchor.step, anchor.chain):
        has = f"step {step} ends there with the chain {chain.hex()}" if chain else "no step ends there"
        why = f"at height {anchor.height} it is another history: {has}; it was changed at or below that height"
        return AnchorCheck(AnchorVerdict.REWRITTEN, anchor, head.height, why)
    last = anchored_head(anchor)
    async for passed in steps_above(world, last, head.height):
        last = passed.head
    # The steps above the anchor must lead to the head: else what is stored there is damaged.
    if last.chain != head.chain:
        raise errors.DigestMismatch("the journal's head", expected=head.chain, actual=last.chain)
    return AnchorCheck(AnchorVerdict.HOLDS, anchor, head.height, f"the history goes on from height {anchor.height}")


async def _ends(
    engine: kv.Engine, line: history_line.HistoryLine, anchor: Anchor, head: journal.Head
) -> AnchorCheck | None:
    """What is to be said of a journal that does not reach the anchor: whether its own records speak of more."""
    at, above = line.at, min(anchor.height - 1, head.height)
    read = await engine.read(
        journals.read_range(at, above=above, bytes_max=limits.KIB), journal_pages.segment_range(at, above=above)
    )
    is_there = bool(read.page(0).items or read.page(1).items)
    if head.height >= anchor.height:
        # At or below the fork the entry is in the journal of a parent, which was not looked at here.
        if is_there or anchor.height <= line.forked_at:
            return None
        why = f"its head says height {head.height}, and no entry from {anchor.height} on is there"
        return AnchorCheck(AnchorVerdict.TRUNCATED, anchor, head.height, why)
    saved = [each.height for each in await world_reader.records(engine, line) if each.height > head.height]
    ends = f"it ends at height {head.height}"
    if saved or is_there:
        more = f"a state of height {saved[-1]} is" if saved else "entries above that are"
        why = f"{ends}, and {more} still there: the end of its journal is gone"
        return AnchorCheck(AnchorVerdict.TRUNCATED, anchor, head.height, why)
    why = f"{ends}, and the anchor is of height {anchor.height}: it is as it was before that, as from an older copy"
    return AnchorCheck(AnchorVerdict.ROLLED_BACK, anchor, head.height, why)


async def _end_at(world: Handle, line: history_line.HistoryLine, height: int) -> tuple[int, bytes] | None:
    """The step and the chain digest that the entry at a height says, empty if it ends no step; None if it is not kept
    any more.
    """
    if not height:
        return 0, journal.GENESIS.chain
    engine, blobs = world.connection.store.engine, world.connection.blobs
    kept = await journal_pages.kept(engine, line)
    if height <= kept.above:
        # The head where entries begin is kept, so that an anchor of this very height can be checked.
        end = kept.head if kept.above == height else None
        return None if end is None else (end.step, end.chain)
    [entry] = await journal_pages.entries(engine, blobs, line.at, above=height - 1, up_to=height)
    return entry.step, entry.chain


def anchored_head(anchor: Anchor) -> journal.Head:
    """The head that an anchor is of. State and time are not in it: a chain is recomputed without them."""
    nothing = bytes(limits.DIGEST_BYTES)
    return journal.Head(anchor.step, anchor.height, bytes.fromhex(anchor.chain), nothing, 0)


class Passed(msgspec.Struct, frozen=True):
    """A step that was passed, the digest of its changes, and the head behind it."""

    step: step_reader.StoredStep
    covered: bytes
    head: journal.Head


async def steps_above(world: Handle, head: journal.Head, up_to: int) -> AsyncIterator[Passed]:
    """All steps above a head up to a height, the chain recomputed. The digests of changes suffice."""
    connection = world.connection
    line = await world_reader.line_of(connection.store.engine, await world.address())
    pages = world_restore.step_pages(
        connection.store.engine, connection.blobs, line, above=head.height, up_to=up_to, changes=False
    )
    async for page in pages:
        loaded: dict[bytes, bytes] = {}
        for step in await world_restore.load_changes(connection.blobs, page, loaded):
            covered = step_reader.covered(step, loaded)
            head = step_reader.link(head, step, covered)
            yield Passed(step, covered, head)


def of_world(anchors: Sequence[Anchor], at: ids.Address) -> list[Anchor]:
    """Those of a world, the earliest first."""
    own = [each for each in anchors if (each.universe, each.world) == (at.universe.hex(), at.world.hex())]
    return sorted(own, key=lambda each: each.height)
