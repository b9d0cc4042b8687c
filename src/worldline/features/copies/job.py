"""What imports of killed processes have left: the janitor's part of it."""

from __future__ import annotations

from worldline.features.copies import world_import
from worldline.runtime import facts
from worldline.runtime.janitor_job import JanitorContext, JanitorJob


class ImportSweepJob(JanitorJob):
    def __init__(self, context: JanitorContext) -> None:
        self._context = context

    async def turn(self) -> bool:
        at = self._context
        swept = await world_import.sweep(at.engine, at.env, at.universe)
        if swept:
            at.telemetry.tell(facts.Cleared("imports", swept))
        return True

    async def close(self) -> None:
        """Nothing is left behind: each batch stands alone."""
