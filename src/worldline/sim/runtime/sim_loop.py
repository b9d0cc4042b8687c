"""An asyncio event loop that one seed decides: virtual time, a drawn order, and machines that can die.

Every task step passes through `call_soon`, so the dispatcher decides the interleaving. Each callback belongs to the
host in whose context it was made. A turn picks a host that has something to do, by the scheduler's own random stream,
and runs one callback of it; when no host has anything to do, the clock jumps to the next timer. A turn costs one
microsecond, so that a loop which never waits does not stop time. If there is no timer either, that is a deadlock, and
the error names the tasks that wait.

Hosts. `crash` is kill -9: nothing of that host runs any more, not even what stands in its `finally` blocks. Its tasks
are kept until `finish`, because letting go of a coroutine would run those blocks. `freeze` keeps a host from running
while time goes on.

Determinism. Tasks and futures hash by a number of this loop: asyncio keeps them in sets, and a set orders objects by
address otherwise. What would run in a thread runs here, between two turns, without an event loop in sight. If it has
the loop do something and waits for that (`call_soon_threadsafe`), it is done at once, to its end: time goes on, and
nothing else happens meanwhile. Threads, sockets, signals and subprocesses are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import random
import socket
import subprocess
import sys
import threading
import time
from asyncio import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from worldline.base import errors
from worldline.kernel import context as kernel_context

T = TypeVar("T")

ROOT = "root"  # the host of the simulation itself
ROGUE = "rogue"  # a host that answers effects without having claimed them
SWEEP_TASKS = 512
TURN_US = 1


class Deadlock(errors.Error):
    """Nothing can ever happen again, and the main task is not done."""

    code = "deadlock"


class SimulationStuck(errors.Error):
    """The run has used up its time or its turns."""

    code = "stuck"


class SimulationHalted(errors.Error):
    """The run was ended from outside: the first violation was enough."""

    code = "halted"


class OutsideCall(Exception):
    """Something asked for the world outside of the simulation: a bug, not a fault to try again after."""


class Died(kernel_context.Interrupted):
    """Raised in a process that has ended itself: nothing that it still does reaches anything."""


class SimMachine:
    """A simulated machine, in one of its lives. `label` is what traces call it. `end`: what ends it from inside."""

    def __init__(self, name: str, life: int = 1, *, end: Callable[[SimMachine], None] | None = None) -> None:
        self.name = name
        self.life = life
        self.label = f"{name}/{life}"
        self.alive = True
        self.frozen = False
        self.queue: deque[_Handle] = deque()
        self._happened: dict[str, None] = {}
        self._end = end

    def die(self) -> None:
        """End this life from inside, as a process does that kills itself: raises `Died`. The simulation's own host and
        hosts that cannot be ended so live on.
        """
        if self._end is not None:
            if self.alive:
                self._end(self)
            raise Died

    def first_time(self, what: str) -> bool:
        """Whether something happens for the first time in this life. Never on the simulation's own host."""
        if self.name == ROOT or what in self._happened:
            return False
        self._happened[what] = None
        return True


HOST: contextvars.ContextVar[SimMachine] = contextvars.ContextVar("worldline_sim_host")


class _Handle(asyncio.Handle):
    __slots__ = ("host",)

    host: SimMachine

    def run(self) -> None:
        self._run()


class _Timer(asyncio.TimerHandle):
    __slots__ = ("host",)

    host: SimMachine

    def run(self) -> None:
        self._run()


class SimFuture(asyncio.Future[Any]):
    """A future whose place in a set depends on when it was made, not on where."""

    def __init__(self, number: int, loop: SimLoop) -> None:
        super().__init__(loop=loop)
        self.number = number
        self.host = loop.host_of(None)

    def __hash__(self) -> int:
        return self.number


class SimTask(asyncio.Task[Any]):
    """A task with a number of its own and the host it runs on."""

    def __init__(self, number: int, coro: Any, *, loop: SimLoop, name: str | None, context: Any) -> None:
        self.number = number
        self.host = loop.host_of(context)  # before the base class: it schedules the first step, which asks for the host
        super().__init__(coro, loop=loop, name=name or f"{getattr(coro, '__qualname__', 'task')}", context=context)

    def __hash__(self) -> int:
        return self.number

    def forget(self) -> None:
        """Suppress asyncio's warning about a task that never ended."""
        self._log_destroy_pending = False  # a task of a dead host never ends: that is no mistake of its code


class _Awaited:
    """What a job has the loop do while it waits: callbacks and timers of its host that came of it."""

    def __init__(self, host: SimMachine) -> None:
        self.host = host
        self.queue: deque[_Handle | _Timer] = deque()
        self.timers: list[tuple[int, int, _Timer]] = []

    def next(self) -> tuple[int, _Handle | _Timer] | None:
        """The next one, and not before which time. None if there is nothing more, or the host has died."""
        while self.host.alive and (self.queue or self.timers):
            when_us, handle = (0, self.queue.popleft()) if self.queue else heapq.heappop(self.timers)[::2]
            if not handle.cancelled():
                return when_us, handle
        return None


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, seed: str, *, shuffle: bool = False, turns_max: int = 5_000_000) -> None:
        self._ended = True  # until there is something to run
        super().__init__()
        self._random = random.Random(f"{seed}:schedule")
        self._delays = random.Random(f"{seed}:threads")
        self._shuffle = shuffle
        self._turns_max = turns_max
        self._until_us = 2**62
        self._now_us = 0
        self._number = 0
        self._busy: list[SimMachine] = []
        self._timers: list[tuple[int, int, _Timer]] = []
        self._tasks: dict[int, SimTask] = {}
        self._lanes: dict[Any, deque[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]]] = {}
        self._generators: list[AsyncGenerator[Any, Any]] = []
        self._job: SimMachine | None = None  # the host of what runs as in a thread just now
        self._awaited: _Awaited | None = None  # what that has the loop do
        self._ended = False
        self._halted = False
        self.root = SimMachine(ROOT)
        self.turns = 0
        self.complaints: list[str] = []

    # --- Time -----------------------------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        return self._now_us

    def time(self) -> float:
        return self._now_us / 1_000_000

    # --- Hosts ----------------------------------------------------------------------------------------------

    def host_of(self, context: contextvars.Context | None) -> SimMachine:
        """Whose context this is: of the one given, else of the running one."""
        return HOST.get(self.root) if context is None else context.get(HOST, self.root)

    def crash(self, host: SimMachine) -> None:
        """End a host at once. If it is the running one, its present task must not continue: let it wait for ever."""
        host.alive = False
        host.queue.clear()  # what was ready is dropped, not cancelled: a kill runs no `finally`
        if host in self._busy:
            self._busy.remove(host)

    def freeze(self, host: SimMachine) -> None:
        host.frozen = True
        if host in self._busy:
            self._busy.remove(host)

    def thaw(self, host: SimMachine) -> None:
        host.frozen = False
        if host.alive and host.queue and host not in self._busy:  # twice in the list would give it twice the turns
            self._busy.append(host)

    def start(self, host: SimMachine, main: Coroutine[Any, Any, None], *, name: str) -> None:
        """Start a task on a host; whatever it starts is on that host too."""
        context = contextvars.copy_context()
        context.run(HOST.set, host)
        _ = self.create_task(main, name=name, context=context)

    # --- What asyncio asks of a loop ------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        handle.host = self.host_of(context)
        self._enqueue(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Timer(when, callback, args, self, context)
        handle.host = self.host_of(context)
        if not self._ended:
            self._number += 1  # the number breaks ties: timers due at once ring in the order in which they were set
            timers = self._timers if self._awaited is None or not self._is_awaited(handle) else self._awaited.timers
            heapq.heappush(timers, (max(self._now_us, round(when * 1_000_000)), self._number, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        self._number += 1
        return SimFuture(self._number, self)

    def create_task(
        self, coro: Any, *, name: object = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        self._number += 1
        task = SimTask(self._number, coro, loop=self, name=None if name is None else str(name), context=context)
        # Held here: a task that only its own future refers to would be collected, and its `finally` would run.
        self._tasks[self._number] = task
        if len(self._tasks) % SWEEP_TASKS == 0:  # now and then: each sweep looks at all of them
            self._tasks = {number: each for number, each in self._tasks.items() if not each.done()}
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run it a little later, between two turns, with no event loop and no context of the caller in sight.

        An executor takes its jobs in order, as one thread would.
        """
        done = self.create_future()
        self._lanes.setdefault(executor, deque()).append((done, func, args))
        context = contextvars.Context()
        context.run(HOST.set, self.host_of(None))
        # As long as a thread might take, by a stream of its own: the schedule does not shift.
        self.call_later(self._delays.randrange(2_000) / 1_000_000, self._inline, executor, context=context)
        return done

    def _inline(self, executor: Any) -> None:
        done, func, args = self._lanes[executor].popleft()
        before, self._job = self._job, self.host_of(None)
        _set_running_loop(None)  # a thread has no loop: code that counts on one must fail here as it does in production
        try:
            result = func(*args)
        except BaseException as error:  # it belongs to the task that waits for it
            _set_running_loop(self)
            if type(error) is KeyboardInterrupt:
                raise  # of the person who runs the simulation
            if not done.done():
                done.set_exception(error)
        else:
            _set_running_loop(self)
            if not done.done():
                done.set_result(result)
        finally:
            self._job = before

    @property
    def is_awaited(self) -> bool:
        """Whether a job waits for what is done now."""
        return self._awaited is not None

    def _is_awaited(self, handle: _Handle | _Timer) -> bool:
        return self._awaited is not None and handle.host is self._awaited.host

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Called by a job: do this at once, and all that comes of it on its host. `Died` if the host does."""
        if self._job is None or self._awaited is not None:
            raise OutsideCall("loop.call_soon_threadsafe is part of the simulation only in what runs as in a thread")
        del context
        awaited = self._awaited = _Awaited(self._job)
        given, first, before = contextvars.Context(), self._number, _get_running_loop()
        given.run(HOST.set, awaited.host)
        _set_running_loop(self)
        try:
            called = self.call_soon(callback, *args, context=given)
            while (found := awaited.next()) is not None:
                when_us, handle = found
                self.turns += 1
                self._now_us = max(self._now_us, when_us) + TURN_US
                handle.run()
        finally:
            self._awaited = None
            _set_running_loop(before)
        if not awaited.host.alive:
            raise Died
        # A task that is still waiting would wait for ever: only what came of this call may run while the job waits.
        left = [task.get_name() for number, task in self._tasks.items() if number > first and not task.done()]
        if left:
            raise OutsideCall(f"{left} waits for something that cannot happen while a job waits for it")
        return called

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        source = context.get("future") or context.get("task")
        died = isinstance(source, SimFuture | SimTask) and not source.host.alive
        if not self._ended and not died:  # failures on a dead host are no complaint
            self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._ended

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is skipped when its time comes."""

    # --- Running --------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T], *, seconds: float) -> T:
        """Run until the main task is done. `SimulationStuck` if that takes longer than so much virtual time."""
        self._until_us = self._now_us + int(seconds * 1_000_000)
        hooks = sys.get_asyncgen_hooks()
        # Generators are held, not finalized: closing one runs its `finally`, which a dead host must not do.
        sys.set_asyncgen_hooks(firstiter=self._generators.append, finalizer=lambda _: None)
        _set_running_loop(self)
        try:
            with fences(self.complaints):
                task = self.create_task(main, name="main")
                while not task.done():
                    if self._halted:
                        raise SimulationHalted
                    self._turn()
                result: T = task.result()
                return result
        finally:
            _set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def halt(self) -> None:
        """End the run at the next turn, by `SimulationHalted`."""
        self._halted = True

    def _turn(self) -> None:
        # Due timers first, also while hosts are busy: time goes on with each turn.
        if self._timers and self._timers[0][0] <= self._now_us:
            self._ring()
        while not self._busy:
            if not self._timers:
                raise Deadlock(f"nothing can happen any more; waiting: {self.waiting()}")
            # Nothing is ready: virtual time costs nothing, so it jumps.
            self._now_us = max(self._now_us, self._timers[0][0])
            self._ring()
        if self._now_us > self._until_us or self.turns > self._turns_max:
            raise SimulationStuck(
                f"not done after {self.time():.1f} s and {self.turns} turns; waiting: {self.waiting()}"
            )
        # A host is drawn, then its callback: a busy host does not slow down the others.
        host = self._busy[int(self._random.random() * len(self._busy))] if len(self._busy) > 1 else self._busy[0]
        handle = self._take(host)
        if not host.queue:
            self._busy.remove(host)
        self.turns += 1
        self._now_us += TURN_US
        if not handle.cancelled():
            try:
                handle.run()
            # A process that ends itself: in production it is gone. It must not end the simulation.
            except (SystemExit, KeyboardInterrupt) as error:
                if type(error) is KeyboardInterrupt:
                    raise  # of the person who runs the simulation
                self.complaints.append(f"{host.label} was ended by {type(error).__name__}")
                self.crash(host)

    def _take(self, host: SimMachine) -> _Handle | _Timer:
        if not self._shuffle or len(host.queue) == 1:
            return host.queue.popleft()
        index = int(self._random.random() * len(host.queue))
        handle = host.queue[index]
        del host.queue[index]
        return handle

    def _ring(self) -> None:
        """Move the timers whose time has come to their hosts' queues."""
        while self._timers and self._timers[0][0] <= self._now_us:
            handle = heapq.heappop(self._timers)[2]
            if not handle.cancelled():
                self._enqueue(handle)

    def _enqueue(self, handle: _Handle | _Timer) -> None:
        host = handle.host
        if self._ended or not host.alive:
            return
        if self._awaited is not None and self._is_awaited(handle):
            self._awaited.queue.append(handle)
            return
        # Also of a frozen host: it does all of it when it thaws.
        host.queue.append(handle)  # type: ignore[arg-type]
        if not host.frozen and len(host.queue) == 1:
            self._busy.append(host)

    def waiting(self) -> list[str]:
        """The tasks that have not ended yet, on live hosts."""
        return [
            f"{task.host.label} {task.get_name()}"
            for task in self._tasks.values()
            if not task.done() and task.host.alive
        ]

    def finish(self) -> None:
        """Let go of everything that has not ended. Nothing of it is run as part of the simulation any more."""
        self._ended = True
        for task in self._tasks.values():
            task.forget()
            if not task.done():
                _end(task.get_coro())
        for generator in self._generators:
            _end_generator(generator)
        self._tasks.clear()
        self._generators.clear()
        self._timers.clear()
        self._busy.clear()
        self.close()

    def close(self) -> None:
        self._ended = True
        super().close()


def _end(coro: Any) -> None:
    """Close a coroutine permanently, also one whose `finally` blocks wait for something."""
    # A `finally` that waits makes closing raise; each attempt gets it one `await` further, and some never end.
    for _ in range(100):
        with contextlib.suppress(Exception):
            coro.close()
            return


def _end_generator(generator: AsyncGenerator[Any, Any]) -> None:
    with contextlib.suppress(Exception):
        generator.aclose().send(None)  # started by hand: there is no loop any more that could await it


def _refusing(name: str, complaints: list[str] | None = None) -> Callable[..., Any]:
    """A stand-in that refuses, and is noted also where the error is swallowed."""

    def refuse(*_: Any, **__: Any) -> Any:
        said = f"{name} is not part of the simulation"
        if complaints is not None and said not in complaints:
            complaints.append(said)
        raise OutsideCall(said)

    return refuse


def _submit(executor: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any) -> futures.Future[Any]:
    """Put what is given to a pool of threads directly into the same line as what the loop gives it."""
    answer: futures.Future[Any] = futures.Future()

    def copy(done: asyncio.Future[Any]) -> None:
        error = done.exception()
        if error is None:
            answer.set_result(done.result())
        else:
            answer.set_exception(error)

    asyncio.get_running_loop().run_in_executor(executor, function, *args).add_done_callback(copy)
    return answer


@contextlib.contextmanager
def fences(complaints: list[str]) -> Iterator[None]:
    """Refuse threads, sockets, processes and real sleeping for the length of a block, and complain."""
    fenced: list[tuple[Any, str, Any]] = [
        (threading.Thread, "start", threading.Thread.start),
        (socket, "socket", socket.socket),
        (subprocess, "Popen", subprocess.Popen),
        (time, "sleep", time.sleep),
        (ThreadPoolExecutor, "submit", ThreadPoolExecutor.submit),
    ]
    for owner, name, _ in fenced:
        setattr(owner, name, _refusing(f"{getattr(owner, '__name__', owner)}.{name}", complaints))
    # Not refused like the others: what is given to a pool runs in the simulation.
    ThreadPoolExecutor.submit = _submit  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        for owner, name, original in fenced:
            setattr(owner, name, original)  # also after a failure, or every test that follows finds threads refused


_FENCED = (
    "add_reader",
    "remove_reader",
    "add_writer",
    "remove_writer",
    "add_signal_handler",
    "remove_signal_handler",
    "connect_accepted_socket",
    "connect_read_pipe",
    "connect_write_pipe",
    "create_connection",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "getaddrinfo",
    "getnameinfo",
    "sendfile",
    "sock_accept",
    "sock_connect",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_sendall",
    "sock_sendto",
    "sock_sendfile",
    "start_tls",
    "subprocess_exec",
    "subprocess_shell",
    "run_forever",
    "run_until_complete",
    "set_default_executor",
    "set_task_factory",
)
for _name in _FENCED:
    setattr(SimLoop, _name, _refusing(f"loop.{_name}"))
