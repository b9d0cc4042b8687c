"""Worlds that this worker does not run, each with its reason, and when it is tried again.

A world is refused when something that concerns it alone cannot be done here: a step, a restore, a batch, a change of
its code. Its lease is released, so another worker may try, and nothing of it is lost: what was not processed stays in
its inbox. This worker leaves it alone for a pause that doubles with every refusal in a row, so that a world which no
worker can run is tried a few times in a minute by all of them together, and later a few times in an hour. A committed
step ends the row. So does a change of the world's record: a person who pauses and resumes a world has it tried at once.

`lasting`: this process will not be able to run it for as long as it lives.
"""

from __future__ import annotations

import shlex

import msgspec

from worldline.base import env as envs
from worldline.base import limits
from worldline.codec import printable
from worldline.model import ids
from worldline.runtime import facts as telemetry
from worldline.runtime import placement
from worldline.worker import kernel_thread
from worldline.worker.held_world import NEVER_US

log = printable.logger("worldline.worker")

PAUSE_FIRST_MS = 1_000
PAUSE_MOST_MS = 300_000
LABELS_MAX = 16  # said with the heartbeat, so that other processes can see them: `refused:WORLD=WHY`
LABEL_CHARACTERS_MAX = 300
_LABELS_BYTES = (
    limits.WORKER_LABELS_BYTES_MAX + LABELS_MAX * (4 * LABEL_CHARACTERS_MAX + 64) + limits.JOB_LABELS_BYTES_MAX
)
assert _LABELS_BYTES < limits.VALUE_BYTES_MAX - 1_024


class WorldRefusal(msgspec.Struct):
    """Why a world is not run here."""

    kind: telemetry.RefusalKind
    why: str
    tries: int
    until_us: int
    kept: bool  # the lease is kept meanwhile
    may_look: bool  # callers may have it taken meanwhile: a look at it tells them more than is known here
    tried: bool = False  # since the pause has ended
    meta: bytes | None = None  # the world's record, as it was seen after the refusal


class Refusals:
    def __init__(self, env: envs.Env, telemetry: telemetry.Telemetry = telemetry.NOTHING) -> None:
        self._env = env
        self._telemetry = telemetry
        self._refused: dict[ids.Address, WorldRefusal] = {}
        self._next_us = NEVER_US

    def refuse(
        self,
        at: ids.Address,
        kind: telemetry.RefusalKind,
        why: str,
        *,
        lasting: bool = False,
        keep: bool = False,
        may_look: bool = False,
        cause: BaseException | None = None,
        name: str = "",
    ) -> int:
        """Leave a world alone for a while. Returns how many times in a row that is. `name`: the world's, if known."""
        known = self._refused.get(at)
        tries = 1 if known is None else known.tries + 1
        pause_ms = min(PAUSE_MOST_MS, PAUSE_FIRST_MS * 2 ** min(tries - 1, 32))
        until_us = NEVER_US if lasting else self._env.monotonic_us() + pause_ms * 1000
        self._refused[at] = WorldRefusal(kind, why, tries, until_us, keep, may_look)
        self._next_us = min(self._next_us, until_us)
        again = "for as long as this process lives" if lasting else f"for {pause_ms // 1000} s"
        # Once in a row: the log would get the same trace with every pause.
        trace = "" if cause is None or tries > 1 else f"\n{kernel_thread.trace(cause)}"
        log.error(
            "world %s is left alone %s: %s%s%s",
            repr(name) if name else at.world.hex(),
            again,
            why,
            _ways_out(name),
            trace,
            extra=telemetry.about(at, name=name),
        )
        self._telemetry.tell(telemetry.WorldRefused(at, kind, why, tries))
        return tries

    def why(self, at: ids.Address) -> str | None:
        known = self._refused.get(at)
        return None if known is None else known.why

    def blocks(self, at: ids.Address) -> bool:
        """Whether the world is to be left alone now."""
        known = self._refused.get(at)
        return known is not None and self._env.monotonic_us() < known.until_us

    def withholds(self, at: ids.Address) -> bool:
        """The same for callers that ask for it, unless they may look."""
        known = self._refused.get(at)
        return known is not None and not known.may_look and self.blocks(at)

    def tries(self, at: ids.Address) -> int:
        """How many times in a row it was refused."""
        known = self._refused.get(at)
        return 0 if known is None else known.tries

    def keeps(self, at: ids.Address) -> bool:
        """Whether its lease is kept while it is left alone."""
        known = self._refused.get(at)
        return known is not None and known.kept

    def forgive(self, at: ids.Address) -> None:
        """It made a step, or a person wants it to be tried."""
        # Asked after every commit, when mostly no world is refused.
        if self._refused:
            self._refused.pop(at, None)

    def seen(self, at: ids.Address, meta: bytes) -> None:
        """The world's record, as it stands. One that has changed since the refusal ends it."""
        known = self._refused.get(at)
        if known is None:
            return
        # The first look after the refusal: a pause or resume by a person comes after that.
        if known.meta is None:
            known.meta = meta
        elif known.meta != meta:
            self.forgive(at)

    def labels(self) -> dict[str, str]:
        """The latest of them, as they are said with the heartbeat."""
        latest = list(self._refused.items())[-LABELS_MAX:]
        return {placement.refused_label(at): known.why[:LABEL_CHARACTERS_MAX] for at, known in latest}

    def look_again(self, now_us: int) -> bool:
        """Whether the pause of one of them has ended."""
        return self._next_us <= now_us

    def due(self, now_us: int) -> list[ids.Address]:
        """The worlds whose pauses have ended, each once."""
        due: list[ids.Address] = []
        self._next_us = NEVER_US
        for at, known in self._refused.items():
            if known.until_us > now_us:
                self._next_us = min(self._next_us, known.until_us)
            # It stays known, so that the next refusal doubles the pause; but it is due only once.
            elif not known.tried:
                known.tried = True
                due.append(at)
        return due


def _ways_out(name: str) -> str:
    if not name:
        return "; `worldline list` names the worlds that are left alone"
    quoted = shlex.quote(name)
    return (
        f"; see `worldline why {quoted}`; to have it tried at once, type "
        f"`worldline pause {quoted} && worldline resume {quoted}`"
    )
