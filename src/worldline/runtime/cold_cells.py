"""Cells of a large world that are not in memory: read from the saved state when the kernel asks for them.

A cell is as it was changed since the world was last saved (`model/trie/unsaved.py`), or else as the saved state has it.
The kernel asks in its own thread, which blocks until the event loop has read the cell's path: a few nodes. So the cells
that inputs are for are read beforehand, all of a cycle together (`ahead`); what handlers reach beyond that is waited
for. The root of the state is worked out in the same way, also where all cells are in memory. A cell that cannot be read
now fails the step, of which nothing is journaled; so does one whose stored bytes are damaged or missing, and then the
world is refused as corrupt (`worker/step_losses.py`).

In a child process nothing can be read (`runtime/child_process.py`): the step fails with what it wants, the parent
reads that, and the next child has it (`supply`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Literal, TypeVar, cast

import msgspec

from worldline.base import errors, probes
from worldline.codec import canonical, structs
from worldline.kernel.authoring.program import Program
from worldline.kernel.authoring.reducers import EventHandler
from worldline.layers import blobs as blob_layer
from worldline.layers.history import saved_state
from worldline.model import inbox, row_keys
from worldline.model.change import Row
from worldline.model.inbox import MessageMode
from worldline.model.trie.unsaved import Unsaved
from worldline.model.trie.update import Update

WAIT_SECONDS = 10  # for one cell; less than a step may take

T = TypeVar("T")


class ColdRequest(msgspec.Struct, frozen=True):
    """What the kernel's thread waits for, so that another process can read it."""

    what: Literal["cells", "nodes", "personal"]
    keys: list[bytes]  # of cells; addresses of nodes of the saved state; a subject and one of its values


class ColdCells:
    """Called in the kernel's thread. `loop` is the one that reads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, blobs: blob_layer.Blobs, unsaved: Unsaved) -> None:
        self._loop = loop
        self._blobs = blobs
        self._unsaved = unsaved
        self._ahead: dict[bytes, Row | None] = {}
        self._branches: dict[bytes, bytes] = {}  # of the saved state, so that a miss is one read, of a leaf
        self.misses = 0  # cells that the kernel's thread had to wait for
        self._told = 0  # of these

    def __call__(self, key: bytes) -> Row | None:
        known, row = self._unsaved.cell(key)
        if known:
            return row
        # After `unsaved`: what was read ahead is older than what the steps since have changed.
        if key in self._ahead:
            return self._ahead[key]
        self.misses += 1
        probes.hit("cells.cold-miss")
        return self._wait(
            functools.partial(self.lookup, [key]), ColdRequest("cells", [key]), row_keys.describe(key)
        ).get(key)

    def root(self, rows: list[tuple[bytes, Row | None]]) -> bytes:
        """From the trie that was saved and what has changed since: it costs no more than that."""
        if not self._unsaved.tracked or self._unsaved.lacking:
            raise errors.CannotRead("what has changed since the state was saved is not known")
        updating = Update(self._unsaved.root, self._unsaved.changed_to(rows))
        while wanted := updating.wanted:
            read = functools.partial(self._blobs.get_many, wanted)
            updating.take(self._wait(read, ColdRequest("nodes", list(wanted)), "the saved state"))
            updating.written()  # no node is needed again
        return updating.result().root.address

    def _wait(self, read: Callable[[], Coroutine[Any, Any, T]], request: ColdRequest, name: str) -> T:
        try:
            return blocking(self._loop, read, request, name)
        except errors.Corrupt as error:
            raise errors.DamagedCell(f"{name} is damaged: {error}") from error

    def new_misses(self) -> int:
        """How many there were since this was last asked for."""
        new, self._told = self.misses - self._told, self.misses
        return new

    async def read(self, key: bytes) -> Row | None:
        """The same for the event loop, between steps."""
        known, row = self._unsaved.cell(key)
        return row if known else (await self.lookup([key])).get(key)

    async def ahead(self, cells: Iterable[tuple[str, str]]) -> None:
        """Read what the next steps will ask for. What was read for those before is forgotten."""
        # Also if nothing is read now: after a save `unsaved` no longer has the changes, and these would be outdated.
        self._ahead = {}
        keys = [row_keys.cell(*cell) for cell in dict.fromkeys(cells)]
        wanted = [key for key in keys if not self._unsaved.cell(key)[0]]
        if wanted:
            found = await self.lookup(wanted)
            self._ahead = {key: found.get(key) for key in wanted}

    async def lookup(self, keys: list[bytes]) -> dict[bytes, Row]:
        """Those that the saved state has."""
        return await saved_state.lookup(self._blobs, self._unsaved.root, keys, self._branches)


def cut_off() -> None:
    """From now on, in this process, nothing is read for a thread that blocks: it is a child, and the loop its
    parent's.
    """
    _CUT_OFF.append(None)


def supply(known: Mapping[bytes, object]) -> None:
    """In a child process: what its parent has read for it, by what was wanted."""
    _SUPPLIED.update(known)


_CUT_OFF: list[None] = []
_SUPPLIED: dict[bytes, object] = {}


def blocking(
    loop: asyncio.AbstractEventLoop, read: Callable[[], Coroutine[Any, Any, T]], request: ColdRequest, name: str
) -> T:
    """Have the event loop read something, and block this thread, which is the kernel's, until it has. `request` says
    the same as `read`.
    """
    # In a child the loop is a copy that no thread runs: waiting for it would never end.
    if _CUT_OFF:
        return cast("T", _supplied(request, name))
    # It would wait for itself.
    if asyncio._get_running_loop() is loop:  # noqa: SLF001 - a step has one of its own, which raises
        raise errors.CannotRead(f"{name} is not in memory, and an event loop cannot wait for it")
    waiting = asyncio.run_coroutine_threadsafe(read(), loop)
    try:
        return waiting.result(WAIT_SECONDS)
    except errors.Corrupt:
        raise
    except (errors.Error, TimeoutError, concurrent.futures.CancelledError) as error:
        # The step has failed, so the event loop need not read this to its end.
        waiting.cancel()
        said = str(error) or f"not within {WAIT_SECONDS} s"
        raise errors.CannotRead(f"{name} cannot be read now: {said}") from error


def _supplied(request: ColdRequest, name: str) -> object:
    packed = structs.encode(request)
    if packed not in _SUPPLIED:
        raise errors.CannotRead(f"{name} is not in memory, and cannot be read in a child process", request=packed)
    return _SUPPLIED[packed]


def reached(program: Program, item: inbox.Item | None, data: bytes) -> list[tuple[str, str]]:
    """The cells that an input is for, as far as that shows without running any code: reducer and key of each."""
    match item:
        case inbox.InboxEvent(schema=schema):
            pass
        case inbox.Message(name=schema, mode=MessageMode.TYPED):
            pass
        case inbox.Message(name=name):
            return _reached(program.routes.inboxes.get(name, []), program, data)
        case _:
            return []
    return _reached(program.routes.handlers.get(schema, []), program, data)


def _reached(handlers: Iterable[EventHandler], program: Program, data: bytes) -> list[tuple[str, str]]:
    try:
        fields = canonical.decode(data)
    except errors.DecodeError:
        return []
    found: list[tuple[str, str]] = []
    for handler in handlers:
        reducer = program.reducers[handler.reducer]
        value = "" if reducer.key is None else fields.get(reducer.key) if isinstance(fields, dict) else None
        if isinstance(value, str | int) and not isinstance(value, bool):
            found.append((reducer.name, str(value)))
    return found
