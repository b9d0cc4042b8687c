"""The guards against forged answers and senders, switched off: see `ablations.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from worldline.kernel import event_dispatch
from worldline.kernel.rows import questions
from worldline.model import ids

LOOK = (
    "forgers=2,abroad=0,flows=0,clients=1,kinds=add,forks=0,anonymous=0,doors=0,hostile=0,fragile=0,backlog=0,"
    "excursion=0,sketches=0"
)


@contextlib.contextmanager
def patched(without: str) -> Iterator[None]:
    """Switched off for the length of a block. What is no such guard stays on."""
    match without:
        case "answer-asked":
            with mock.patch.object(event_dispatch, "_is_of_asked", return_value=True):
                yield
        case "question-id":
            with mock.patch.object(questions, "_drawn", return_value=b""):
                yield
        case "system-names":
            with mock.patch.object(ids, "check_event_name", lambda name: name):
                yield
        case "envelope-sender":
            with mock.patch.object(event_dispatch, "check_outside", return_value=None):
                yield
        case _:
            yield
