"""Proofs that a world's state had one row, or had none under a key, for a reader with the chain digest alone.

Nothing in a history names the trie of a state unless the world is told to say so (`kernel/state_witness.py`): its
journal has a WITNESSED entry then, with the root. So the proof of a row is the proof of that entry (`entry_proof.py`)
and the nodes from the root to the row. `tools/check_proof.py` checks it without this package; `docs/format.md` has the
format.

The state is that of the step before the entry's. If the world has made no step since it last said its root, that entry
is used again, and the world need not run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from worldline.base import errors
from worldline.client.world_handle import Handle
from worldline.codec import structs
from worldline.features.proofs import entry_proof
from worldline.kernel import state_witness
from worldline.model import journal, row_keys
from worldline.model.change import Row
from worldline.model.journal import Kind
from worldline.model.rows import Rows
from worldline.model.trie import nodes, paths, update
from worldline.model.world_records import Status
from worldline.runtime import world_reader, world_restore

STATE: Final = "state"

_LAST_MAX: Final = 4  # entries of a step that says its root: command, clock, root, answer


class WitnessEntry(msgspec.Struct, frozen=True):
    """An entry of a world's journal that says its root: of the state at the end of a step."""

    height: int
    step: int
    root: bytes


class StateProof(msgspec.Struct, frozen=True):
    """A proof of one row. `row` is None if there is none under this key. `path`: the nodes from the root on."""

    key: bytes
    row: Row | None
    path: list[bytes]
    witnessed: WitnessEntry
    entry: entry_proof.Inclusion  # of the root

    def text(self) -> str:
        """The file. There is no row if the value is empty: that of a row never is."""
        proof: dict[str, Any] = {
            "format": entry_proof.FORMAT,
            "kind": STATE,
            **self.entry.step_fields(),
            "key": self.key.hex(),
            "value": "" if self.row is None else self.row.meaning.hex(),
            "nodes": [each.hex() for each in self.path],
        }
        return entry_proof.written(proof)


async def last_witnessed(world: Handle) -> WitnessEntry | None:
    """The root that the world has said in its last step, if it has."""
    engine, at = world.connection.store.engine, await world.address()
    top = await world.head()
    above = max((await world_reader.kept(engine, at)).above, top.height - _LAST_MAX)
    last = await world_restore.read_entries(engine, world.connection.blobs, at, above=above, up_to=top.height)
    return _witnessed([each for each in last if each.step == top.step])


async def witness_now(world: Handle) -> WitnessEntry:
    """Have the world say its root, and wait until it has."""
    status = (await world.describe()).meta.status
    if status is not Status.ACTIVE:
        raise errors.Closed(
            f"world {world.name!r} is {status.name.lower()}, and has to make a step to say what its state is: "
            f"`worldline resume {world.name}` first, or prove an entry by its height"
        )
    _, height = await world.command(state_witness.WITNESS, state_witness.WitnessCommand())
    engine, at = world.connection.store.engine, await world.address()
    found = _witnessed(
        # The root stands just before the answer to the command, and both in one step.
        await world_restore.read_entries(engine, world.connection.blobs, at, above=height - 2, up_to=height)
    )
    assert found is not None, "the answer to the command stands behind the root"
    return found


async def prove_state(world: Handle, name: str, said: WitnessEntry) -> StateProof:
    """The proof of the row of this name (`row_keys.named`), or that there is none, for the chain digest of the head."""
    keys = row_keys.named(name)
    connection = world.connection
    rows, _ = await world.rows_at(said.height)  # inside its step: the state before it
    run = asyncio.get_running_loop().run_in_executor
    # In the thread: the trie of a whole state is made for it.
    key, path, root = await run(connection.executor, _path, rows, keys)
    if root != said.root:
        raise errors.DigestMismatch(
            f"the root that step {said.step + 1} of world {world.name!r} says (type `worldline replay {world.name} "
            f"--prove` to see which steps its code makes otherwise)",
            expected=said.root,
            actual=root,
        )
    return StateProof(key, rows.get(key), path, said, await entry_proof.prove_entry(world, said.height))


def _path(rows: Rows, keys: list[bytes]) -> tuple[bytes, list[bytes], bytes]:
    """The first of these keys that is there, or the last, and its path; and the root."""
    key = next((each for each in keys if rows.get(each) is not None), keys[-1])
    made = update.build(rows.items())
    asking = paths.Paths(made.root.address, [key])
    nodes.answer(asking, made.new.__getitem__)
    return key, asking.path(key), made.root.address


def _witnessed(entries: Sequence[journal.JournalEntry]) -> WitnessEntry | None:
    for entry in entries:
        if entry.kind is Kind.WITNESSED:
            said = structs.decode(state_witness.WitnessedRoot, entry.payload)
            return WitnessEntry(entry.height, said.step, said.root)
    return None
