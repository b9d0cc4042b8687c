"""Roles in processes of their own, for tests of a cluster of real ones."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.cli import cli_kit


class Role:
    """One `worldline worker|adapter|...` in a process of its own."""

    def __init__(self, *words: object, cwd: Path) -> None:
        self.words = [str(word) for word in words]
        self._seen = ""
        self._process = subprocess.Popen(
            [*cli_kit.COMMAND, *self.words],
            cwd=cwd,
            env=cli_kit.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, text: str) -> None:
        """Until it has written this."""
        cli_kit.until(lambda: text in self.seen or not self.alive, f"{text} from {self.words}")
        assert text in self.seen, self.seen

    @property
    def seen(self) -> str:
        """All that it has written."""
        assert self._process.stdout is not None
        if not self._process.stdout.closed:
            self._seen += (self._process.stdout.read() or b"").decode()
        return self._seen

    @property
    def said(self) -> dict[str, Any]:
        """The line that it was ready with."""
        line = next(line for line in self.seen.splitlines() if '"ready"' in line)
        found: dict[str, Any] = msgspec.json.decode(line)
        return found

    @property
    def worker(self) -> bytes:
        return bytes.fromhex(self.said["worker"])

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Have it end, and wait for that."""
        self._process.send_signal(number)
        code = self._process.wait(cli_kit.SECONDS)
        assert self.seen is not None
        return code

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(cli_kit.SECONDS)
        assert self.seen is not None
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def running(*commands: list[object], cwd: Path) -> Iterator[list[Role]]:
    """These roles, with `--json`, all started at once, and all ended in the end, however that comes."""
    started: list[Role] = []
    try:
        for words in commands:
            started.append(Role(*words, "--json", cwd=cwd))
        for each in started:
            each.wait_for('"ready"')
        yield started
    finally:
        for each in started:
            each.close()
