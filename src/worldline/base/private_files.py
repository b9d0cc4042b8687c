"""Files and folders with users' data or keys: made for their owner alone, and files whole or not at all.

**Who may read.** A folder that is made here has mode 0700. What is made inside a folder has the rights of the folder's
group, and none for others. So a store is shared by a group if its folder is made for the group beforehand::

    install -d -m 2770 -g worlds /srv/worlds

The umask does not matter: rights of the group are set, not only asked for.

**Whole or not at all.** A file is written under a name that cannot be guessed and was not there (so nothing that
another user has put under it is written through), synced, and then put at its place. If that fails or is interrupted,
it is removed. Only a killed process leaves one: `.NAME.RANDOM.partial`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from worldline.base import errors, probes

PARTIAL = ".partial"
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)  # of file systems without hard links
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Modes(msgspec.Struct, frozen=True):
    """What is made inside a folder has these modes."""

    folder: int = 0o700
    file: int = 0o600

    @property
    def unchanging(self) -> int:
        """Of a file that is never written again."""
        return self.file & 0o440


def modes_in(folder: Path | int) -> Modes:
    """Those of a folder, given by its path or its descriptor: what its group may, and nothing for others."""
    found = folder.stat() if isinstance(folder, Path) else os.fstat(folder)
    group = found.st_mode & 0o070
    return Modes(0o700 | group, 0o600 | (group & 0o060))


def make_folder(name: Path | str, modes: Modes, *, inside: int | None = None) -> None:
    """Make one folder. `inside`: a descriptor of the one that it is made in. `FileExistsError` if it is there."""
    os.mkdir(name, 0o700, dir_fd=inside)
    if modes.folder & 0o070:
        mode = stat.S_IMODE(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode)  # may have the set-group bit
        # Set, not asked for: the umask cuts the mode that `mkdir` is given.
        os.chmod(name, mode | modes.folder, dir_fd=inside)


def open_file(name: Path | str, flags: int, mode: int, *, inside: int | None = None) -> int:
    """A descriptor of a file; one that is new has this very mode, also for its group."""
    number = os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode & 0o700, dir_fd=inside)
    try:
        found = os.fstat(number)
        # Only its owner may change a mode, and a file of another member of the group has been given it.
        if mode & 0o070 and found.st_uid == os.geteuid() and mode & ~found.st_mode:
            os.fchmod(number, mode)
    except BaseException:
        os.close(number)
        raise
    return number


def give_group(path: Path, mode: int) -> None:
    """Set the mode of a file that another library has made for its owner alone."""
    if mode & 0o070:
        path.chmod(mode)


class FileDraft:
    """A file that is being written, and is not at its place yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # `mkstemp` opens with O_EXCL and O_NOFOLLOW, mode 0600, a random name.
        number, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=PARTIAL, dir=path.parent)
        self._made = Path(name)
        self._file = os.fdopen(number, "wb")
        self._syncing = threading.Lock()  # it may run in a thread when the task that waits for it is cancelled

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def sync(self) -> None:
        """Have all of it on the disk. May take a while, and be called in a thread."""
        with self._syncing:
            self._file.flush()
            os.fsync(self._file.fileno())

    def put_there(self, *, replace: bool = False) -> None:
        """Put what was synced at its place. Unless it replaces what is there, a name that is taken is `Exists`: of two
        that are written at once, one is there in the end, and the other one is told so.
        """
        if replace:
            self._made.replace(self._path)
        else:
            self._put_new()
        sync_folder(self._path.parent)

    def discard(self) -> None:
        """Close it. If it was not put at its place, it is removed."""
        with self._syncing:
            with contextlib.suppress(OSError):  # a full disk was reported by what wrote
                self._file.close()
            with contextlib.suppress(OSError):
                self._made.unlink()

    def _put_new(self) -> None:
        try:
            os.link(self._made, self._path, follow_symlinks=False)
        except FileExistsError as error:
            raise errors.Exists(f"{self._path} is there already; name another file, or remove it") from error
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            probes.hit("files.no-hard-links")
            self._put_reserved()

    def _put_reserved(self) -> None:
        """The same where a file cannot have two names: an empty one takes the place first."""
        try:
            os.close(os.open(self._path, _NEW, 0o600))
        except FileExistsError as error:
            raise errors.Exists(f"{self._path} is there already; name another file, or remove it") from error
        self._made.replace(self._path)


@contextlib.contextmanager
def draft(path: Path) -> Iterator[FileDraft]:
    """A file to be written. It is gone at the end of the block, also at its interruption, unless it was put there."""
    made = FileDraft(path)
    try:
        yield made
    finally:
        made.discard()


def write(path: Path, data: bytes, *, replace: bool) -> None:
    """A whole file at once. `BadInput` if it cannot be written."""
    try:
        with draft(path) as made:
            made.write(data)
            made.sync()
            made.put_there(replace=replace)
    except OSError as error:
        raise errors.BadInput(f"{path} cannot be written: {error.strerror}") from error


def read_secret(path: Path, *, bytes_max: int) -> bytes:
    """The first bytes of a file of keys. `BadInput` if others can read it: one of this user is for this user alone; one
    of another user (root, where secrets are mounted) may be readable for a group.
    """
    try:
        with path.open("rb") as file:
            # Of the open file: under the path another one may stand by now.
            found = os.fstat(file.fileno())
            too_wide = 0o077 if found.st_uid == os.geteuid() else 0o027
            if stat.S_ISREG(found.st_mode) and found.st_mode & too_wide:
                mode = f"{stat.S_IMODE(found.st_mode):04o}"
                raise errors.BadInput(f"{path} has mode {mode}, so others can read its keys: chmod 600 {path}")
            return file.read(bytes_max)
    except OSError as error:
        raise errors.BadInput(f"cannot read the keys in {path}: {error.strerror}") from error


def sync_folder(path: Path) -> None:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
