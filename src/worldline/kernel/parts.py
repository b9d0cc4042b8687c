"""The two parts of a step that features bring: what worlds do that are forks, and what flow domains do.

What is data is the kernel's: a machine has `branch` and `domains` (`rows/branch_rows.py`, `rows/domain_rows.py`).
Restoring, copying and comparing a world need all its rows, and run nothing. What is done with that data is a feature's,
and only a step does it. So a machine is made without parts, and `step.py` is given them. It calls them by name, and the
order of its calls is written there once: replays repeat it, and a list of hooks would hide it.

A module may be a part: `features/forks/pure/part.py` and `features/domains/pure/part.py` are. `Feature.branch_part` and
`Feature.domains_part` bring them, and `runtime/feature.py` puts them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from worldline.kernel.authoring.program import Program
from worldline.kernel.machine import Machine
from worldline.kernel.part_inputs import DomainDeclarations
from worldline.kernel.rows.row_records import Outcome
from worldline.model import inbox

Command = Callable[[Machine, bytes], bytes]  # a control command's data -> its answer


class CellsBefore(Protocol):
    """Cells of flow domains, as they were before the world went back."""

    def went_back(self, machine: Machine, height: int) -> None:
        """The world has become what it was at that height: tell callers whose intents are not there."""


class DomainsPart(Protocol):
    """What flow domains do in a step."""

    def commands(self) -> Mapping[str, Command]:
        """Return its rows of the table of control commands."""

    def event(self, machine: Machine, item: inbox.InboxEvent, data: bytes) -> str:
        """Take an intent from outside. Returns why it cannot be taken, or nothing."""

    def message(self, machine: Machine, item: inbox.Message, data: bytes) -> str:
        """Take an intent from another world, likewise."""

    def fulfil(self, machine: Machine, target: str, outcome: Outcome) -> None:
        """An effect that a requirement asked for has an outcome."""

    def take_wanted(self, machine: Machine) -> None:
        """Take what runs have asked for in this step (`machine.domains.wanted`)."""

    def take_answered(self, machine: Machine) -> None:
        """Take what was answered without a receipt in this step (`machine.domains.answered`)."""

    def required(self, machine: Machine, target: str) -> tuple[str, bytes]:
        """Return the effect that a requirement asks for, and its parameters, as they leave the world."""

    def waiting(self, machine: Machine, names: Sequence[tuple[str, str]]) -> CellsBefore:
        """Return those of these cells that are cells of flow domains, before the world goes back."""

    def news(self, machine: Machine, program: Program) -> DomainDeclarations | None:
        """Return what a program declares and the world does not have; None if it has all of it."""


class BranchPart(Protocol):
    """What a world does in a step that begins as a fork, or goes back. Flow domains are told of it."""

    def commands(self, domains: DomainsPart) -> Mapping[str, Command]:
        """Return its rows of the table of control commands."""

    def settle_inherited(self, machine: Machine, domains: DomainsPart) -> None:
        """Decide the fate of open work that was inherited, as far as this step has room."""


class StepParts(msgspec.Struct, frozen=True):
    """Both, and their control commands: `control_commands.py` has those of the kernel itself."""

    branch: BranchPart
    domains: DomainsPart
    commands: Mapping[str, Command]

    @staticmethod
    def of(branch: BranchPart, domains: DomainsPart) -> StepParts:
        """Put the two together."""
        return StepParts(branch, domains, {**branch.commands(domains), **domains.commands()})
