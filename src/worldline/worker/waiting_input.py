"""An input that does not go through the inbox: it is handed to the next cycle of a world that is held in this process.

An input from a producer gets a stamp of its own, as an inbox item has one: no other step has the same bytes then.
"""

from __future__ import annotations

import asyncio

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.layers import work as works
from worldline.model import inbox
from worldline.store import kv

_NO_ORDINAL = 2**32 - 1  # no engine gives this one, so it cannot meet an item's own stamp
_HANDED = _NO_ORDINAL.to_bytes(4, "big")


class JournalPlace(msgspec.Struct, frozen=True, gc=False):
    """Where an input was journaled; and why it was not processed, if it was not: it is a dead letter then."""

    height: int
    step: int
    dead: str = ""


class WaitingInput(msgspec.Struct, eq=False):
    """An input that does not go through the inbox: from a producer, an effect worker or a timer worker in this process.

    `stamp` is what a producer's input has instead of an inbox stamp (`new_stamp`): it is journaled with the input, so
    that no other step has the same bytes. `client_id` is recorded as seen with the step. `claim` is the work that a
    receipt or a fired timer settles: the step expects it unchanged and deletes it. `done` ends with where it was
    journaled, or with one of these: `Fenced`: it was not processed, and the world is not here any more; `Deferred`: it
    was not processed, and has to go through the inbox; `Repeated`, `Superseded`; anything else: whether it was
    processed cannot be known.
    """

    item: inbox.Item
    data: bytes
    done: asyncio.Future[JournalPlace] | None = None
    client_id: bytes | str | None = None
    claim: works.Open | None = None
    since_us: int = 0  # when it was handed over, if that is measured
    stamp: bytes = b""
    trace: str = ""  # of a receipt: where the effect failed
    tried: str = ""  # of a receipt: the attempts at the effect, if they are kept

    def began(self, now_us: int) -> None:
        """Note when it was handed over, to measure how long it waits."""
        self.since_us = now_us

    def settle(self, applied: JournalPlace) -> None:
        # A producer that was cancelled meanwhile has ended its future itself.
        if self.done is not None and not self.done.done():
            self.done.set_result(applied)

    def fail(self, error: Exception) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(error)


class Repeated(errors.Error):
    """The same input was processed before: this is the stamp it has."""

    code = "repeated"

    def __init__(self, stamp: kv.Stamp) -> None:
        super().__init__("taken before")
        self.stamp = stamp


class Deferred(errors.Lost):
    """More is in the world's inbox than one cycle takes, or can be read now: the input has to come behind it."""

    code = "deferred"


class Superseded(errors.Lost):
    """Another process has this work now, and answers it."""

    code = "superseded"


def new_stamp(env: envs.Env) -> kv.Stamp:
    """A stamp for an input that is handed over: unique, and none that an engine gives."""
    # Random: no two processes that hold the world in turn may make the same one.
    return kv.Stamp(env.random_bytes(8) + _HANDED)


def handed_stamp(applied: JournalPlace) -> kv.Stamp:
    """The stamp that stands for an input which has none in the journal: its step."""
    return kv.stamp(applied.step, _NO_ORDINAL)


def was_handed(stamp: bytes) -> bool:
    """Whether it is such a stamp, and not an engine's own."""
    return stamp.endswith(_HANDED)
