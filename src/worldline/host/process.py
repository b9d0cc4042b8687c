"""Hosting: the roles of one process, composed and run concurrently.

A host is any mix of roles. A world worker, an effect worker and timers in one process have short cuts between them:
effects come to the effect worker already claimed, answers and firings go straight into the next cycle. Each role alone
does the same through the queues and inboxes of the store, so any number of hosts of any mix may share one. Closing a
host saves and releases its worlds and gives its claims back, so that the next host starts where this one stopped.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.cluster import backlog_count, janitor, orchestrator
from worldline.codec import ed25519
from worldline.effects import builtin_effects, effect_worker, secret_sources
from worldline.effects.egress import Egress
from worldline.features.abroad import delivery_effects
from worldline.features.forks import share_effect
from worldline.host import hang_watch
from worldline.kernel.authoring.program import Program
from worldline.layers import blobs as blob_layer
from worldline.model import ids
from worldline.model.roles import EMBEDDED, Role
from worldline.model.settings import Settings
from worldline.observe import dump as dumps
from worldline.runtime import (
    child_process,
    environment,
    live_hub,
    peer_stores,
    placement,
    process_lock,
    role_loop,
    signing_key_file,
    store_opening,
)
from worldline.runtime import facts as telemetry
from worldline.runtime import watchdog as watchdogs
from worldline.runtime.feature import parts_of
from worldline.runtime.holder_job import HolderContext, HolderJob
from worldline.runtime.janitor_job import JanitorContext, JanitorJob
from worldline.runtime.signed_receipts import ReceiptCheck, ReceiptSigner, ReceiptSigning
from worldline.runtime.store_context import JanitorRole, StoreContext
from worldline.runtime.universes import universe_rounds, universe_scan
from worldline.runtime.universes.served_universes import Universes
from worldline.runtime.world_bounds import StepRules
from worldline.timers import timer_worker
from worldline.worker import no_asyncio, step_contents, world_worker

COLLECT_AFTER = 20_000  # more objects than before, Python's collector looks for cycles


class ProcessHost:
    def __init__(
        self,
        store: store_opening.Store,
        universes: Universes,
        programs: Sequence[Program],
        *,
        blobs: blob_layer.Of,
        settings: Settings,
        egress: Egress | None = None,
        peers: peer_stores.Peers | None = None,
        roles: Sequence[Role] = EMBEDDED,
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
        watchdog: bool = False,
        secrets: secret_sources.Given | None = None,
    ) -> None:
        names = [program.name for program in programs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise errors.BadInput(f"two programs are named {twice!r}")
        for program in programs:
            program.check()
        _check_receipt_keys(settings, roles)
        self.worker = ids.WorkerId(envs.new_id(store.env))
        self.name = settings.worker.labels.get(placement.NAME) or self.worker.hex()[-8:]
        self.live = live_hub.Hub()
        self._store = store
        self.universes = universes
        self._programs = programs
        self.blobs = blobs
        self._settings = _labelled(settings, self.name, roles)
        self.telemetry = telemetry
        self.peers = peers or peer_stores.Peers(store)
        self._abandoned = False
        self._presence = process_lock.Presence(Path(store.url)) if store_opening.scheme(store.url) == "" else None
        self._scan = self._make_scan() if universes.one is None else None
        self._effects = self._make_effects(egress or Egress(), secrets) if Role.ADAPTER in roles else None
        self._worlds = self._make_worlds() if Role.WORLDS in roles else None
        self._timers = self._make_timers() if Role.TIMERS in roles else None
        if self._worlds is not None:
            for beside in (self._effects, self._timers):
                if beside is not None:
                    beside.attach(self._worlds)
        self._orchestrator = self._make_orchestrator() if Role.ORCHESTRATOR in roles else None
        self._janitor = self._make_janitor() if Role.JANITOR in roles else None
        counting = Role.JANITOR in roles and telemetry.counts and settings.janitor.backlog_ms > 0
        self._backlog = self._make_backlog() if counting else None
        self._beside_janitor = self._make_janitor_roles() if Role.JANITOR in roles else []
        made = (
            ("world worker", self._worlds),
            ("effect worker", self._effects),
            ("timer worker", self._timers),
            ("orchestrator", self._orchestrator),
            ("janitor", self._janitor),
            ("backlog", self._backlog),
            *((each.name, each) for each in self._beside_janitor),
            ("universes", self._scan),
        )
        self._bugs: list[Exception] = []  # that have stopped a role
        self._loops = [
            role_loop.Loop(name, role.tick, store.env, wake=role.wake, telemetry=telemetry)
            for name, role in made
            if role is not None
        ]
        self.jobs = () if self._worlds is None else self._make_jobs(self._worlds)
        if self._worlds is not None and (watchdog or telemetry.on):
            self._watch(self._worlds)
        self._hangs = None if self._worlds is None or not watchdog else self._watch_hangs(self._worlds)

    # --- The roles ---------------------------------------------------------------------------------------------

    @property
    def runs_worlds(self) -> bool:
        return self._worlds is not None

    @property
    def worlds(self) -> world_worker.WorldWorker:
        assert self._worlds is not None, "no worlds are run in this process"
        return self._worlds

    @property
    def effects(self) -> effect_worker.EffectWorker:
        assert self._effects is not None, "no effects are performed in this process"
        return self._effects

    @property
    def timers(self) -> timer_worker.TimerWorker:
        assert self._timers is not None, "no timers are fired in this process"
        return self._timers

    def _make_effects(self, egress: Egress, secrets: secret_sources.Given | None) -> effect_worker.EffectWorker:
        return effect_worker.EffectWorker(
            self._store.engine,
            self._store.env,
            self.universes,
            self._programs,
            blobs=self.blobs,
            live=self.live,
            settings=self._settings.adapter,
            worker=self.worker,
            signer=self._receipt_signer(),
            builtins=[
                builtin_effects.http_request(egress),
                share_effect.share(self._store.engine, self.blobs),
                *delivery_effects.effects(
                    self.peers,
                    self._store.env,
                    window_us=self._settings.dedupe_window_ms * 1000,
                    pressure=self._settings.pressure,
                ),
            ],
            telemetry=self.telemetry,
            secrets=secret_sources.chosen(secrets, environment.variables()),
        )

    def _make_worlds(self) -> world_worker.WorldWorker:
        """Without an effect worker beside it, effects are left in their queues for those of other processes."""
        claims = step_contents.LocalClaims() if self._effects is None else self._effects
        return world_worker.WorldWorker(
            self._store.engine,
            self._store.env,
            self.universes,
            self._programs,
            parts=parts_of(self._store.features),
            blobs=self.blobs,
            live=self.live,
            claims=claims,
            settings=self._settings.worker,
            worker=self.worker,
            rules=self._step_rules(),
            receipts=self._receipt_check(),
            is_dead=self._is_dead(),
            children=self._store.children or self._forks(),
            telemetry=self.telemetry,
        )

    def _step_rules(self) -> StepRules | None:
        return next((each.step_rules for each in self._store.features if each.step_rules is not None), None)

    def _receipt_signer(self) -> ReceiptSigner | None:
        path = self._settings.adapter.receipt_key
        return self._receipt_signing().signer(signing_key_file.read(path)) if path else None

    def _receipt_check(self) -> ReceiptCheck | None:
        keys = self._settings.worker.trusted_keys()
        return self._receipt_signing().check(keys) if keys else None

    def _receipt_signing(self) -> ReceiptSigning:
        signing = [each.receipts for each in self._store.features if each.receipts is not None]
        # Without it, receipts would silently be neither signed nor checked.
        assert signing, "settings name keys of receipts, and no feature signs receipts"
        return signing[0]

    def _forks(self) -> child_process.ChildProcesses:
        seconds = self._settings.worker.step_timeout_ms / 1000
        return child_process.ForkedChildren(self._store.env, seconds=seconds, prepare=no_asyncio.refuse_asyncio)

    def _make_timers(self) -> timer_worker.TimerWorker:
        return timer_worker.TimerWorker(
            self._store.engine,
            self._store.env,
            self.universes,
            settings=self._settings.timer,
            worker=self.worker,
            telemetry=self.telemetry,
        )

    def _make_orchestrator(self) -> orchestrator.Orchestrator:
        return orchestrator.Orchestrator(
            self._store.engine,
            self._store.env,
            self.universes,
            settings=self._settings.orchestrator,
            is_dead=self._is_dead(),
            telemetry=self.telemetry,
        )

    def _make_janitor(self) -> janitor.Janitor | universe_rounds.Rounds:
        settings = self._settings.janitor
        context = self._store_context()
        jobs = [make(context) for each in self._store.features for make in each.store_jobs]
        if self.universes.one is not None:
            return self._janitor_of(self.universes.one, jobs)
        return universe_rounds.Rounds(
            self._store.engine,
            self._store.env,
            self.universes,
            self._janitor_of,
            turn_ms=settings.turn_ms,
            round_ms=settings.round_ms,
            beside=jobs,
        )

    def _store_context(self) -> StoreContext:
        return StoreContext(
            engine=self._store.engine,
            env=self._store.env,
            bodies=store_opening.bodies_of(self._store),
            universes=self.universes,
            settings=self._settings.janitor,
            telemetry=self.telemetry,
        )

    def _janitor_of(self, universe: ids.UniverseId, beside: Sequence[JanitorJob] = ()) -> janitor.Janitor:
        context = JanitorContext(
            engine=self._store.engine,
            env=self._store.env,
            universe=universe,
            blobs=self.blobs(universe),
            settings=self._settings.janitor,
            is_dead=self._is_dead(),
            worker=None if self._worlds is None else self.worker,
            telemetry=self.telemetry,
        )
        jobs = [make(context) for each in self._store.features for make in each.janitor_jobs]
        return janitor.Janitor(
            context,
            [*jobs, *beside],
            dedupe_window_ms=self._settings.dedupe_window_ms,
            locks=self._presence,
            sweep_uploads=store_opening.sweep_uploads(self._store.objects),
        )

    def _make_janitor_roles(self) -> list[JanitorRole]:
        context = self._store_context()
        made = [make(context) for each in self._store.features for make in each.janitor_roles]
        return [each for each in made if each is not None]

    def _make_backlog(self) -> backlog_count.Backlog | universe_rounds.Rounds:
        settings = self._settings.janitor
        if self.universes.one is not None:
            return self._backlog_of(self.universes.one)
        return universe_rounds.Rounds(
            self._store.engine,
            self._store.env,
            self.universes,
            self._backlog_of,
            turn_ms=settings.turn_ms,
            round_ms=settings.backlog_ms,
        )

    def _backlog_of(self, universe: ids.UniverseId) -> backlog_count.Backlog:
        return backlog_count.Backlog(
            self._store.engine,
            self._store.env,
            universe,
            name=self.universes.name(universe),
            settings=self._settings.janitor,
            telemetry=self.telemetry,
            is_dead=self._is_dead(),
        )

    def _make_scan(self) -> universe_scan.Scan:
        settings = self._settings
        scan_ms = min(settings.worker.scan_ms, settings.adapter.scan_ms, settings.timer.scan_ms)
        made = universe_scan.Scan(self._store.engine, self._store.env, self.universes, scan_ms=scan_ms)
        if self._store.hints is not None:
            self._store.hints.listeners.append(made.note)
        return made

    def _make_jobs(self, worlds: world_worker.WorldWorker) -> tuple[HolderJob, ...]:
        """What features do for the worlds that are run here, beside their steps."""
        context = HolderContext(
            self._store.engine,
            self._store.env,
            self.blobs,
            self._programs,
            parts_of(self._store.features),
            worlds,
            self._settings,
            self.telemetry,
        )
        made = [make(context) for feature in self._store.features for make in feature.holder_jobs]
        jobs = tuple(job for job in made if job is not None)
        worlds.attach(jobs)
        self._loops += [job.loop for job in jobs if job.loop is not None]
        return jobs

    def _watch(self, worlds: world_worker.WorldWorker) -> None:
        """A sink or a log reports cycles that hang."""
        watchdog = watchdogs.Watchdog(
            self._store.env, worlds.under_way, hang_ms=self._settings.hang_ms, telemetry=self.telemetry
        )
        self._loops.append(role_loop.Loop("watchdog", watchdog.tick, self._store.env, wake=watchdog.wake))

    def _watch_hangs(self, worlds: world_worker.WorldWorker) -> hang_watch.HangWatch:
        settings = self._settings
        return hang_watch.HangWatch(
            self._store.env,
            worlds.look_for_hangs,
            step_timeout_ms=settings.worker.step_timeout_ms,
            hang_ms=settings.hang_ms,
            on_hang=settings.on_hang,
        )

    async def look_for_universes(self) -> None:
        """Know all universes that there are now, without waiting for the next scan."""
        if self._scan is not None:
            await self._scan.look_for_universes()

    def _is_dead(self) -> Callable[[ids.WorkerId], bool]:
        return self._presence.is_dead if self._presence is not None else lambda _: False

    # --- Life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._worlds is not None:
            _collect_less_often()
        if self._presence is not None:
            self._presence.enter(self.worker)
        for each in self._loops:
            each.start(self._bugs)
        if self._hangs is not None:
            self._hangs.start()
        self._tell("started")

    def _tell(self, change: telemetry.HostChange) -> None:
        held = 0 if self._worlds is None else len(self._worlds.held)
        self.telemetry.tell(telemetry.HostChanged(change, self.worker, held))

    @property
    def ready(self) -> bool:
        """Whether other processes can see the heartbeat of its world worker, if it has one."""
        return self._worlds is None or self._worlds.life is not None

    def levels(self) -> dict[str, float]:
        """The gauges of the metrics, as they are now."""
        return {
            "worldline_worlds_held": 0 if self._worlds is None else len(self._worlds.held),
            "worldline_cells_in_memory": 0 if self._worlds is None else self._worlds.cells,
            "worldline_effects_running": 0 if self._effects is None else self._effects.running,
            "worldline_worlds_diverged": sum(len(job.diverged) for job in self.jobs),
        }

    def doing(self) -> list[str]:
        """What closing this process would interrupt, for people: the effects that are being performed."""
        claims = [] if self._effects is None else self._effects.claims()
        return [f"effect {each.work.name}" for each in sorted(claims, key=lambda each: each.intent)]

    def dump(self) -> dumps.Dump:
        """What this process is doing now."""
        return dumps.dump(
            self._loops,
            self._worlds,
            self._effects,
            self.jobs,
            worker=self.worker.hex(),
            name=self.name,
            now_us=self._store.env.monotonic_us(),
        )

    def abandon(self) -> None:
        """Close without saving or releasing anything, as if killed. For benchmarks and tests of recovery."""
        self._abandoned = True

    @property
    def failed(self) -> BaseException | None:
        """The bug that stopped a role, if one did."""
        return next((each.failed for each in self._loops if each.failed is not None), None)

    def check(self) -> None:
        """Raise the bug that stopped a role, if one did."""
        if self._bugs:  # asked for every input
            raise self._bugs[0]

    async def close(self) -> None:
        """Stop the roles, give claims back, save and release the worlds."""
        self._tell("closing")
        first = 0 if self._worlds is None else 1
        await asyncio.gather(*(each.stop() for each in self._loops[first:]))
        tidy = False
        try:
            await self._close_beside()
            if self._worlds is not None:
                await self._loops[0].stop()
                await self._worlds.close(abandon=self._abandoned)
            tidy = not self._abandoned
        finally:
            if self._scan is not None and self._store.hints is not None:
                self._store.hints.listeners.remove(self._scan.note)
            if self._hangs is not None:
                self._hangs.stop()
            if self._presence is not None:
                self._presence.leave(self.worker, tidy=tidy)
            self._tell("closed")
        self.check()

    async def _close_beside(self) -> None:
        """The roles whose work other processes may take over before the worlds here have ended."""
        if self._effects is not None:
            await self._effects.close(abandon=self._abandoned)
        await self.peers.close()
        for each in (
            self._timers,
            self._orchestrator,
            self._janitor,
            self._backlog,
            *self._beside_janitor,
            self._scan,
            *self.jobs,
        ):
            if each is not None:
                await each.close()


def _check_receipt_keys(settings: Settings, roles: Sequence[Role]) -> None:
    """Answers are handed to worlds of the same process without their inbox, where signatures are checked."""
    keys = settings.worker.trusted_keys()
    if not keys or not {Role.WORLDS, Role.ADAPTER} <= {*roles}:
        return
    path = settings.adapter.receipt_key
    if not path or ed25519.public_of(signing_key_file.read(path)) not in keys:
        raise errors.BadInput(
            "worker.receipt_keys is set, and this process performs effects itself: set adapter.receipt_key to the file "
            "of a key that is among them, or perform effects in other processes"
        )


def _labelled(settings: Settings, name: str, roles: Sequence[Role]) -> Settings:
    """The labels of the heartbeat: the worker's name, and whether this process fires timers too."""
    labels = {**settings.worker.labels, placement.NAME: name}
    if Role.TIMERS in roles:
        labels[placement.TIMERS] = ""
    return msgspec.structs.replace(settings, worker=msgspec.structs.replace(settings.worker, labels=labels))


def _collect_less_often() -> None:
    """Worlds live long and their steps make few cycles: with its default threshold Python's collector takes a tenth of
    the time. A program that has switched it off or set a higher threshold keeps its own.
    """
    first, *others = gc.get_threshold()
    if 0 < first < COLLECT_AFTER:
        gc.set_threshold(COLLECT_AFTER, *others)
