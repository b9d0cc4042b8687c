"""The adapter worker: claims due effects, performs them, and answers their worlds.

An effect is tried at least once and answered exactly once. A claim is a token and a time; it is renewed while the
function runs, and whoever loses it can change nothing any more. An attempt that fails is tried again after a pause that
grows, until attempts or time run out: then the world gets an `error` or `timeout` receipt, or the work is parked for a
person if its author said so.

Effects of worlds held in this process come here already claimed, in the commit that asked for them, and their answers
go straight into the next cycle. Both are short cuts through the same queue, not another meaning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.kernel import handling, runs
from worldline.kernel.calls import Effect, Options
from worldline.kernel.program import Program
from worldline.layers import blobs as blob_layer
from worldline.layers import commit, ready, worlds
from worldline.layers import inbox as inboxes
from worldline.layers import work as works
from worldline.model import ids, inbox
from worldline.model.inbox import ReceiptStatus
from worldline.model.settings import AdapterSettings
from worldline.model.work import Work, WorkKind
from worldline.roles import attempts, committing, hub, limiter, watching
from worldline.roles.hosted import Done, Handover, Hosted
from worldline.roles.world_worker import WorldWorker
from worldline.store import kv, transact

log = logging.getLogger("worldline.adapter")


class Policy(msgspec.Struct, frozen=True):
    """An effect's declaration with what its call overrides."""

    attempts: int | None
    timeout_us: int | None
    park: bool
    first_us: int
    factor: float
    most_us: int

    def delay_us(self, attempt: int) -> int:
        return int(min(self.most_us, self.first_us * self.factor ** min(attempt - 1, 64)))


class AdapterWorker(committing.Claims):
    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        universe: ids.UniverseId,
        programs: Sequence[Program],
        *,
        blobs: blob_layer.Blobs,
        live: hub.Hub,
        settings: AdapterSettings,
        worker: ids.WorkerId,
        builtins: Sequence[Effect[..., Any]] = (),
    ) -> None:
        self._engine = engine
        self._env = env
        self._universe = universe
        self._blobs = blobs
        self._hub = live
        self._settings = settings
        self._worker = worker
        self._local: WorldWorker | None = None
        self._threads = ThreadPoolExecutor(32, thread_name_prefix="worldline-effect")
        self._tasks: dict[ids.IntentId, asyncio.Task[None]] = {}
        self._effects: dict[tuple[str, str], Effect[..., Any]] = {}
        self._queues: list[str] = []
        self._limits = limiter.Limits(env)
        for program in programs:
            for effect in [*program.effects.values(), *builtins]:
                queue = committing.effect_queue(program, effect.queue)
                self._effects[queue, effect.name] = effect
                if queue not in self._queues:
                    self._queues.append(queue)
                self._limits.declare(f"{queue}/{effect.name}", effect.concurrency, effect.rate)
        prefixes = [works.next_range(universe, queue=queue, shard=0).begin for queue in self._queues]
        self._watch = watching.Watch(engine, prefixes)
        self.performed = 0

    def attach(self, local: WorldWorker) -> None:
        """Work side by side with a world worker: its effects come here claimed, answers go back directly."""
        self._local = local
        local.on_act.append(self._on_act)

    # --- Short cuts within the process -------------------------------------------------------------------------

    def claim(self, work: Work, time_us: int) -> commit.Claim | None:
        if work.kind is not WorkKind.EFFECT or len(self._tasks) >= self._settings.concurrency:
            return None
        if (work.queue, work.name) not in self._effects or not self._limits.free_for_claim(f"{work.queue}/{work.name}"):
            return None
        until_us = time_us + self._settings.claim_ttl_ms * 1000
        return commit.Claim(self._worker, ids.Token(envs.new_id(self._env)), until_us)

    def _on_act(self, hosted: Hosted, done: Done, built: committing.Built) -> None:
        for opened in built.claimed:
            self._perform(opened, done.wanted[opened.intent].params)
        for cancelled in done.cancelled:
            self._cancel(cancelled.intent)
        if len(built.claimed) < len(done.wanted):
            self._watch.wake()
        del hosted

    def _cancel(self, intent: ids.IntentId) -> None:
        task = self._tasks.get(intent)
        if task is not None:
            task.cancel()

    # --- The loop's turn ---------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._watch.wake()

    async def tick(self) -> None:
        """One turn: claim what is due and there is room for, or rest until something may be."""
        self._watch.clear()
        claimed = 0
        rest_us = self._settings.scan_ms * 1000
        for queue in self._queues:
            count, next_us = await self._claim_due(queue)
            claimed += count
            rest_us = min(rest_us, next_us)
        if claimed == 0:
            await self._watch.rest(max(1, min(self._settings.scan_ms, rest_us // 1000)))

    async def _claim_due(self, queue: str) -> tuple[int, int]:
        """Claim what is due in one queue. Returns how many, and how long until the next may be due."""
        room = min(self._settings.claim_batch, self._settings.concurrency - len(self._tasks))
        if room <= 0:
            return 0, self._settings.scan_ms * 1000
        probe = await self._engine.read(works.next_range(self._universe, queue=queue, shard=0))
        found = works.decode_due(self._universe, probe.page(0))
        if not found:
            return 0, self._settings.scan_ms * 1000
        if found[0].pointer.due_us > probe.time_us:
            return 0, found[0].pointer.due_us - probe.time_us
        read = await self._engine.read(
            works.due_range(self._universe, queue=queue, shard=0, now_us=probe.time_us, count_max=room)
        )
        found = works.decode_due(self._universe, read.page(0))
        authorities = await self._engine.read(*(works.get(each.pointer.at, each.pointer.intent) for each in found))
        return await self._claim_all(queue, found, authorities), 0

    async def _claim_all(self, queue: str, found: list[works.Found], authorities: kv.Snapshot) -> int:
        batches: list[kv.Batch] = []
        claims: list[works.Open | None] = []
        for index, each in enumerate(found):
            at, intent = each.pointer.at, each.pointer.intent
            authority = works.decode(at, intent, authorities.value(index))
            batch = kv.Batch()
            if not works.matches(each, authority):
                works.discard(batch, each, authority)
                batches.append(batch)
                claims.append(None)
                continue
            assert authority is not None
            if (queue, authority.work.name) not in self._effects or intent in self._tasks:
                continue
            if not self._limits.free_for_claim(f"{queue}/{authority.work.name}"):
                continue
            token = ids.Token(envs.new_id(self._env))
            until_us = authorities.time_us + self._settings.claim_ttl_ms * 1000
            claims.append(
                works.claim(
                    batch, authority, worker=self._worker, token=token, now_us=authorities.time_us, until_us=until_us
                )
            )
            batches.append(batch)
        outcomes = await transact.commit(self._engine, self._env, *batches) if batches else []
        for claimed, outcome in zip(claims, outcomes, strict=True):
            if claimed is not None and isinstance(outcome, kv.Ok):
                self._perform(claimed, None)
        return len(batches)

    # --- Performing ----------------------------------------------------------------------------------------------

    def _perform(self, claimed: works.Open, params: bytes | None) -> None:
        task = asyncio.get_running_loop().create_task(self._run(claimed, params), name=f"effect {claimed.work.name}")
        self._tasks[claimed.intent] = task
        task.add_done_callback(lambda done: self._ended(claimed.intent, done))

    def _ended(self, intent: ids.IntentId, task: asyncio.Task[None]) -> None:
        self._tasks.pop(intent, None)
        self._watch.wake()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("effect %s: %s", intent.hex(), error)

    async def _run(self, claimed: works.Open, params: bytes | None) -> None:
        """One attempt, from the claim to the answer or the next pause."""
        work = claimed.work
        effect = self._effects.get((work.queue, work.name))
        if effect is None:
            await self._answer(claimed, ReceiptStatus.ERROR, runs.failure("not_found", f"no effect {work.name!r} here"))
            return
        if params is None:
            params = await self._blobs.load(work.params)
        arguments, options = handling.unpack_effect(params)
        policy = policy_of(effect, options)
        this = attempts.Attempt(
            options.key or claimed.intent.hex(), work.attempt, lambda chunk: self._stream(claimed, chunk)
        )
        holding = Claimed(self, claimed)
        renewing = asyncio.ensure_future(holding.renew(self._settings.renew_ms / 1000))
        try:
            async with self._limits.running(f"{work.queue}/{work.name}"):
                ended = await attempts.run(effect, arguments, this, timeout_us=policy.timeout_us, threads=self._threads)
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        self.performed += 1
        if not holding.lost:
            await self._conclude(holding.claim, policy, ended)

    async def _conclude(self, claimed: works.Open, policy: Policy, ended: attempts.Ended) -> None:
        work = claimed.work
        if ended.ok:
            await self._answer(claimed, ReceiptStatus.OK, ended.data)
            return
        now_us = (await self._engine.read()).time_us
        due_us = now_us + max(policy.delay_us(work.attempt), ended.after_us)
        out_of_time = bool(work.deadline_us) and due_us >= work.deadline_us
        out_of_attempts = policy.attempts is not None and work.attempt >= policy.attempts
        batch = kv.Batch()
        if not ended.final and not out_of_time and not out_of_attempts:
            works.back_off(batch, claimed, due_us=due_us, error=ended.message)
            await transact.commit(self._engine, self._env, batch)
        elif policy.park and not ended.final:
            works.park(batch, claimed, error=ended.message)
            await transact.commit(self._engine, self._env, batch)
        else:
            status = ReceiptStatus.TIMEOUT if ended.timed_out or out_of_time else ReceiptStatus.ERROR
            await self._answer(claimed, status, runs.failure(ended.code, ended.message, attempts=work.attempt))

    async def _answer(self, claimed: works.Open, status: ReceiptStatus, data: bytes) -> None:
        """Exactly one receipt: into the next cycle of a world held here, else into the world's inbox."""
        carried = await self._blobs.carry(data)
        receipt = inbox.Receipt(claimed.intent, status, carried, claimed.work.attempt, claimed.work.correlation)
        if self._local is not None and await self._hand_over(claimed, receipt, data):
            return
        await self._enqueue(claimed, receipt)

    async def _hand_over(self, claimed: works.Open, receipt: inbox.Receipt, data: bytes) -> bool:
        assert self._local is not None
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        if not self._local.hand_over(claimed.at, Handover(receipt, data, done=done, claim=claimed)):  # type: ignore[arg-type]
            return False
        try:
            await done
        except errors.Fenced:
            return False
        return True

    async def _enqueue(self, claimed: works.Open, receipt: inbox.Receipt) -> None:
        """Answer through the inbox: receipt and settlement in one commit that expects the claim."""

        async def attempt() -> transact.Done[None] | transact.Write[None]:
            hint = ready.get(claimed.at, priority=committing.READY_PRIORITY)
            read = await self._engine.read(worlds.get(claimed.at), works.get(claimed.at, claimed.intent), hint)
            world = worlds.find(claimed.at, read.value(0))
            if world is None or read.value(1) != claimed.raw:
                return transact.Done(None)  # nobody wants the answer, or somebody else has the work
            batch = kv.Batch()
            works.settle(batch, claimed)
            worlds.expect_open(batch, world)
            index = inboxes.enqueue_once(batch, claimed.at, receipt)
            ready.mark(batch, claimed.at, priority=committing.READY_PRIORITY, seen=read.value(2), append=index)
            return transact.Write(batch, lambda _: None)

        await transact.run(self._engine, self._env, attempt)
        if self._local is not None:
            self._local.poke(claimed.at)

    def _stream(self, claimed: works.Open, chunk: object) -> None:
        piece = hub.Chunk(claimed.intent, claimed.work.name, claimed.work.correlation, claimed.work.attempt, chunk)
        self._hub.stream(claimed.at, piece)

    async def renew_claim(self, claimed: works.Open) -> works.Open | None:
        """The claim, renewed; None if it is lost."""
        now_us = (await self._engine.read()).time_us
        batch = kv.Batch()
        renewed = works.renew(batch, claimed, until_us=now_us + self._settings.claim_ttl_ms * 1000)
        [outcome] = await transact.commit(self._engine, self._env, batch)
        return renewed if isinstance(outcome, kv.Ok) else None

    async def close(self) -> None:
        """Stop what is running. Claims run out by themselves and others take the work."""
        await self._watch.close()
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)


class Claimed:
    """A claim that is kept alive while the work goes on."""

    def __init__(self, adapter: AdapterWorker, claim: works.Open) -> None:
        self._adapter = adapter
        self.claim = claim
        self.lost = False

    async def renew(self, every_seconds: float) -> None:
        while not self.lost:
            await asyncio.sleep(every_seconds)
            renewed = await self._adapter.renew_claim(self.claim)
            if renewed is None:
                self.lost = True
                log.warning("effect %s: the claim was lost while it ran", self.claim.intent.hex())
            else:
                self.claim = renewed


def policy_of(effect: Effect[..., Any], options: Options) -> Policy:
    retry = effect.retry
    return Policy(
        attempts=retry.attempts if options.attempts is None else (options.attempts or None),
        timeout_us=effect.timeout_us if options.timeout_us is None else options.timeout_us,
        park=retry.then == "park" if options.park is None else options.park,
        first_us=retry.first_us if options.first_us is None else options.first_us,
        factor=retry.factor if options.factor is None else options.factor,
        most_us=retry.most_us if options.most_us is None else options.most_us,
    )
