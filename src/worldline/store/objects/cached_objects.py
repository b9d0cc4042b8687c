"""A disk cache of immutable blobs by their sha256, for workers. Least recently used goes first.

The folder is the whole state: `ab/abcd...` holds the blob of that address, and the file's time of change is when it was
last used. So a restart keeps everything, and several processes may share one folder. Each of them estimates how full
it is from what it has found and added, and looks again after adding an eighth of the room; together they may exceed
`bytes_max` by an eighth each for a moment. Eviction frees an eighth, so that it is rare.

Every read is verified: an entry whose bytes are not those of its address is removed, counted and not returned. The
cache never fails its caller: a disk that is full or broken means that nothing is cached, and is counted. The one
exception is a caller that puts bytes under a wrong address. Nothing is synced: what a crash loses is fetched again, and
what it tears fails the check. In an encrypted store the entries are sealed, each for its address; one that was sealed
with another key is like a damaged one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits, private_files, probes
from worldline.codec import digest as digests

TEMPORARY = ".tmp-"
TEMPORARY_AGE_US_MAX = 3_600_000_000  # an older one belongs to a killed process

_ITEM_SHARE = 4  # one blob may take a quarter of the room
_SLACK_SHARE = 8
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # never hang on a pipe of that name
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CacheSealer(Protocol):
    """What seals an entry for its address."""

    def seal(self, place: bytes, data: bytes) -> bytes: ...

    def open(self, place: bytes, sealed: bytes) -> bytes:
        """`DecodeError` if it was sealed otherwise."""


class Stats(msgspec.Struct, frozen=True):
    """Counted since the cache was opened, by this process. `hits` + `misses` is the number of gets."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    corrupt: int = 0
    refused: int = 0  # puts of what is too large, or met a full disk
    faults: int = 0  # other errors of the disk


class _Entry(NamedTuple):
    used_ns: int
    path: Path
    size: int


async def open(folder: Path, env: envs.Env, *, bytes_max: int, cipher: CacheSealer | None = None) -> BlobCache:
    """Make the folder if need be, and look at what is in it. `cipher`: what seals the entries, if anything does."""
    cache = BlobCache(folder, env, bytes_max=bytes_max, cipher=cipher)
    try:
        await asyncio.to_thread(cache.prepare)
    except OSError as error:
        raise errors.StoreUnavailable(f"cannot cache blobs in {folder}: {error.strerror}") from error
    return cache


class BlobCache:
    """Made by `open`. All calls are safe together, from any number of tasks, threads and processes."""

    def __init__(self, folder: Path, env: envs.Env, *, bytes_max: int, cipher: CacheSealer | None = None) -> None:
        assert bytes_max > 0
        self._cipher = cipher
        self._folder = folder
        self._env = env
        self._bytes_max = bytes_max
        self._lock = threading.Lock()  # around the counters, never around file work
        self._counts = dict.fromkeys(Stats.__struct_fields__, 0)
        self._stamp_ns = 0
        self._found_bytes = 0  # at the last look
        self._added_bytes = 0  # since then
        self._modes = private_files.Modes()  # of what is made in the folder, as it says

    async def get(self, digest: bytes) -> bytes | None:
        assert len(digest) == limits.DIGEST_BYTES
        return await asyncio.to_thread(self._get, digest)

    async def put(self, digest: bytes, data: bytes) -> bool:
        """Whether it is cached now. `DigestMismatch` if this is not the address of these bytes."""
        assert len(digest) == limits.DIGEST_BYTES
        return await asyncio.to_thread(self._put, digest, data)

    def stats(self) -> Stats:
        with self._lock:
            return Stats(**self._counts)

    def prepare(self) -> None:
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            private_files.make_folder(self._folder, private_files.Modes())
        self._modes = private_files.modes_in(self._folder)
        self._look()

    def _get(self, digest: bytes) -> bytes | None:
        path = self._path(digest)
        try:
            data = _read(path, self._bytes_max // _ITEM_SHARE)
        except FileNotFoundError:
            self._count("misses")
            return None
        except OSError:
            self._count("misses", "faults")
            return None
        data = self._opened(digest, data)
        if data is None or digests.sha256(data) != digest:
            probes.hit("cache.entry-damaged")
            self._remove(path, "corrupt")
            self._count("misses")
            return None
        self._touch(path)
        self._count("hits")
        return data

    def _opened(self, digest: bytes, data: bytes | None) -> bytes | None:
        """What was cached, or None if it was sealed otherwise, or is damaged."""
        if data is None or self._cipher is None:
            return data
        try:
            return self._cipher.open(digest, data)
        except errors.DecodeError:
            return None

    def _put(self, digest: bytes, data: bytes) -> bool:
        digests.check(data, digest, "a blob to be cached")
        # One large blob must not push out all the others.
        if len(data) > self._bytes_max // _ITEM_SHARE:
            self._count("refused")
            return False
        if self._cipher is not None:
            data = self._cipher.seal(digest, data)
        try:
            self._write(self._path(digest), data)
        except OSError as error:
            self._count("refused" if error.errno in _FULL else "faults")
            return False
        if self._is_due(len(data)):
            try:
                self._look()
            except OSError:
                self._count("faults")
        return True

    def _write(self, path: Path, data: bytes) -> None:
        """Replace an entry that is there: it is the same, or bad."""
        temporary = path.parent / f"{TEMPORARY}{self._env.random_bytes(limits.ID_BYTES).hex()}"
        with contextlib.suppress(FileExistsError):
            private_files.make_folder(path.parent, self._modes)
        try:
            number = private_files.open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._modes.file)
            with os.fdopen(number, "wb") as file:
                file.write(data)
            self._touch(temporary)
            # In one move: processes that share the folder read the old entry or the new one, whole.
            temporary.replace(path)
        except OSError:
            self._remove(temporary)
            raise

    def _is_due(self, size: int) -> bool:
        """Note that so much was added; whether it is time to look at the folder again."""
        with self._lock:
            self._added_bytes += size
            full = self._found_bytes + self._added_bytes > self._bytes_max
            return full or self._added_bytes > self._bytes_max // _SLACK_SHARE

    def _look(self) -> None:
        """See how full it is; if it is too full, evict the longest unused until there is some room again."""
        found = sorted(self._without_leftovers(_entries(self._folder)))  # the longest unused first
        total = sum(entry.size for entry in found)
        if total > self._bytes_max:
            for entry in found:
                if total <= self._bytes_max - self._bytes_max // _SLACK_SHARE:
                    break
                if self._remove(entry.path, "evictions"):
                    total -= entry.size
        with self._lock:
            self._found_bytes, self._added_bytes = total, 0

    def _without_leftovers(self, entries: Iterator[_Entry]) -> Iterator[_Entry]:
        oldest_ns = (self._env.wall_us() - TEMPORARY_AGE_US_MAX) * 1000
        for entry in entries:
            if not entry.path.name.startswith(TEMPORARY):
                yield entry
            elif entry.used_ns < oldest_ns:
                self._remove(entry.path)

    def _path(self, digest: bytes) -> Path:
        name = digests.to_hex(digest)
        return self._folder / name[:2] / name

    def _touch(self, path: Path) -> None:
        """Strictly increasing within a process, so that two uses are never the same time ago."""
        with self._lock:
            self._stamp_ns = max(self._stamp_ns + 1_000, self._env.wall_us() * 1_000)
            stamp_ns = self._stamp_ns
        with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
            os.utime(path, ns=(stamp_ns, stamp_ns), follow_symlinks=False)

    def _remove(self, path: Path, *counts: str) -> bool:
        """Whether it is gone; counted if it was removed here."""
        try:
            path.unlink()
        except FileNotFoundError:
            return True
        except OSError:
            self._count("faults")
            return False
        self._count(*counts)
        return True

    def _count(self, *names: str) -> None:
        with self._lock:
            for name in names:
                self._counts[name] += 1


def _read(path: Path, size_max: int) -> bytes | None:
    """The bytes, or None if they are more than can be put."""
    file = os.open(path, _READ)
    try:
        size = os.fstat(file).st_size
        # A read that is cut short fails the check of the digest, and counts as damage.
        return os.read(file, size) if size <= size_max else None
    finally:
        os.close(file)


def _entries(folder: Path) -> Iterator[_Entry]:
    """Every file in the inner folders, as it is found."""
    with os.scandir(folder) as inner_folders:
        names = [inner.name for inner in inner_folders if inner.is_dir(follow_symlinks=False)]
    for name in sorted(names):
        with contextlib.suppress(FileNotFoundError), os.scandir(folder / name) as files:
            for file in files:
                with contextlib.suppress(FileNotFoundError):  # evicted by another process
                    info = file.stat(follow_symlinks=False)
                    yield _Entry(info.st_mtime_ns, folder / name / file.name, info.st_size)
