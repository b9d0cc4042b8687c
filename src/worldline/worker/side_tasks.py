"""Tasks that run beside a worker's turns: cycles, the search, upkeep, releases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from worldline.base import errors


class SideTasks:
    """`ended` is called when a named task has ended."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._named: dict[str, asyncio.Task[None]] = {}
        self._cycles: list[asyncio.Task[None]] = []

    def is_running(self, name: str) -> bool:
        return name in self._named

    @property
    def cycles(self) -> int:
        return len(self._cycles)

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._named[name] = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(lambda _: self._ended())

    def start_cycle(self, work: Coroutine[Any, Any, None]) -> None:
        # No callback: a cycle wakes its worker itself when it ends (`cycle_runner.py`).
        self._cycles.append(asyncio.get_running_loop().create_task(work))

    def check(self) -> None:
        """Forget tasks that have ended; raise what ended them."""
        if not self._cycles and not self._named:
            return
        ended = [task for task in self.all if task.done()]
        self._cycles = [task for task in self._cycles if not task.done()]
        self._named = {name: task for name, task in self._named.items() if not task.done()}
        failed = [error for task in ended if not task.cancelled() and (error := task.exception()) is not None]
        for error in sorted(failed, key=lambda each: isinstance(each, errors.Error)):
            raise error  # a bug first: an outside fault must not hide it

    @property
    def all(self) -> list[asyncio.Task[None]]:
        return [*self._cycles, *self._named.values()]
