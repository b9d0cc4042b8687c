"""What the worlds of a universe keep: one policy for every process, stored with the universe.

It is read with what it decides about (`compactor.survey`), so it is never old. A host whose own settings say something
else than the defaults notes that once for each universe; from then on other hosts and `worldline compact` keep the
same. What an operator has chosen stays. A process that does not host notes nothing.
"""

from __future__ import annotations

import msgspec

from worldline.base import env as envs
from worldline.base.bounded_map import BoundedMap
from worldline.codec import printable
from worldline.features.compaction import retention_rules
from worldline.features.compaction.retention_rules import RetentionPolicy
from worldline.layers import universe_settings
from worldline.layers.universe_settings import UniverseSettingsRecord
from worldline.model import ids, setting_names
from worldline.model.age import Age
from worldline.model.settings import WorkerSettings
from worldline.store import kv, transact

log = printable.logger("worldline.compaction")

REFRESH_US = 60_000_000  # how old a policy may be that decides whether to look
# How often a world's snapshots are looked through while the oldest of those becomes too old that are kept for a time:
# each is read so often, however many there are, and stays longer by so small a part.
LOOKS = 64
WORLDS_MAX = 10_000  # of which it is kept when they were looked at


class KnownPolicy(msgspec.Struct, frozen=True):
    policy: RetentionPolicy
    read_us: int


class Policies:
    """Those of the universes that a process has to do with. `own`: its settings; `hosts`: it notes what they say."""

    def __init__(self, engine: kv.Engine, env: envs.Env, own: WorkerSettings, *, hosts: bool) -> None:
        self._engine = engine
        self._env = env
        self._own = own
        self._said = setting_names.said_of_retention(own) if hosts else {}
        self._known: dict[ids.UniverseId, KnownPolicy] = {}
        self._looked_us: BoundedMap[ids.Address, int] = BoundedMap(WORLDS_MAX)  # how old the universe was then

    def recent(self, universe: ids.UniverseId) -> RetentionPolicy | None:
        """What was read a short time ago, if anything was."""
        found = self._known.get(universe)
        fresh = found is not None and self._env.monotonic_us() - found.read_us < REFRESH_US
        return found.policy if found is not None and fresh else None

    def is_look_due(self, at: ids.Address, policy: RetentionPolicy, now: Age) -> bool:
        """Whether there may be snapshots of a world that have become too old since they were looked through."""
        looked_us = self._looked_us.get(at)
        return looked_us is None or now.age_us - looked_us >= policy.kept_us // LOOKS

    def looked(self, at: ids.Address, now: Age) -> None:
        """All snapshots of a world that may go are going."""
        self._looked_us[at] = now.age_us

    async def learn(self, universe: ids.UniverseId) -> None:
        """Read the policy of a universe, if that was not done a short time ago."""
        if self.recent(universe) is None:
            read = await self._engine.read(universe_settings.get(universe))
            await self.of(universe_settings.decode(universe, read.value(0)))

    async def of(self, stored: UniverseSettingsRecord) -> RetentionPolicy:
        """The policy by what was just read."""
        universe = stored.universe
        # Once for each universe and process: hosts that are set differently would else note theirs in turns.
        if universe not in self._known and any(
            stored.record.noted.get(name) != value for name, value in self._said.items()
        ):
            stored = await transact.run(self._engine, self._env, lambda: self._note(universe))
        before = self._known.get(universe)
        policy = retention_rules.policy_of(stored.worker(self._own))
        self._known[universe] = KnownPolicy(policy, self._env.monotonic_us())
        # Said when it changes, and not with every read.
        if policy != (retention_rules.policy_of(self._own) if before is None else before.policy):
            self._log(stored)
        return policy

    async def _note(
        self, universe: ids.UniverseId
    ) -> transact.NothingToWrite[UniverseSettingsRecord] | transact.Write[UniverseSettingsRecord]:
        read = await self._engine.read(universe_settings.get(universe))
        known = universe_settings.decode(universe, read.value(0))
        if all(known.record.noted.get(name) == value for name, value in self._said.items()):
            return transact.NothingToWrite(known)
        batch = kv.Batch()
        after = universe_settings.note(batch, known, self._said, time_us=read.time_us)
        return transact.Write(batch, lambda _: after)

    def _log(self, stored: UniverseSettingsRecord) -> None:
        """Say where a universe is kept otherwise than this process was set to."""
        worker = stored.worker(self._own)
        for name in setting_names.RETENTION:
            field = setting_names.ALL[name].field
            value, own = getattr(worker, field), getattr(self._own, field)
            if value != own:
                log.warning(
                    "universe %s: %s is %s, as stored with it, and not %s; `worldline universe settings` changes it",
                    stored.universe.hex(),
                    name,
                    setting_names.text_of(value),
                    setting_names.text_of(own),
                )
