"""What `doctor` finds of worlds whose key was destroyed: whether a copy of the key was put back."""

from __future__ import annotations

from worldline.features.encryption import batches as encryption_batches
from worldline.features.erasure import ledger_entries
from worldline.features.erasure.records import ErasedKind
from worldline.layers import worlds
from worldline.model import ids
from worldline.store import kv


async def names_with_key_put_back(engine: kv.Engine, universe: ids.UniverseId) -> list[str]:
    """Return the names of worlds whose key was destroyed, as the ledger says, and is there again."""
    found: list[str] = []
    for each in await ledger_entries.read_all(engine):
        if each.kind is not ErasedKind.KEY or each.universe != universe:
            continue
        at = ids.Address(universe, ids.WorldId(each.world))
        read = await engine.read(encryption_batches.get(at), worlds.get(at))
        raw, world = read.value(0), worlds.find(at, read.value(1))
        # The record of a data key is bound to its place alone: an old copy of it is accepted there without any key.
        if raw is not None and world is not None and not encryption_batches.is_destroyed(raw):
            found.append(world.meta.name)
    return found
