"""A standalone host: flow domains in this process, without a store. `worldline.open` runs them in durable worlds.

For every key a mailbox, a head, and at most one runner. A runner takes jobs until there is none, looks once more
before it releases its guard, and a kick that came while it ran is remembered and tried again: no job is left lying.
Effects are performed outside the mailbox; what they give comes back as a job. The head is set before anything of a
job's outcome is acted on.

All that an intent needs to resume is in its snapshot; here are only queues, futures of callers, and traces. What a job
raises ends its intent and not the runner. A key whose requirement cannot be cleared is fatal: it takes nothing any
more. What callers are given are copies: no change of theirs reaches a head. A closed host accepts nothing, and
ends the waits of all callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from worldline.base import env as envs
from worldline.base import env_os, errors, limits, probes
from worldline.codec import printable
from worldline.flow import effect_registry as handlers
from worldline.flow import host_events, mailbox
from worldline.flow_core import compute_trace, flow_records, hashing, jobs, js_values, patches, validation
from worldline.flow_core import core as cores
from worldline.flow_core.authoring import domain_class
from worldline.flow_core.compiled_document import Compiled

_log = printable.logger("worldline.flow")
_LOGGED = ("effect:fulfill:drop", "effect:fulfill:error", "job:error", "fatal:escalate", "runner:kick:failed")
KICK_ATTEMPTS_MAX = 3
DEFAULT_KEY = "default"


class Result(msgspec.Struct, frozen=True):
    """What became of an intent: "complete" (also if it halted) or "error"; its computes as traces."""

    status: str
    snapshot: flow_records.Snapshot
    error: flow_records.ErrorValue | None
    traces: tuple[compute_trace.TraceGraph, ...]


class KeyFatal(errors.Error):
    """The key takes nothing any more: one of its requirements could not be cleared."""

    code = "key_fatal"


class _Key:
    """One key: its queue, its head, the callers that wait for each intent, and what is performed for it."""

    def __init__(self, key: str, head: flow_records.Snapshot) -> None:
        self.mailbox = mailbox.Mailbox(key)
        self.head = head
        self.fatal = ""
        self.waiting: dict[str, asyncio.Future[Result]] = {}
        self.bodies: dict[str, str] = {}
        self.traces: dict[str, list[compute_trace.TraceGraph]] = {}
        self.performing: dict[asyncio.Task[None], str] = {}
        self.overdue: dict[asyncio.Task[None], str] = {}  # resolved by a timeout, their handlers still run

    def advance(self, head: flow_records.Snapshot) -> None:
        self.head = head

    def stop(self, why: str) -> None:
        self.fatal = why
        # Nothing of it may be run: each job could ask for more.
        self.mailbox.clear()

    def knows(self, intent: flow_records.Intent) -> bool:
        """Return whether the intent was submitted before; the same id with another body is refused."""
        if intent.intent_id not in self.bodies:
            return False
        if self.bodies[intent.intent_id] != _body(intent):
            # Another body under the same id would get the result of the first.
            raise errors.IdReused(intent.intent_id)
        return True

    def expect(self, intent: flow_records.Intent) -> None:
        """Keep its future, and those of the last intents that have ended."""
        self.waiting[intent.intent_id] = asyncio.get_running_loop().create_future()
        self.bodies[intent.intent_id] = _body(intent)
        # Only of intents that have ended: a result that is awaited is never dropped.
        ended = [each for each, future in self.waiting.items() if future.done()]
        for each in ended[: max(0, len(ended) - limits.FLOW_RESULTS_KEPT_MAX)]:
            del self.waiting[each], self.bodies[each]

    def end(self, intent_id: str, status: str, error: flow_records.ErrorValue | None) -> None:
        traces = tuple(self.traces.pop(intent_id, ()))
        future = self.waiting.get(intent_id)
        if future is not None and not future.done():
            said = "error" if status == "error" else "complete"
            future.set_result(Result(said, self.head, error if status == "error" else None, traces))

    def performs(self, task: asyncio.Task[None], requirement_id: str) -> None:
        """Note that this task performs an effect, until that has its outcome or the task is done."""
        self.performing[task] = requirement_id
        task.add_done_callback(self._left)

    def settle(self, task: asyncio.Task[Any] | None) -> None:
        """Note that the effect of a task has its outcome. Nothing waits for a handler that runs after a timeout."""
        if task in self.performing:
            self.overdue[task] = self.performing.pop(task)

    def _left(self, task: asyncio.Task[None]) -> None:
        self.performing.pop(task, None)
        self.overdue.pop(task, None)

    def tasks(self) -> dict[asyncio.Task[None], str]:
        """All that handlers of the key still do."""
        return {**self.performing, **self.overdue}

    def is_awaited(self) -> bool:
        """Return whether an effect is performed, or a caller may wait for an intent that has not ended."""
        return bool(self.performing) or any(not each.done() for each in self.waiting.values())

    def end_all(self, error: Exception) -> None:
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # a caller that does not wait is told by `fatal`, not by a warning


class Host:
    """Runs one document for any number of keys, in the event loop of its caller."""

    def __init__(
        self,
        document: Mapping[str, Any] | Compiled | type[domain_class.Domain],
        *,
        data: Mapping[str, Any] | None = None,
        effects: cores.Effects = "serial",
        core: jobs.CoreCalls | None = None,
        env: envs.Env | None = None,
        environment: Callable[[], Mapping[str, Any]] = dict,
        trace: Callable[[host_events.Event], None] | None = None,
        perform: bool = True,
        iterations_max: int = limits.FLOW_ITERATIONS_MAX,
    ) -> None:
        """`core`, `env` and `environment` are injected; `perform=False` leaves effects to `inject`."""
        given = document.document() if isinstance(document, type) else document
        schema = given if isinstance(given, Compiled) else validation.load(given)
        self.domain = jobs.DomainRuntime(
            schema, core or cores.Core(effects=effects), parallel=effects == "parallel", iterations_max=iterations_max
        )
        self._data = js_values.from_outside(dict(data or {}), "data")  # a copy: keys are made of it later
        self._env = env or env_os.OsEnv()
        self._environment = environment
        self._trace = trace
        self._perform = perform
        self._registry = handlers.Registry()
        self._keys: dict[str, _Key] = {}
        self._active: dict[str, None] = {}
        self._kicked: dict[str, None] = {}
        self._runners: dict[asyncio.Task[None], str] = {}
        self._is_closed = False

    # --- What users call ---

    def register(
        self,
        type: str,
        handler: handlers.Handler,
        *,
        timeout_ms: int = limits.FLOW_EFFECT_TIMEOUT_MS,
        retries: int = 0,
        retry_delay_ms: int = limits.FLOW_RETRY_DELAY_MS,
    ) -> None:
        """Set the handler of an effect. It gives patches; what it raises becomes an error in `$host`."""
        self._registry.register(type, handler, timeout_ms=timeout_ms, retries=retries, retry_delay_ms=retry_delay_ms)

    async def act(self, act: domain_class.Act[Any], *, key: str = DEFAULT_KEY, id: str = "") -> Result:
        """Dispatch a call of an action: `host.act(Order.pay("tok"))`."""
        return await self.dispatch(act.action, act.input or js_values.MISSING, key=key, id=id)

    async def dispatch(
        self, type: str, input: Any = js_values.MISSING, *, key: str = DEFAULT_KEY, id: str = ""
    ) -> Result:
        """Submit an intent and wait for its end. The same id again gives the same result."""
        return await self.result(self.submit(type, input, key=key, id=id), key=key)

    def submit(self, type: str, input: Any = js_values.MISSING, *, key: str = DEFAULT_KEY, id: str = "") -> str:
        """Submit an intent and give its id, which is made now if none is given, and stays."""
        self._check_open()
        given = input if input is js_values.MISSING else js_values.from_outside(input, "input")
        intent = flow_records.Intent(type, _checked_id(id or envs.new_id(self._env).hex()), given)
        entry = self._entry(key)
        # Also of a key that is fatal, an intent that is known keeps its result.
        if not entry.knows(intent):
            if entry.fatal:
                raise KeyFatal(f"{key}: {entry.fatal}")
            entry.expect(intent)
            self._enqueue(key, jobs.StartIntent(intent))
        return intent.intent_id

    async def result(self, id: str, *, key: str = DEFAULT_KEY) -> Result:
        """Wait for the end of an intent that was submitted here. `errors.Closed` if the host is closed before."""
        future = self._entry(key).waiting.get(id)
        if future is None:
            raise errors.NotFound(f"{key} knows no intent {id!r}")
        # Shielded, because a caller that is cancelled must not end the wait of others.
        return _own(await asyncio.shield(future))

    def patch(self, patch_list: list[patches.Patch], *, source: str, key: str = DEFAULT_KEY) -> None:
        """Apply patches from outside, as a job of their own. Raises `patches.BadPatch` before it is one."""
        self._check_open()
        self._enqueue(key, jobs.ApplyPatches(jobs.from_handler(patch_list), source))

    def inject(self, requirement_id: str, result: object, *, key: str = DEFAULT_KEY) -> None:
        """Take the outcome of an effect that was performed elsewhere: patches, or a `jobs.Failure`."""
        self._check_open()
        intent_id = next(
            (each.intent_id for each in self._entry(key).head.system.pending_requirements if each.id == requirement_id),
            "",
        )
        if isinstance(result, jobs.Failure):
            self._enqueue(key, jobs.FulfillEffect(intent_id, requirement_id, (), result))
        else:
            self._enqueue(key, jobs.fulfilled(intent_id, requirement_id, result))

    def cancel(self, requirement_id: str, *, key: str = DEFAULT_KEY) -> None:
        """Wait for an effect no longer: cancelled is its outcome."""
        self._check_open()
        for task, performed in self._entry(key).tasks().items():
            if performed == requirement_id:
                task.cancel()
        self.inject(requirement_id, jobs.Failure(jobs.EFFECT_CANCELLED, "cancelled"), key=key)

    def snapshot(self, key: str = DEFAULT_KEY) -> flow_records.Snapshot:
        """Return the head of a key, as a copy."""
        return flow_records.copied(self._entry(key).head)

    def fatal(self, key: str = DEFAULT_KEY) -> str:
        """Say why the key takes nothing any more; empty if it does."""
        return self._entry(key).fatal

    def seed(self, snapshot: flow_records.Snapshot, *, key: str = DEFAULT_KEY) -> None:
        """Begin a key with a snapshot. Intents on their way in it go on: their effects are performed again.

        `errors.Exists` if the key has work: what it does would be lost, and its callers would wait for ever.
        """
        self._check_open()
        if key in self._keys:
            entry = self._keys[key]
            if key in self._active or entry.is_awaited():
                raise errors.Exists(f"{key} has work on its way: let its intents end, or seed another key")
            for task in entry.tasks():
                task.cancel()  # handlers behind their timeouts: what they give is for the key as it was
        self._keys[key] = _Key(key, flow_records.decoded(flow_records.plain(snapshot)))
        context = flow_records.JobContext(self._now(), snapshot.meta.random_seed)
        self._act(key, jobs.resumed(self._keys[key].head, self.domain, context))

    async def drain(self, key: str = DEFAULT_KEY) -> flow_records.Snapshot:
        """Wait until nothing of a key is queued, run or performed any more, or the host is closed. A handler that runs
        on behind its timeout is not waited for: its effect has its outcome.
        """
        entry = self._entry(key)
        while not self._is_closed and (key in self._active or entry.performing or self._has_next(key)):
            if self._has_next(key) and key not in self._active:
                self._kick(key)
            running = [task for task, of in self._runners.items() if of == key]
            if running or entry.performing:
                await asyncio.wait([*running, *entry.performing], return_when=asyncio.FIRST_COMPLETED)
            # Callbacks of what has ended run now, and may enqueue more.
            await asyncio.sleep(0)
        return flow_records.copied(entry.head)

    async def close(self) -> None:
        """Stop what runs, and take nothing any more. Callers that wait get `errors.Closed`; what is on its way stays in
        the snapshots, and goes on in a host that is seeded with them.
        """
        # Before anything is awaited: nothing more is accepted meanwhile.
        self._is_closed = True
        said = "the host was closed before the intent ended; seed another one with its snapshot to go on"
        for key, entry in self._keys.items():  # first: a handler that closes its host is cancelled below
            entry.end_all(errors.Closed(f"{key}: {said}"))
        tasks = [*self._runners, *(task for entry in self._keys.values() for task in entry.tasks())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- The mailbox and its runner ---

    def _entry(self, key: str) -> _Key:
        if key not in self._keys:
            context = flow_records.JobContext(self._now(), "initial", dict(self._environment()))
            self._keys[key] = _Key(key, cores.created(self.domain.schema, self._data, context))
        return self._keys[key]

    def _check_open(self) -> None:
        if self._is_closed:
            raise errors.Closed("this host is closed: it takes no work any more")

    def _now(self) -> int:
        return self._env.wall_us() // 1_000

    def _has_next(self, key: str) -> bool:
        entry = self._keys[key]
        return entry.mailbox.has_next(busy=jobs.is_busy(entry.head))

    def _enqueue(self, key: str, job: jobs.Job) -> None:
        entry = self._entry(key)
        if self._is_closed:
            _log.info("%s: %s comes after the host was closed", key, job.id)
        elif entry.fatal:
            _log.warning("%s: %s is dropped: %s", key, job.id, entry.fatal)
        # A job behind others is seen by the runner that takes these, if there is one.
        elif entry.mailbox.put(job) or key not in self._active:
            self._kick(key)

    def _kick(self, key: str) -> None:
        """Have the mailbox of a key processed. Blocked by a runner, the kick is remembered."""
        self._emit(key, "runner:kick")
        if key in self._active:
            return self._remember(key)
        for _ in range(KICK_ATTEMPTS_MAX):
            try:
                return self._schedule(key)
            except Exception as error:  # noqa: BLE001 - LIVE-3: whatever keeps a runner from starting is tried again
                probes.hit("flow.kick-failed")
                self._emit(key, "runner:kick:failed", message=str(error))
        return self._remember(key)

    def _remember(self, key: str) -> None:
        probes.hit("flow.kick-remembered")
        self._kicked[key] = None

    def _schedule(self, key: str) -> None:
        """Start a runner, which has the guard from now on."""
        task = asyncio.get_running_loop().create_task(self._run(key))
        # Before the task first runs, so that a second kick finds the guard.
        self._active[key] = None
        self._runners[task] = key
        # Held until it is done, because the loop alone does not keep a task alive.
        task.add_done_callback(self._runners.pop)

    async def _run(self, key: str) -> None:
        """Run jobs until there is none, including one that comes at the last moment."""
        entry = self._entry(key)
        try:
            self._emit(key, "runner:start")
            while True:
                while (job := entry.mailbox.take(busy=jobs.is_busy(entry.head))) is not None:
                    self._one(key, job)
                    # Other tasks get their turn: a flow without effects would block the loop.
                    await asyncio.sleep(0)
                self._emit(
                    key, "runner:recheck", queueEmpty=entry.mailbox.is_empty(), kickRequested=key in self._kicked
                )
                if not self._rechecked(key):
                    break
            self._emit(key, "runner:end")
        # However it ended: a guard that stays would keep the key from ever running.
        finally:
            del self._active[key]
            self._retry_kick(key)

    def _rechecked(self, key: str) -> bool:
        """RUN-4: whether a job came between the last look into the queue and now."""
        return self._has_next(key)

    def _retry_kick(self, key: str) -> None:
        """LIVE-4: a kick that was blocked by this runner is tried again."""
        if key in self._kicked:
            del self._kicked[key]
            if self._has_next(key) and not self._is_closed:
                self._kick(key)

    def _one(self, key: str, job: jobs.Job) -> None:
        """Run one job and act on its outcome. What it raises ends its intent."""
        entry = self._entry(key)
        emit = self._emitter(key)
        context = flow_records.JobContext(self._now(), jobs.seed(job, entry.head))
        try:
            context = self._frozen(context)
        except Exception as error:  # noqa: BLE001 - a user's function: it ends the intent, and not the runner
            jobs.begun(job, context, emit)  # without them a replay knows nothing of the intent's end
            outcome = jobs.failed(job, error, entry.head, self.domain, context=context, emit=emit)
            return self._settle(key, job, outcome)
        try:
            outcome = jobs.run(job, entry.head, self.domain, context, emit)
        except Exception as error:  # noqa: BLE001 - section 13.2: logged, and the next job is taken
            outcome = jobs.failed(job, error, entry.head, self.domain, context=context, emit=emit)
        return self._settle(key, job, outcome)

    def _frozen(self, context: flow_records.JobContext) -> flow_records.JobContext:
        """Return the context of a job with its environment, captured once."""
        env = js_values.from_outside(dict(self._environment()), "the environment")
        return flow_records.JobContext(context.now, context.random_seed, env)

    def _settle(self, key: str, job: jobs.Job, outcome: jobs.JobOutcome) -> None:
        """Set the head, and only then do what the outcome asks for."""
        entry = self._entry(key)
        entry.advance(outcome.head)
        if outcome.trace is not None:
            entry.traces.setdefault(job.intent_id, []).append(outcome.trace)
        self._act(key, outcome)

    def _act(self, key: str, outcome: jobs.JobOutcome) -> None:
        entry = self._entry(key)
        if outcome.fatal:
            entry.stop(outcome.fatal)
            entry.end_all(KeyFatal(f"{key}: {outcome.fatal}"))
            return
        for job in outcome.jobs:
            self._enqueue(key, job)
        for requirement in outcome.effects:
            self._dispatch(key, requirement)
        if outcome.ended is not None:
            entry.end(outcome.ended.intent_id, outcome.ended.status, outcome.ended.error)

    # --- Effects ---

    def _dispatch(self, key: str, requirement: flow_records.Requirement) -> None:
        """Perform an effect outside the mailbox; its outcome comes back as a job."""
        # Its outcome comes by `inject`.
        if not self._perform:
            return
        entry = self._entry(key)
        given = handlers.call(requirement, entry.head)
        registered = self._registry.find(requirement.type)

        def settle(job: jobs.FulfillEffect) -> None:
            entry.settle(asyncio.current_task())
            self._enqueue(key, job)

        work = handlers.perform(registered, requirement, given, self._env, settle)
        entry.performs(asyncio.get_running_loop().create_task(work), requirement.id)

    # --- Traces ---

    def _emitter(self, key: str) -> jobs.Emit:
        def emit(type: str, **fields: Any) -> None:
            self._emit(key, type, **fields)

        return emit

    def _emit(self, key: str, type: str, **fields: Any) -> None:
        if type in _LOGGED:
            _log.warning("%s: %s %s", key, type, fields)
        if self._trace is not None:
            try:
                self._trace(host_events.Event(key, type, jobs.told(fields)))
            except Exception:  # noqa: BLE001 - a sink that fails changes nothing
                _log.warning("%s: the trace sink failed at %s", key, type, exc_info=True)


def _own(result: Result) -> Result:
    """A result for one caller: what it changes in it is its own."""
    return Result(
        result.status,
        flow_records.copied(result.snapshot),
        flow_records.copied_error(result.error),
        tuple(compute_trace.copied(each) for each in result.traces),
    )


def _body(intent: flow_records.Intent) -> str:
    """What must be the same if the id is."""
    given = {} if intent.input is js_values.MISSING else {"input": intent.input}
    return hashing.canonical({"type": intent.type, **given})


def _checked_id(id: str) -> str:
    size = len(id.encode(errors="surrogatepass"))
    if size > limits.CHOSEN_ID_BYTES_MAX or not js_values.is_whole(id) or id == js_values.FORBIDDEN_KEY:
        raise errors.BadInput(f"the id of an intent is a text of at most {limits.CHOSEN_ID_BYTES_MAX} bytes")
    return id
