"""The functions that user code calls inside workflows and handlers. Each one is public as `worldline.<name>`.

All of them go through `context.current`; outside of a workflow or handler they refuse with a hint. Nothing here keeps
state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from random import Random
from types import TracebackType
from typing import Any, Generic, Literal, Never, TypeVar, overload
from uuid import UUID

from worldline.base import errors, failures
from worldline.flow_core.authoring import action_calls
from worldline.flow_core.authoring.domain_class import Act
from worldline.kernel import context, user_errors, user_values
from worldline.kernel.authoring import call_checks, closing, message_calls, reducers, schedule_spec
from worldline.kernel.authoring.calls import Call, Request, Seconds, answer_type, to_us
from worldline.kernel.authoring.closing import GRACE_SECONDS
from worldline.kernel.run_operations import All, ContinueAsNew, Joined, OpKind
from worldline.kernel.run_operations import ScopeOperation as Entered
from worldline.model import ids

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
E = TypeVar("E")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Awaiting(Awaitable[Any]):
    """A generator of the kernel's records, made awaitable."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Generator[Any, Any, Any]) -> None:
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._steps


def now() -> datetime:
    """Return the logical time of this step: what the journal says, the same on every replay."""
    return _EPOCH + timedelta(microseconds=context.require("wl.now()").time_us)


def random(label: str = "") -> Random:
    """Make a generator of random numbers that replays the same, seeded by the run, this function and a label or
    counter.
    """
    return context.require("wl.random()").random(user_values.text(label, "a label"))


def uuid(label: str = "") -> UUID:
    """Draw a version 4 UUID that replays the same."""
    return UUID(bytes=context.require("wl.uuid()").random_id(user_values.text(label, "a label")), version=4)


async def sleep(seconds: Seconds, /) -> None:
    """Wait durably: the world may be stopped, moved or killed meanwhile."""
    delay_us = to_us(seconds, "wl.sleep()")
    await _Awaiting(_timer("sleep", delay_us.to_bytes(8, "big"), delay_us))


async def sleep_until(when: datetime, /) -> None:
    """Wait until the store's clock shows a time, given with its time zone. A time that has passed is now."""
    if when.tzinfo is None:
        raise errors.BadInput("wl.sleep_until() needs a datetime with a time zone")
    due_us = (when - _EPOCH) // timedelta(microseconds=1)
    delay_us = max(0, due_us - context.require("wl.sleep_until()").store_us)
    await _Awaiting(_timer("sleep_until", due_us.to_bytes(8, "big", signed=True), delay_us))


def _timer(name: str, params: bytes, delay_us: int) -> Generator[Any, Any, Any]:
    number = context.require(f"wl.{name}()").issue(OpKind.TIMER, name, params, delay_us=delay_us)
    yield All((number,))


@overload
async def gather(
    a: Call[T1], b: Call[T2], /, *, return_exceptions: Literal[False] = False, grace: Seconds | None = GRACE_SECONDS
) -> tuple[T1, T2]: ...
@overload
async def gather(
    a: Call[T1],
    b: Call[T2],
    c: Call[T3],
    /,
    *,
    return_exceptions: Literal[False] = False,
    grace: Seconds | None = GRACE_SECONDS,
) -> tuple[T1, T2, T3]: ...
@overload
async def gather(
    a: Call[T1],
    b: Call[T2],
    c: Call[T3],
    d: Call[T4],
    /,
    *,
    return_exceptions: Literal[False] = False,
    grace: Seconds | None = GRACE_SECONDS,
) -> tuple[T1, T2, T3, T4]: ...
@overload
async def gather(
    *calls: Call[R], return_exceptions: Literal[False] = False, grace: Seconds | None = GRACE_SECONDS
) -> list[R]: ...
@overload
async def gather(
    a: Call[T1], b: Call[T2], /, *, return_exceptions: Literal[True], grace: Seconds | None = GRACE_SECONDS
) -> tuple[T1 | errors.Error, T2 | errors.Error]: ...
@overload
async def gather(
    a: Call[T1], b: Call[T2], c: Call[T3], /, *, return_exceptions: Literal[True], grace: Seconds | None = GRACE_SECONDS
) -> tuple[T1 | errors.Error, T2 | errors.Error, T3 | errors.Error]: ...
@overload
async def gather(
    a: Call[T1],
    b: Call[T2],
    c: Call[T3],
    d: Call[T4],
    /,
    *,
    return_exceptions: Literal[True],
    grace: Seconds | None = GRACE_SECONDS,
) -> tuple[T1 | errors.Error, T2 | errors.Error, T3 | errors.Error, T4 | errors.Error]: ...
@overload
async def gather(
    *calls: Call[R], return_exceptions: Literal[True], grace: Seconds | None = GRACE_SECONDS
) -> list[R | errors.Error]: ...
async def gather(*calls: Call[Any], return_exceptions: bool = False, grace: Seconds | None = GRACE_SECONDS) -> Any:
    """Do several calls at once and wait for all. The first failure cancels the others and is raised.

    With `return_exceptions`, nothing is cancelled: each failure, a `wl.Error`, stands among the results in the place of
    its call. A cancellation of the run, or of a scope around it, is raised all the same, and ends them all.

    Workflows that are cancelled may put things right before it is raised: they are waited for, at most `grace` seconds.
    `None`: as long as it takes.
    """
    within_us = closing.grace_us(grace, "wl.gather(grace=)")
    if not calls:
        return []
    return await _Awaiting(_settle(calls, within_us) if return_exceptions else _gather(calls, within_us))


def _gather(wanted: tuple[Call[Any], ...], grace_us: int | None) -> Generator[Any, Any, list[Any]]:
    numbers = _issue_all(wanted)
    try:
        answers = yield All(numbers)
    except (errors.Error, failures.Cancelled) as error:
        yield from closing.close(numbers, error, grace_us, "wl.gather()")
        raise
    return [_result(call, number, data) for call, number, data in zip(wanted, numbers, answers, strict=True)]


def _settle(wanted: tuple[Call[Any], ...], grace_us: int | None) -> Generator[Any, Any, list[Any]]:
    """Start all at once and wait for them one by one, so that each failure belongs to one of them alone."""
    numbers = _issue_all(wanted)
    results: list[Any] = []
    try:
        for call, number in zip(wanted, numbers, strict=True):
            try:
                (data,) = yield All((number,))
                results.append(_result(call, number, data))
            except errors.Error as error:
                results.append(error)
    except failures.Cancelled as cancelled:
        yield from closing.close(numbers[len(results) :], cancelled, grace_us, "wl.gather()")  # those not ended yet
        raise
    return results


def _result(call: Call[R], number: int, data: bytes) -> R:
    """Decode the answer of an operation: the first thing that happens when the code resumes."""
    try:
        result: R = call.target.signature.result(data)
    except errors.DecodeError as error:
        raise _unfit(number, error) from error
    return result


def _unfit(number: int, error: errors.DecodeError) -> BaseException:
    return context.require("an answer").workflow("an answer").unfit(number, error)


def _issue_all(wanted: tuple[Call[Any], ...]) -> tuple[int, ...]:
    hands = context.require("wl.gather()")
    hands.workflow("wl.gather()")  # refuses in a handler
    for call in wanted:  # all before one is issued
        call_checks.check_call(call, "wl.gather()", wanted="calls of effects and workflows, as in a(1), b(2)")
    return tuple(hands.issue_call(call, _kind(call)) for call in wanted)


def _kind(call: Call[Any]) -> OpKind:
    return OpKind.EFFECT if call.target.kind == "effect" else OpKind.CHILD


class Started(Generic[R_co]):
    """Something a workflow has started and may wait for."""

    def __init__(self, call: Call[R_co], number: int, run_id: str, scope: Entered | None = None) -> None:
        self._call = call
        self._number = number
        self._scope = scope
        self.id = run_id

    def __await__(self) -> Generator[Any, Any, R_co]:
        try:
            (data,) = yield All((self._number,))
        except errors.Error:
            if self._scope is not None:
                self._scope.hear(self._number)  # not raised once more by the scope
            raise
        except failures.Cancelled as cancelled:
            self._end(cancelled.reason, closing.kind_for_children(cancelled))
            raise
        result: R_co = _result(self._call, self._number, data)
        return result

    def cancel(self, reason: str = "") -> None:
        """Give it up, if it has not ended. A run that was only attached to goes on; one that was started in a scope may
        still clean up, and the scope waits for that.
        """
        run = context.require("cancel()").workflow("cancel()")
        if self._scope is None:
            run.cancel_op(self._number, reason)
        else:
            self._end(reason, failures.CancelKind.PARENT)

    def _end(self, reason: str, kind: failures.CancelKind) -> None:
        if self._scope is not None:
            self._scope.give_up(self._number)
            context.require("cancel()").workflow("cancel()").end_op(self._number, reason, kind)


def start(call: Call[R], /, *, id: str | None = None) -> Started[R] | Any:
    """Start a call without waiting. A workflow started so outlives the one that started it; an effect does not.

    The `id` of a run that was started with the same arguments attaches to it, or gives what it returned. With other
    arguments it fails: in a workflow when it is awaited, in a reducer's handler at once.
    """
    # To type checkers the answer is also `Any`, so that one which reports every awaitable that is not awaited (mypy's
    # `unused-awaitable`, which finds forgotten calls) lets a start stand alone. Everything else stays checked.
    hands = context.require("wl.start()")
    call_checks.check_call(call, "wl.start()")
    id = None if id is None else user_values.text(id, "a run's id")
    if hands.handler is not None:
        if call.target.kind != "workflow":
            raise failures.OutsideWorkflow("a reducer's handler can start workflows only; let one do the effect")
        hands.handler.start(call, id or "")
        return Started(call, -1, id or "")  # no operation: a handler cannot wait for it
    if id is not None:
        ids.check_name(id, "a run's id")
    kind = OpKind.START if call.target.kind == "workflow" else OpKind.EFFECT
    number = hands.issue_call(call, kind, run_id=id or "")
    return Started(call, number, id or hands.workflow("wl.start()").child_id(number))


class Scope:
    """The block of a `wl.scope`: what is started in it ends with it."""

    def __init__(self, timeout: Seconds | None, *, shield: bool, grace: Seconds | None = GRACE_SECONDS) -> None:
        self._timeout_us = None if timeout is None else to_us(timeout, "wl.scope(timeout=)")
        self._grace_us = closing.grace_us(grace, "wl.scope(grace=)")
        self._shield = shield
        self._left = False
        self._inner: Entered | None = None

    @property
    def timed_out(self) -> bool:
        """Whether its time was over before its block ended."""
        return self._inner is not None and self._inner.timed_out

    def start(self, call: Call[R], /) -> Started[R] | Any:
        """Start a call that ends with the block, without waiting."""
        hands = context.require("scope.start()")
        call_checks.check_call(call, "scope.start()")
        workflow = hands.workflow("scope.start()")
        inner = self._entered()
        if self._left:
            call.use()  # it is refused, and not forgotten
            raise errors.BadInput("scope.start() after the end of the block: start it inside, or use wl.start()")
        number = hands.issue_call(call, _kind(call))
        inner.children.append(number)
        return Started(call, number, workflow.child_id(number), inner)

    def cancel(self, reason: str = "") -> None:
        """Cancel what the block is waiting for: it is left at its next await."""
        workflow = context.require("scope.cancel()").workflow("scope.cancel()")
        workflow.cancel_scope(self._entered(), reason)

    async def __aenter__(self) -> Scope:
        hands = context.require("wl.scope()")
        workflow = hands.workflow("wl.scope()")
        inner = self._inner = workflow.new_scope(shield=self._shield)
        self._left = False  # an object may be entered again
        if self._timeout_us is not None:
            params = self._timeout_us.to_bytes(8, "big")
            inner.limit(hands.issue(OpKind.TIMER, f"scope:{inner.number}", params, delay_us=self._timeout_us))
        workflow.enter_scope(inner)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        inner = self._entered()
        # Asked for here, so that a coroutine that is only dropped gets no further.
        run = context.require("wl.scope()").workflow("wl.scope()")
        joining = False
        if error is None and inner.children:
            try:
                await _Awaiting(_join(tuple(inner.children)))
            except failures.Cancelled as cancelled:
                error, joining = cancelled, True  # raised below, behind the clean-up
        self._left = True
        if error is not None and inner.children:
            if inner.timer >= 0:
                run.cancel_op(inner.timer, "the scope is being left")
            await _Awaiting(closing.close(inner.children, error, self._grace_us, "the scope"))
        run = context.require("wl.scope()").workflow("wl.scope()")  # resumed since: another object
        failed = run.failed_in(inner)
        run.leave_scope(inner)
        if isinstance(error, failures.Cancelled) and getattr(error, "scope", -1) == inner.number:
            inner.end_cancelled(getattr(error, "kind", failures.CancelKind.USER))
            error = None  # a cancellation of this very scope ends with its block
        if error is None:
            if failed:
                await _raise_failure(failed)
            return True
        _note(error, failed)
        if joining:
            raise error  # it was not raised in the block, so Python has nothing to raise again
        return False

    def _entered(self) -> Entered:
        if self._inner is None:
            raise errors.BadInput("a scope has to be entered: use it as `async with wl.scope() as scope:`")
        return self._inner


def _join(numbers: tuple[int, ...]) -> Generator[Any, Any, Any]:
    return (yield Joined(numbers))


async def _raise_failure(failed: list[tuple[int, str]]) -> None:
    """Raise the first failure of a scope's operations, with the others as notes: waiting for it raises it."""
    try:
        await _Awaiting(_all((failed[0][0],)))
    except errors.Error as failure:
        _note(failure, failed[1:])
        raise


def _note(error: BaseException, failed: list[tuple[int, str]]) -> None:
    """Add what failed besides. An exception of a user's own class may refuse notes."""
    for _, why in failed:
        with contextlib.suppress(Exception):
            BaseException.add_note(error, f"also failed in this scope: {why}")


def _all(numbers: tuple[int, ...]) -> Generator[Any, Any, Any]:
    return (yield All(numbers))


# A block with a timeout may be left half-done; type checkers know by the second type that the code continues then.
@overload
def scope(
    *, timeout: Seconds, shield: bool = False, grace: Seconds | None = GRACE_SECONDS
) -> AbstractAsyncContextManager[Scope, bool]: ...
@overload
def scope(
    *, timeout: None = None, shield: bool = False, grace: Seconds | None = GRACE_SECONDS
) -> AbstractAsyncContextManager[Scope]: ...
def scope(*, timeout: Seconds | None = None, shield: bool = False, grace: Seconds | None = GRACE_SECONDS) -> Any:
    """Open a block that never leaks: what is started in it is awaited at its end, or cancelled if the block fails.

    When something that was started in it fails, the block is cancelled where it waits, the rest is cancelled, and the
    failure is raised at the end of the block; unless the block got it itself, by awaiting what was started.

    With `timeout`, the block is left when time is up, and `timed_out` says so. With `shield`, cancellations from
    outside wait until the block is done: the place for compensations. Workflows that are cancelled at its end are
    waited for, at most `grace` seconds (`None`: as long as it takes).
    """
    return Scope(timeout, shield=shield, grace=grace)


async def wait(event: type[E], /, *, where: Callable[[E], bool] | None = None, timeout: Seconds | None = None) -> E:
    """Wait for an event. Those that came before, and fit, count. `TimeoutError` when time is up."""
    call_checks.check_event_class(event, "wl.wait()")
    timeout_us = None if timeout is None else to_us(timeout, "wl.wait(timeout=)")
    found: E = await _Awaiting(context.require("wl.wait()").wait_event(event, where, timeout_us))
    return found


def emit(event: object, /) -> None:
    """Raise an event in this world: handlers and waiting runs get it in this very step."""
    context.require("wl.emit()").emit(event)


def state(cls: type[S], key: str = "") -> S:
    """Return a copy of a reducer's state, as it is now."""
    found: S = context.require("wl.state()").read_state(cls, user_values.text(key, "a cell's key"))
    return found


class Timer:
    """An event that will be raised later, unless it is cancelled."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel

    def cancel(self) -> None:
        """Let the event not be raised."""
        self._cancel()


def after(seconds: Seconds, event: object, /) -> Timer:
    """Raise an event in this world after a while, durably."""
    hands = context.require("wl.after()")
    delay_us = to_us(seconds, "wl.after()")
    if hands.handler is not None:
        cancelled = hands.handler.after(delay_us, event)
        return Timer(lambda: cancelled.__setitem__(0, True))  # read when the handler has ended
    number = hands.issue(OpKind.AFTER, user_values.schema_name(type(event)), user_values.dump(event), delay_us=delay_us)
    return Timer(lambda: _give_up(number))


def schedule(
    id: str, what: object, /, *, every: Seconds | None = None, cron: str | None = None, tz: str | None = None
) -> None:
    """Raise an event, or start a workflow, again and again: `every` so many seconds, or by a `cron` expression.

    Cron times are UTC unless `tz` names a zone. Firings missed while no host ran the world happen once, not each. The
    same id with the same arguments changes nothing; with others it replaces the schedule.
    """
    hands = context.require("wl.schedule()")
    try:
        spec = schedule_spec.spec_of(what, every=every, cron=cron, tz=tz)
    except errors.UnknownZone as error:
        if not schedule_spec.has_zones():  # no zones at all: the process is at fault, not the code
            hands.drop_step(schedule_spec.lacking(error))
        raise
    hands.schedule(user_values.text(id, "a schedule's id"), spec)


def unschedule(id: str, /) -> None:
    """End a schedule, if there is one."""
    context.require("wl.unschedule()").schedule(user_values.text(id, "a schedule's id"), None)


def _give_up(number: int) -> None:
    context.require("Timer.cancel()").workflow("Timer.cancel()").cancel_op(number, "cancelled")


async def send(
    world: str,
    event: object,
    /,
    *,
    to: str | None = None,
    inbox: str | None = None,
    headers: Mapping[str, str] | None = None,
    correlation: str | None = None,
) -> message_calls.Receipt:
    """Send an event to another world. Returns when it is in that world's inbox for good, with its id and place there.

    `world`: a name, `universe/world` for one of another universe, `peer:universe/world` for one of another store. `to`
    names one run that takes it; `inbox` an inbox of the other world, which then takes any value as an envelope.
    `headers` and `correlation` are seen by its handlers, by `wl.sender()`. `Undeliverable` if it cannot be taken there.
    """
    content = message_calls.content(event, to=to or "", inbox=inbox, headers=headers, correlation=correlation)
    data = await _Awaiting(_message(OpKind.SEND, world, content))
    return message_calls.receipt(data)


async def ask(
    world: str,
    request: Request[R],
    /,
    *,
    timeout: Seconds | None = None,
    headers: Mapping[str, str] | None = None,
    correlation: str | None = None,
) -> R:
    """Ask another world and wait for its answer, which may be `Refused`. `TimeoutError` when time is up.

    The world and what goes with the question are as for `wl.send`.
    """
    reducers.check_request(type(request))
    wanted = answer_type(type(request))
    content = message_calls.content(request, to="", inbox=None, headers=headers, correlation=correlation)
    late = f"world {world!r} did not answer {user_errors.name_of(type(request))} in time"
    answer: R = await _within(timeout, _question(world, content, lambda data: user_values.load(wanted, data)), late)
    return answer


async def act(
    act: Act[S], /, *, key: str = "", id: str | None = None, world: str | None = None, timeout: Seconds | None = None
) -> action_calls.Acted[S]:
    """Do an action of a flow domain and wait for its end: `await wl.act(Order.pay("tok"), key="o-7")`.

    The domain is one of this world, or of another `world`, named as for `wl.send`. The end may be an error of the
    action; that is no exception. The same id is the same intent, and gives the same end. `TimeoutError` when time is
    up: the intent goes on.
    """
    key = user_values.text(key, "the key of a cell")
    if id is not None:
        ids.check_chosen(user_values.text(id, "an intent's id"), "an intent's id")
    schema, data = action_calls.event_of(action_calls.checked(act), key=key, id=id or "", named=id is not None)
    ids.check_name(schema, "an action's name")
    if world is None:
        steps = _intent(schema, data, act)
    else:
        steps = _question(world, message_calls.Content(schema, data), lambda said: action_calls.read_answer(act, said))
    end: action_calls.Acted[S] = await _within(timeout, steps, f"{schema} did not end in time")
    return end


def _intent(schema: str, data: bytes, act: Act[S]) -> Generator[Any, Any, action_calls.Acted[S]]:
    number = context.require("wl.act()").issue(OpKind.ACT, schema, data)
    (answer,) = yield All((number,))
    try:
        return action_calls.read_answer(act, answer)
    except errors.DecodeError as error:
        raise _unfit(number, error) from error


async def _within(timeout: Seconds | None, steps: Generator[Any, Any, Any], late: str) -> Any:
    """What is waited for, at most so long."""
    if timeout is None:
        return await _Awaiting(steps)
    found: Any = None
    async with scope(timeout=timeout) as limit:
        found = await _Awaiting(steps)
    if limit.timed_out:
        raise TimeoutError(late)
    return found


def _message(kind: OpKind, world: str, content: message_calls.Content) -> Generator[Any, Any, Any]:
    # What no inbox can take is refused here: once the operation is recorded, its step has to be committed.
    name = user_values.text(world, "a world's name")
    message_calls.destination(name)
    number = context.require(f"wl.{kind.name.lower()}()").issue(kind, name, content.pack())
    (data,) = yield All((number,))
    return data if kind is OpKind.SEND else (number, data)


def _question(world: str, content: message_calls.Content, read: Callable[[bytes], Any]) -> Generator[Any, Any, Any]:
    number, data = yield from _message(OpKind.ASK, world, content)
    try:
        return read(data)
    except errors.DecodeError as error:
        raise _unfit(number, error) from error


def sender() -> message_calls.Sender | None:
    """Say who sent the message that this handler takes; None if what it takes was sent from outside or raised here."""
    message = context.require("wl.sender()").sender()
    if message is None:
        return None
    return message_calls.Sender(
        message.universe,
        message.world,
        message.from_step,
        message.message.hex(),
        dict(message.headers),
        message.correlation,
        message.from_universe.hex(),
        message.from_world.hex(),
    )


def continue_as_new(call: Call[Any], /) -> Never:
    """End this run's record and go on with a call under the same id, with nothing recorded yet."""
    call_checks.check_call(call, "wl.continue_as_new()")
    if call.target.kind != "workflow":
        raise errors.BadInput("wl.continue_as_new() takes a workflow call")
    context.require("wl.continue_as_new()").continue_with(call)  # a bad call is refused while the code still runs
    raise ContinueAsNew  # a BaseException: no `except Exception` stops it


def patched(id: str, /) -> bool:
    """Say whether to take the new branch of changed code: yes in runs that get here under it, no in older ones."""
    return context.require("wl.patched()").patched(user_values.text(id, "a patch's id"))
