"""What `why` says of a copy that is not used yet."""

from __future__ import annotations

from worldline.features.copies import dormant_worlds
from worldline.runtime.feature_reasons import AskedWorld, FeatureReasons


class CopyReasons(FeatureReasons):
    async def of_status(self, asked: AskedWorld) -> str:
        copy = dormant_worlds.decode((await asked.engine.read(dormant_worlds.get(asked.at))).value(0))
        if copy is None:
            return ""
        return f"it is a copy, made of {copy.source}, and does nothing until it is resumed: no other copy must run then"
