"""A disk that is full, again and again: everybody stays, nothing is lost, and all goes on when there is room.

The store lies on a small file system of its own, which a file beside it fills to the last byte. Where nothing may be
mounted, and in any case once, the system refuses to let the store's file grow instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.chaos import field
from tests.chaos.field import Field
from tests.chaos.processes import Nursery

DISK_BYTES = 96 * 1024 * 1024
BLOCK_BYTES = 64 * 1024
ROLES = {"up-1": field.UP, "up-2": field.UP}


class Room(Protocol):
    """Takes away the room that a store has, and gives it back."""

    def take(self, chaos: Field) -> None: ...

    def give(self, chaos: Field) -> None: ...


class Ballast:
    """A file that takes what is left of a file system."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self, chaos: Field) -> None:
        del chaos
        size = BLOCK_BYTES
        with self._path.open("wb", buffering=0) as file:
            while size:
                try:
                    file.write(bytes(size))
                except OSError:
                    size //= 2

    def give(self, chaos: Field) -> None:
        del chaos
        self._path.unlink(missing_ok=True)


class Limit:
    """No file of the role processes may grow beyond the size that the store's has now."""

    def __init__(self, store: Path) -> None:
        self._data = store / "data.mdb"

    def take(self, chaos: Field) -> None:
        self._set(chaos, self._data.stat().st_size)

    def give(self, chaos: Field) -> None:
        self._set(chaos, resource.getrlimit(resource.RLIMIT_FSIZE)[0])

    def _set(self, chaos: Field, size: int) -> None:
        for process in [process for _, process in chaos.roles.values() if process.alive]:
            _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, most))


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[bool]:
    """A small file system at this folder, for the length of a block. False: it may not be mounted here."""
    folder.mkdir()
    mounted = _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder))
    try:
        yield mounted
    finally:
        if mounted:
            assert _run("umount", "-l", str(folder))


def _run(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def store_full(chaos: Field) -> int:
    """How often a process has said that there was no room."""
    return sum(process.said.count("no space left") for _, process in chaos.roles.values())


async def full_for(chaos: Field, room: Room, seconds: float) -> None:
    room.take(chaos)
    await asyncio.sleep(seconds)
    room.give(chaos)


@pytest.mark.parametrize("way", ["mounted", "limited"])
async def test_there_is_no_room_for_a_while(way: str, nursery: Nursery, tmp_path: Path) -> None:
    with disk(tmp_path / "disk") as mounted:
        store = tmp_path / "disk" / "store"
        room: Room = Ballast(tmp_path / "disk" / "ballast") if mounted and way == "mounted" else Limit(store)
        chaos = await Field(nursery, str(store), tmp_path / "field", seed=f"full disk, {way}").open()
        try:
            for name, words in ROLES.items():
                await chaos.start(name, words)
            chaos.work()
            await chaos.answered(20)
            async for _ in chaos.for_a_while(0.1, 0.3):
                await full_for(chaos, room, chaos.draws.choice([0.1, 1.0]))
            while not store_full(chaos):
                await full_for(chaos, room, 2.0)
            await chaos.finish()
        finally:
            room.give(chaos)
            await chaos.aclose()
