"""The world says what its state is: the root of a trie of all its rows (`model/trie`), as an entry of its journal.

So the chain digest of a head covers the root, and a single row can be proved to someone who has that digest alone:
nothing else in a history names a root, because snapshots are no part of it. The root is that of the state at the end of
the step before. The step that says it changes no row and runs no user code: two of them in a row say the same root.
Like everything that a step derives it is computed again by a replay, which finds a root that is wrong.

A host has the trie of the saved state, and works out the root from what has changed since (`rows/cells.py`): to say it
costs no more than to save the state, however large that is. Where there is no such trie (a replay, or a state that is
so small that what has changed in it is not kept) the root is made of all rows, and is the same.
"""

from __future__ import annotations

from typing import Final

import msgspec

from worldline.codec import structs
from worldline.kernel import user_values
from worldline.kernel.machine import Machine
from worldline.kernel.rows import row_ledger
from worldline.model.journal import Kind
from worldline.model.trie.update import root_of

WITNESS: Final = "witness"


class WitnessCommand(msgspec.Struct, frozen=True, array_like=True):
    """The command. There is nothing to say besides."""


class WitnessedRoot(msgspec.Struct, frozen=True, array_like=True):
    """The payload of a WITNESSED entry. `step`: the one at whose end the state has this root."""

    step: int
    root: bytes


def witness(machine: Machine, data: bytes) -> bytes:
    structs.decode(WitnessCommand, data)
    said = WitnessedRoot(machine.now.context.step - 1, _root(machine))
    machine.draft(Kind.WITNESSED, structs.encode(said))
    return user_values.NONE


def _root(machine: Machine) -> bytes:
    beside = ((key, row_ledger.row_of(write())) for key, write in machine.rows_beside_cells())
    # Without a trie of a saved state, the root is made of all rows.
    root = machine.cells.root(beside)
    return root_of((key, row_ledger.row_of(write())) for key, write in machine.rows()) if root is None else root
