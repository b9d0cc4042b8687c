"""The personal values of a world that is run here, as its kernel finds and keeps them.

The kernel asks in its own thread, which blocks until the event loop has read the value. What was read or made stays for
one cycle: the steps of a cycle see what those before them have sealed, and the next cycle reads again. With every
value, the record of its subject is read in the same snapshot; a commit that keeps new values expects all of these
records as they were (`add`). So if values are erased between the read and the commit, the steps are discarded and made
again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Sequence

from worldline.base import env as envs
from worldline.codec import sealed_token as tokens
from worldline.kernel.machine import Machine
from worldline.layers import personal_records
from worldline.layers.history import history_line
from worldline.model import ids
from worldline.model.personal_records import New, PersonalRecord
from worldline.runtime import cold_cells
from worldline.store import kv, paging


async def vault_of(engine: kv.Engine, env: envs.Env, line: history_line.HistoryLine) -> StoreVault:
    """The values of a world, for a thread that runs its code."""
    return StoreVault(asyncio.get_running_loop(), engine, env, personal_records.root_of(line))


def of(machine: Machine) -> StoreVault:
    """That of a world which is run here."""
    found = machine.vault
    assert isinstance(found, StoreVault)
    return found


class StoreVault:
    """Called in the kernel's thread. `loop` is the one that reads."""

    __slots__ = ("_engine", "_env", "_found", "_loop", "_subjects", "root")

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: kv.Engine, env: envs.Env, root: ids.Address) -> None:
        self._loop = loop
        self._engine = engine
        self._env = env
        self.root = root
        self._found: dict[tuple[bytes, bytes], PersonalRecord | None] = {}
        self._subjects: dict[bytes, personal_records.SubjectRecord] = {}

    async def has_erased(self) -> bool:
        """Whether any value of the lineage was erased."""
        async for _, raw in paging.RangeItems(self._engine, personal_records.subjects_range(self.root)):
            if personal_records.counts_erasure(raw):
                return True
        return False

    def begin(self) -> None:
        """A cycle begins: all that was kept is durable."""
        # Asked with every cycle; mostly no step has touched a personal value.
        if self._subjects:
            self._found, self._subjects = {}, {}

    def find(self, subject: bytes, value: bytes) -> PersonalRecord | None:
        known = (subject, value)
        if known not in self._found:
            self._found[known] = self._read(subject, value)
        return self._found[known]

    def again(self, subject: bytes, value: bytes, data: bytes) -> PersonalRecord | None:  # noqa: ARG002 - the prover compares
        return self.find(subject, value)

    def keep(self, subject: bytes, value: bytes, data: bytes) -> PersonalRecord:
        # The commit expects the subject's record as it was, so it is read even if no value of it is needed.
        if subject not in self._subjects:
            self._read(subject, value)
        kept = self._found[subject, value] = PersonalRecord(self._env.random_bytes(tokens.SALT_BYTES), data)
        return kept

    def forget(self, subject: bytes) -> None:
        for each in [each for each in self._found if each[0] == subject]:
            del self._found[each]

    def know(self, subjects: Iterable[personal_records.SubjectRecord]) -> None:
        """Values of these subjects were read for this cycle's batch."""
        for each in subjects:
            self._subjects.setdefault(each.subject, each)

    def add(self, batch: kv.Batch, new: Sequence[New]) -> None:
        """Put the values that a cycle's steps have kept into their batch, if there are any; and expect that nothing was
        erased of what they were made of.
        """
        personal_records.keep(batch, self.root, new)
        personal_records.unchanged(batch, self.root, self._subjects.values())

    async def read(self, subject: bytes, value: bytes) -> kv.ReadResult:
        """A value and the record of its subject, as they are stored."""
        return await self._engine.read(
            personal_records.get(self.root, subject, value), personal_records.get_subject(self.root, subject)
        )

    def _read(self, subject: bytes, value: bytes) -> PersonalRecord | None:
        wanted = cold_cells.ColdRequest("personal", [subject, value])
        reading = functools.partial(self.read, subject, value)
        read = cold_cells.blocking(self._loop, reading, wanted, "a personal value")
        # The first read of the cycle stays: the commit expects what its first step has seen.
        self._subjects.setdefault(subject, personal_records.SubjectRecord(subject, read.value(1)))
        return personal_records.decode(read.value(0))
