"""What the two parts of a world (`parts.py`) are given: names of control commands and of an effect, and their records.

They stand here, and not with the code that takes them, because others write or read them too: the worker that holds a
world writes the first input of a fork and the documents of flow domains, a proof asks whether an input needs code, and
readers of a journal show them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from worldline.kernel import user_values
from worldline.kernel.rows.domain_rows import DomainRow
from worldline.kernel.rows.row_records import Outcome
from worldline.model.inbox import ReceiptStatus
from worldline.model.world_records import ForkPolicy

# Control commands.
FORKED: Final = "forked"  # given by the worker that holds the world, never by the inbox
REVERT: Final = "revert"
DOMAINS: Final = "domains"  # given by the worker that holds the world, never by the inbox

SHARE: Final = "worldline.share"  # the effect that finds the parent's answer


class ForkBeginning(msgspec.Struct, frozen=True, array_like=True):
    """A world begins as a fork. `owner`: the world in whose journal the fork begins, at the end of `step`."""

    fork: bytes
    owner: bytes
    parent: str  # its name
    step: int
    height: int
    policy: ForkPolicy
    live: bool
    script: list[bytes] = []  # rules, each canonical bytes


class ImportBeginning(ForkBeginning, frozen=True, array_like=True):
    """The same where the steps before were made in another universe: the owner's."""

    universe: bytes = b""


class Revert(msgspec.Struct, frozen=True, array_like=True):
    """A world goes back. `since`: the step at whose end the rows were compared. `rows`: [key, meaning, placement], or
    [key] for one that there was none of.
    """

    since: int
    step: int
    height: int
    policy: ForkPolicy
    rows: list[list[bytes]]


class DomainDeclarations(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a program declares. `documents`: those that the world does not have yet, by hash; `snapshots`: the effects
    that are given the snapshot of the cell that asks for them; `kinds`: from here on the rows of cells say their kind.
    Releases before format 2.4 left the last out, and a step that is run again must write what they wrote.
    """

    domains: dict[str, DomainRow]
    documents: dict[str, bytes]
    alone: bool
    deadlines: dict[str, int]
    snapshots: list[str] = []
    kinds: bool = False


def shared(outcome: Outcome) -> Outcome:
    """The parent's answer, out of the one that the effect `SHARE` gave."""
    if outcome.status is not ReceiptStatus.OK:
        return outcome
    status, data = user_values.load(tuple[int, bytes], outcome.data)
    return Outcome(ReceiptStatus(status), data)
