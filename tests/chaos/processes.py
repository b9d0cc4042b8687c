"""Role processes for the tests: started, killed, stopped and asked to end, and none of them left behind."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests import aio
from tests.chaos import child

ROOT = Path(__file__).parents[2]
APP = ROOT / "tests" / "chaos" / "app.py"
SECONDS = 60.0

_encode = msgspec.json.encode


class Process:
    """One process, in one of its lives. `label` is what its commits are recorded under."""

    def __init__(self, label: str, pid: int, folder: Path, popen: subprocess.Popen[bytes] | None = None) -> None:
        self.label = label
        self.pid = pid
        self.folder = folder
        self._popen = popen
        self._handle = _handle_of(pid)
        self._asked = False

    @property
    def alive(self) -> bool:
        """Whether it has not ended. A process that is no child of ours is watched by its handle."""
        return self._handle is not None and not select.select([self._handle], [], [], 0)[0]

    @property
    def stopped(self) -> bool:
        """Whether it stands still, every thread of it."""
        try:
            states = [path.read_text().rpartition(")")[2].split()[0] for path in self._tasks()]
        except (FileNotFoundError, ProcessLookupError):
            return False
        return bool(states) and all(state == "T" for state in states)

    def _tasks(self) -> list[Path]:
        return list(Path(f"/proc/{self.pid}/task").glob("*/stat"))

    @property
    def ready(self) -> bool:
        out = self.folder / "out"
        return out.exists() and b'"ready"' in out.read_bytes()

    def signal(self, number: signal.Signals) -> None:
        if self._handle is not None and self.alive:
            signal.pidfd_send_signal(self._handle, number)

    async def wait_ready(self) -> None:
        async def ready() -> bool:
            ready = self.ready
            assert ready or self.alive, f"{self.label} ended:\n{self.said}"
            return ready

        await aio.until(ready, seconds=SECONDS)

    async def wait_stopped(self) -> None:
        await aio.until(_as_async(lambda: self.stopped), seconds=SECONDS)

    async def wait_ended(self) -> None:
        try:
            await aio.until(_as_async(lambda: not self.alive), seconds=SECONDS)
        except TimeoutError:
            raise AssertionError(f"{self.label} does not end:\n{self.said}") from None
        if self._popen is not None:
            code = self._popen.wait()
            if code >= 0:
                (self.folder / "exit").write_text(str(code))

    def ask_to_end(self) -> None:
        """Once: a second time would mean that it shall not wait."""
        if not self._asked:
            self._asked = True
            self.signal(signal.SIGTERM)

    async def end(self) -> None:
        """Ask it to end in order. It must do so, and have nothing to complain about."""
        self.ask_to_end()
        await self.wait_ended()
        code = self.folder / "exit"
        assert code.exists(), f"{self.label} was killed:\n{self.said}"
        assert code.read_text() == "0", f"{self.label} ended badly:\n{self.said}"

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.wait_ended()

    def close(self) -> None:
        """For good, whatever it was doing."""
        self.signal(signal.SIGKILL)
        if self._popen is not None:
            self._popen.wait(SECONDS)
        if self._handle is not None:
            os.close(self._handle)

    @property
    def said(self) -> str:
        files = [self.folder / name for name in ("out", "err")]
        return "\n".join(file.read_text(errors="replace")[-4_000:] for file in files if file.exists())


def _handle_of(pid: int) -> int | None:
    """None if it has ended already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


class Crew:
    """The processes of one store."""

    def __init__(self, nursery: Nursery, url: str, folder: Path, *, file: Path = APP) -> None:
        self.url = url
        self.folder = folder
        self.ledger = folder / "ledger"
        self.objects = str((folder if "://" in url else Path(url)) / "objects")
        self.killed: dict[str, int] = {}  # label and when, for those that were killed
        self.everybody: list[Process] = []
        self._nursery = nursery
        self._file = file
        self._lives: dict[str, int] = {}
        folder.mkdir(exist_ok=True, parents=True)

    def start(self, name: str, *words: str, exec_: bool = False, fate: str = "", url: str = "") -> Process:
        """Begin a life of a process: the command `words`, with the store added. Returns before it is ready.

        `url`: its own way to the store.
        """
        life = self._lives[name] = self._lives.get(name, 0) + 1
        label = f"{name}/{life}"
        folder = self.folder / f"{name}-{life}"
        folder.mkdir()
        variables = {
            child.LABEL: label,
            child.LEDGER: str(self.ledger),
            "WORLDLINE_OBJECTS": self.objects,
        }
        if fate:
            variables[child.FATE] = fate
        whole = [word.replace("FILE", str(self._file)) for word in words] + ["--store", url or self.url, "--json"]
        order = child.Order(whole, variables, str(folder))
        made = _exec(label, order) if exec_ else Process(label, self._nursery.make(order), folder)
        self.everybody.append(made)
        return made

    async def kill(self, process: Process) -> None:
        self.killed.setdefault(process.label, time.time_ns() // 1000)
        await process.kill()

    async def end(self) -> None:
        """Ask everybody who lives to end in order, all at once."""
        await asyncio.gather(*(each.end() for each in self.everybody if each.alive))

    def check(self) -> None:
        """Nobody has ended but those that were killed."""
        for each in self.everybody:
            assert each.alive or each.label in self.killed, f"{each.label} ended by itself:\n{each.said}"

    def close(self) -> None:
        for each in self.everybody:
            each.close()


def _exec(label: str, order: child.Order) -> Process:
    """A process with an interpreter of its own, as a shell would start it."""
    folder = Path(order.folder)
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        popen = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.child", *order.words],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            env={**_environment(), **order.variables},
        )
    return Process(label, popen.pid, folder, popen)


class Nursery:
    """One process with everything loaded. It ends, and its children with it, when this process does."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.child"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=_environment(),
        )

    def make(self, order: child.Order) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(_encode(order) + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(SECONDS)


def _environment() -> dict[str, str]:
    return {**os.environ, child.PARENT: str(os.getpid())}


def _as_async(holds: Callable[[], bool]) -> Callable[[], asyncio.Future[bool]]:
    def ask() -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        future.set_result(holds())
        return future

    return ask
