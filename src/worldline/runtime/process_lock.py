"""Proof of death on one machine: each worker process holds an operating-system lock while it lives.

The system releases the lock the instant a process ends, however it ends. So on an embedded store a holder whose lock
can be taken is dead beyond doubt, and its worlds are taken over at once instead of after its heartbeat has run out.

A child made by `fork` would share the lock and keep it after its parent's death, so it closes what it inherited; that
does not release the parent's. (Record locks are not inherited, but any close of the file in the process releases them.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from worldline.base import private_files
from worldline.model import ids

FOLDER = "workers"
SUFFIX = ".lock"

_HELD: dict[int, None] = {}  # the descriptors of all locks that this process holds


def _after_fork() -> None:
    for handle in list(_HELD):
        with contextlib.suppress(OSError):
            os.close(handle)
    _HELD.clear()


os.register_at_fork(after_in_child=_after_fork)


class Presence:
    """The locks of one embedded store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._held: dict[bytes, int] = {}

    def enter(self, worker: ids.WorkerId) -> None:
        """Hold this worker's lock, until the process ends or leaves."""
        modes = private_files.modes_in(self._folder.parent)
        # Another worker of the store has made it.
        with contextlib.suppress(FileExistsError):
            private_files.make_folder(self._folder, modes)
        path = self._path(worker)
        handle = _lock(path, os.O_RDWR | os.O_CREAT, modes.file)
        while not _is_at(handle, path):  # swept between the opening and the locking
            os.close(handle)
            handle = _lock(path, os.O_RDWR | os.O_CREAT, modes.file)
        self._held[worker] = handle
        _HELD[handle] = None

    def leave(self, worker: ids.WorkerId, *, tidy: bool = True) -> None:
        """Release this worker's lock. If not `tidy`, it has left work undone and counts as dead at once."""
        handle = self._held.pop(worker, None)
        if handle is not None:
            # Unlinked while it is locked: a process that opens the path from here on gets a file of its own.
            if tidy:
                self._path(worker).unlink(missing_ok=True)
            if _HELD.pop(handle, 0) is None:  # else this is a forked child, which has closed it
                os.close(handle)

    def is_dead(self, worker: ids.WorkerId) -> bool:
        """Whether that worker's process is proven dead. An unknown worker is not: it may run on another machine."""
        # This process: its own lock needs no try.
        if worker in self._held:
            return False
        try:
            os.close(_lock(self._path(worker), os.O_RDWR))
        except OSError:
            return False
        return True

    def dead(self) -> list[ids.WorkerId]:
        """The workers whose processes are proven dead and have left a lock file."""
        try:
            names = sorted(path.name for path in self._folder.iterdir() if path.suffix == SUFFIX)
        except OSError:
            return []
        found: list[ids.WorkerId] = []
        for name in names:
            # The name is no worker's id: another program has put the file there.
            with contextlib.suppress(ValueError):
                worker = ids.WorkerId(bytes.fromhex(name.removesuffix(SUFFIX)))
                if self.is_dead(worker):
                    found.append(worker)
        return found

    def forget(self, worker: ids.WorkerId) -> None:
        """Remove a dead worker's lock file. Its death cannot be proven any more, so nothing of it may be left."""
        with contextlib.suppress(OSError):
            # Locked first: a file whose process lives is not removed.
            handle = _lock(self._path(worker), os.O_RDWR)
            try:
                self._path(worker).unlink(missing_ok=True)
            finally:
                os.close(handle)

    def _path(self, worker: ids.WorkerId) -> Path:
        return self._folder / f"{worker.hex()}{SUFFIX}"


def _lock(path: Path, flags: int, mode: int = 0) -> int:
    """The file, locked. Raises OSError if there is none or another process has it."""
    handle = private_files.open_file(path, flags, mode)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
