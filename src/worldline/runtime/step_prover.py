"""Proving steps: running them through the code again and comparing what comes out, byte for byte.

A `Prover` is given stored steps, one after the other, from the end of a step on. Each step's input is given to a
machine at its recorded time; entries and state digest must be those of the journal. What a step was given besides
(runs that it blocked) is taken from the journal.

A run that was under way where the proof begins is rebuilt when it continues: what its code asks for must be what the
state has recorded, with the same arguments, as far as the same code had asked. What earlier code had asked for, before
a change of the program, has been asked for, and its arguments are not compared.

A world outlives its code. Steps are run by the very program that wrote them, told by its hash. Where that is not loaded
nothing can be run again: the steps are folded into rows instead, and the proof continues behind them, at the next
change to a program that is loaded, with a machine made of those rows; if what they changed was dropped, at the next
snapshot.

A step that had a personal value which was erased since cannot be run again, by any code: what it changed is taken as
the journal has it, its heights are named (`erased`), and the proof continues behind it.

Nothing here writes a store, and nothing reads one but `Cold` and `PersonalValuePlace`. User code runs: it belongs into
a thread of its own.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from worldline.base import errors, probes
from worldline.codec import canonical, structs
from worldline.kernel import control_commands, part_inputs, replay, state_rows
from worldline.kernel.authoring.program import Program
from worldline.kernel.machine import Machine
from worldline.kernel.parts import StepParts
from worldline.kernel.personal.vault_interface import Vault
from worldline.kernel.replay import CodeDifference
from worldline.layers import blobs as blob_layer
from worldline.layers.history import history_line, saved_state, step_reader
from worldline.model import ids, inbox, journal, payload, row_keys, snapshots
from worldline.model.change import Change
from worldline.model.journal import Kind
from worldline.model.rows import Rows
from worldline.model.trie.unsaved import Unsaved
from worldline.runtime import world_restore
from worldline.runtime.cold_cells import ColdCells

_BLANK: Final = (row_keys.RUN_COUNT, row_keys.WORK_COUNT, row_keys.PROGRAM, row_keys.BRANCH)  # of any world


class Span(msgspec.Struct, frozen=True):
    """Heights that could not be run again: their program is not loaded, or the state before them is not known."""

    first: int
    last: int
    program_hash: str


class Cold(msgspec.Struct, frozen=True):
    """Where the cells are that `rows` lack, of a world too large to have all of it in memory: as they were saved, or as
    they have become since. `bytes_max`: about how much memory those may take that are there.
    """

    fetch: ColdCells
    unsaved: Unsaved
    bytes_max: int

    @staticmethod
    def of(blobs: blob_layer.Blobs, base: saved_state.LoadedState, bytes_max: int) -> Cold:
        """The cells of a saved state stay where they are, save those that steps reach. Called on the event loop."""
        unsaved = Unsaved(base.header)
        unsaved.track()
        return Cold(ColdCells(asyncio.get_running_loop(), blobs, unsaved), unsaved, bytes_max)


class PersonalValuePlace(msgspec.Struct, frozen=True):
    """Where the personal values of a world are. `erased`: whether some were: then the rows are kept beside the machine,
    for the steps that cannot be run again.
    """

    vault: Vault
    erased: bool


class Prover:
    """Holds the machine that a journal is run through, and changes it where the world's program was changed.

    `programs`: what is loaded, by hash. `saved`: snapshots by height, which must come out as they were saved: then all
    cells must be among the rows. `folded_to`: steps up to this height are not run, because they were proved before.
    """

    def __init__(
        self,
        line: history_line.HistoryLine,
        programs: Mapping[bytes, Program],
        head: journal.Head,
        rows: Rows,
        *,
        saved: Mapping[int, snapshots.StateSnapshot] | None = None,
        folded_to: int = 0,
        cold: Cold | None = None,
        sealed: PersonalValuePlace,
        parts: StepParts,
    ) -> None:
        assert not (saved and cold), "a snapshot is compared with all rows"
        self._cold = cold
        self._sealed = sealed
        self._parts = parts
        self._line = line
        self._at = line.identity(head.height + 1)  # the world whose steps are run: intents are named by it
        self._programs = programs
        self._saved = saved or {}
        self._folded_to = folded_to
        self._rows = rows  # of the state at the head, while there is no machine, or values were erased
        self._lost = False  # they are not known: what steps changed was dropped
        self._behind_erased = False  # that is so since a step that cannot be run again
        self._machine: Machine | None = None
        self._hash = program_of(rows)
        self.head = head
        self.difference: CodeDifference | None = None
        self.derived: list[Change] = []  # what the code changed in the last step that was run
        self.spans: list[Span] = []
        self.erased: list[Span] = []  # heights of steps that had personal values which were erased
        self.steps = self.proved = self.entries = self.snapshots = 0

    def take(
        self,
        steps: Sequence[step_reader.StoredStep],
        loaded: dict[bytes, bytes],
        *,
        until: Callable[[], bool] = lambda: False,
    ) -> int:
        """Prove steps that follow each other, or fold them. Returns how many were taken: all of them, unless one comes
        out differently, or `until` says so between two of them, or the rows of a snapshot are wanted.
        """
        self._sealed.vault.begin()
        for index, step in enumerate(steps):
            # Not before the first: each call gets one step further, however short its time is.
            if (index and until()) or self.wanted_snapshot is not None:
                return index
            self._one(step, loaded)
            if self.difference is not None:
                return index
        return len(steps)

    @property
    def wanted_snapshot(self) -> snapshots.StateSnapshot | None:
        """Behind steps that could be neither run nor folded: the snapshot here, if there is one. `stand` on it."""
        return self._saved.get(self.head.height) if self._lost else None

    def stand(self, head: journal.Head, rows: Rows) -> None:
        """Continue from a snapshot at the head."""
        assert head.height == self.head.height
        self.head, self._rows, self._lost = head, rows, False
        self._hash = program_of(rows)

    def _one(self, step: step_reader.StoredStep, loaded: dict[bytes, bytes]) -> None:
        entries = [world_restore.filled(entry, loaded) for entry in step.entries()]
        changed = _changed_to(entries)
        owner = self._line.identity(step.height)
        if changed is not None or owner != self._at:
            self._continue_as(owner, changed or self._hash)
        if step.height > self._folded_to:
            self.steps += 1
            self.entries += len(entries)
            self._stand(entries, loaded)
        if self._machine is None:
            self._fold(step, loaded)
        else:
            self._run(self._machine, step, entries, loaded)

    def _continue_as(self, owner: ids.Address, program_hash: bytes) -> None:
        """The step in which a world changes to other code is run by the new one, over the old one's state; and the
        steps of a fork over its parent's.
        """
        if self._machine is not None:
            if not self._sealed.erased:
                self._rows = Rows(state_rows.rows_of(self._machine))
            self.close()
        self._at, self._hash = owner, program_hash

    def _stand(self, entries: Sequence[journal.JournalEntry], loaded: dict[bytes, bytes]) -> None:
        """Have a machine, if the program of the next step is loaded, or nothing of it is needed."""
        program = self._programs.get(self._hash)
        if program is None and self._machine is None and not self._lost and self._is_alone(entries, loaded):
            program = Program.without_code(self._hash)
        if self._machine is None and program is not None and not self._lost:
            fetch = None if self._cold is None else self._cold.fetch
            self._machine = state_rows.machine_of(
                program, self.head.state, self._rows.items(), self._at, exact=True, fetch=fetch
            )
            self._machine.keep_in(self._sealed.vault)
            if not self._sealed.erased:
                self._rows = Rows()

    def _is_alone(self, entries: Sequence[journal.JournalEntry], loaded: dict[bytes, bytes]) -> bool:
        """Whether the world has nothing but flow domains, whose documents are in its journal. As long as a world has
        done nothing, that it begins as a fork, or that its program has changed, needs no code either.
        """
        given = replay.input_of(entries, functools.partial(_load, loaded))
        if isinstance(given.item, inbox.Control) and given.item.command == part_inputs.DOMAINS:
            return structs.decode(part_inputs.DomainDeclarations, given.data).alone
        begins = isinstance(given.item, inbox.Control) and given.item.command in (
            part_inputs.FORKED,
            control_commands.PROGRAM,
        )
        if begins and all(key in _BLANK or key.startswith(row_keys.SCRIPT) for key, _ in self._rows.items()):
            return True
        row = self._rows.get(row_keys.DOMAINS)
        return row is not None and canonical.decode(row.meaning)[0] is True  # type: ignore[index]

    def _fold(self, step: step_reader.StoredStep, loaded: dict[bytes, bytes], *, erased: bool = False) -> None:
        if step.dropped or self._lost:
            self._behind_erased = erased or (self._lost and self._behind_erased)
            self.head, self._rows, self._lost = step.head(), Rows(), True
            erased = self._behind_erased
        elif self._cold is None:
            self.head = step_reader.fold(self.head, [step], self._rows, loaded)
        else:
            for key in step_reader.bases([step]):
                row = self._cold.fetch(key) if key.startswith(row_keys.CELL) else None
                if row is not None:
                    self._rows.put(key, row)
            self.head = step_reader.fold(self.head, [step], self._rows, loaded, self._cold.unsaved.take)
        if step.height > self._folded_to:
            self._note(self.erased if erased else self.spans, step.first_height, step.height)

    def _note(self, spans: list[Span], first: int, last: int) -> None:
        if spans and spans[-1].last == first - 1 and spans[-1].program_hash == self._hash.hex():
            first = spans.pop().first
        spans.append(Span(first, last, self._hash.hex()))

    def _run(
        self,
        machine: Machine,
        step: step_reader.StoredStep,
        entries: list[journal.JournalEntry],
        loaded: dict[bytes, bytes],
    ) -> None:
        try:
            stepped = replay.stepped_again(machine, entries, self._at, functools.partial(_load, loaded), self._parts)
        except errors.ErasedValue:
            probes.hit("proof.erased-step")
            self.close()
            if not self._sealed.erased:
                raise errors.Conflicted(
                    "personal values were erased while the world was proved; prove it again"
                ) from None
            self._fold(step, loaded, erased=True)
            return
        self.difference = replay.compare(entries, stepped)
        self.derived = stepped.changes
        record = self._saved.get(step.height)
        if self.difference is None and record is not None and record.program_hash == machine.program.hash:
            self.difference = _same_snapshot(machine, record)
            self.snapshots += 1
        if self.difference is None:
            self.proved += 1
            self.head = step.head()
            if self._sealed.erased:
                self._rows.apply(stepped.changes)
            if self._cold is not None:
                self._cold.unsaved.take(stepped.changes)
                machine.cells.cool(self._cold.bytes_max)
            if machine.program.hash not in self._programs and not machine.domains.alone:
                self._continue_as(self._at, self._hash)  # it has more than domains from here on, and that is not here

    def close(self) -> None:
        if self._machine is not None:
            self._machine.close()
            self._machine = None


def _load(loaded: dict[bytes, bytes], carried: payload.Payload) -> bytes:
    return carried.inline if carried.inline is not None else loaded[carried.ref or b""]


_ROW_FIELDS: Final[dict[bytes, Sequence[str]]] = {row_keys.CELL: ("folds", "value", "kind")}


def differing_row(changed: Sequence[Change], derived: Sequence[Change]) -> str:
    """The first row that a step has changed otherwise than its code does now, and the field of it. Nothing if the state
    was another one before.
    """
    journal_has, code_has = ({each.key: each.row for each in changes} for changes in (changed, derived))
    for key in sorted({**journal_has, **code_has}):
        if key not in code_has or key not in journal_has:
            return f"{row_keys.describe(key)}: only {'the code' if key in code_has else 'the journal'} changes it"
        before, after = journal_has[key], code_has[key]
        if before is None or after is None:
            if before is not after:
                return f"{row_keys.describe(key)}: only {'the journal' if before is None else 'the code'} removes it"
        elif before.meaning != after.meaning:
            names = _ROW_FIELDS.get(key[:1], ())
            return f"{row_keys.describe(key)}: {replay.first_field(before.meaning, after.meaning, names=names)}"
    return ""


def program_of(rows: Rows) -> bytes:
    """The hash of the program that a world runs under, as its state says."""
    row = rows.get(row_keys.PROGRAM)
    match None if row is None else canonical.decode(row.meaning):
        case [bytes(found), bytes(), *_]:
            return found
        case _:
            raise errors.DecodeError("the state does not say which program it runs under")


def _changed_to(entries: Sequence[journal.JournalEntry]) -> bytes | None:
    for entry in entries:
        if entry.kind is Kind.PROGRAM_CHANGED:
            return structs.decode(control_commands.ChangeProgram, entry.payload).after
    return None


def _same_snapshot(machine: Machine, record: snapshots.StateSnapshot) -> CodeDifference | None:
    root = saved_state.whole(machine.state, state_rows.rows_of(machine)).root
    if root == record.root:
        return None
    return CodeDifference(record.height, record.step, f"snapshot {record.root.hex()}", f"snapshot {root.hex()}")
