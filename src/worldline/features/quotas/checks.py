"""What `why` says of a universe that has used up a quota."""

from __future__ import annotations

from worldline.base import errors
from worldline.features.quotas import quota_use
from worldline.runtime.feature_reasons import AskedWorld, FeatureReasons, Reason

_REFUSED = {"worlds": "no world can be made", "pins": "no fork can be made"}


class QuotaReasons(FeatureReasons):
    async def of_universe(self, asked: AskedWorld) -> list[Reason]:
        """Say what the universe has too much of: what runs continues, what asks for more is refused."""
        use = await quota_use.read(asked.engine, asked.at.universe)
        found: list[Reason] = []
        for name in use.exceeded:
            what = f"{getattr(use, name)} {errors.QUOTA_NAMES[name]}, its quota is {getattr(use.quota, name)}"
            refused = _REFUSED.get(name, "inputs from outside are refused")
            command = asked.command(f"universe quota --{name} N")
            found.append(Reason("quota", f"the universe has {what}: {refused}", True, command=command))
        return found
