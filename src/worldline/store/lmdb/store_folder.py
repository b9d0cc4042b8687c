"""The folder of an embedded store as the operating system sees it: making it, naming it, what can be wrong with it.

No LMDB here. Every error of the system becomes one of ours, in one line that says what to do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
import warnings
from pathlib import Path

from worldline.base import errors, limits, private_files

DATA = "data.mdb"
LOCK = "lock.mdb"

_STATM_BYTES = 256  # more than the seven numbers have
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def prepare(folder: Path, *, create: bool) -> None:
    """Make the folder, or see that a store may be in it."""
    if create:
        _make(folder)
    found = _stat(folder)
    if found is None:
        raise errors.StoreMissing(f"there is no store in {folder}, and creating one was not asked for")
    if not stat.S_ISDIR(found.st_mode):
        raise errors.BadUrl(f"{folder} is not a folder; name a folder for the store")
    data = _stat(folder / DATA)
    # An empty file is no store: a process may have ended before it wrote the first page.
    if not create and (data is None or not data.st_size):
        raise missing(folder)


def _stat(path: Path) -> os.stat_result | None:
    """What is there, or nothing. `PermissionError` if that cannot be seen, where `exists()` of Python 3.14 says no."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def missing(folder: Path) -> errors.StoreMissing:
    return errors.StoreMissing(f"the folder {folder} holds no store, and creating one was not asked for")


def identity(folder: Path) -> tuple[int, int] | None:
    """What LMDB must not have open twice in a process is a file, under any path."""
    try:
        found = (folder / DATA).stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def data_bytes(folder: Path) -> int:
    return (folder / DATA).stat().st_size


def mapped_bytes() -> int:
    """How much of all files that this process has mapped counts as its memory now. 0 where the system does not say."""
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return 0
    try:
        # The third number: the pages in memory that stand for files.
        return int(os.read(file, _STATM_BYTES).split()[2]) * resource.getpagesize()
    finally:
        os.close(file)


def reserve_lock(folder: Path, size: int) -> None:
    """Give LMDB's lock file its room on the disk before LMDB maps it.

    LMDB makes the file sparse. On a full disk the first write through the map would then end the process by a bus
    error; this fails instead. A file that has its room is not even opened: LMDB's locks of this process, if there are
    any, would be released by the closing.
    """
    path = folder / LOCK
    try:
        found = path.stat()
        if found.st_size >= size and found.st_blocks * 512 >= size:
            return
    except FileNotFoundError:
        pass
    number = private_files.open_file(path, os.O_RDWR | os.O_CREAT, private_files.modes_in(folder).file)
    try:
        os.posix_fallocate(number, 0, size)
    except OSError:
        # Empty, so no process uses it yet. A file with some size may have locks of others in it, and stays.
        if not os.fstat(number).st_size:
            path.unlink(missing_ok=True)
        raise
    finally:
        os.close(number)


def warn_if_open(folder: Path) -> None:
    """Say how to close a store that other users of the machine can read or change: earlier releases left it to the
    umask. It is opened all the same.
    """
    mode, data = folder.stat().st_mode, folder / DATA
    # The right to pass through the folder is enough: the names of the files in it are known.
    if mode & 0o002 or (mode & 0o001 and data.exists() and data.stat().st_mode & 0o006):
        text = f"other users of this machine can read the store in {folder}, or change it: chmod -R o-rwx {folder}"
        warnings.warn(text, errors.ModeWarning, stacklevel=2)


def is_full(folder: Path, code: int) -> bool:
    """Whether a failed write means that there is no space.

    LMDB calls a write that was cut short an I/O error; that is a full disk if there is almost no room.
    """
    if code in _FULL:
        return True
    if code != errno.EIO:
        return False
    try:
        room, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if room != resource.RLIM_INFINITY and data_bytes(folder) + limits.LMDB_FREE_BYTES_LOW > room:
            return True
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < limits.LMDB_FREE_BYTES_LOW


def full(folder: Path) -> errors.StoreFull:
    return errors.StoreFull(f"no space left for the store in {folder}; nothing was written, free some and try again")


def translate(code: int | None, folder: Path) -> errors.Error:
    if code in _FULL:
        return full(folder)
    if code in _FORBIDDEN:
        return errors.StoreUnavailable(f"no permission to read and write {folder}; check its owner and mode")
    if code == errno.ENOTDIR:
        return errors.BadUrl(f"{folder} is not a folder; name a folder for the store")
    if code == errno.EAGAIN:
        return errors.StoreUnavailable(
            f"another process has the store in {folder} open under the same process id, {os.getpid()}: LMDB tells "
            "processes apart by it; give the containers that share a folder one process namespace, or use a server"
        )
    if code == errno.ENOMEM:
        return errors.StoreUnavailable(f"no address space to map the store in {folder}; raise the limit (ulimit -v)")
    return errors.StoreUnavailable(f"the store in {folder} cannot be used now: {os.strerror(code or 0)}")


def _make(folder: Path) -> None:
    """Each new folder is synced into its parent, so that what is acknowledged inside it is found after a crash."""
    absent = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(absent):
        with contextlib.suppress(FileExistsError):  # another process was quicker
            if path == folder:
                private_files.make_folder(path, private_files.Modes())
            else:
                path.mkdir()
        private_files.sync_folder(path.parent)
