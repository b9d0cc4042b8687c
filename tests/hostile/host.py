"""A process that hosts every hostile program and the innocent one, and says whether its roles are well.

`python -m tests.hostile host URL NUMBERS`, where NUMBERS is `FIRST-END`. It says `ready`; each line it is given asks
for a check, and is answered with `well` or with what has stopped a role. It ends with its input.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import worldline as wl
from tests.hostile import innocent, programs
from worldline.model.settings import AdapterSettings, Settings, WorkerSettings

ROOT = Path(__file__).parents[2]
READY_SECONDS = 120
CHECK_SECONDS = 30

# Few worlds are kept warm, so that hostile ones are let go and brought back all the time.
SETTINGS = Settings(worker=WorkerSettings(max_worlds_warm=64, scan_ms=1_000), adapter=AdapterSettings(scan_ms=500))


async def serve(url: str, first: int, end: int) -> None:
    """The child's side."""
    sys.unraisablehook = lambda _: None  # some objects refuse to die quietly
    names = {programs.program(each).program.name: programs.program(each).program for each in range(first, end)}
    hosted = [innocent.app, *names.values()]
    async with wl.open(url, host=hosted, settings=SETTINGS) as universe:
        _say("ready")
        while await asyncio.to_thread(sys.stdin.readline):
            _say(_health(universe))


def _health(universe: wl.Universe) -> str:
    assert universe._connection.host is not None
    try:
        universe._connection.host.check()
    except Exception as error:  # noqa: BLE001 - it is told
        return f"{type(error).__name__} stopped a role"
    return "well"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Host:
    """The parent's side."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, url: str, first: int, end: int, *, number: int, folder: Path) -> Host:
        """Begin to start one; `ready` says when it is."""
        log = folder / f"host-{number}.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.hostile",
                "host",
                url,
                f"{first}-{end}",
                cwd=ROOT,
                env={**os.environ, "PYTHONHASHSEED": str(number)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        return cls(process, log)

    async def ready(self) -> None:
        async with asyncio.timeout(READY_SECONDS):
            assert await self._line() == "ready", self.said

    async def check(self) -> str:
        """What is wrong with it, or nothing."""
        if self._process.returncode is not None:
            return f"it ended ({self._process.returncode}):\n{self.said}"
        assert self._process.stdin is not None
        self._process.stdin.write(b"check\n")
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                line = await self._line()
        except TimeoutError:
            return f"it does not answer:\n{self.said}"
        return "" if line == "well" else f"{line}:\n{self.said}"

    async def end(self) -> int:
        """Let it end in order: it saves and releases every world."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(CHECK_SECONDS):
            return await self._process.wait()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    @property
    def said(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-60:])

    async def _line(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()
