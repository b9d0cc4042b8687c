"""A last attempt in a child process: what it proves, and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import aio
from worldline.base import env_os, errors
from worldline.runtime import child_process
from worldline.runtime.child_process import LastAttemptOutcome
from worldline.worker import crash_trials


def forked(seconds: float = 20.0, prepare: Callable[[], None] = lambda: None) -> child_process.ForkedChildren:
    return child_process.ForkedChildren(env_os.OsEnv(), seconds=seconds, prepare=prepare)


async def attempt(do: Callable[[], object], *, seconds: float = 20.0) -> LastAttemptOutcome:
    child = forked(seconds).begin(do, crash_trials.counts_as)
    assert child is not None
    return await child.ended()


def fail(error: BaseException) -> Callable[[], object]:
    def do() -> None:
        raise error

    return do


def overflow() -> None:
    """More than there is."""
    bytearray(2**60)


@pytest.mark.parametrize(
    ("do", "expected"),
    [
        (lambda: None, LastAttemptOutcome(True)),
        (fail(ValueError("whatever")), LastAttemptOutcome(True)),  # what that means is for the step in earnest to say
        (fail(SystemExit(3)), LastAttemptOutcome(True)),
        (fail(errors.CannotStep("no library", lasting=True)), LastAttemptOutcome(True)),
        (
            lambda: os.kill(os.getpid(), signal.SIGTERM),
            LastAttemptOutcome(True),
        ),  # meant for its parent, by a service manager
        (lambda: os.kill(os.getpid(), signal.SIGINT), LastAttemptOutcome(True)),
        (overflow, LastAttemptOutcome(False, "memory")),
        (fail(errors.CannotRead("a cell")), LastAttemptOutcome(False, "CannotRead: a cell", decided=False)),
        (lambda: os._exit(0), LastAttemptOutcome(False, "it ended its process with exit code 0")),
        (lambda: os._exit(139), LastAttemptOutcome(False, "it ended its process with exit code 139")),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), LastAttemptOutcome(False, "signal 9, Killed")),
    ],
)
async def test_what_a_child_proves(do: Callable[[], object], expected: LastAttemptOutcome) -> None:
    found = await attempt(do)
    assert (found.survived, found.decided, found.hung) == (expected.survived, expected.decided, False)
    assert expected.how in found.how


async def test_a_child_that_does_not_return_is_killed() -> None:
    found = await attempt(lambda: threading.Event().wait(), seconds=0.2)
    assert found == LastAttemptOutcome(False, "it did not return within 0.2 s", hung=True)


async def test_a_lock_of_another_thread_is_told_by_a_second_child() -> None:
    """It is held at the first fork, and no fault of what is tried: a hang alone is no proof."""
    lock, kernel = threading.Lock(), aio_kernel()
    children = Locked(lock)
    tried = crash_trials.Attempts(kernel, children)
    lock.acquire()

    def taking() -> None:
        with lock:
            pass

    found = await tried.attempt(taking)
    assert found.survived
    assert children.begun == 2


class Locked:
    """Children, of which the first is forked while another thread has a lock. It waits for that until its short time is
    over; the second has as much time as a busy machine needs.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._hanging, self._others = forked(0.3), forked()
        self._lock = lock
        self.begun = 0

    def begin(self, do: Callable[[], object], counts: child_process.Counts) -> child_process.Child | None:
        self.begun += 1
        if self.begun == 1:
            return self._hanging.begin(do, counts)
        self._lock.release()
        return self._others.begin(do, counts)

    def close(self) -> None:
        self._hanging.close()
        self._others.close()


def aio_kernel() -> crash_trials.Kernel:
    class Idle:
        def alone(self) -> asyncio.Lock:
            return asyncio.Lock()

    return Idle()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_nothing_of_a_child_is_left() -> None:
    """Neither when it is closed nor when its caller is cancelled: no process, no zombie, no open pipe."""
    opened = descriptors()
    children = forked()
    child = children.begin(lambda: threading.Event().wait(), crash_trials.counts_as)
    assert child is not None
    ending = asyncio.ensure_future(child.ended())
    await asyncio.sleep(0)
    children.close()
    assert not (await ending).decided
    assert children.begin(lambda: None, crash_trials.counts_as) is None
    child = forked().begin(lambda: threading.Event().wait(), crash_trials.counts_as)
    assert child is not None
    ending = asyncio.ensure_future(child.ended())
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    with pytest.raises(ChildProcessError):
        os.waitpid(child._pid, os.WNOHANG)  # noqa: ASYNC222
    assert descriptors() == opened


async def test_what_a_child_changes_and_prints_stays_there(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    state, path = [1], tmp_path / "buffered"

    def do() -> None:
        state.append(2)
        os.write(1, b"from the child")

    with path.open("w") as file:
        file.write("once")  # in a buffer, which the child has as well
        assert (await attempt(do)).survived
    assert path.read_text() == "once"
    assert state == [1]
    assert capfd.readouterr().out == ""


async def test_where_no_process_can_be_made_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refuse)
    assert forked().begin(lambda: None, crash_trials.counts_as) is None
    monkeypatch.delattr(os, "fork")
    assert forked().begin(lambda: None, crash_trials.counts_as) is None


async def test_a_child_that_cannot_be_set_up_decides_nothing() -> None:
    def prepare() -> None:
        raise RuntimeError("no")

    child = forked(prepare=prepare).begin(lambda: None, crash_trials.counts_as)
    assert child is not None
    assert await child.ended() == LastAttemptOutcome(
        False, "a child process could not be set up: RuntimeError: no", decided=False
    )


PARENT = """
import asyncio, sys, time
from worldline.base import env_os
from worldline.runtime import child_process

def do():
    import os
    sys.stderr.write(f"{os.getpid()}\\n")
    sys.stderr.flush()
    time.sleep(600)

async def main():
    child = child_process.ForkedChildren(env_os.OsEnv(), seconds=600, prepare=lambda: None).begin(do, lambda error: "")
    await child.ended()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere an alarm ends it")
async def test_a_child_does_not_outlive_its_parent() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stderr=asyncio.subprocess.PIPE)
    assert parent.stderr is not None
    child = int(await parent.stderr.readline())
    parent.kill()
    await parent.wait()

    async def gone() -> bool:
        return is_gone(child)

    await aio.until(gone)


def is_gone(pid: int) -> bool:
    """Whether a process has ended. Nothing may be there to reap it."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
