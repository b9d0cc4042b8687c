"""One world in memory: the machine, its journal, and every disturbance that must not make a difference.

Each step is done twice and compared, warm coroutines are dropped at random (seeded), and the machine can be thrown away
at any entry and brought back from the journal. The journal is the only thing that is kept, sealed and chained as in a
store.
"""

from __future__ import annotations

from random import Random

import msgspec

from worldline.base import failures
from worldline.codec import digest
from worldline.kernel import commands, replay, snapshots
from worldline.kernel import step as kernel_step
from worldline.kernel.authoring.program import Program
from worldline.kernel.state import Machine
from worldline.layers import cas, export
from worldline.layers import journal as journals
from worldline.model import ids, inbox, journal, payload
from worldline.model import step as steps
from worldline.testing import loopless, twins

DROP_CHANCE = 0.5


class Life:
    def __init__(
        self, program: Program, at: ids.Address, *, strict: bool = True, twice: bool = True, drops: Random | None = None
    ) -> None:
        self.program = program
        self.at = at
        self.head = journal.GENESIS
        self.entries: list[journal.Entry] = []  # sealed, as a store would have them
        self.blobs: dict[bytes, bytes] = {}
        self.crash_at: list[int] = []
        self.crashes = 0
        self._strict = strict
        self._twice = twice
        self._drops = drops
        self.machine = Machine(program, strict=strict)
        self._saved = snapshots.save(self.machine)
        self._baseline = (self.head, self._saved)
        self._blocked: dict[str, str] = {}  # runs that are expected to be

    # --- Stepping ------------------------------------------------------------------------------------------

    def carry(self, data: bytes) -> payload.Payload:
        """A payload for an item: inline, or by its address if it is large."""
        if not cas.is_small(data):
            self.blobs[digest.sha256(data)] = data
        return cas.as_payload(data)

    def step(self, item: inbox.Item | None, data: bytes, *, time_us: int, error: str = "") -> steps.Stepped:
        """Consume one input and journal the step. `Diverged` if doing it again comes out differently."""
        given = steps.Input(item, data, raw_digest=b"" if item else digest.sha256(data), error=error)
        logical_us = max(self.head.time_us, time_us)
        context = steps.Context(self.at, self.head.step + 1, logical_us, behind_us=logical_us - time_us)
        stepped, entries, after = self._do(self.machine, given, context)
        if any(entries[0].height <= height < after.height for height in self.crash_at):
            self.restore()  # before the commit: the step is lost and done again
            stepped, entries, after = self._do(self.machine, given, context)
        if self._twice:
            self._again(given, context, stepped)
        self.blobs |= {at: each.payload for each in stepped.drafts if (at := journal.blob_of(each.payload))}
        self.entries += entries
        self.head = after
        if after.height in self.crash_at:
            self.restore()
        self._drop()
        return stepped

    def _do(
        self, machine: Machine, given: steps.Input, context: steps.Context
    ) -> tuple[steps.Stepped, list[journal.Entry], journal.Head]:
        with loopless.loopless():
            stepped = kernel_step.step(machine, given, context)
        sealed = journals.seal(self.head, stepped.drafts, state=stepped.state, time_us=context.time_us)
        return stepped, sealed.entries, sealed.after

    def _again(self, given: steps.Input, context: steps.Context, stepped: steps.Stepped) -> None:
        """The same step on a copy that was saved and loaded."""
        twin, _ = snapshots.load(self.program, self._saved, self.at, strict=self._strict)
        twin.begin_replay()
        try:
            again, _, _ = self._do(twin, given, context)
            found = twins.difference((self.machine, stepped), (twin, again), height=self.head.height + 1)
        finally:
            twin.close()
        if found:
            what = replay.describe(stepped.drafts[0].kind, stepped.drafts[0].payload)
            raise failures.Diverged(f"step {context.step}, done twice, does not come out the same; {found}\n({what})")
        report = twins.blocked(self.machine, self._blocked)
        if report:
            raise failures.Diverged(f"step {context.step} found a run that its own code does not fit:\n{report}")
        self._saved = snapshots.save(self.machine)

    def _drop(self) -> None:
        if self._drops is None:
            return
        for run in self.machine.runs.values():
            if run.coroutine is not None and self._drops.random() < DROP_CHANCE:
                run.cool()

    # --- Bringing back -------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Throw the machine away and bring the world back from its journal."""
        self.machine.close()
        self.machine = self._start()
        for entries in replay.steps(self._above()):
            self._check(self.machine, entries)
        self.crashes += 1

    def at_height(self, height: int) -> Machine:
        """A machine of its own, as the world was at the last step end at or below a height."""
        machine = self._start()
        for entries in replay.steps(self._above()):
            if entries[-1].height > height:
                break
            self._check(machine, entries)
        return machine

    def prove(self) -> int:
        """Replay everything, each step also from a snapshot of the step before. Returns how many steps that were."""
        journals.verify(self._baseline[0], self.export("").entries)
        machine = self._start()
        count = 0
        for count, entries in enumerate(replay.steps(self._above()), 1):  # noqa: B007 - the last one counts
            copy, _ = snapshots.load(self.program, snapshots.save(machine), self.at, strict=self._strict)
            for each in (machine, copy):
                self._check(each, entries)
            copy.close()
        same = snapshots.save(machine) == snapshots.save(self.machine)
        machine.close()
        if not same:
            raise failures.Diverged("the journal, replayed from its beginning, leads to another state")
        return count

    def adopt(self, program: Program) -> commands.ChangeProgram:
        """Go on under other code, as a world does whose program was edited. Returns what is to be journaled next."""
        parts = snapshots.save(self.machine)
        self.machine.close()
        before, self.program = self.program, program
        self.machine, _ = snapshots.load(program, parts, self.at, strict=self._strict)
        with loopless.loopless():
            blocked = commands.fits(self.machine)
        self._saved = snapshots.save(self.machine)
        self._blocked = dict(blocked)
        return commands.ChangeProgram(before.hash, program.hash, blocked)

    def rebase(self) -> None:
        """Nothing below is replayed any more: other code has done it."""
        self._baseline = (self.head, snapshots.save(self.machine))

    def export(self, name: str) -> export.Exported:
        head, parts = self._baseline
        return export.Exported(
            name=name,
            program=self.program.name,
            program_hash=self.program.hash,
            at=self.at,
            entries=[each for each in self.entries if each.height > head.height],
            blobs=self.blobs,
            start=head,
            parts=parts if head.height else (),
        )

    def filled(self) -> list[journal.Entry]:
        """All entries, payloads in place."""
        return [
            msgspec.structs.replace(each, payload=self.blobs[each.blob], blob=b"") if each.blob else each
            for each in self.entries
        ]

    def load(self, carried: payload.Payload) -> bytes:
        return carried.inline if carried.inline is not None else self.blobs[carried.ref or b""]

    def _check(self, machine: Machine, entries: list[journal.Entry]) -> None:
        with loopless.loopless():
            replay.check(machine, entries, self.at, self.load)

    def _start(self) -> Machine:
        machine, _ = snapshots.load(self.program, self._baseline[1], self.at, strict=self._strict)
        return machine

    def _above(self) -> list[journal.Entry]:
        """The entries above the baseline, payloads in place."""
        return [each for each in self.filled() if each.height > self._baseline[0].height]
