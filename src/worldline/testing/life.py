"""One world in memory: the machine, its journal, and every disturbance that must not make a difference.

Each step is done twice and compared, warm coroutines are dropped at random (seeded), and the machine can be thrown away
at any entry and brought back from its rows. The journal is the only thing that is kept, sealed and chained as in a
store.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import msgspec

from worldline.base import env as envs
from worldline.base import errors, failures
from worldline.codec import digest
from worldline.host.feature_list import PARTS
from worldline.kernel import control_commands, replay, state_rows
from worldline.kernel import step as kernel_step
from worldline.kernel.authoring.program import Program
from worldline.kernel.machine import Machine
from worldline.layers import cas
from worldline.layers import journal as journals
from worldline.layers.history import journal_file, step_reader
from worldline.layers.history.history_line import HistoryLine
from worldline.model import ids, inbox, journal, payload
from worldline.model import step_records as steps
from worldline.model.rows import Rows
from worldline.model.state_digest import changes_digest
from worldline.model.traces import StepTraces
from worldline.testing import loopless, twins

DROP_CHANCE = 0.5
_ENTROPY = envs.Entropy(envs.FixedEnv())


class WorldStanding(msgspec.Struct, frozen=True):
    """A world at the end of a step: the head of its journal, and its rows as the parts of a snapshot."""

    head: journal.Head
    parts: list[bytes]


class Life:
    """`start`: where a fork begins; `parent`: the life of the world that it is a fork of."""

    def __init__(
        self,
        program: Program,
        at: ids.Address,
        *,
        strict: bool = True,
        twice: bool = True,
        drops: Random | None = None,
        parent: Life | None = None,
        start: WorldStanding | None = None,
    ) -> None:
        self.program = program
        self.line = HistoryLine(at)
        self.head = journal.GENESIS
        self.entries: list[journal.JournalEntry] = []  # sealed, as a store would have them
        self.blobs: dict[bytes, bytes] = {}
        self.changed: list[journal_file.StepChanges] = []  # of each step
        self.traces: list[StepTraces] = []  # where user code failed
        self.crash_at: list[int] = []
        self.crashes = 0
        self._strict = strict
        self._twice = twice
        self._drops = drops
        self.machine = Machine(program, strict=strict)
        self._saved = state_rows.save(self.machine)
        self._baselines = [WorldStanding(self.head, self._saved)]  # the last one is where a replay begins
        self._blocked: dict[str, str] = {}  # runs that are expected to be
        if parent is not None and start is not None:
            self._inherit(parent, start)

    @property
    def at(self) -> ids.Address:
        return self.line.at

    @property
    def baseline(self) -> WorldStanding:
        """Where a replay begins: other code, or another world, has done what is below."""
        return self._baselines[-1]

    def _inherit(self, parent: Life, start: WorldStanding) -> None:
        """The history up to a fork is the parent's. Its steps are not made again under the fork's address."""
        head = start.head
        self.line = HistoryLine(self.at, parent.line.up_to(step=head.step, height=head.height))
        self.head = head
        self.entries = [each for each in parent.entries if each.height <= head.height]
        self.blobs = dict(parent.blobs)
        self.changed = parent.changed[: head.step]
        self._baselines = [each for each in parent._baselines if each.head.height < head.height]
        self._baselines.append(start)
        self._blocked = dict(parent._blocked)
        self._saved = start.parts
        self.machine = state_rows.load(self.program, start.parts, self.at, strict=self._strict)

    # --- Stepping ------------------------------------------------------------------------------------------

    def carry(self, data: bytes) -> payload.Payload:
        """A payload for an item: inline, or by its address if it is large."""
        if not cas.is_small(data):
            self.blobs[digest.sha256(data)] = data
        return cas.as_payload(data)

    def step(
        self, item: inbox.Item | None, data: bytes, *, time_us: int, error: str = "", trace: str = ""
    ) -> steps.Stepped:
        """Consume one input and journal the step. `Diverged` if doing it again comes out differently."""
        given = steps.Input(item, data, raw_digest=b"" if item else digest.sha256(data), error=error, trace=trace)
        logical_us = max(self.head.time_us, time_us)  # logical time never goes back, though clocks may
        behind_us = logical_us - time_us
        context = steps.StepContext(self.at, self.head.step + 1, logical_us, behind_us, _ENTROPY)
        stepped, sealed = self._do(self.machine, given, context)
        after = sealed.after
        if any(sealed.entries[0].height <= height < after.height for height in self.crash_at):
            self.restore()  # before the commit: the step is lost and done again
            stepped, sealed = self._do(self.machine, given, context)
        if self._twice:
            self._again(msgspec.structs.replace(given, trace=""), context, stepped)  # which no journal has
        if stepped.traces:
            self.traces.append(StepTraces(context.step, context.time_us, stepped.traces))
        # From here on it is what a commit does: everything above may be done again, nothing below may be.
        self.blobs |= {digest.sha256(each): each for each in sealed.large}
        self.entries += sealed.entries
        self.changed.append(journal_file.StepChanges(sealed.changes[0], changes_digest(stepped.changes)))
        self.head = after
        if after.height in self.crash_at:
            self.restore()
        self._drop()
        return stepped

    def _do(
        self, machine: Machine, step_input: steps.Input, context: steps.StepContext
    ) -> tuple[steps.Stepped, journals.SealedSteps]:
        with loopless.loopless():
            stepped = kernel_step.step(machine, step_input, context, PARTS)
        sealed = journals.seal(
            self.head,
            stepped.drafts,
            stepped.changes,
            state=stepped.state,
            time_us=context.time_us,
            covered=stepped.covered,
            plain=stepped.plain,
        )
        return stepped, sealed

    def _again(self, step_input: steps.Input, context: steps.StepContext, stepped: steps.Stepped) -> None:
        """The same step on a copy that was saved and loaded."""
        # From rows: what the warm machine has besides them would show as a difference.
        twin = state_rows.load(self.program, self._saved, self.at, strict=self._strict)
        twin.begin_replay()
        # As a replay does it: from what the journal has, without entropy.
        step_input = msgspec.structs.replace(
            step_input, erased=replay.erased_of(stepped.drafts), secret=replay.secret_of(stepped.drafts)
        )
        context = msgspec.structs.replace(context, entropy=None)
        try:
            again, _ = self._do(twin, step_input, context)
        except errors.ErasedValue:
            twin.close()
            return  # it had a value that is gone: it cannot be done twice
        try:
            found = twins.difference((self.machine, stepped), (twin, again), height=self.head.height + 1)
        finally:
            twin.close()
        if found:
            what = replay.describe(stepped.drafts[0].kind, stepped.drafts[0].payload)
            raise failures.Diverged(f"step {context.step}, done twice, does not come out the same; {found}\n({what})")
        self._blocked |= twins.unfit(stepped)
        report = twins.blocked(self.machine, self._blocked)
        if report:
            raise failures.Diverged(f"step {context.step} found a run that its own code does not fit:\n{report}")
        self._saved = state_rows.save(self.machine)

    def _drop(self) -> None:
        if self._drops is None:
            return
        for run in self.machine.runs.values():
            if run.coroutine is not None and self._drops.random() < DROP_CHANCE:
                run.cool()  # a warm coroutine is a cache: dropping it must change nothing

    # --- Bringing back -------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Throw the machine away and bring the world back from its rows, without running any of its code."""
        self.machine.close()  # first: the old coroutines are released before new ones are made
        self.machine = self.at_height(self.head.height)
        self.crashes += 1

    def at_height(self, height: int) -> Machine:
        """A machine of its own, as the world was at the last step end at or below a height."""
        head, rows = self._folded(height)
        return state_rows.machine_of(self.program, head.state, rows.items(), self.at, strict=self._strict)

    def standing_at(self, height: int) -> WorldStanding:
        """The world at the last step end at or below a height. No code of it runs."""
        head, rows = self._folded(height)
        return WorldStanding(head, state_rows.parts_of(head.state, rows.items()))

    def _folded(self, height: int) -> tuple[journal.Head, Rows]:
        # The latest baseline below the height: across one, other code has made the changes, and rows are not folded
        # over it.
        index = max(number for number, each in enumerate(self._baselines) if not number or each.head.height <= height)
        state, rows = state_rows.read(self._baselines[index].parts)
        found = Rows(rows)
        stored = [each for each in self._export("", index).steps() if each.height <= height]
        head = msgspec.structs.replace(self._baselines[index].head, state=state)
        return step_reader.fold(head, stored, found, self.blobs), found

    def prove(self) -> int:
        """Replay everything, each step also from a snapshot of the step before. Returns how many steps that were."""
        exported = self.export("")
        journals.verify(self.baseline.head, exported.entries, [each.digest for each in exported.changed])
        machine = self._start()
        count = 0
        for count, entries in enumerate(replay.steps(self._above()), 1):  # noqa: B007 - the last one counts
            # Each step also from a snapshot, so every height is proved to be a place to restore from.
            copy = state_rows.load(self.program, state_rows.save(machine), self.at, strict=self._strict)
            for each in (machine, copy):
                self.check(each, entries)
            copy.close()
        same = state_rows.save(machine) == state_rows.save(self.machine)
        machine.close()
        if not same:
            raise failures.Diverged("the journal, replayed from its beginning, leads to another state")
        return count

    def replayed(self) -> Iterator[tuple[list[journal.JournalEntry], Machine]]:
        """Every step above the baseline, and the machine behind it. `Diverged` at the first difference."""
        for entries, machine in self.replaying():
            self.check(machine, entries)
            yield entries, machine

    def replaying(self) -> Iterator[tuple[list[journal.JournalEntry], Machine]]:
        """Every step above the baseline, and the machine before it: `check` runs it, before the next is asked for."""
        machine = self._start()
        try:
            for entries in replay.steps(self._above()):
                yield entries, machine
        finally:
            machine.close()

    def branch(self, at: ids.Address, height: int) -> Life:
        """The life of a fork of another address, at the last step end at or below a height. It has not begun yet."""
        return Life(
            self.program, at, strict=self._strict, twice=self._twice, parent=self, start=self.standing_at(height)
        )

    def adopt(self, program: Program) -> tuple[control_commands.ChangeProgram, dict[str, str]]:
        """Go on under other code, as a world does whose program was edited. Returns what is to be journaled next, and
        the runs that the code does not fit.
        """
        parts = state_rows.save(self.machine)
        self.machine.close()
        before, self.program = self.program, program
        self.machine = state_rows.load(program, parts, self.at, strict=self._strict)
        with loopless.loopless():
            self._blocked = control_commands.misfits(self.machine, self.at)
        self._saved = parts
        return control_commands.ChangeProgram(before.hash, program.hash), self._blocked

    def rebase(self) -> None:
        """Nothing below is replayed any more: other code has done it."""
        self._baselines.append(WorldStanding(self.head, state_rows.save(self.machine)))

    def _export(self, name: str, baseline: int) -> journal_file.ExportedJournal:
        head, parts = self._baselines[baseline].head, self._baselines[baseline].parts
        return journal_file.ExportedJournal(
            name=name,
            program=self.program.name,
            program_hash=self.program.hash,
            at=self.at,
            entries=[each for each in self.entries if each.height > head.height],
            blobs=self.blobs,
            changed=self.changed[head.step :],
            start=head,
            parts=parts if head.height else (),  # a world begins without rows
        )

    def export(self, name: str) -> journal_file.ExportedJournal:
        return self._export(name, len(self._baselines) - 1)

    def filled(self, *, above: int = 0) -> list[journal.JournalEntry]:
        """The entries above a height, payloads in place."""
        return [
            msgspec.structs.replace(each, payload=self.blobs[each.blob], blob=b"") if each.blob else each
            for each in self.entries[above:]
        ]

    def load(self, carried: payload.Payload) -> bytes:
        return carried.inline if carried.inline is not None else self.blobs[carried.ref or b""]

    def check(self, machine: Machine, entries: list[journal.JournalEntry]) -> None:
        """Run a step again. `Diverged` if it does not come out as it is journaled."""
        with loopless.loopless():
            replay.check(machine, entries, self.at, self.load, PARTS)

    def _start(self) -> Machine:
        return state_rows.load(self.program, self.baseline.parts, self.at, strict=self._strict)

    def _above(self) -> list[journal.JournalEntry]:
        """The entries above the baseline, payloads in place."""
        return self.filled(above=self.baseline.head.height)
