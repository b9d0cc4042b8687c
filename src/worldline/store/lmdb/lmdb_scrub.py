"""Overwriting what no key has any more: the parts of a scrub that run on the writer thread, each in one transaction.

In this order (`LmdbEngine.scrub`), each part as often as it takes:

1. `begin` counts the scrub in a commit. A writer that finds another count than before opens the file again, so that no
   process writes from buffers that hold what was deleted before (`driver`).
2. `clear_gaps` overwrites the gaps of pages in use. Those that are written from now on have clean ones.
3. `end_gaps` commits once more: what was freed until then is permanently free.
4. `clear_free` overwrites these pages.

No other process writes while a part runs, for some milliseconds. Readers continue. A reader of an older snapshot, which
a copy of the store is made from, is waited for: what it reads is there. Scrubs of several processes do not disturb each
other: bytes that one has overwritten are zero for the others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from worldline.base import limits
from worldline.store.lmdb import lmdb_pages, own_key
from worldline.store.lmdb import store_folder as lmdb_folder

_FURTHER_KEY = own_key.KEY + b" scrubbed"  # written where only a further commit is needed


class Locked(Protocol):
    """The store, of which this is a part."""

    folder: Path

    def begin_write(self) -> own_key.Transaction: ...

    def readers(self) -> str:
        """A line for each slot of a reader, behind a title: process, thread, transaction, or `-`."""


class Readers(msgspec.Struct, frozen=True):
    """The processes that read an older snapshot, and so are in the way."""

    pids: tuple[int, ...]


class Scrub:
    def __init__(self, store: Locked) -> None:
        self._store = store

    def begin(self) -> Readers | None:
        """Nothing is done while readers are in the way: a copy that is being made would be lost."""
        with self._transaction() as txn:
            # One less is the last commit's number: a reader of that sees nothing which was deleted before.
            if (found := self._older_than(txn.id() - 1)) is not None:
                txn.abort()
                return found
            txn.put(own_key.KEY, own_key.count_scrub(txn.get(own_key.KEY)))
            txn.commit()
        return None

    def clear_gaps(self, start: bytes) -> bytes | None:
        """Clear those of some pages, from this key on. Returns where to continue."""
        with self._file() as file:
            return file.clear_gaps(start, pages_max=limits.LMDB_SCRUB_PAGES)

    def end_gaps(self) -> int:
        """The number of a transaction: what was freed before it is what `clear_free` is about."""
        with self._transaction() as txn:
            number = txn.id()
            txn.put(_FURTHER_KEY, number.to_bytes(own_key.BYTES, "big"))
            txn.commit()
        return number

    def clear_free(self, transaction: int, after: int) -> int | Readers | None:
        """Clear some of the pages that were freed before a transaction. Returns behind which page to continue."""
        with self._file() as file:
            # Looked up while no process writes: a reader that begins later has the last snapshot.
            if (found := self._older_than(transaction)) is not None:
                return found
            return file.clear_free(
                file.free(min(transaction, file.txn)), after=after, pages_max=limits.LMDB_SCRUB_PAGES
            )

    def _older_than(self, number: int) -> Readers | None:
        rows = [line.split() for line in self._store.readers().splitlines()[1:]]
        found = [int(row[0]) for row in rows if len(row) == 3 and row[2] != "-" and int(row[2]) < number]
        return Readers(tuple(dict.fromkeys(found))) if found else None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[own_key.Transaction]:
        txn = self._store.begin_write()
        try:
            yield txn
        finally:
            txn.abort()  # nothing, behind a commit

    @contextlib.contextmanager
    def _file(self) -> Iterator[lmdb_pages.File]:
        """The file, while no process can write it."""
        with self._transaction():
            # LMDB's own locks are on another file: closing this one releases none of them.
            number = os.open(self._store.folder / lmdb_folder.DATA, os.O_RDWR | os.O_CLOEXEC)
            try:
                yield lmdb_pages.File(number)
                os.fdatasync(number)
            finally:
                os.close(number)
