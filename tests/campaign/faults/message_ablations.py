"""The guards of messages between universes, and of ids that are kept for a time, switched off: see `ablations.py`."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from unittest import mock

from worldline.layers import age, messages, universes
from worldline.layers import inbox as inboxes
from worldline.model import inbox


@contextlib.contextmanager
def patched(without: str) -> Iterator[None]:
    """Switched off for the length of a block. What is no guard of messages stays on."""
    match without:
        case "message-seen":
            with mock.patch.object(messages, "_client_id", _never_seen(messages._client_id)):
                yield
        case "grants":
            allowing = mock.patch.object(universes.Granted, "covers", return_value=True)
            with allowing, mock.patch.object(universes, "expect_grants", return_value=None):
                yield
        case "message-age":
            with mock.patch.object(messages, "is_too_old", return_value=False):
                yield
        case "message-kept":
            with mock.patch.object(inboxes, "forget", _at_once(inboxes.forget)):
                yield
        case "age":
            with mock.patch.object(age, "grown", _by_the_clock):
                yield
        case _:
            yield


def _never_seen(real: Callable[[inbox.Message], str]) -> Callable[[inbox.Message], str]:
    """Each time that a message's id is asked for, it is another."""
    count = itertools.count()
    return lambda message: f"{real(message)}:{next(count)}"


def _at_once(real: Callable[..., int]) -> Callable[..., int]:
    """Ids are forgotten whatever their age is."""
    return lambda batch, items, *, now, window_us: real(batch, items, now=now, window_us=window_us // 100)


def _by_the_clock(since: age.AgeAnchor, *, monotonic_us: int, time_us: int) -> int:
    """What the store's clock alone says has passed."""
    return since.age_us + max(0, time_us - since.time_us)
