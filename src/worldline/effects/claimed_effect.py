"""Performing one claimed effect: from the claim to the answer, or to the next pause.

An attempt that fails is tried again after a pause that grows, until attempts or time run out: then the world gets an
`error` or `timeout` receipt, or the work is parked for a person if its author said so. The claim is renewed while the
function runs; an attempt that loses its claim stops, and can change nothing any more. An attempt whose process died
counts, so work that kills its processes ends too; where the number of attempts is not limited, it is parked after
`dead_attempts_max` such attempts in a row that were made alone (`suspects`), and a person decides.

What was performed is not performed again because its answer cannot be stored (`answers`): a large one is stored while
its claim is still renewed.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from worldline.base import env as envs
from worldline.base import errors, grammar, probes
from worldline.base.secret import SecretSource
from worldline.codec import printable
from worldline.effects import attempt as attempts
from worldline.effects import attempt_log, effect_answers, open_resources, parking, rate_limit, suspects
from worldline.effects.attempt import AttemptResult
from worldline.effects.retry_policy import RetryPolicy, policy_of
from worldline.kernel import part_inputs
from worldline.kernel import run_requests as kernel_work
from worldline.kernel.authoring import message_calls
from worldline.kernel.authoring.calls import Effect, Options
from worldline.layers import blobs as blob_layer
from worldline.layers import cas, worlds
from worldline.layers import work as works
from worldline.model import inbox, payload
from worldline.model import world_records as world_model
from worldline.model.inbox import ReceiptStatus
from worldline.model.settings import AdapterSettings
from worldline.model.work import EffectAttempt
from worldline.runtime import attempt_history, daemon_threads, live_hub
from worldline.runtime import facts as telemetry
from worldline.runtime.personal.outside_desk import CollectingDesk
from worldline.runtime.signed_receipts import ReceiptSigner
from worldline.store import kv, transact
from worldline.worker.waiting_input import JournalPlace, Superseded, WaitingInput
from worldline.worker.world_worker import WorldWorker

log = printable.logger("worldline.adapter")

CLOSED_PAUSE_US = 5_000_000  # how long work of an archived world is left alone before it is looked at again


class ClaimedEffect:
    """A claim that is kept alive while the work continues. Made in the task that does the work.

    A renewal that is under way is never cut short: whether it has happened must be known to answer under the claim.
    """

    def __init__(self, claim: works.Open, renew_at: float) -> None:
        self._task = asyncio.current_task()
        self._renewing: asyncio.Task[None] | None = None
        self._stopped = False
        self.claim = claim
        self.renew_at = renew_at  # by the loop's clock
        self._began = asyncio.get_running_loop().time()
        self.lost = False
        self._beside = False  # something else runs that its process may die of: it is not alone any more
        self.desk: CollectingDesk | None = None  # of the personal values that it is given, and returns
        self.stopped = False  # the effect worker has ended the attempt

    def cancel(self) -> None:
        """End the attempt. It is told apart from one that cancels the task it runs in."""
        self.stopped = True
        if self._task is not None:
            self._task.cancel()

    def ended_us(self) -> int:
        """About when it has ended, by the store's clock."""
        took = asyncio.get_running_loop().time() - self._began
        return (self.claim.work.claimed_us or self.claim.work.opened_us) + int(took * 1_000_000)

    async def stop(self) -> None:
        """Stop renewing it. What is known of the claim afterwards is true."""
        self._stopped = True
        if self._renewing is not None:
            await asyncio.wait([self._renewing])

    async def disturbed(self, performer: Performer) -> None:
        """Something else is about to run that its process may die of: its claim says so first."""
        self._beside = True
        for _ in range(2):  # a renewal that is under way may say that it is alone
            if self.claim.work.alone and not (self.lost or self._stopped):
                self.renew(performer)
                assert self._renewing is not None
                await asyncio.wait([self._renewing])
        if self.claim.work.alone and not (self.lost or self._stopped):
            raise errors.StoreUnavailable("a claim cannot be renewed now, and what would run beside it waits")

    def renew(self, performer: Performer) -> None:
        """Begin to renew it, if that is not under way and the attempt has not ended."""
        if not self._stopped and (self._renewing is None or self._renewing.done()):
            self._renewing = asyncio.get_running_loop().create_task(self._renew(performer))

    async def _renew(self, performer: Performer) -> None:
        try:
            renewed = await performer.renew(self.claim, beside=self._beside)
        except errors.StoreError as error:  # until another worker takes it, it is still ours
            log.warning(
                "effect %s: the claim cannot be renewed now: %s",
                self.claim.intent.hex(),
                error,
                extra=telemetry.about(self.claim.at, step=self.claim.work.step),
            )
        else:
            if renewed is None:
                performer.suspects.lost(self.claim)
                self._lose()
            else:
                self.claim = renewed

    def _lose(self) -> None:
        self.lost = True
        log.warning(
            "effect %s: the claim was lost while it ran",
            self.claim.intent.hex(),
            extra=telemetry.about(self.claim.at, step=self.claim.work.step),
        )
        if not self._stopped:
            self.cancel()


class Performer:
    """What all attempts of one process share."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        suspected: suspects.Suspects,
        *,
        blobs: blob_layer.Of,
        live: live_hub.Hub,
        settings: AdapterSettings,
        signer: ReceiptSigner | None,
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
        secrets: SecretSource | None = None,
    ) -> None:
        self._engine, self._env = engine, env
        self.suspects = suspected
        self._secrets = secrets
        self._signer = signer
        self._blobs = blobs
        self._hub = live
        self._settings = settings
        self._telemetry = telemetry
        self._resources = open_resources.Resources(secrets)
        self._threads = daemon_threads.DaemonPool(settings.concurrency, "worldline-effect")
        self._thread = threading.get_ident()
        self._held: dict[bytes, ClaimedEffect] = {}  # by intent: the claims of attempts that are running
        self._handed: dict[
            bytes, tuple[float, asyncio.Future[JournalPlace]]
        ] = {}  # answers, until their world takes them
        self._renewals: asyncio.TimerHandle | None = None  # one for all of both: most are over before it is due
        self._answering: dict[bytes, None] = {}
        self.local: WorldWorker | None = None
        self.performed = 0

    def join(self, local: WorldWorker) -> None:
        """Hand answers to worlds that this worker of the same process holds."""
        self.local = local

    async def perform(self, effect: Effect[..., Any], claim: works.Open, params: bytes | None, slot: Slot) -> None:
        """One attempt. `params` are known if the world is held here."""
        held = self._hold(claim)
        telling = self._telemetry.on
        began_us = self._env.wall_us() if telling else 0
        outcome: telemetry.Outcome = "lost"
        try:
            try:
                policy, ended = await self._attempt(effect, held, params, slot)
                ended_us = self._env.wall_us() if telling else 0
                # From here on a worker that closes waits a moment: what is performed must not be performed again.
                self._answering[claim.intent] = None
                if ended.sealed:
                    ended = await effect_answers.kept_apart(
                        self._env, self._engine, effect, held.claim, ended, desk=held.desk
                    )
                if ended.ok and not cas.is_small(ended.data):
                    ended = await effect_answers.stored(
                        self._env, self._blobs(claim.at.universe), effect, held.claim, ended
                    )
            finally:
                # Before the answer: it expects the claim as it stands, and a renewal under way would change that.
                await held.stop()
                del self._held[claim.intent]
            # Under a claim that was lost, another worker performs and answers it.
            if not held.lost:
                outcome = await self._conclude(held, policy, ended)
        finally:
            self._answering.pop(claim.intent, None)
        if telling:
            self._telemetry.tell(
                telemetry.AttemptEnded(held.claim, outcome, ended.message, began_us, ended_us, ended.trace)
            )

    async def give_back(self, held: list[ClaimedEffect]) -> None:
        """Attempts were cut short: let others try at once. What cannot be given back runs out by itself."""
        try:
            now_us = (await self._engine.read()).time_us
            batches = []
            for each in held:
                if not each.lost:
                    batch = kv.Batch()
                    works.take_back(batch, each.claim, now_us=now_us, died=False)
                    batches.append(batch)
            if batches:
                await transact.commit(self._engine, self._env, *batches)  # a conflict means that the claim was lost
        except errors.StoreError as error:
            log.warning("%s could not be given back: %s", grammar.count(len(held), "claim"), error)

    def answering(self) -> list[bytes]:
        """The intents of attempts that have ended and are being answered."""
        return list(self._answering)

    def cancel(self, intent: bytes) -> bool:
        """End the attempt at this intent. Whether there is one."""
        held = self._held.get(intent)
        if held is not None:
            held.cancel()
        return held is not None

    def held(self) -> list[ClaimedEffect]:
        """The claims of all attempts that are running."""
        return list(self._held.values())

    async def close(self) -> None:
        """All attempts have ended. Close what they shared."""
        if self._renewals is not None:
            self._renewals.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._resources.close()

    # --- Claims that are kept -----------------------------------------------------------------------------------

    def _hold(self, claim: works.Open) -> ClaimedEffect:
        loop = asyncio.get_running_loop()
        renew_at = loop.time() + self._settings.renew_ms / 1000
        held = self._held[claim.intent] = ClaimedEffect(claim, renew_at)
        if self._renewals is None:
            self._renewals = loop.call_at(renew_at, self._renew_due)
        return held

    def _limit(self, claim: works.Open, done: asyncio.Future[JournalPlace]) -> None:
        """A world has an answer: it is waited for no longer than until its claim would have to be renewed again."""
        loop = asyncio.get_running_loop()
        late_at = loop.time() + self._settings.renew_ms / 1000
        self._handed[claim.intent] = (late_at, done)
        if self._renewals is None:
            self._renewals = loop.call_at(late_at, self._renew_due)

    def _renew_due(self) -> None:
        """Renew the claims whose time has come, wait no longer for worlds that are late; come back for the next."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for held in self._held.values():
            if held.renew_at <= now:
                held.renew_at = now + self._settings.renew_ms / 1000
                held.renew(self)
        for late_at, done in self._handed.values():
            if late_at <= now and not done.done():
                done.set_exception(TimeoutError())
        times = [held.renew_at for held in self._held.values()]
        times += [late_at for late_at, done in self._handed.values() if not done.done()]
        # One timer for all: a timer each would be made and cancelled for every short effect.
        next_at = min(times, default=None)
        self._renewals = None if next_at is None else loop.call_at(next_at, self._renew_due)

    # --- One attempt ------------------------------------------------------------------------------------------

    async def _attempt(
        self, effect: Effect[..., Any], held: ClaimedEffect, params: bytes | None, slot: Slot
    ) -> tuple[RetryPolicy, AttemptResult]:
        claim = held.claim
        work = claim.work
        try:
            given = await self._blobs(claim.at.universe).load(work.params) if params is None else params
            arguments, options = kernel_work.unpack_effect(given)
            snapshot = kernel_work.attached_snapshot(given) if effect.signature.snapshot is not None else None
        except (errors.NotFound, errors.Corrupt) as error:
            message = f"the parameters of {effect.name}() cannot be read: {error}"
            return policy_of(effect, Options()), AttemptResult(False, code=error.code, message=message, final=True)
        desk = held.desk = await effect_answers.desk_of(self._env, self._engine, claim, arguments)
        policy = policy_of(effect, options)
        # The claim has counted this attempt; the one before it ended with its process.
        if policy.attempts is not None and work.attempt > policy.attempts:
            message = f"attempt {policy.attempts} was the last, and its process died before it ended"
            return policy, AttemptResult(False, code="abandoned", message=message)
        if policy.attempts is None and len(work.blamed) >= self._settings.dead_attempts_max:
            dead = await self.suspects.counted(claim)
            if len(dead) >= self._settings.dead_attempts_max:
                return msgspec.structs.replace(policy, attempts=work.attempt, park=True), _abandoned(dead)
        left_us: int | None = None
        if work.deadline_us:
            left_us = work.deadline_us - (await self._engine.read()).time_us
            if left_us <= 0:
                return policy, AttemptResult(
                    False, code="timeout", message="there was no time left to try it", timed_out=True
                )
        in_time = None if left_us is None else asyncio.timeout(left_us / 1_000_000)
        this = attempts.Attempt(
            options.key or claim.intent.hex(),
            work.attempt,
            lambda chunk: self._emit(claim, chunk),
            lambda: held.stopped or (in_time is not None and in_time.expired()),
            claim=claim,
            secrets=self._secrets,
            correlation=work.correlation_id,
        )
        try:
            run = functools.partial(
                attempts.run,
                effect,
                arguments,
                this,
                policy,
                threads=self._threads,
                resources=self._resources,
                desk=desk,
                snapshot=snapshot,
            )
            # Only after a death: any other effect may run beside everything.
            if work.died:
                async with self.suspects.beside(claim, lambda: held.disturbed(self)):
                    ended = await _started(run, slot, in_time)
            else:
                ended = await _started(run, slot, in_time)
        except TimeoutError:
            ended = AttemptResult(False, code="timeout", message="all attempts together took too long", timed_out=True)
        finally:
            slot.close()
        self.performed += 1
        return policy, ended

    def _emit(self, claim: works.Open, chunk: object) -> None:
        """Pass a chunk to followers: from an effect on the loop at once, from one in a thread by way of the loop."""
        work = claim.work
        piece = live_hub.Chunk(claim.intent, work.name, work.correlation, work.attempt, chunk)
        if threading.get_ident() == self._thread:
            self._hub.stream(claim.at, piece)
        else:
            self._hub.stream_from_thread(claim.at, piece)

    async def renew(self, claim: works.Open, *, beside: bool) -> works.Open | None:
        """The claim, renewed; None if it is lost. `beside`: it is not performed alone, whatever it says."""
        now_us = (await self._engine.read()).time_us
        batch = kv.Batch()
        renewed = works.renew(
            batch, claim, until_us=now_us + self._settings.claim_ttl_ms * 1000, alone=claim.work.alone and not beside
        )
        return renewed if await transact.applied(self._engine, self._env, batch) else None

    # --- What comes of it -------------------------------------------------------------------------------------

    async def _conclude(self, held: ClaimedEffect, policy: RetryPolicy, ended: AttemptResult) -> telemetry.Outcome:
        claim = held.claim
        work = claim.work
        if ended.asked is not None:
            batch = kv.Batch()
            works.hand_on(batch, claim, ended.asked)
            return "ok" if await self._stored(claim, batch) else "lost"
        if ended.ok:
            made = [] if work.attempt == 1 else works.tried_with(work, "ok", now_us=held.ended_us())
            answer = ended.carried or payload.inline(ended.data)
            return await self._answer(claim, _OK, answer, ended.data, tried=made, outcome="ok")
        now_us = (await effect_answers.insist(self._env, claim, self._engine.read)).time_us
        # The later of the two: a server that names a time is not asked sooner.
        due_us = now_us + max(policy.delay_us(work.attempt, claim.intent), ended.after_us)
        out_of_time = bool(work.deadline_us) and due_us >= work.deadline_us
        out_of_attempts = policy.is_last(work.attempt, mistake=ended.mistake)
        if not ended.final and not out_of_time and not out_of_attempts:
            attempt_log.retried(claim, policy, ended, pause_us=due_us - now_us)
            batch = kv.Batch()
            works.back_off(batch, claim, due_us=due_us, now_us=now_us, error=ended.message, trace=ended.trace)
            return "retried" if await self._stored(claim, batch) else "lost"
        if ended.unfit or (policy.parks(mistake=ended.mistake) and not ended.final):  # an edit fails no run
            attempt_log.parked(claim, ended)
            return await self._settle(
                claim,
                lambda batch: parking.parked(
                    works.park(batch, claim, now_us=now_us, error=ended.message, trace=ended.trace)
                ),
                outcome="parked",
            )
        timed_out = ended.timed_out or out_of_time
        tried = work.attempt if policy.attempts is None else min(work.attempt, policy.attempts)
        status = ReceiptStatus.TIMEOUT if timed_out else ReceiptStatus.ERROR
        attempt_log.failed(claim, ended, tried)
        data = effect_answers.failure(ended, tried)
        how = "timeout" if timed_out else "failed"
        made = works.tried_with(work, how, now_us=now_us, error=ended.message)
        return await self._answer(
            claim,
            status,
            payload.inline(data),
            data,
            trace=ended.trace,
            tried=made,
            outcome="timeout" if timed_out else "error",
        )

    async def _stored(self, claim: works.Open, batch: kv.Batch) -> bool:
        """Commit what follows from an attempt. False: another worker has the claim, and nothing was written."""
        [stored] = await effect_answers.insist(
            self._env, claim, lambda: transact.commit(self._engine, self._env, batch)
        )
        # Behind a lost reply, the conflict may be with what this very batch has written.
        return isinstance(stored, kv.Ok) or stored.repeated

    async def _answer(
        self,
        claim: works.Open,
        status: ReceiptStatus,
        carried: payload.Payload,
        data: bytes,
        *,
        tried: list[EffectAttempt],
        outcome: telemetry.Outcome,
        trace: str = "",
    ) -> telemetry.Outcome:
        """Exactly one receipt: into the next cycle of a world held here, else into the world's inbox. Return
        `outcome`, or what became of the attempt instead.
        """
        receipt = works.receipt(claim, status, carried)
        if self._signer is not None:
            receipt = self._signer.sign(claim.at, receipt)
        handed = await self._hand_over(claim, receipt, data, trace, tried)
        if handed is None:
            return "lost"
        if not handed:
            settled = await self._settle(
                claim,
                lambda batch: _settled(batch, claim, receipt, trace, tried),
                outcome=outcome,
                large=None if carried.ref is None else data,
            )
            if settled != outcome:
                return settled
        if self._telemetry.on:
            self._telemetry.tell(telemetry.EffectAnswered(claim, status, handed))
        return outcome

    async def _hand_over(
        self, claim: works.Open, receipt: inbox.EffectReceipt, data: bytes, trace: str, tried: list[EffectAttempt]
    ) -> bool | None:
        """Whether the world, held here, has taken the answer; None if it has taken another worker's instead.

        The claim is not renewed any more, so the world has as long as a renewal may take. If it takes the answer after
        that, its step and the inbox expect the same claim, and one of them is first.
        """
        if self.local is None:
            return False
        done: asyncio.Future[JournalPlace] = asyncio.get_running_loop().create_future()
        kept = attempt_history.dump(claim.work.name, claim.intent, tried) if tried else ""
        given = WaitingInput(receipt, data, done=done, claim=claim, trace=trace, tried=kept)
        if not self.local.hand_over(claim.at, given):
            return False
        self._limit(claim, done)
        try:
            await done
        except TimeoutError:
            probes.hit("effects.answer-not-taken-in-time")
            return False
        except Superseded:
            return None
        except errors.Error:
            return False  # not taken, or that is not known: the inbox takes it only if the claim still stands
        finally:
            del self._handed[claim.intent]
        return True

    async def _settle(
        self,
        claim: works.Open,
        change: Callable[[kv.Batch], inbox.Item],
        *,
        outcome: telemetry.Outcome,
        large: bytes | None = None,
    ) -> telemetry.Outcome:
        """Give a claim up permanently. What `change` makes of it, and the item that tells the world, are one commit.
        `large`: what the item refers to. Return `outcome`, or what became of the attempt instead.
        """
        blobs = self._blobs(claim.at.universe)
        written: telemetry.Outcome = "lost"

        async def attempt() -> transact.NothingToWrite[telemetry.Outcome] | transact.Write[telemetry.Outcome]:
            nonlocal written
            read = await self._engine.read(worlds.get(claim.at), works.get(claim.at, claim.intent))
            world = worlds.find(claim.at, read.value(0))
            if world is None or read.value(1) != claim.raw:
                # No run wants the answer, or another worker has the work; or behind a lost reply, our batch is there.
                return transact.NothingToWrite(written)
            batch = kv.Batch()
            if world.meta.status not in world_model.TAKES_INPUT:
                works.back_off(
                    batch,
                    claim,
                    due_us=read.time_us + CLOSED_PAUSE_US,
                    now_us=read.time_us,
                    error="the world takes no input now",
                )
                written = "retried"
                return transact.Write(batch, lambda _: "retried")
            if large is not None:
                # Put again in every attempt: a collection may have removed what an earlier one has put.
                generation = await blobs.generation()
                await blobs.put(large)
                generation.expect(batch)
            parking.tell(batch, world, change(batch))
            written = outcome
            return transact.Write(batch, lambda _: outcome)

        became = await effect_answers.insist(self._env, claim, lambda: transact.run(self._engine, self._env, attempt))
        if self.local is not None:
            # If it is held here, and was only on trial or late, it reads its inbox at once.
            self.local.poke(claim.at)
        return became


Slot = rate_limit.Slot
_LEAVES_DRY = (part_inputs.SHARE, message_calls.REPLY)  # what a dry fork was asked for, it answers
_OK = ReceiptStatus.OK


def _abandoned(dead: list[bytes]) -> AttemptResult:
    """Attempts whose processes died are enough: what is said of it."""
    named = ", ".join(dict.fromkeys(each.hex()[-8:] for each in dead))
    message = (
        f"the processes of {grammar.count(len(dead), 'attempt')} in a row died, or said nothing, while "
        "they performed it alone "
        f"(processes {named})"
    )
    return AttemptResult(False, code="abandoned", message=message)


async def _started(
    run: Callable[[], Awaitable[AttemptResult]], slot: Slot, in_time: asyncio.Timeout | None
) -> AttemptResult:
    started = run() if slot.try_start() else _in_line(slot, run)
    if in_time is None:
        return await started
    async with in_time:
        return await started


async def _in_line(slot: Slot, run: Callable[[], Awaitable[AttemptResult]]) -> AttemptResult:
    """An attempt that has to wait until it may start."""
    await slot.start()
    return await run()


def _settled(
    batch: kv.Batch, claim: works.Open, receipt: inbox.EffectReceipt, trace: str, tried: list[EffectAttempt]
) -> inbox.EffectReceipt:
    works.settle(batch, claim, trace=trace, tried=tried)
    return receipt


def leave_alone(batch: kv.Batch, due: works.Open, meta: bytes | None, now_us: int) -> bool:
    """Whether an effect must not be tried now: its world is gone, takes no answer as long as it is archived, or is a
    dry fork, which nothing leaves.
    """
    world = worlds.find(due.at, meta)
    if world is None:
        works.close_gone(batch, due)
        return True
    dry = world.meta.dry and due.work.name not in _LEAVES_DRY
    if dry or world.meta.status not in world_model.TAKES_INPUT:
        works.move_due(batch, due, now_us=now_us, due_us=now_us + CLOSED_PAUSE_US)
        return True
    return False
