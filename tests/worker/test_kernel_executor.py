"""The executor of the kernel's thread: what is given up, what is not, and what comes of it."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

import pytest

from worldline.worker.kernel_executor import KernelExecutor, KernelOverdue, Replaced

TIMEOUT_US = 1_000_000
LOOK_US = 500_000


class Job:
    """A job that begins a part and waits for the test."""

    def __init__(self, executor: KernelExecutor) -> None:
        self.inside, self.gate, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.kept: list[str] = []
        self._executor = executor

    def __call__(self) -> str:
        try:
            self._executor.begin_part()
            self.inside.set()
            self.gate.wait(20)
            self._executor.finish_part(lambda: self.kept.append("kept"))
        finally:
            self.ended.set()
        return "done"


def looks(executor: KernelExecutor, *at_us: int) -> list[bool]:
    return [executor.look(each, TIMEOUT_US) for each in at_us]


def test_a_job_that_does_not_get_on_is_given_up_and_nothing_of_it_is_used() -> None:
    executor = KernelExecutor()
    job = Job(executor)
    first = executor.submit(job)
    second = executor.submit(lambda: "next")
    assert job.inside.wait(20)
    assert looks(executor, 0, LOOK_US, 2 * LOOK_US) == [False, False, True]
    with pytest.raises(KernelOverdue, match="it was in __call__"):
        first.result(20)
    assert second.result(20) == "next", "another thread goes on"
    [left] = executor.left
    job.gate.set()
    left.thread.join(20)
    assert not left.thread.is_alive()
    assert job.kept == []
    executor.shutdown()


def test_the_thread_keeps_nothing_of_a_job_that_is_done() -> None:
    executor = KernelExecutor()
    given = threading.Event()  # something that can be referred to weakly
    known = weakref.ref(given)
    executor.submit(lambda each: each.is_set(), given).result(20)
    del given
    until = time.monotonic() + 20  # it was held until the next job came, which there is none of
    while known() is not None and time.monotonic() < until:
        time.sleep(0.001)
    assert known() is None
    executor.shutdown()


def test_a_process_that_was_stopped_is_no_fault_of_its_job() -> None:
    executor = KernelExecutor()
    job = Job(executor)
    first = executor.submit(job)
    assert job.inside.wait(20)
    stopped_us = 3_600_000_000
    assert looks(executor, 0, LOOK_US, stopped_us, stopped_us + LOOK_US) == [False] * 4
    job.gate.set()
    assert first.result(20) == "done"
    assert job.kept == ["kept"]
    executor.shutdown()


@pytest.mark.parametrize("begins", [False, True])
def test_only_parts_with_user_code_are_timed(*, begins: bool) -> None:
    executor = KernelExecutor()
    inside, gate = threading.Event(), threading.Event()

    def job() -> None:
        if begins:
            executor.begin_part()
        inside.set()
        gate.wait(20)

    executor.submit(job)
    assert inside.wait(20)
    assert looks(executor, 0, LOOK_US, 2 * LOOK_US)[-1] is begins
    gate.set()
    executor.shutdown()


def test_progress_keeps_a_job() -> None:
    executor = KernelExecutor()
    job = Job(executor)
    first = executor.submit(job)
    assert job.inside.wait(20)
    replaced: Callable[[], None] = executor.progress
    with pytest.raises(Replaced):
        replaced()  # this is not its thread
    assert looks(executor, 0, LOOK_US) == [False, False]
    executor._parts += 1
    assert looks(executor, 2 * LOOK_US, 3 * LOOK_US) == [False, False]
    job.gate.set()
    assert first.result(20) == "done"
    executor.shutdown()
