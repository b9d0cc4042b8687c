"""The embedded engine: one folder, LMDB, full sync, any number of processes.

Layout: `data.mdb` and `lock.mdb` are LMDB's, `hints/` holds the sockets of `lmdb_peers`. All keys live in LMDB's main
database as they are. One key is the engine's own (`own_key`). Its value is the *version*, the number of groups with
appends so far. It is stored, not taken from LMDB's transaction numbers, so that a copied or compacted file goes on
counting where it was. Behind the version stands how often the store was scrubbed, if it was.

**Writing.** One thread per process and folder (`_Store`) takes the calls that are waiting, up to a bound, and applies
their batches one after the other in one LMDB transaction: one sync for all. LMDB lets one transaction of all processes
write at a time. Two batches on one head in one group are applied in order, so exactly one wins.

**Reading** happens on the loop's thread, in a transaction that ends before the call does. `stable` is the first stamp
of the version after the one the same transaction shows.

**The map** is address space, large and sparse. When it is full, the writer thread doubles it and runs the group again;
when another process has outgrown it, the writer thread adopts the new size. Only that thread remaps, between two of its
transactions and under the lock that every reader holds, so nothing ever reads through a map that is gone. Pages of the
map that were read count as memory of the process, and would become as many as the file has. So it maps the file again
now and then, when they have become many; what the system keeps of the file stays where it is. A frozen state of the
store is one transaction that stays open: as long as it is, no page that it shows is used again, so the file grows with
all that is written; and if this process has to map the file again, the frozen state is lost.

**Scrubbing** (`pages`) overwrites what was deleted. LMDB keeps the buffers of the pages that it has written, in each
process, and what they hold gets into gaps of pages that it writes later. So a scrub begins with a commit that counts
it, and a writer that finds another count than before opens the file again before it writes: its buffers are gone then.

**Failures.** No space: nothing of the group was applied, and the engine continues. Any other error of a commit: the
group in flight is `CommitUnknown`, this process closes the store, and later calls raise `StoreFailed`: re-open it.

LMDB must not be opened twice by one process: engines on one folder share one `_Store`. A forked child cannot use it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import lmdb

from worldline.base import env as envs
from worldline.base import errors, limits, private_files, probes
from worldline.store import hints, kv
from worldline.store.lmdb import hint_sockets as lmdb_peers
from worldline.store.lmdb import lmdb_engine, lmdb_scrub, own_key
from worldline.store.lmdb import store_folder as lmdb_folder
from worldline.store.lmdb import writer_thread as lmdb_writer

T = TypeVar("T")
_BROKEN = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError)

_APPLIED = kv.Ok()
_LOST = "the store has grown beyond its map while a copy of it was made; begin again"


async def open(
    folder: Path, env: envs.Env, *, create: bool, map_bytes: int = limits.LMDB_MAP_BYTES, sync: bool = True
) -> lmdb_engine.LmdbEngine:
    """Open the store in `folder`, and with `create` make it if it is missing.

    `sync=False` is quicker and gives up durability; it says so by a `DurabilityWarning`.
    """
    if not sync:
        text = f"the store in {folder} is opened without sync: what it acknowledges can be lost with the machine"
        warnings.warn(text, errors.DurabilityWarning, stacklevel=2)
    return _open(folder, env, create=create, map_bytes=map_bytes, sync=sync)


def _open(folder: Path, env: envs.Env, *, create: bool, map_bytes: int, sync: bool) -> lmdb_engine.LmdbEngine:
    folder = folder.absolute()
    try:
        store = _attach(folder, create=create, map_bytes=map_bytes, sync=sync)
        try:
            return lmdb_engine.LmdbEngine(store, env)
        except BaseException:
            store.release(None)
            raise
    except lmdb.Error as error:
        raise _translate(error, folder) from error
    except OSError as error:
        raise lmdb_folder.translate(error.errno, folder) from error


class _Store:
    """The folder as this process has it open."""

    def __init__(self, folder: Path, *, create: bool, map_bytes: int, sync: bool) -> None:
        self.folder = folder
        self.synced = sync
        self.users = 0
        self._scrubs = b""  # how often the store was scrubbed when this process opened the file
        self._open(create=create, map_bytes=map_bytes)
        try:
            self.identity = lmdb_folder.identity(folder)
            self.writer = lmdb_writer.WriterThread(
                f"worldline {folder}", write=self._commit, after=self._tell, abandon=self._abandon
            )
        except BaseException:
            self._db.close()
            raise
        self.scrub = lmdb_scrub.Scrub(self)
        # Held by every reader of the map, and by the writer thread while it replaces the map.
        self._map_lock = threading.Lock()
        self._frozen: dict[int, FrozenMap] = {}  # transactions that stay open, by number
        self._freezes = 0
        self._groups = 0
        self._mapped_besides = 0  # bytes of mapped files when the store's was last mapped
        self._committing = False
        self._sockets = lmdb_peers.sockets(folder)
        self._peers = None if self._sockets is None else lmdb_peers.PeerListeners(self._sockets)
        self.writer.start()

    # --- Called by engines, on their loops' threads ---

    def read(self, requests: Sequence[kv.Request], env: envs.Env) -> tuple[lmdb_engine.Answers, int, int] | None:
        with self._map_lock:
            self._check()
            try:
                txn = self._begin_read()
                try:
                    version = own_key.next_version(txn.get(own_key.KEY))
                    answers = _read(txn, requests, version) if requests else []
                finally:
                    txn.abort()
            except lmdb.MapResizedError:
                return None  # the writer thread adopts the new size, then the engine reads again
            except lmdb.Error as error:
                raise _translate(error, self.folder) from error
            return answers, env.wall_us(), version

    def freeze(self) -> lmdb_engine.ReadTransaction | None:
        with self._map_lock:
            self._check()
            try:
                txn = self._begin_read()
            except lmdb.MapResizedError:
                return None
            except lmdb.Error as error:
                raise _translate(error, self.folder) from error
            self._freezes += 1
            frozen = self._frozen[self._freezes] = FrozenMap(self, self._freezes, txn)
            return frozen

    def read_frozen(
        self, frozen: FrozenMap, requests: Sequence[kv.Request], env: envs.Env
    ) -> tuple[lmdb_engine.Answers, int, int]:
        with self._map_lock:
            self._check()
            if frozen.number not in self._frozen:
                raise errors.StoreUnavailable(_LOST)
            try:
                version = own_key.next_version(frozen.txn.get(own_key.KEY))
                return _read(frozen.txn, requests, version), env.wall_us(), version
            except lmdb.Error as error:
                raise _translate(error, self.folder) from error

    def thaw(self, frozen: FrozenMap) -> None:
        with self._map_lock:
            if self._frozen.pop(frozen.number, None) is not None:
                frozen.txn.abort()

    def _thaw_all(self) -> None:
        """No transaction may be open while the map is replaced, or closed. Under the lock of the map."""
        for frozen in self._frozen.values():
            frozen.txn.abort()
        self._frozen.clear()

    def raise_version(self, least: int) -> None:
        with self._map_lock:
            self._check()
            try:
                with self._db.begin(write=True) as txn:
                    record = txn.get(own_key.KEY)
                    if own_key.version(record) < least:
                        txn.put(own_key.KEY, own_key.at_version(record, least))
            except lmdb.Error as error:
                raise _translate(error, self.folder) from error

    def last_txn(self) -> int:
        with self._map_lock:
            return self._db.info()["last_txnid"] if self.writer.failed is None else 0

    def durability(self) -> kv.Durability:
        with self._map_lock:
            self._check()
            flags = self._db.flags()
        full = flags["sync"] and flags["metasync"] and not flags["map_async"] and not flags["writemap"]
        shown = {name: str(flags[name]).lower() for name in ("sync", "metasync", "map_async", "writemap")}
        return kv.Durability(full=full, settings={"engine": "lmdb", **shown})

    def listen(self, env: envs.Env) -> lmdb_peers.Listener | None:
        if self._sockets is None or self._peers is None:
            return None
        try:
            listener = lmdb_peers.Listener(self._sockets, env)
        except OSError:
            return None
        self._peers.add_own(listener.name)
        listener.greet()
        return listener

    def peers_changed(self) -> None:
        if self._peers is not None:
            self._peers.changed()

    def release(self, listener: lmdb_peers.Listener | None) -> None:
        if listener is not None and self._peers is not None:
            listener.close()
            self._peers.remove_own(listener.name)
        with _REGISTRY_LOCK:
            self.users -= 1
            if not self.users:
                self._close()

    def _close(self) -> None:
        self.writer.stop()
        if self.writer.failed is None:
            if not self.synced:
                self._db.sync(True)  # what was acknowledged without sync is on the disk after a clean end
            self._close_db("this store is closed")
        if self._peers is not None and self._sockets is not None:
            self._peers.close()
            self._sockets.close()

    def _check(self) -> None:
        if self.writer.failed is not None:
            raise errors.StoreFailed(self.writer.failed)

    def _begin_read(self) -> lmdb.Transaction[bytes]:
        try:
            return self._db.begin()
        except lmdb.ReadersFullError:
            probes.hit("lmdb.readers-full")
            self._db.reader_check()  # killed processes leave their slots behind
            return self._db.begin()

    # --- Called by the writer thread ---

    def _commit(self, group: list[lmdb_writer.CommitCall]) -> lmdb_writer.Written:
        chore = group[0].chore
        self._committing = False
        try:
            if chore is None:
                return self._mapped(lambda: self._transact(group))
            group[0].done(self._mapped(chore))
        except lmdb.Error as error:
            self._lose(group, error)
        except (OSError, errors.Error) as error:
            if chore is None and isinstance(error, OSError):  # opening again after a scrub: the environment is closed
                self._abandon(str(error))
            said = error if isinstance(error, errors.Error) else lmdb_folder.translate(error.errno, self.folder)
            for job in group:
                job.refuse(said)
        return None, []

    def _mapped(self, work: Callable[[], T]) -> T:
        """Do it with a map that is large enough."""
        for _ in range(limits.LMDB_REMAPS_MAX):
            try:
                return work()
            except lmdb.MapFullError:
                probes.hit("lmdb.map-full")
                self._remap(grow=True)
            except lmdb.MapResizedError:
                probes.hit("lmdb.map-resized-by-another")
                self._remap(grow=False)
        raise errors.StoreUnavailable("other processes grow the store too fast; try again")

    def _tell(self, txn: int, keys: list[bytes]) -> None:
        if self._peers is not None:
            self._peers.tell(txn, keys)
        self._groups += 1
        if self._groups % limits.LMDB_READER_CHECK_GROUPS == 0:
            with contextlib.suppress(lmdb.Error):
                self._db.reader_check()
        if self._groups % limits.LMDB_MAPPED_CHECK_GROUPS == 0:
            self._drop_pages()

    def _drop_pages(self) -> None:
        """Bound what the map takes of the memory of this process. Other files that it has mapped are not counted."""
        if self._frozen:
            return  # they would be lost
        if lmdb_folder.mapped_bytes() - self._mapped_besides > limits.LMDB_MAPPED_BYTES_MAX:
            probes.hit("lmdb.pages-dropped")
            self._remap(grow=False)
            self._mapped_besides = lmdb_folder.mapped_bytes()

    def _transact(self, group: list[lmdb_writer.CommitCall]) -> lmdb_writer.Written:
        self._committing = False
        txn, record = self._begin()
        try:
            keys = _apply_group(txn, group, record)
            if keys is None:
                txn.abort()
                return None, []
            number = txn.id()
            self._committing = True  # from here on, an error leaves open whether the group was applied
            txn.commit()
        except BaseException:
            txn.abort()
            raise
        return number, keys

    def begin_write(self) -> lmdb.Transaction[bytes]:
        return self._begin()[0]

    def _begin(self) -> tuple[lmdb.Transaction[bytes], bytes | None]:
        """A transaction that writes from clean buffers, if the store was scrubbed meanwhile; and the engine's own
        record, which is read once.
        """
        while True:
            txn = self._db.begin(write=True)
            record = txn.get(own_key.KEY)
            if own_key.scrubs(record) == self._scrubs:
                return txn, record
            txn.abort()
            probes.hit("lmdb.buffers-forgotten")
            with self._map_lock:
                self._thaw_all()
                map_bytes = self._db.info()["map_size"]
                self._db.close()
                self._open(create=False, map_bytes=map_bytes)

    def _open(self, *, create: bool, map_bytes: int) -> None:
        self._db = _open_db(self.folder, create=create, map_bytes=map_bytes, sync=self.synced)
        with self._db.begin() as txn:  # its buffers are empty: nothing was written yet
            self._scrubs = own_key.scrubs(txn.get(own_key.KEY))

    def readers(self) -> str:
        """LMDB's table of all snapshots that are being read, without those of killed processes."""
        self._db.reader_check()
        return self._db.readers()

    def _remap(self, *, grow: bool) -> None:
        with self._map_lock:
            if self._frozen:
                probes.hit("lmdb.frozen-lost")
                self._thaw_all()
            if not grow:
                self._db.set_mapsize(0)
            # The slot of a killed reader may be all that keeps old pages from being used again.
            elif not self._db.reader_check():
                self._db.set_mapsize(self._db.info()["map_size"] * 2)

    def _lose(self, group: list[lmdb_writer.CommitCall], error: lmdb.Error) -> None:
        """The group was not committed, or that is unknown. Give each call its answer."""
        # A full disk, or damage that was met before the commit: then nothing of the group is in the file.
        harmless = lmdb_folder.is_full(self.folder, error.code) or (isinstance(error, _BROKEN) and not self._committing)
        if harmless and not self._has_panicked():
            for job in group:
                job.refuse(_translate(error, self.folder))
            return
        self._abandon(str(error))
        for job in group:
            if self._committing:
                job.lose(str(error))
            else:
                failed = errors.StoreFailed(str(self.writer.failed))
                job.refuse(failed)
                failed.__cause__ = error

    def _has_panicked(self) -> bool:
        """LMDB refuses all work after it failed to write the page that makes a transaction the last one."""
        try:
            with self._map_lock:
                self._db.begin().abort()
        except lmdb.PanicError:
            return True
        except lmdb.Error:
            return False
        return False

    def _abandon(self, reason: str) -> None:
        self._close_db(f"the store in {self.folder} failed ({reason}); close it and open it again")

    def _close_db(self, reason: str) -> None:
        """Close LMDB's environment: from here on this process can open the folder again."""
        with self._map_lock:
            self.writer.fail(reason)
            self._thaw_all()
            self._db.close()
        _forget(self)


class FrozenMap:
    """The store as it was: a read transaction that stays open. Every call of it is one of its store's."""

    def __init__(self, store: _Store, number: int, txn: lmdb.Transaction[bytes]) -> None:
        self._store = store
        self.number = number
        self.txn = txn

    def read(self, requests: Sequence[kv.Request], env: envs.Env) -> tuple[lmdb_engine.Answers, int, int]:
        return self._store.read_frozen(self, requests, env)

    def close(self) -> None:
        self._store.thaw(self)


def _apply_group(
    txn: lmdb.Transaction[bytes], group: list[lmdb_writer.CommitCall], record: bytes | None
) -> list[bytes] | None:
    """Apply what holds; returns the keys to hint at, or None if nothing was written. `record`: the engine's own."""
    version = ordinal = 0
    wrote = False
    keys: list[bytes] = []
    for job in group:
        outcomes: list[kv.Outcome] = []
        job.answer(outcomes)  # again in each run of the group, if the map had to grow
        for batch in job.batches:
            conflict = kv.conflict(batch, txn.get)
            if conflict is not None:
                outcomes.append(conflict)
                continue
            if batch.appends:
                version = version or 1 + own_key.version(record)  # one for all batches of the group
                stamps = kv.stamps(version, ordinal, len(batch.appends))
                ordinal += len(stamps)
                _apply(txn, batch, stamps)
                outcomes.append(kv.Ok(stamps))
            else:
                _apply(txn, batch, ())
                outcomes.append(_APPLIED)
            wrote = True
            keys += hints.written(batch)
    if version:
        txn.put(own_key.KEY, own_key.at_version(record, version))
    if len(group) > 1:
        keys = list(dict.fromkeys(keys))  # producers of one queue all name its prefix; once is enough
    return keys if wrote else None


def _apply(txn: lmdb.Transaction[bytes], batch: kv.Batch, stamps: Sequence[kv.Stamp]) -> None:
    for begin, end in batch.ranges:
        cursor = txn.cursor()
        found = cursor.set_range(begin)
        while found and cursor.key() < end:
            found = cursor.delete()  # the cursor then stands on the next key
    for key in batch.deletes:
        txn.delete(key)
    for key, put in batch.puts.items():
        txn.put(key, put.value if put.stamp is None else put.value + stamps[put.stamp])
    for key, delta in batch.counts.items():
        txn.put(key, kv.counter_add(txn.get(key), delta))
    for index, append in enumerate(batch.appends):
        txn.put(append.prefix + stamps[index], append.value)


def _read(txn: lmdb.Transaction[bytes], requests: Sequence[kv.Request], version: int) -> lmdb_engine.Answers:
    answers: lmdb_engine.Answers = []
    cursor: lmdb.Cursor[bytes] | None = None
    stable = kv.ZERO_STAMP
    for request in requests:
        if isinstance(request, kv.Get):
            answers.append(txn.get(request.key))
            continue
        if cursor is None:
            cursor = txn.cursor()
            stable = kv.stamp(version or 1 + own_key.version(txn.get(own_key.KEY)), 0)
        answers.append(_page(cursor, request, stable))
    return answers


def _page(cursor: lmdb.Cursor[bytes], request: kv.Range, stable: kv.Stamp) -> kv.Page:
    begin, end = request.begin, request.end
    if request.reverse:
        found = cursor.prev() if cursor.set_range(end) else cursor.last()
        items = itertools.takewhile(lambda item: item[0] >= begin, cursor.iterprev())
    else:
        found = cursor.set_range(begin)
        if not found or cursor.key() >= end:  # most inboxes, most of the time
            return kv.Page([], False, stable)
        items = itertools.takewhile(lambda item: item[0] < end, cursor.iternext())
    return kv.fill_page(items if found else (), request, stable)


# --- Opening ---

_REGISTRY: dict[tuple[int, int], _Store] = {}
# LMDB forbids to open one file twice in a process. Engines of several threads must share the store of it.
_REGISTRY_LOCK = threading.Lock()


def _attach(folder: Path, *, create: bool, map_bytes: int, sync: bool) -> _Store:
    with _REGISTRY_LOCK:
        lmdb_folder.prepare(folder, create=create)
        identity = lmdb_folder.identity(folder)
        store = None if identity is None else _REGISTRY.get(identity)
        if store is None:
            lmdb_folder.warn_if_open(folder)
            store = _Store(folder, create=create, map_bytes=map_bytes, sync=sync)
            assert store.identity is not None
            _REGISTRY[store.identity] = store
        elif store.synced != sync:
            raise errors.StoreUnavailable(
                f"the store in {folder} is open in this process with sync={store.synced}; open it alike, or close it"
            )
        store.users += 1
        return store


def _forget(store: _Store) -> None:
    if store.identity is not None and _REGISTRY.get(store.identity) is store:
        _REGISTRY.pop(store.identity, None)


def _after_fork() -> None:
    """The child has the parent's memory, but neither its writer threads nor its right to the files."""
    for store in _REGISTRY.values():
        store.writer.forked("a forked child cannot use its parent's store; start it by spawn")
    _REGISTRY.clear()


os.register_at_fork(after_in_child=_after_fork)


def _open_db(folder: Path, *, create: bool, map_bytes: int, sync: bool) -> lmdb.Environment:
    lmdb_folder.reserve_lock(folder, limits.LMDB_LOCK_BYTES)
    data = folder / lmdb_folder.DATA
    is_new, mode = not data.exists(), private_files.modes_in(folder).file
    for _ in range(limits.LMDB_REMAPS_MAX):
        # If another process grows the store meanwhile, opening again takes the size it has by then.
        with contextlib.suppress(lmdb.MapResizedError):
            db = lmdb.open(
                str(folder),
                map_size=max(map_bytes, limits.LMDB_MAP_BYTES_MIN),
                create=False,  # of the folder: `prepare` has made it, with its modes
                sync=sync,
                metasync=sync,
                max_readers=limits.LMDB_READERS_MAX,
                max_spare_txns=1,
                mode=0o600,  # `give_group` widens it, if the folder is a group's
            )
            try:
                if is_new:
                    private_files.give_group(data, mode)
                _cover(db, folder)
                _initialise(db, folder, create=create)
                db.reader_check()
            except BaseException:
                db.close()
                raise
            return db
    raise errors.StoreUnavailable(f"other processes grow the store in {folder} too fast; try again")


def _cover(db: lmdb.Environment, folder: Path) -> None:
    """Make the file as long as its header says.

    A file that lost its end would stop the process by a bus error at the first read behind the end. Zeros there are
    found by LMDB instead, and reported. A sound file may be a little shorter too: then those pages are free.
    """
    if lmdb_folder.data_bytes(folder) < _header_bytes(db):
        with db.begin(write=True):  # no other process writes the file meanwhile
            size = _header_bytes(db)
            if lmdb_folder.data_bytes(folder) < size:
                os.truncate(folder / lmdb_folder.DATA, size)


def _header_bytes(db: lmdb.Environment) -> int:
    return (db.info()["last_pgno"] + 1) * db.stat()["psize"]


def _initialise(db: lmdb.Environment, folder: Path, *, create: bool) -> None:
    with db.begin() as txn:
        if txn.get(own_key.KEY) is not None:
            return
        if txn.stat()["entries"]:
            raise errors.StoreVersion(f"the LMDB file in {folder} was not written by Worldline; name another folder")
    if not create:
        raise lmdb_folder.missing(folder)
    with db.begin(write=True) as txn:
        txn.put(own_key.KEY, own_key.FIRST, overwrite=False)  # another process may have been quicker
    private_files.sync_folder(folder)


def _translate(error: lmdb.Error, folder: Path) -> errors.Error:
    made: errors.Error
    if isinstance(error, _BROKEN):
        made = errors.Corrupt(f"{folder / lmdb_folder.DATA} is damaged ({error.reason}); restore it from a backup")
    elif lmdb_folder.is_full(folder, error.code):
        made = lmdb_folder.full(folder)
    elif error.code > 0:
        made = lmdb_folder.translate(error.code, folder)
    elif isinstance(error, lmdb.VersionMismatchError) or "data format" in str(error):
        made = errors.StoreVersion(f"the LMDB file in {folder} is of a version that this LMDB cannot read")
    elif "already open" in str(error):
        text = f"the store in {folder} is open in this process by other means, or was so before a fork; start by spawn"
        made = errors.StoreUnavailable(text)
    elif isinstance(error, lmdb.ReadersFullError):
        made = errors.StoreUnavailable(f"too many readers of {folder} at the same time; try again")
    else:
        made = errors.StoreFailed(f"the store in {folder} failed ({error}); close it and open it again")
    made.__cause__ = error
    return made
