"""Whether the key of a world was destroyed: then its history cannot be read, which is no damage."""

from __future__ import annotations

from worldline.features.encryption import batches
from worldline.model import ids
from worldline.runtime.feature_checks import HistoryCheck
from worldline.store import kv


class KeyKept(HistoryCheck):
    async def begin(self, engine: kv.Engine, at: ids.Address) -> None:
        batches.check_kept(at, (await engine.read(batches.get(at))).value(0))
