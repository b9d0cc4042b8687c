"""The writer thread of one LMDB folder in one process, without LMDB: calls in, groups out, answers back.

A call of `commit` is a `CommitCall`. Loops put jobs; the thread takes what is waiting, up to a bound, as one group, has
it written, and delivers the answers to the `LoopAnswers` of each loop that takes part, with one ring of its bell. All
of them are told what was written by any loop, so that hints inside the process need no other way.

Every accepted job is answered exactly once, also when the store fails or the thread has a bug. After `fail` no job is
accepted any more. Waking costs more than anything else here, so a thread that is awake is not woken: it says when it
goes to sleep, and the answers of a loop ring once until they are taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence

import msgspec

from worldline.base import errors, limits
from worldline.store import kv
from worldline.store.lmdb import bell

# The number of the transaction and the keys to hint at; no number if nothing was written.
Written = tuple[int | None, list[bytes]]


class CommitCall(msgspec.Struct, eq=False):
    """One call of `commit` on its way through the thread, and what its task awaits.

    It does for a task what an asyncio future does, by the same protocol, except for one thing: the task resumes in the
    turn of the loop that brings the answer, not in the next one. Only `LmdbEngine` sees it, and awaits it once.
    """

    inbox: LoopAnswers
    batches: tuple[kv.Batch, ...]
    size: int
    loop: asyncio.AbstractEventLoop
    chore: Callable[[], object] | None = None  # instead of batches: something that only the thread may do, alone
    found: object = None  # what the chore returned
    outcomes: list[kv.Outcome] = []
    error: errors.Error | None = None
    _asyncio_future_blocking: bool = False
    _cancelled: bool = False
    _callback: Callable[[CommitCall], object] | None = None
    _context: contextvars.Context | None = None

    def answer(self, outcomes: list[kv.Outcome]) -> None:
        self.outcomes = outcomes

    def done(self, result: object) -> None:
        self.found = result

    def refuse(self, error: errors.Error) -> None:
        self.error = error

    def lose(self, reason: str) -> None:
        self.outcomes = [kv.CommitUnknown(reason) for _ in self.batches]

    def settle(self) -> None:
        """On the loop. A caller that was cancelled has no use for the answer."""
        if not self._cancelled:
            assert self._context is not None, "it is awaited in the turn in which it is made"
            assert self._callback is not None
            self._context.run(self._callback, self)

    # --- What a task calls ---

    def __await__(self) -> Generator[CommitCall, None, list[kv.Outcome]]:
        # A task looks for this mark on what a coroutine yields, and raises without it.
        self._asyncio_future_blocking = True
        yield self  # the task resumes here, or throws what `result` raised
        return self.outcomes

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop

    def add_done_callback(self, callback: Callable[[CommitCall], object], *, context: contextvars.Context) -> None:
        self._callback = callback
        self._context = context

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - the protocol's argument
        """Leave the job to run without its caller."""
        if self._cancelled:
            return False
        self._cancelled = True
        assert self._callback is not None, "a task says how to wake it before it cancels"
        self.loop.call_soon(self._callback, self, context=self._context)
        return True

    def result(self) -> list[kv.Outcome]:
        if self._cancelled:
            raise asyncio.CancelledError
        if self.error is not None:
            raise self.error
        return self.outcomes


Arrival = tuple[Sequence[CommitCall], int | None, list[bytes]]


class LoopAnswers:
    """Where the thread leaves answers and hints for one loop, which watches `fileno` and then takes all there is."""

    def __init__(self) -> None:
        self._bell = bell.Bell()
        self._arrived: deque[Arrival] = deque()
        self._rung = False

    def fileno(self) -> int:
        return self._bell.fileno()

    def deliver(self, jobs: Sequence[CommitCall], txn: int | None, keys: list[bytes]) -> None:
        # Before the ring: a loop that is woken must find it.
        self._arrived.append((jobs, txn, keys))
        if not self._rung:
            self.ring()

    def ring(self) -> None:
        # Before the bell: set after it, this could undo the `False` of a loop that was woken, which then never is.
        self._rung = True
        self._bell.ring()

    def hear(self) -> deque[Arrival]:
        """Called when `fileno` is readable: what has arrived, for the loop to empty."""
        self._bell.hear()
        # From here on a delivery rings again; what came before is in the queue.
        self._rung = False
        return self._arrived

    def close(self) -> None:
        self._bell.close()


class WriterThread:
    def __init__(
        self,
        name: str,
        *,
        write: Callable[[list[CommitCall]], Written],
        after: Callable[[int, list[bytes]], None],
        abandon: Callable[[str], None],
    ) -> None:
        """Three functions that the thread calls.

        `write` gives every job of a group its answer. `after` has the time to do what no caller waits for. `abandon`
        closes the store after a bug of this thread.
        """
        self.awake = False
        self.failed: str | None = None
        self._write = write
        self._after = after
        self._abandon = abandon
        self._jobs: deque[CommitCall] = deque()
        self._bell = bell.Bell()
        self._stopping = False
        self._inboxes: tuple[LoopAnswers, ...] = ()
        self._inboxes_lock = threading.Lock()  # event loops come and go while the writer thread delivers answers
        # A daemon: an interpreter that ends does not wait for a store that was never closed.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    # --- Called by loops ---

    def add(self, inbox: LoopAnswers) -> None:
        with self._inboxes_lock:
            self._inboxes = (*self._inboxes, inbox)

    def remove(self, inbox: LoopAnswers) -> None:
        """Nothing is delivered there any more."""
        with self._inboxes_lock:
            self._inboxes = tuple(other for other in self._inboxes if other is not inbox)

    def put(self, job: CommitCall) -> None:
        """Accept a job. It waits until the bell rings, if the thread is not `awake`."""
        self._jobs.append(job)
        if self.failed is not None:
            self._refuse()  # the thread may have looked for the last time

    def ring(self) -> None:
        # Set by the caller, not only by the thread: until it has woken up, other callers need not ring.
        self.awake = True
        self._bell.ring()

    def stop(self) -> None:
        """When there are no more jobs: end the thread."""
        self._stopping = True
        self._bell.ring()
        self._thread.join()
        self._bell.close()

    # --- Called by the thread ---

    def forked(self, reason: str) -> None:
        """In a forked child, which has no such thread: refuse what will come."""
        self.failed = reason

    def fail(self, reason: str) -> None:
        """Refuse what waits and what will come."""
        # First: a job that is put from now on is refused by the thread that puts it.
        self.failed = reason
        self._refuse()

    def _run(self) -> None:
        group: list[CommitCall] = []
        try:
            while self.failed is None and (group := self._next()):
                txn, keys = self._write(group)
                self._publish(group, txn, keys)
                group = []
                # Behind the answers, because no caller waits for this.
                if txn is not None:
                    self._after(txn, keys)
        finally:
            if self.failed is None and not self._stopping:
                # A bug, whose traceback the thread leaves behind. No caller may wait for ever because of it.
                self._abandon("its writer thread failed with a bug")
                for job in group:
                    job.lose("the writer thread failed with a bug")
                self._publish(group, None, [])

    def _next(self) -> list[CommitCall]:
        """Sleep until there is something to do. Empty: stop."""
        jobs = self._jobs
        while not jobs:
            # A loop that puts a job after this sees that the thread is not awake, and rings.
            self.awake = False
            if not jobs:
                if self._stopping:
                    return []
                self._bell.hear()
            self.awake = True
        group = [jobs.popleft()]
        count, size = len(group[0].batches), group[0].size
        while jobs and group[0].chore is None and jobs[0].chore is None:
            count += len(jobs[0].batches)
            size += jobs[0].size
            # The first job is in the group whatever its size is: a large one alone must not wait for ever.
            if count > limits.LMDB_GROUP_BATCHES_MAX or size > limits.LMDB_GROUP_BYTES_MAX:
                break
            group.append(jobs.popleft())
        return group

    def _refuse(self) -> None:
        """Any thread may help to empty the queue; each job is taken by one."""
        refused: list[CommitCall] = []
        with contextlib.suppress(IndexError):
            while True:
                refused.append(self._jobs.popleft())
        for job in refused:
            job.error = errors.StoreFailed(str(self.failed))
        self._publish(refused, None, [])

    def _publish(self, jobs: list[CommitCall], txn: int | None, keys: list[bytes]) -> None:
        # Held while answers are delivered: when `remove` returns, nothing is on its way, and the bell can be closed.
        with self._inboxes_lock:
            inboxes = self._inboxes
            for inbox in inboxes:
                own = jobs if len(inboxes) == 1 else [job for job in jobs if job.inbox is inbox]
                # Loops without a job in the group get the hints of what it wrote.
                if own or txn is not None:
                    inbox.deliver(own, txn, keys)
