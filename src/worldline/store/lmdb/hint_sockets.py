"""Hints between the processes that share one LMDB folder: datagrams on unix sockets in `<folder>/hints`.

Every engine binds a `Listener` there, under a random name. After a commit the writer thread tells all names but those
of its own process (`Peers.tell`) which transaction it was and which keys it wrote. Nothing waits: a socket whose queue
is full is told "everything" the next time, a socket whose process is gone is removed by the sender that notices. A new
listener says hello to all others, so no commit has to list the folder.

No guarantee depends on a datagram. Any process that may write the folder can send one; bytes that are no hint mean
"something was written". Where sockets cannot be bound (a path too long, a file system without sockets) there are none,
and the engine's slow look at the number of transactions is all there is.
"""

from __future__ import annotations

import contextlib
import enum
import os
import socket
from collections.abc import Collection
from pathlib import Path

import msgspec

from worldline.base import env as envs
from worldline.base import limits, private_files

FOLDER = "hints"

_NAME_BYTES = 8
_BIND_ATTEMPTS_MAX = 8
_PATH_BYTES_MAX = 100  # the systems' own bounds are 103 and 107
_KEYS, _EVERYTHING, _HELLO = b"k", b"e", b"h"
_TXN_BYTES = 8


class Heard(msgspec.Struct, frozen=True, gc=False):
    """A hint of another process. `keys` is None if the sender could not name them."""

    txn: int
    keys: list[bytes] | None


class Hello(msgspec.Struct, frozen=True, gc=False):
    """Another listener was bound: look into the folder."""


class _Sent(enum.Enum):
    YES = enum.auto()
    LOST = enum.auto()  # its queue is full, most likely; it may be there
    NO_PROCESS = enum.auto()


def encode(txn: int, keys: Collection[bytes]) -> bytes:
    """The keys if they are few, else "everything"."""
    if len(keys) <= limits.HINT_KEYS_MAX:
        named = (len(key).to_bytes(2, "big") + key for key in keys)
        data = b"".join([_KEYS, txn.to_bytes(_TXN_BYTES, "big"), *named])
        if len(data) <= limits.HINT_DATAGRAM_BYTES_MAX:
            return data
    return encode_everything(txn)


def encode_everything(txn: int) -> bytes:
    return _EVERYTHING + txn.to_bytes(_TXN_BYTES, "big")


def decode(data: bytes) -> Heard | Hello:
    kind, number, rest = data[:1], data[1 : 1 + _TXN_BYTES], data[1 + _TXN_BYTES :]
    if kind == _HELLO:
        return Hello()
    txn = int.from_bytes(number, "big")
    if kind != _KEYS or len(number) != _TXN_BYTES:
        return Heard(txn, None)
    keys: list[bytes] = []
    while rest:
        size = 2 + int.from_bytes(rest[:2], "big")
        if len(rest) < max(size, 3):
            return Heard(txn, None)
        keys.append(rest[2:size])
        rest = rest[size:]
    return Heard(txn, keys)


class SocketFolder:
    """The folder of sockets, and how each is named to the system even if the folder's path is long."""

    def __init__(self, path: Path) -> None:
        modes = private_files.modes_in(path.parent)
        with contextlib.suppress(FileExistsError):
            private_files.make_folder(path, modes)
        self._path = path
        self._mode = modes.file
        self._number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._prefix = str(path)
        if len(os.fsencode(path)) + 1 + 2 * _NAME_BYTES > _PATH_BYTES_MAX:
            self._prefix = f"/proc/self/fd/{self._number}"

    def names(self) -> list[str]:
        try:
            return sorted(path.name for path in self._path.iterdir())[: limits.HINT_PEERS_MAX]
        except OSError:
            return []  # the folder was removed: no hints from now on, and the slow look finds what was written

    def bind(self, ear: socket.socket, name: str) -> None:
        ear.bind(f"{self._prefix}/{name}")
        Path(self._prefix, name).chmod(self._mode)  # a process that may write to it may send

    def send(self, mouth: socket.socket, name: str, data: bytes) -> _Sent:
        """Never waits. A socket without a process behind it is removed."""
        try:
            mouth.sendto(data, f"{self._prefix}/{name}")
        except (ConnectionRefusedError, FileNotFoundError):
            self.remove(name)
            return _Sent.NO_PROCESS
        except OSError:
            return _Sent.LOST
        return _Sent.YES

    def remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._number)
        except OSError:
            return  # gone already, or not ours to remove: a socket without a process is harmless

    def close(self) -> None:
        os.close(self._number)


def sockets(folder: Path) -> SocketFolder | None:
    """Those of a store. Hints are a help, not a need: a store on a full disk can still be read."""
    try:
        return SocketFolder(folder / FOLDER)
    except OSError:
        return None


class Listener:
    """One engine's ear. Belongs to the engine's loop."""

    def __init__(self, folder: SocketFolder, env: envs.Env) -> None:
        """Raises OSError where no socket can be bound."""
        self._folder = folder
        self._socket = _datagrams()
        try:
            self.name = self._bind(env)
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def greet(self) -> None:
        """Tell all others that this one is here. It also finds out which of them are gone."""
        for name in self._folder.names():
            if name != self.name:
                self._folder.send(self._socket, name, _HELLO)

    def hear(self) -> list[Heard | Hello]:
        """What has arrived, up to a bound; the rest keeps the socket readable."""
        heard: list[Heard | Hello] = []
        for _ in range(limits.HINT_RING_MAX):
            try:
                heard.append(decode(self._socket.recv(limits.HINT_DATAGRAM_BYTES_MAX)))
            except OSError:
                break
        return heard

    def close(self) -> None:
        self._socket.close()
        self._folder.remove(self.name)

    def _bind(self, env: envs.Env) -> str:
        """A name may be taken by a process that had the same random numbers; then another is tried."""
        for attempt in range(_BIND_ATTEMPTS_MAX):
            name = env.random_bytes(_NAME_BYTES).hex()
            try:
                self._folder.bind(self._socket, name)
            except OSError:
                if attempt + 1 == _BIND_ATTEMPTS_MAX:
                    raise
            else:
                return name
        raise AssertionError


class PeerListeners:
    """The listeners of other processes, as the writer thread tells them.

    `tell` belongs to that thread. The others only set what it looks at next time.
    """

    def __init__(self, folder: SocketFolder) -> None:
        self._folder = folder
        self._socket = _datagrams()
        self._own: dict[str, None] = {}
        self._names: list[str] = []
        self._behind: dict[str, None] = {}
        self._told = 0
        self._changed = True

    def add_own(self, name: str) -> None:
        """A listener of this process: its engine is told directly, not by datagram."""
        self._own[name] = None
        self._changed = True

    def remove_own(self, name: str) -> None:
        self._own.pop(name, None)
        self._changed = True

    def changed(self) -> None:
        self._changed = True

    def tell(self, txn: int, keys: Collection[bytes]) -> None:
        self._told += 1
        if self._changed or self._told % limits.HINT_RELIST_GROUPS == 0:
            # Cleared before the folder is read: a listener that comes meanwhile sets it again.
            self._changed = False
            self._names = [name for name in self._folder.names() if name not in self._own]
        if not self._names:
            return
        data = encode(txn, keys)
        for name in list(self._names):  # a copy: names are removed on the way
            # A datagram before was lost, and with it some keys: only "everything" covers them.
            missed = name in self._behind
            sent = self._folder.send(self._socket, name, encode_everything(txn) if missed else data)
            if sent is _Sent.LOST:
                self._behind[name] = None
            elif missed:
                del self._behind[name]
            if sent is _Sent.NO_PROCESS:
                self._names.remove(name)

    def close(self) -> None:
        self._socket.close()


def _datagrams() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    # The full queue of another process must not make the writer thread wait.
    made.setblocking(False)
    return made
