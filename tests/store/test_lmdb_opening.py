"""Opening a folder under hard conditions: on a full disk, and beside a process that has the same number."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from worldline.base import env_os, limits
from worldline.store.lmdb import lmdb_driver
from worldline.store.lmdb import store_folder as lmdb_folder

DISK_BYTES = 4 * 1024 * 1024

# Opens the store and says how that went; stays until its input ends.
OPENING = """
import asyncio, os, sys
from pathlib import Path
from worldline.base import env_os, errors
from worldline.store import kv
from worldline.store.lmdb import lmdb_driver

async def main():
    try:
        engine = await lmdb_driver.open(Path(sys.argv[1]), env_os.OsEnv(), create=False)
        await engine.read(kv.Get(b"key"))
    except errors.Error as error:
        print(type(error).__name__, error, flush=True)
        return
    print("open", os.getpid(), flush=True)
    sys.stdin.read()
    await engine.read(kv.Get(b"key"))
    await engine.close()
    print("closed", flush=True)

asyncio.run(main())
"""


def _make(folder: Path) -> None:
    async def make() -> None:
        await (await lmdb_driver.open(folder, env_os.OsEnv(), create=True)).close()

    asyncio.run(make())


def _opening(folder: Path, *before: str) -> subprocess.Popen[str]:
    command = [*before, sys.executable, "-c", OPENING, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _fill(ballast: Path) -> None:
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_the_lock_file_has_its_room_before_it_is_mapped(tmp_path: Path) -> None:
    _make(tmp_path)
    found = (tmp_path / lmdb_folder.LOCK).stat()
    assert found.st_blocks * 512 >= limits.LMDB_LOCK_BYTES
    readers = 64 * limits.LMDB_READERS_MAX
    assert found.st_size >= readers


def test_a_full_disk_is_found_before_the_lock_file_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(number: int, start: int, size: int) -> None:
        del number, start, size
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        lmdb_folder.reserve_lock(tmp_path, limits.LMDB_LOCK_BYTES)
    assert not (tmp_path / lmdb_folder.LOCK).exists()


def test_opening_on_a_full_disk_without_a_lock_file_says_so(tmp_path: Path) -> None:
    """Not by a bus error."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("nothing may be mounted here")
    try:
        _make(disk / "store")
        (disk / "store" / lmdb_folder.LOCK).unlink()
        _fill(disk / "ballast")
        with _opening(disk / "store") as child:
            said, _ = child.communicate(timeout=30)
        assert said.startswith("StoreFull no space left for the store"), (child.returncode, said)
        (disk / "ballast").unlink()
        with _opening(disk / "store") as child:
            said, _ = child.communicate(timeout=30)
        assert said.startswith("open "), said
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_process_with_the_same_number_is_refused_and_the_other_goes_on(tmp_path: Path) -> None:
    """LMDB tells processes apart by their numbers, and two containers may use the same."""
    alone = ["unshare", "--pid", "--fork"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no process namespace may be made here")
    _make(tmp_path)
    with _opening(tmp_path, *alone) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "open 1\n"
        with _opening(tmp_path, *alone) as second:
            said, _ = second.communicate(timeout=30)
        assert said.startswith("StoreUnavailable another process has the store in"), said
        assert "the same process id, 1" in said
        with _opening(tmp_path) as third:
            assert third.communicate(timeout=30)[0].endswith("closed\n")
        said, _ = first.communicate(timeout=30)
        assert said == "closed\n"
    with _opening(tmp_path, *alone) as later:
        assert later.communicate(timeout=30)[0] == "open 1\nclosed\n"
