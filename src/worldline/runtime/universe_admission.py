"""Whether a universe takes more from outside: inputs, messages of other universes, new worlds.

The core bounds its own backlog (`client/backpressure.py`). Whatever else may refuse is a feature that brings an
`Admission`, and every place where something enters asks all of them, in the order of the features: what they want to
read is read with the rest, in one snapshot, and what they say of it decides.

Inputs and messages are judged by `InputBounds`: an estimate, read once in a while. A new world is judged in the attempt
to make it, by what that attempt has read: an admission that counts adds what it expects to the same batch, so that its
number is exact. Receipts, timers, messages inside a universe and whatever runs already are never asked about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.model import ids
from worldline.store import kv


class NewWorld(msgspec.Struct, frozen=True):
    """A world that is about to be made. `pins`: it is a fork, and may pin a state of its parent. `bytes`: how much is
    about to be stored of it, where that is known beforehand.
    """

    universe: ids.UniverseId
    pins: bool = False
    bytes: int = 0


class RefusedMessage(msgspec.Struct, frozen=True):
    """Why a message of another universe is not taken: the code of its receipt, and what its sender reads."""

    code: str
    why: str


class InputBounds(Protocol):
    """What a feature allows to one universe, as it was last read."""

    @property
    def why(self) -> str:
        """What facts and metrics name a refused input by."""

    @property
    def effects_max(self) -> int | None:
        """With so many open effects inputs are refused. None: their number does not matter."""

    def refuse_input(self, *, effects: int | None = None) -> errors.Error | None:
        """The error for an input that asks for work, or None. `effects`: how many are open; None: not asked about."""

    def refuse_message(self) -> RefusedMessage | None:
        """Why a message of another universe is not taken, or None."""


class Admission(Protocol):
    """One feature's answer (`Feature.admissions`). `read`: what was read of its `reads`, in order."""

    def reads(self, universe: ids.UniverseId) -> Sequence[kv.Get]: ...

    def bounds(self, universe: ids.UniverseId, read: Sequence[bytes | None]) -> InputBounds: ...

    async def admit(
        self, engine: kv.Engine, env: envs.Env, batch: kv.Batch, world: NewWorld, read: Sequence[bytes | None]
    ) -> None:
        """Let this batch make a world, or raise. What the number of worlds depends on is expected by the batch."""


def reads(admissions: Sequence[Admission], universe: ids.UniverseId) -> list[kv.Get]:
    """What all of them want to read. It is asked for behind everything else: `first` is where it begins."""
    return [each for admission in admissions for each in admission.reads(universe)]


def bounds(
    admissions: Sequence[Admission], universe: ids.UniverseId, read: kv.ReadResult, *, first: int
) -> list[InputBounds]:
    """What each allows to the universe."""
    return [each.bounds(universe, values) for each, values in _answers(admissions, universe, read, first)]


async def admit(
    admissions: Sequence[Admission],
    world: NewWorld,
    batch: kv.Batch,
    read: kv.ReadResult,
    *,
    first: int,
    engine: kv.Engine,
    env: envs.Env,
) -> None:
    """Let this batch make a world; the first that refuses it raises."""
    for each, values in _answers(admissions, world.universe, read, first):
        await each.admit(engine, env, batch, world, values)


def _answers(
    admissions: Sequence[Admission], universe: ids.UniverseId, read: kv.ReadResult, first: int
) -> Iterator[tuple[Admission, list[bytes | None]]]:
    """What was read for each: as many answers as it asks for."""
    for each in admissions:
        behind = first + len(each.reads(universe))
        yield each, [read.value(index) for index in range(first, behind)]
        first = behind
