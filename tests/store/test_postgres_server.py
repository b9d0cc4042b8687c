"""The test server itself: as root and as a user, shared by processes, and gone whenever its users are."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance import batches
from tests.servers import postgres as servers
from tests.store.postgres_kit import Place

ROOT = Path(__file__).parents[2]

# Imports come first: a user who is nobody may not be able to read where the interpreter's packages are.
CHILD = """
import asyncio, os, sys
from tests.conformance import batches
from tests.servers import postgres as servers
from tests.store.postgres_kit import Place
uid = int(sys.argv[1])
if uid != os.getuid():
    servers._binaries(18)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
async def use(server):
    place = Place(server)
    engine = await place.open()
    await batches.ok(engine, batches.create(b"a", b"1"))
    print(server.folder, (server.data / "PG_VERSION").stat().st_uid, flush=True)
    await place.aclose()
server = servers.shared() if sys.argv[2] == "shared" else servers.start()
asyncio.run(use(server))
sys.stdin.read()
"""


def _child(uid: int, kind: str = "own", run: str = "") -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_TESTRUNUID"}
    environment |= {"PYTHONPATH": f"{ROOT}/src:{ROOT}"} | ({"PYTEST_XDIST_TESTRUNUID": run} if run else {})
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(uid), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )


def _told(child: subprocess.Popen[str]) -> tuple[Path, int]:
    assert child.stdout is not None
    folder, owner = child.stdout.readline().split()
    return Path(folder), int(owner)


def _finish(child: subprocess.Popen[str]) -> int:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.close()
    child.stdout.close()
    return child.wait(60)


def _postmaster(folder: Path) -> int:
    return int((folder / "data" / "postmaster.pid").read_text().split()[0])


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _users() -> list[int]:
    """This user, and if that is root, an ordinary one as well."""
    me = os.getuid()
    return [me, pwd.getpwnam("nobody").pw_uid] if me == 0 else [me]


@pytest.mark.parametrize("uid", _users())
def test_a_server_runs_for_root_and_for_a_user_and_never_as_root(uid: int) -> None:
    child = _child(uid)
    folder, owner = _told(child)
    postmaster = _postmaster(folder)
    assert owner != 0
    assert (Path("/proc") / str(postmaster)).stat().st_uid == owner
    assert owner == (pwd.getpwnam("nobody").pw_uid if uid == 0 else uid)
    assert _finish(child) == 0
    _until(lambda: not folder.exists() and not _runs(postmaster))


def test_a_server_goes_with_its_user_however_that_ends() -> None:
    child = _child(os.getuid())
    folder, _ = _told(child)
    postmaster = _postmaster(folder)
    child.send_signal(signal.SIGKILL)
    assert _finish(child) == -signal.SIGKILL
    _until(lambda: not folder.exists() and not _runs(postmaster))


def test_processes_of_one_run_share_a_server_until_the_last_one_goes() -> None:
    run = os.urandom(8).hex()
    first = _child(os.getuid(), "shared", run)
    folder, _ = _told(first)
    second = _child(os.getuid(), "shared", run)
    assert _told(second)[0] == folder
    postmaster = _postmaster(folder)
    assert _finish(first) == 0
    assert _runs(postmaster)
    assert folder.exists()
    assert _finish(second) == 0
    _until(lambda: not folder.exists() and not _runs(postmaster))


async def test_a_server_is_private_and_durable_by_default() -> None:
    server = servers.start()
    place = Place(server)
    raw = await place.raw()
    assert await raw.fetchval("SHOW listen_addresses") == ""
    assert [await raw.fetchval(f"SHOW {name}") for name in ("fsync", "synchronous_commit", "full_page_writes")] == [
        "on"
    ] * 3
    await place.open()
    await place.aclose()
    server.stop("immediate")
    server.start()
    engine = await place.open(create=False)
    await batches.ok(engine, batches.create(b"a", b"1"))
    await place.aclose()
    server.close()
    server.close()
    assert not server.folder.exists()
