"""Objects as files of a local folder: `a/b/c` is the file `c` in the folder `a/b` under the root.

An object appears whole or not at all. Its bytes are written to a temporary file beside it and synced; a hard link then
gives it its name, which fails if the name is taken, so of any number of racing processes exactly one wins; the folder
is synced before `put` returns. A folder made on the way is synced into its parent, and a folder that another process
made is synced once by every process that relies on it, because the other one may be killed before its own sync.

Nothing outside the root can be reached: names are checked, folders are entered one by one from a descriptor of the
root, and no symbolic link is followed below it. What is not a plain file under an object's name is not an object.

A killed process leaves temporary files (`.tmp-...`) behind. They are never listed or read; `sweep_unchanged` removes
them, and `sweep_temporary` when a person asks for it. File work runs in threads of this store, so no sync ever stops
the event loop, and cancelling a call ends only the waiting: the object is then whole or absent. Empty folders are left
alone, and bodies are not checked here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from worldline.base import errors, limits, private_files, probes
from worldline.store.objects import objects_interface as objects

Listing = list[objects.ListedObject]
P = ParamSpec("P")
T = TypeVar("T")

TEMPORARY = ".tmp-"  # no name has a dot, so no object is ever taken for one

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # never hang on a pipe of that name
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TEMPORARY_TRIES_MAX = 100_000
_TEMPORARY_SEEN_MAX = 100_000


class _SeenFile(NamedTuple):
    """A temporary file as it was found, and since when."""

    inode: int
    size: int
    changed_ns: int  # its inode: no program can set that time
    since_us: int


_IsLeft = Callable[[str, os.stat_result], bool]  # whether a temporary file, by its path, is one of a killed upload


async def open(root: Path, *, create: bool, modes: private_files.Modes | None = None) -> FolderObjects:
    """`StoreMissing` if there is no such folder and making it was not asked for. `modes`: of the folder that it stands
    in, if that is a store's.
    """
    return FolderObjects(root, await asyncio.to_thread(_open_root, root, modes or private_files.Modes(), create=create))


class FolderObjects:
    def __init__(self, root: Path, root_fd: int) -> None:
        self._root = root
        self._root_fd = root_fd
        self._modes = private_files.modes_in(root_fd)
        self._known: dict[str, None] = {}  # folders that this process has synced into their parents
        self._unchanged: dict[str, _SeenFile] = {}  # temporary files as `sweep_unchanged` last found them
        self._numbers = itertools.count()
        self._threads = ThreadPoolExecutor(limits.OBJECT_THREADS_MAX, thread_name_prefix="objects")
        self._closed = False

    async def put(self, name: str, body: bytes) -> None:
        objects.check_name(name)
        objects.check_body(body)
        await self._run(self._put, name, body)

    async def get(self, name: str) -> bytes:
        return await self._run(self._get, objects.check_name(name))

    async def list(self, prefix: str, *, after: str = "", count_max: int = 1000) -> list[objects.ListedObject]:
        objects.check_list(prefix, after, count_max)
        return await self._run(self._list, prefix, after, count_max)

    async def delete(self, name: str) -> None:
        await self._run(self._delete, objects.check_name(name))

    async def count_temporary(self, before_us: int, *, under: str = "") -> int:
        """How many temporary files there are that were last written before this wall time: `sweep_temporary`."""
        return await self._run(self._sweep, _written_before(before_us), under, remove=False)

    async def sweep_temporary(self, before_us: int, *, under: str = "") -> int:
        """Remove the temporary files of killed uploads, if last written before this wall time; how many there were.

        `under`: only in this folder. An upload that is still being written loses its temporary file if it is that old,
        and fails.
        """
        return await self._run(self._sweep, _written_before(before_us), under, remove=True)

    async def sweep_unchanged(self, monotonic_us: int, period_us: int) -> int:
        """Remove the temporary files that this process has found unchanged for so long, by its monotonic clock; how
        many there were. No time in a file and no wall clock counts: either may be wrong while an upload is under way.
        """
        return await self._run(self._sweep_unchanged, monotonic_us, period_us)

    async def close(self) -> None:
        """Waits for the calls under way, also for those whose callers have gone."""
        if not self._closed:
            self._closed = True
            # In a thread, because it waits for the calls under way, and the loop must not.
            await asyncio.to_thread(self._threads.shutdown)
            os.close(self._root_fd)

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed:
            raise errors.StoreUnavailable(f"the objects folder {self._root} is closed")
        return await asyncio.wrap_future(self._threads.submit(work, *args, **kwargs))

    def _put(self, name: str, body: bytes) -> None:
        parent, _, leaf = name.rpartition("/")
        with self._mapped(f"put {name}"), self._entered(parent, create=True) as folder:
            _check_free(folder, leaf, name)  # the link decides; this only spares the writing
            temporary = self._write(folder, body)
            try:
                os.link(temporary, leaf, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError as error:
                raise errors.Exists(f"object {name} exists") from error
            finally:
                _unlink(folder, temporary)
            # The name is durable only now, and the caller refers to it as soon as this returns.
            os.fsync(folder)

    def _write(self, folder: int, body: bytes) -> str:
        """A new temporary file with this body, synced. Its name."""
        name, file = self._create_temporary(folder)
        try:
            # A write may be cut short without an error, so it is repeated for the rest.
            view = memoryview(body)
            while view:
                view = view[os.write(file, view) :]
            os.fsync(file)
        except OSError:
            _unlink(folder, name)
            raise
        finally:
            os.close(file)
        return name

    def _create_temporary(self, folder: int) -> tuple[str, int]:
        """Another process, or an earlier one, may have used the same number; creating exclusively finds a free name."""
        for number in itertools.islice(self._numbers, _TEMPORARY_TRIES_MAX):
            name = f"{TEMPORARY}{os.getpid()}-{number}"
            try:
                return name, private_files.open_file(name, _CREATE, self._modes.unchanging, inside=folder)
            except FileExistsError:
                probes.hit("folder.temporary-name-taken")
        raise errors.StoreUnavailable(
            f"{self._root} is full of temporary files; remove them with `worldline doctor --repair`"
        )

    def _get(self, name: str) -> bytes:
        parent, _, leaf = name.rpartition("/")
        with self._mapped(f"get {name}"):
            try:
                with self._entered(parent, create=False) as folder:
                    file = os.open(leaf, _READ, dir_fd=folder)
            except FileNotFoundError as error:
                raise errors.NotFound(f"no object {name}") from error
            try:
                info = os.fstat(file)
                if not stat.S_ISREG(info.st_mode):
                    raise errors.NotFound(f"no object {name}")
                # Before reading: the size is what would be allocated.
                if info.st_size > limits.BLOB_BYTES_MAX:
                    raise errors.Corrupt(f"object {name} has {info.st_size} bytes, more than can be put")
                return _read(file, info.st_size)
            finally:
                os.close(file)

    def _delete(self, name: str) -> None:
        parent, _, leaf = name.rpartition("/")
        with (
            self._mapped(f"delete {name}"),
            contextlib.suppress(FileNotFoundError),
            self._entered(parent, create=False) as folder,
        ):
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(leaf, dir_fd=folder)
            os.fsync(folder)  # also if it was gone before: the process that removed it may not have synced yet

    def _list(self, prefix: str, after: str, count_max: int) -> Listing:
        with self._mapped(f"list {prefix}"), contextlib.closing(_walk(self._root_fd, "", prefix, after)) as found:
            return [*itertools.islice(found, count_max)]

    def _sweep(self, is_left: _IsLeft, under: str, *, remove: bool) -> int:
        with self._mapped("sweep temporary files"):
            try:
                with self._entered(under, create=False) as folder:
                    return _sweep(folder, f"{under}/" if under else "", is_left, remove=remove)
            except FileNotFoundError:
                return 0

    def _sweep_unchanged(self, monotonic_us: int, period_us: int) -> int:
        before, seen = self._unchanged, dict[str, _SeenFile]()

        def is_left(path: str, info: os.stat_result) -> bool:
            found = _SeenFile(info.st_ino, info.st_size, info.st_ctime_ns, monotonic_us)
            known = before.get(path)
            if known is not None and known[:-1] == found[:-1]:
                found = known
            if len(seen) < _TEMPORARY_SEEN_MAX:  # the others when these are gone
                seen[path] = found
            return found.since_us <= monotonic_us - period_us

        count = self._sweep(is_left, "", remove=True)
        self._unchanged = seen
        return count

    @contextlib.contextmanager
    def _entered(self, path: str, *, create: bool) -> Iterator[int]:
        """A descriptor of the folder, for the time of the block. `FileNotFoundError` if it is not there."""
        folder = os.dup(self._root_fd)
        try:
            walked = ""
            for segment in path.split("/") if path else ():
                walked = f"{walked}/{segment}"
                if create:
                    self._make(folder, segment, walked)
                outer, folder = folder, _enter(folder, segment, walked, create=create)
                os.close(outer)
            yield folder
        finally:
            os.close(folder)

    def _make(self, folder: int, segment: str, walked: str) -> None:
        try:
            private_files.make_folder(segment, self._modes, inside=folder)
        except FileExistsError:
            # Made by another process, which may be killed before it syncs: synced once by this one, too.
            if walked in self._known:
                return
        os.fsync(folder)
        if len(self._known) >= limits.OBJECT_FOLDERS_KNOWN_MAX:
            # What is forgotten costs another sync, never an object.
            self._known.clear()
        self._known[walked] = None

    @contextlib.contextmanager
    def _mapped(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise errors.StoreFull(f"cannot {what} in {self._root}: no space; free some or move it") from error
            raise errors.StoreUnavailable(f"cannot {what} in {self._root}: {error.strerror}") from error


def _open_root(root: Path, modes: private_files.Modes, *, create: bool) -> int:
    try:
        if create:
            _make_root(root, modes)
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError as error:
        raise errors.StoreMissing(f"no objects folder at {root}, and creating one was not asked for") from error
    except NotADirectoryError as error:
        raise errors.StoreUnavailable(f"cannot keep objects in {root}: it is not a folder") from error
    except OSError as error:
        raise errors.StoreUnavailable(f"cannot open the objects folder {root}: {error.strerror}") from error


def _make_root(root: Path, modes: private_files.Modes) -> None:
    """Make the folder and its missing parents, each synced into its own parent."""
    absolute = root.absolute()
    for folder in (*reversed(absolute.parents), absolute):
        made = False
        with contextlib.suppress(FileExistsError):
            if folder == absolute:
                private_files.make_folder(folder, modes)
            else:
                folder.mkdir()
            made = True
        if made or folder == absolute:
            try:
                private_files.sync_folder(folder.parent)
            # A root that was there may stand in a folder that this user must not open: then its sync was its maker's.
            except PermissionError:
                if made:
                    raise


def _enter(folder: int, segment: str, walked: str, *, create: bool) -> int:
    """Open a folder inside a folder; anything else of that name has an error of its own."""
    try:
        return os.open(segment, _FOLDER, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        if stat.S_ISLNK(os.stat(segment, dir_fd=folder, follow_symlinks=False).st_mode):
            raise errors.StoreUnavailable(f"{walked} is a symbolic link, which objects do not follow") from error
        if create:
            raise errors.BadInput(f"{walked[1:]} is an object, so it cannot be a folder of others") from error
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), segment) from error


def _check_free(folder: int, leaf: str, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(leaf, dir_fd=folder, follow_symlinks=False).st_mode):
            raise errors.BadInput(f"{name} is a folder of other objects, so it cannot be an object")
        raise errors.Exists(f"object {name} exists")


def _read(file: int, size: int) -> bytes:
    parts: list[bytes] = []  # one, unless a read is cut short; joining one copies nothing
    missing = size
    while missing:
        part = os.read(file, missing)
        if not part:
            raise errors.Corrupt(f"an object ended {missing} bytes short of its {size}")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _unlink(folder: int, name: str) -> None:
    """A failure here leaves a temporary file, which the sweep removes; the first error matters more."""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _entries(folder: int) -> list[tuple[str, bool]]:
    """What a folder holds, with whether it is a folder, in the order of the names that are made from it."""
    with os.scandir(folder) as entries:
        found = [
            (entry.name, entry.is_dir(follow_symlinks=False))
            for entry in entries
            if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)
        ]
    # What a folder holds begins with its name and a slash, so `a-b` comes before all of `a`.
    return sorted(found, key=lambda entry: f"{entry[0]}/" if entry[1] else entry[0])


def _walk(folder: int, base: str, prefix: str, after: str) -> Generator[objects.ListedObject, None, None]:
    """The objects under a folder in name order, entering only folders that can hold what is asked for."""
    for entry, is_folder in _entries(folder):
        name = base + entry
        if not objects.is_name(name):
            continue
        if is_folder:
            if _may_hold(f"{name}/", prefix, after):
                with _opened(folder, entry) as inner:
                    if inner is not None:
                        yield from _walk(inner, f"{name}/", prefix, after)
        elif name.startswith(prefix) and name > after:
            with contextlib.suppress(FileNotFoundError):  # deleted since the folder was read
                info = os.stat(entry, dir_fd=folder, follow_symlinks=False)
                yield objects.ListedObject(name, info.st_size, info.st_mtime_ns // 1000)


def _may_hold(base: str, prefix: str, after: str) -> bool:
    return (base.startswith(prefix) or prefix.startswith(base)) and (base > after or after.startswith(base))


@contextlib.contextmanager
def _opened(folder: int, entry: str) -> Iterator[int | None]:
    """An inner folder, or None if it is gone or replaced."""
    try:
        inner = os.open(entry, _FOLDER, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    try:
        yield inner
    finally:
        os.close(inner)


def _written_before(before_us: int) -> _IsLeft:
    return lambda _, info: info.st_mtime_ns // 1000 < before_us


def _sweep(folder: int, base: str, is_left: _IsLeft, *, remove: bool) -> int:
    """The number of temporary files that were left, removed if asked for."""
    count = 0
    for entry, is_folder in _entries(folder):
        if is_folder and objects.is_name(base + entry):
            with _opened(folder, entry) as inner:
                count += 0 if inner is None else _sweep(inner, f"{base}{entry}/", is_left, remove=remove)
        elif not is_folder and entry.startswith(TEMPORARY):
            with contextlib.suppress(FileNotFoundError):  # another process sweeps, or the upload has ended
                if is_left(f"{base}{entry}", os.stat(entry, dir_fd=folder, follow_symlinks=False)):
                    if remove:
                        os.unlink(entry, dir_fd=folder)
                    count += 1
    return count
