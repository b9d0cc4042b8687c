"""The outside of the tests with real processes: a file that every effect writes a line to.

Idempotent by key, as a good service is: what was performed is what the lines say, each key once. Some calls are slow
and some fail, by the attempt's own key, so that the same attempt fares alike in whichever process it is made.
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from pathlib import Path

import msgspec

import worldline as wl
from worldline.sim.load.history import Called


class Line(msgspec.Struct, frozen=True):
    time_us: int
    host: str
    name: str
    key: str
    attempt: int


class Ledger:
    """The service as effects see it."""

    def __init__(self, path: Path, host: str) -> None:
        self._file = opened(path)
        self._host = host

    async def call(self, name: str, value: object) -> None:
        """Perform something. It is done when the line is written, whatever the caller hears of it."""
        del value
        this = wl.attempt()
        mood = zlib.crc32(f"{this.key}/{this.number}".encode()) % 16
        if mood == 0:
            raise ConnectionError(f"{name} is out of order")
        note(self._file, self._host, name, this.key, this.number)
        await asyncio.sleep(0.3 if mood == 1 else 0.01)
        if mood == 2:
            raise ConnectionError(f"{name} did it and says it did not")


def opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(file: int, host: str, name: str, key: str, attempt: int) -> None:
    """One line, by one write: nobody's line is torn by another's."""
    line = Line(time.time_ns() // 1000, host, name, key, attempt)
    data = msgspec.json.encode(line) + b"\n"
    assert os.write(file, data) == len(data)


def read(path: Path) -> list[Called]:
    """Every call that has reached the outside."""
    if not path.exists():
        return []
    lines = [msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines()]
    return [Called(line.time_us, line.host, line.name, line.key, line.attempt) for line in lines]
