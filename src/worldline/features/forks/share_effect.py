"""The effect that finds a parent's answer: a fork that shares its parent's open work gets what the parent gets.

The parent's journal is read from the fork on: an answer that came before the fork was first run is found as well. The
first of these decides: the answer, that the parent has given the work up, that the parent is gone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from worldline.base import errors, probes
from worldline.base.bounded_map import BoundedMap
from worldline.effects import attempt as attempts
from worldline.features.forks import parent_answers
from worldline.kernel import part_inputs
from worldline.kernel.authoring.calls import Effect, Retry
from worldline.layers import blobs as blob_layer
from worldline.layers import journal as journals
from worldline.layers import work as works
from worldline.layers import worlds
from worldline.layers.history import history_line, journal_pages
from worldline.model import ids, journal
from worldline.runtime import world_restore
from worldline.store import kv

WAIT_MS = 1_000
LOOKS_MAX = 20  # of one attempt; the next one goes on behind them
CONCURRENCY = 128
KNOWN_MAX = 10_000


class NotAnsweredYet(errors.Error):
    """The parent has no answer so far."""

    code = "not_yet"


def _asking() -> ids.UniverseId:
    """The universe of the fork that asks, which is its parent's too."""
    claim = attempts.attempt().claim
    assert isinstance(claim, works.Open), "answers are shared under a claim"
    return claim.at.universe


def share(
    engine: kv.Engine, blobs_of: blob_layer.Of, asking: Callable[[], ids.UniverseId] = _asking
) -> Effect[..., list[Any]]:
    """`SHARE`, performed by reading the parent's journal. `asking`: the universe of the fork and its parent."""
    looked: BoundedMap[bytes, int] = BoundedMap(KNOWN_MAX)  # by intent: up to where there is no answer

    async def look(shared: parent_answers.SharedWork, at: ids.Address, above: int, up_to: int) -> list[Any] | None:
        """The answer, if it is among these entries. None too if the world is deleted while they are read."""
        blobs = blobs_of(at.universe)
        try:
            for step in _by_step(await world_restore.read_entries(engine, blobs, at, above=above, up_to=up_to)):
                loaded = await world_restore.load_referenced(blobs, step)
                whole = [world_restore.filled(each, loaded) for each in step]
                needed = parent_answers.needed(whole, shared)
                if needed is not None:
                    return parent_answers.said(whole, await blobs.load(needed), shared)
        except (errors.NotFound, errors.Corrupt):
            # Entries may go while they are read: that is an error only if the world is still there.
            if worlds.find(at, (await engine.read(worlds.get(at))).value(0)) is not None:
                raise
            probes.hit("share.deleted-meanwhile")
        return None

    async def answer(world: bytes, intent: bytes, above: int, given_up: list[Any], by_hand: list[Any]) -> list[Any]:
        shared = parent_answers.SharedWork(world, intent, above, given_up, by_hand)
        at = ids.Address(asking(), ids.WorldId(world))
        height = max(above, looked.get(intent, 0))
        for _ in range(LOOKS_MAX):
            read = await engine.read(journals.get_head(at), worlds.get(at))
            if worlds.find(at, read.value(1)) is None:  # what is left of its journal is being removed
                looked.pop(intent, None)
                return parent_answers.cancelled("the world that it was shared with is deleted")
            top = journals.decode_head(read.value(0))
            kept = (await journal_pages.kept(engine, history_line.HistoryLine(at))).above
            if height < kept:
                # Dropped entries may have had the answer, unless the work is open still.
                if (await engine.read(works.get(at, ids.IntentId(intent)))).value(0) is None:
                    return parent_answers.cancelled("the parent's entries since the fork are not kept any more")
                height = kept
            found = await look(shared, at, height, top.height)
            if found is not None:
                looked.pop(intent, None)
                return found
            height = top.height
            # The next attempt begins there, so no entry is read twice.
            looked[intent] = height
            # The head changes with each step: the wait ends when there may be something new.
            await engine.wait(journals.get_head(at).key, read.seen, WAIT_MS)
        raise NotAnsweredYet("the parent has no answer so far")

    return Effect(
        answer,
        part_inputs.SHARE,
        {},
        timeout=None,
        concurrency=CONCURRENCY,
        retry=Retry(attempts=None, initial_delay=0.1, max_delay=1.0),  # it waits for as long as the parent does
    )


def _by_step(entries: list[journal.JournalEntry]) -> Iterator[list[journal.JournalEntry]]:
    for _, step in itertools.groupby(entries, lambda entry: entry.step):
        yield list(step)
