"""Proof of death on one machine: each worker process holds an operating-system lock while it lives.

The system releases the lock the instant a process ends, however it ends. So on an embedded store a holder whose lock
can be taken is dead beyond doubt, and its worlds are taken over at once instead of after its heartbeat has run out.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from worldline.model import ids

FOLDER = "workers"


class Presence:
    """The locks of one embedded store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._held: dict[bytes, int] = {}

    def enter(self, worker: ids.WorkerId) -> None:
        """Be this worker, until the process ends or leaves."""
        self._folder.mkdir(exist_ok=True)
        handle = os.open(self._path(worker), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._held[worker] = handle

    def leave(self, worker: ids.WorkerId, *, tidy: bool = True) -> None:
        """Be this worker no more. One that does not leave `tidy` has left work undone: it counts as dead at once."""
        handle = self._held.pop(worker, None)
        if handle is not None:
            if tidy:
                self._path(worker).unlink(missing_ok=True)
            os.close(handle)

    def is_dead(self, worker: ids.WorkerId) -> bool:
        """Whether that worker's process is certainly gone. Unknown workers are not: they may live elsewhere."""
        if worker in self._held:
            return False
        try:
            handle = os.open(self._path(worker), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True

    def _path(self, worker: ids.WorkerId) -> Path:
        return self._folder / f"{worker.hex()}.lock"
