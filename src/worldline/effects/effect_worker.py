"""The effect worker: claims due effects, performs them, and answers their worlds.

An effect is tried at least once and answered exactly once. A claim is a token and a time; it is renewed while the
function runs, and a worker that loses it can change nothing any more (`perform`). No more is claimed than
can be started: what limits leave no room for stays in the queue of its kind and blocks no other.

Effects of worlds held in this process come here already claimed, in the commit that asked for them, and their answers
go straight into the next cycle. Both are short cuts through the same queue, not another meaning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.base.secret import SecretSource
from worldline.codec import printable
from worldline.effects import claim_room as rooms
from worldline.effects import claimed_effect, rate_limit, suspects
from worldline.effects.claim_room import EffectKind
from worldline.kernel.authoring.calls import Effect
from worldline.kernel.authoring.program import Program
from worldline.layers import blobs as blob_layer
from worldline.layers import step_commit, worlds
from worldline.layers import work as works
from worldline.model import ids
from worldline.model.settings import AdapterSettings
from worldline.model.work import Work, WorkKind
from worldline.runtime import facts as telemetry
from worldline.runtime import live_hub, queue_names, wakeup
from worldline.runtime.signed_receipts import ReceiptSigner
from worldline.runtime.universes import fair_turns, look_times
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv, transact
from worldline.worker import step_contents
from worldline.worker.held_world import HeldWorld
from worldline.worker.step_run import StepsDone
from worldline.worker.world_worker import WorldWorker

log = printable.logger("worldline.adapter")

_EFFECT = WorkKind.EFFECT
PLACES_AT_ONCE = 1_000  # queues looked at in one read
ANSWER_SECONDS = 3.0  # for answers that are on their way when the worker closes


class EffectWorker(step_contents.LocalClaims):
    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        universes: Universes,
        programs: Sequence[Program],
        *,
        blobs: blob_layer.Of,
        live: live_hub.Hub,
        settings: AdapterSettings,
        worker: ids.WorkerId,
        signer: ReceiptSigner | None,
        builtins: Sequence[Effect[..., Any]] = (),
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
        secrets: SecretSource | None = None,
    ) -> None:
        self._engine = engine
        self._env = env
        self._universes = universes
        self._settings = settings
        self._worker = worker
        self._telemetry = telemetry
        self._suspects = suspects.Suspects(engine, env, worker)
        self._performer = claimed_effect.Performer(
            engine,
            env,
            self._suspects,
            blobs=blobs,
            live=live,
            settings=settings,
            signer=signer,
            telemetry=telemetry,
            secrets=secrets,
        )
        self._tasks: dict[ids.IntentId, asyncio.Task[None]] = {}
        self._closing = False
        self._promised: dict[bytes, rate_limit.Slot] = {}  # by token: claimed in a commit that is under way
        self._looks = look_times.Looks(env, scan_us=settings.scan_ms * 1000)
        self._kinds: dict[str, EffectKind] = {}
        for program in programs:
            for effect in [*program.effects.values(), *builtins]:
                queue = queue_names.effect_queue(program, effect.queue, effect.name)
                self._kinds[queue] = EffectKind(
                    queue, effect, rate_limit.Limit(env, effect.concurrency, effect.rate), fair_turns.Shares()
                )
        many = universes.one is None
        self._room = rooms.ClaimRoom(settings, self._kinds.values(), self._busy, many=many)
        prefixes: dict[bytes, None] = {}
        if universes.one is not None:
            beginnings = [queue_names.queue_prefix(each) for each in programs]
            prefixes = dict.fromkeys(works.queues_prefix(universes.one, each) for each in beginnings)
        self._watch = wakeup.Wakeup(engine, env, list(prefixes))
        universes.on_due.append(self._touched)
        universes.on_gone.append(self._gone)

    def _busy(self) -> int:
        return len(self._tasks) + len(self._promised)

    @property
    def performed(self) -> int:
        return self._performer.performed

    def claims(self) -> list[works.Open]:
        """What is being performed now."""
        return [held.claim for held in self._performer.held()]

    @property
    def running(self) -> int:
        """Attempts that are under way."""
        return len(self._tasks)

    def attach(self, local: WorldWorker) -> None:
        """Work side by side with a world worker: its effects come here claimed, answers go back directly."""
        self._performer.join(local)
        self._suspects.join(local)
        local.on_act.append(self._on_act)

    # --- Short cuts within the process -------------------------------------------------------------------------

    def claim(self, at: ids.Address, work: Work, time_us: int) -> step_commit.Claim | None:
        kind = self._kinds.get(work.queue)
        if kind is None or work.kind is not _EFFECT or self._closing:
            return None
        if not self._room.of(kind, at.universe):
            self._room.starve(kind, at.universe)
            return None
        token = ids.Token(self._env.random_bytes(limits.ID_BYTES))
        # Counted now, before the commit: two cycles at once must not promise the same place.
        self._promised[token] = self._room.take(kind, at.universe)
        return step_commit.Claim(self._worker, token, time_us + self._settings.claim_ttl_ms * 1000)

    def give_back(self, tokens: Sequence[bytes]) -> None:
        for token in tokens:
            slot = self._promised.pop(token, None)  # what is performed already has its slot
            if slot is not None:
                slot.close()
        self._look_where_starved()

    def _on_act(self, hosted: HeldWorld, done: StepsDone, built: step_contents.Built) -> None:
        for opened in built.claimed:
            slot = self._promised.pop(opened.work.token)
            if self._closing:
                slot.close()  # it was claimed before; the claim runs out by itself
            else:
                self._perform(opened, done.wanted[opened.intent].params, slot)
        for cancelled in done.cancelled:
            self._cancel(cancelled.intent)
        if done.wanted:
            effects = sum(1 for wanted in done.wanted.values() if wanted.kind is _EFFECT)
            # Some were not claimed with the commit, as for want of room: their queues are looked into.
            if len(built.claimed) < effects:
                self._touched(hosted.at.universe)

    def _cancel(self, intent: ids.IntentId) -> None:
        task = self._tasks.get(intent)
        if task is not None and not self._performer.cancel(intent):
            task.cancel()  # it has not begun, or is being answered

    # --- The loop's turn ---------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._watch.wake()

    def _touched(self, universe: ids.UniverseId) -> None:
        """Something may be due there."""
        self._looks.soon(universe)
        self._watch.wake()

    def _gone(self, universe: ids.UniverseId) -> None:
        self._looks.forget(universe)
        self._room.forget(universe)

    def _look_where_starved(self) -> None:
        for universe in self._room.waiting:
            self._looks.soon(universe)
        self._watch.wake()

    async def tick(self) -> None:
        """One turn: claim what is due and there is room for, or rest until something may be."""
        # First: what comes during this turn must wake the rest at its end.
        self._watch.clear()
        await self._suspects.acquit_self()
        one = self._universes.one
        chosen = self._looks.take_due() if one is None else [one]
        try:
            claimed, rests = await self._look(chosen)
        except BaseException:
            for universe in chosen:
                self._looks.soon(universe)
            raise
        if one is not None:
            rest_us = rests[one]
        else:
            for universe, rest_us in rests.items():
                self._looks.looked(universe, rest_us=0 if claimed[universe] else rest_us)
            rest_us = self._looks.rest_us()
        if not any(claimed.values()):
            await self._watch.rest(max(1, rest_us // 1000))

    async def _look(
        self, chosen: Sequence[ids.UniverseId]
    ) -> tuple[dict[ids.UniverseId, int], dict[ids.UniverseId, int]]:
        """Claim what is due in these universes. Returns how much was done about it in each, and how long nothing more
        is to be done there.
        """
        rest_us = self._settings.scan_ms * 1000
        kinds: list[EffectKind] = []
        self._room.look()
        for kind in self._kinds.values():
            if self._room.of(kind):
                kinds.append(kind)
                continue
            # A kind without room is not read at all: only time, or an effect that ends, can make some.
            rest_us = min(rest_us, kind.limit.wait_us() or rest_us)
            for universe in chosen:
                self._room.starve(kind, universe)
        claimed, rests = dict.fromkeys(chosen, 0), dict.fromkeys(chosen, rest_us)
        places = [(universe, kind) for universe in chosen for kind in kinds]
        for start in range(0, len(places), PLACES_AT_ONCE):
            part = places[start : start + PLACES_AT_ONCE]
            read = await self._engine.read(*(works.next_range(each, queue=kind.queue) for each, kind in part))
            self._watch.looked(read.seen)
            for index, (universe, kind) in enumerate(part):
                first = next((each.pointer.due_us for each in works.decode_due(universe, read.page(index))), None)
                if first is not None and first <= read.time_us:
                    claimed[universe] += await self._claim_due(kind, universe, read.time_us)
                    rests[universe] = min(rests[universe], self._suspects.rest_us)
                    continue
                self._room.satisfied(kind, universe)
                if first is not None:
                    rests[universe] = min(rests[universe], first - read.time_us)
        return claimed, rests

    async def _claim_due(self, kind: EffectKind, universe: ids.UniverseId, now_us: int) -> int:
        """Claim what is due of a kind and there is room for. Returns how much was done about it."""
        room = self._room.of(kind, universe)
        if not room:
            self._room.starve(kind, universe)
            return 0
        # What is held back is in the way of no other.
        count_max = min(room + self._suspects.count, limits.READ_REQUESTS_MAX // 2)
        wanted = works.due_range(universe, queue=kind.queue, now_us=now_us, count_max=count_max)
        page = (await self._engine.read(wanted)).page(0)
        done = await self._claim_all(kind, works.decode_due(universe, page))
        if page.more or not self._room.of(kind, universe):
            self._room.starve(kind, universe)
        else:
            self._room.satisfied(kind, universe)
        return done

    async def _claim_all(self, kind: EffectKind, due_pointers: list[works.DuePointer]) -> int:
        read = await self._engine.read(
            *(works.get(each.pointer.at, each.pointer.intent) for each in due_pointers),
            *(worlds.get(each.pointer.at) for each in due_pointers),
        )
        batches: list[kv.Batch] = []
        claims: list[works.Open | None] = []
        for index, each in enumerate(due_pointers):
            batch = kv.Batch()
            try:
                raws = read.value(index), read.value(len(due_pointers) + index)
                wanted, claim = self._try_claim(batch, kind, each, raws, read.time_us)
            except errors.Corrupt as error:  # the others can be performed all the same
                log.warning("effect %s cannot be read: %s", each.pointer.intent.hex(), error)
                continue
            if wanted:
                batches.append(batch)
                claims.append(claim)
        won = await self._commit_claims(batches, claims)
        if won:
            self._telemetry.tell(telemetry.ClaimsMade(kind.effect.name, won))
        return len(batches)

    def _try_claim(
        self,
        batch: kv.Batch,
        kind: EffectKind,
        due: works.DuePointer,
        raws: tuple[bytes | None, bytes | None],
        now_us: int,
    ) -> tuple[bool, works.Open | None]:
        """Whether something is to be done about it, and the claim, if that is to claim it. `raws`: the work as it was
        read, and its world.
        """
        authority = works.decode(due.pointer.at, due.pointer.intent, raws[0])
        if not works.matches(due, authority):
            works.discard(batch, due, authority)
            return True, None
        assert authority is not None
        # Still performed here, though its claim has run out: a second attempt beside it would do the work twice.
        if authority.intent in self._tasks or not self._room.of(kind, authority.at.universe):
            self._room.starve(kind, authority.at.universe)
            return False, None
        if authority.work.due_us > now_us:
            return False, None  # the store's clock was set back since it was found
        if claimed_effect.leave_alone(batch, authority, raws[1], now_us):
            return True, None
        # Put back first, with a pause that grows: it must not end one process after the other.
        if works.has_died_again(authority):
            works.count_death(batch, authority, now_us=now_us)
            return True, None
        if self._suspects.holds_back(authority):
            return False, None
        return True, self._claim(batch, kind, authority, now_us)

    def _claim(self, batch: kv.Batch, kind: EffectKind, authority: works.Open, now_us: int) -> works.Open:
        token = ids.Token(envs.new_id(self._env))
        until_us = now_us + self._settings.claim_ttl_ms * 1000
        claimed = works.claim(
            batch,
            authority,
            worker=self._worker,
            token=token,
            now_us=now_us,
            until_us=until_us,
            alone=self._suspects.take(authority),
        )
        self._promised[token] = self._room.take(kind, authority.at.universe)
        return claimed

    async def _commit_claims(self, batches: list[kv.Batch], claims: list[works.Open | None]) -> int:
        """Perform what was claimed. Returns how many there are."""
        wanted = {claim.work.token: claim for claim in claims if claim is not None}
        asked = len(wanted)
        try:
            outcomes = await transact.commit(self._engine, self._env, *batches)
            for claim, outcome in zip(claims, outcomes, strict=True):
                if claim is not None and isinstance(outcome, kv.Ok):
                    del wanted[claim.work.token]
                    self._perform(claim, None, self._promised.pop(claim.work.token))
        finally:
            for token, claim in wanted.items():
                # Claims that were lost to another worker, or whose commit has failed, give their places back.
                self._promised.pop(token).close()
                self._suspects.leave(claim.intent)
        return asked - len(wanted)

    # --- Performing ----------------------------------------------------------------------------------------------

    def _perform(self, claimed: works.Open, params: bytes | None, slot: rate_limit.Slot) -> None:
        effect = self._kinds[claimed.work.queue].effect
        work = self._performer.perform(effect, claimed, params, slot)
        task = asyncio.get_running_loop().create_task(work, name=f"effect {claimed.work.name}")
        self._tasks[claimed.intent] = task
        # In a callback: it runs however the task ends, also if it is cancelled before it begins.
        task.add_done_callback(lambda done: self._ended(claimed.intent, done, slot))

    def _ended(self, intent: ids.IntentId, task: asyncio.Task[None], slot: rate_limit.Slot) -> None:
        slot.close()
        self._tasks.pop(intent, None)
        self._suspects.leave(intent)
        if self._room.starved:
            self._look_where_starved()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("effect %s: %s", intent.hex(), error)

    async def close(self, *, abandon: bool = False) -> None:
        """Stop what is running and give the claims back. Those that cannot be given back run out by themselves."""
        self._closing = True  # worlds of this process may go on for a moment: their effects are for others
        try:
            await self._watch.close()
            held = self._performer.held()
            if not abandon:
                await self._let_answer(self._performer.answering())
            for intent in list(self._tasks):
                self._cancel(intent)
            # All have ended before claims go back: another worker may begin at once.
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            if not abandon:
                await self._performer.give_back(held)
        finally:
            await self._performer.close()

    async def _let_answer(self, intents: Sequence[bytes]) -> None:
        """Work that is done and only has to be said: worth a moment, or it would be done again."""
        tasks = [self._tasks[ids.IntentId(intent)] for intent in intents if intent in self._tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=ANSWER_SECONDS)
