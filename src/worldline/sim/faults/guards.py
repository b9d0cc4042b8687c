"""Guards of the design that a run may miss: the test of the tester.

A suite brings the guards that can be switched off in it. Where a guard would be missed is asked of one object: `Intact`
has all of them, and one that lacks a guard answers otherwise somewhere. Real engines never see any of this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from worldline.base import env as envs
from worldline.model.settings import Settings
from worldline.sim.runtime.sim_loop import SimMachine
from worldline.sim.runtime.truth import Truth
from worldline.store import kv


class Guard(msgspec.Struct, frozen=True):
    """What is switched off, and the invariants one of which must be seen broken.

    `look`: what a seed's profile is turned to, where few seeds would need the guard.
    """

    does: str
    breaks: tuple[str, ...]
    look: str = ""


class Intact:
    """A run that has every guard. `name`: the guard that is switched off."""

    name = ""
    held_back = True  # nothing is read above `stable`

    def settings(self, settings: Settings) -> Settings:
        """The settings of a run."""
        return settings

    def patched(self) -> contextlib.AbstractContextManager[None]:
        """For the length of a run: what is switched off in no batch."""
        return contextlib.nullcontext()

    async def apply(self, truth: Truth, host: SimMachine, batch: kv.Batch, version: int | None = None) -> kv.Outcome:
        """Commit a batch. `version`: of the transaction that it ends."""
        return await truth.commit(host, batch, version=version)

    def seen(self, read: kv.ReadResult, env: envs.Env) -> kv.ReadResult | None:  # noqa: ARG002 - for those that differ
        """Return what a host takes for the answer to a read, if that is another."""
        return None

    def early(self, truth: Truth, batches: Sequence[kv.Batch], about: str) -> list[kv.Outcome] | None:  # noqa: ARG002
        """The answers that a host takes for those to its commits before these are applied, if it does."""
        return None

    def unanswered(self, truth: Truth, batches: Sequence[kv.Batch], why: str) -> list[kv.Outcome]:  # noqa: ARG002
        """Return what a host takes for the answers to commits whose answers were lost."""
        return [kv.CommitUnknown(why) for _ in batches]


def _intact(_: str) -> Intact:
    return Intact()


class Guards(msgspec.Struct, frozen=True):
    """Those that can be switched off, by name. `lacking`: a run without one of them."""

    named: Mapping[str, Guard] = {}
    lacking: Callable[[str], Intact] = _intact

    def without(self, name: str) -> Intact:
        """A run without this guard; nothing: with all of them."""
        assert not name or name in self.named, f"no guard {name!r}"
        # A run with all guards needs nothing of the suite, so it cannot be weakened by it.
        return self.lacking(name) if name else Intact()
