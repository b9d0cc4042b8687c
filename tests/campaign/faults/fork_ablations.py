"""Guards of forks and of compaction that can be switched off, in simulation alone: what `ablations` has no room for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from worldline.features.compaction import segment_writer
from worldline.features.deletion import batches as deletion_batches
from worldline.features.forks import share_effect
from worldline.kernel import run_requests as kernel_work
from worldline.kernel.authoring.calls import Effect
from worldline.kernel.rows.branch_rows import Branch
from worldline.kernel.rows.row_records import Outcome
from worldline.keys import lineage as lineage_keys
from worldline.layers import blobs as blob_layer
from worldline.layers import journal as journals
from worldline.model import ids
from worldline.sim.runtime import keyspaces
from worldline.store import kv
from worldline.worker import first_steps


@contextlib.contextmanager
def patched(without: str) -> Iterator[None]:
    """One of these guards, switched off for the length of a block; nothing for any other."""
    match without:
        case "fork-ids":
            _roots.clear()
            with mock.patch.object(ids, "intent_id", _of_root(ids.intent_id)):
                yield
        case "fork-begins":
            with mock.patch.object(first_steps, "begin_fork", _nothing):
                yield
        case "dry":
            with mock.patch.object(kernel_work, "DRY", ""):
                yield
        case "share-from-fork":
            with mock.patch.object(share_effect, "share", _from_head(share_effect.share)):
                yield
        case "read-back":
            with mock.patch.object(segment_writer.SegmentWriter, "check", _nothing):
                yield
        case "delete-fence":
            with mock.patch.object(deletion_batches, "fence", return_value=None):
                yield
        case "script-position":
            with mock.patch.object(Branch, "answer", _unnoted):
                yield
        case _:
            yield


async def _nothing(*_: object) -> None:
    pass


_roots: dict[bytes, bytes] = {}  # of forks: the world that they all come from


def note_root(batch: kv.Batch) -> None:
    for key, put in batch.puts.items():
        where = keyspaces.place(key)
        if where.what == "lineage" and where.at is not None:
            parent = lineage_keys.LINEAGE.unpack(put.value).parent
            _roots[where.at.world] = _roots.get(parent, parent)


def _of_root(real: Callable[..., ids.IntentId]) -> Callable[..., ids.IntentId]:
    def of_root(address: ids.Address, **rest: object) -> ids.IntentId:
        return real(ids.Address(address.universe, ids.WorldId(_roots.get(address.world, address.world))), **rest)

    return of_root


def _from_head(real: Callable[..., Effect[..., list[Any]]]) -> Callable[..., Effect[..., list[Any]]]:
    """The parent's journal is looked through from where it ends when that is first looked at."""

    def made(engine: kv.Engine, blobs: blob_layer.Blobs, universe: ids.UniverseId) -> Effect[..., list[Any]]:
        effect = real(engine, blobs, universe)
        inside = effect.function

        async def answer(world: bytes, intent: bytes, above: int, given_up: list[Any], by_hand: list[Any]) -> list[Any]:
            at = ids.Address(universe, ids.WorldId(world))
            above = max(above, journals.decode_head((await engine.read(journals.get_head(at))).value(0)).height)
            found: list[Any] = await inside(world, intent, above, given_up, by_hand)
            return found

        return Effect(answer, effect.name, {}, timeout=None, concurrency=share_effect.CONCURRENCY, retry=effect.retry)

    return made


def _unnoted(self: Branch, name: str, arguments: dict[str, Any], *, ask: bool = False) -> Outcome | None:
    """A script that is used up in memory alone."""
    for rule in self.rules:
        if rule.fits(name, arguments, ask=ask):
            rule.use()
            return Outcome(rule.status, rule.data)
    return None
