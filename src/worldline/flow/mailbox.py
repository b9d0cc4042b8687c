"""The mailbox of one key: a queue of jobs, first in, first out.

An intent waits for the one that is on its way: while the key is busy, the first job that is no StartIntent is run, so
two intents of one key never see each other half done.
"""

from __future__ import annotations

from collections import deque

from worldline.flow_core import jobs


class Mailbox:
    """Jobs of one key. What the key means is not known here."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._queue: deque[jobs.Job] = deque()

    def put(self, job: jobs.Job) -> bool:
        """Add a job. Returns whether the queue was empty."""
        assert isinstance(job, jobs.Job), "a mailbox holds jobs alone"
        self._queue.append(job)
        return len(self._queue) == 1

    def take(self, *, busy: bool) -> jobs.Job | None:
        """Remove the next job that can be run, and return it."""
        found = self._next(busy=busy)
        if found is not None:
            # Not always the first: a StartIntent may be waiting before it.
            self._queue.remove(found)
        return found

    def has_next(self, *, busy: bool) -> bool:
        return self._next(busy=busy) is not None

    def is_empty(self) -> bool:
        return not self._queue

    def clear(self) -> list[jobs.Job]:
        """Give up what is queued, and say what it was."""
        dropped = list(self._queue)
        self._queue.clear()
        return dropped

    def _next(self, *, busy: bool) -> jobs.Job | None:
        return next((each for each in self._queue if not (busy and isinstance(each, jobs.StartIntent))), None)
