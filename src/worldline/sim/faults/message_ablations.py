"""The guards of messages between universes, switched off: see `ablations.py`."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from unittest import mock

from worldline.layers import inbox as inboxes
from worldline.layers import messages, universes
from worldline.model import inbox


@contextlib.contextmanager
def patched(without: str) -> Iterator[None]:
    """Switched off for the length of a block. What is no guard of messages stays on."""
    match without:
        case "message-seen":
            with mock.patch.object(messages, "_client_id", _never_seen(messages._client_id)):  # noqa: SLF001
                yield
        case "grants":
            allowing = mock.patch.object(universes.Granted, "covers", return_value=True)
            with allowing, mock.patch.object(universes, "expect_grants", return_value=None):
                yield
        case "message-age":
            with mock.patch.object(messages, "is_too_old", return_value=False):
                yield
        case "message-kept":
            with mock.patch.object(inboxes, "forget_chosen", _at_once(inboxes.forget_chosen)):
                yield
        case _:
            yield


def _never_seen(real: Callable[[inbox.Message], str]) -> Callable[[inbox.Message], str]:
    """Each time that a message's id is asked for, it is another."""
    count = itertools.count()
    return lambda message: f"{real(message)}:{next(count)}"


def _at_once(real: Callable[..., int]) -> Callable[..., int]:
    """Ids are forgotten whatever their age is."""
    return lambda batch, items, *, time_us, window_us: real(batch, items, time_us=time_us, window_us=window_us // 100)
