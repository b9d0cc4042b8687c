"""What can be wrong with a folder, its files and its disk: one clear typed error each, and nothing lost."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from tests.store.lmdb_child import VALUE, Child, create, names
from worldline.base import env_os, errors, limits
from worldline.store import kv
from worldline.store.lmdb import lmdb_driver as engines
from worldline.store.lmdb import store_folder as lmdb_folder

MAGIC = struct.pack("=I", 0xBEEFC0DE)


async def filled(folder: Path) -> None:
    engine = await engines.open(folder, env_os.OsEnv(), create=True)
    for turn in range(3):
        batch = create(b"guard/%d" % turn)
        for index in range(50):
            batch.put(b"value/%d/%03d" % (turn, index), VALUE)
        assert await engine.commit(batch) == [kv.Ok()]
    await engine.close()


async def refused(folder: Path, error: type[errors.Error], *, create: bool = False) -> str:
    with pytest.raises(error) as caught:
        await engines.open(folder, env_os.OsEnv(), create=create)
    text = str(caught.value)
    assert "\n" not in text
    assert str(folder) in text
    assert not engines._REGISTRY
    return text


# --- The folder ---


async def test_a_missing_folder_is_not_made_unasked(tmp_path: Path) -> None:
    await refused(tmp_path / "absent", errors.StoreMissing)
    assert not (tmp_path / "absent").exists()
    (tmp_path / "empty").mkdir()
    await refused(tmp_path / "empty", errors.StoreMissing)
    assert names(tmp_path / "empty") == []
    (tmp_path / "empty" / "data.mdb").touch()
    await refused(tmp_path / "empty", errors.StoreMissing)
    assert names(tmp_path / "empty") == ["data.mdb"]


async def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    engine = await engines.open(tmp_path / "a" / "b" / "c", env_os.OsEnv(), create=True)
    await engine.close()
    engine = await engines.open(tmp_path / "a" / "b" / "c", env_os.OsEnv(), create=False)
    await engine.close()


@pytest.mark.parametrize("below", ["", "inside"])
@pytest.mark.parametrize("create", [True, False])
async def test_a_file_is_not_a_folder(tmp_path: Path, below: str, create: bool) -> None:
    (tmp_path / "file").write_text("hello")
    expected = errors.StoreMissing if below and not create else errors.BadUrl
    await refused(tmp_path / "file" / below, expected, create=create)
    assert (tmp_path / "file").read_text() == "hello"


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700)
    shutil.rmtree(folder)


@pytest.mark.parametrize("forbidden", ["store", "store/data.mdb", "store/lock.mdb"])
async def test_a_folder_without_permission(shared_folder: Path, forbidden: str) -> None:
    await filled(shared_folder / "store")
    for path in (shared_folder / "store").iterdir():
        path.chmod(0o777)
    (shared_folder / "store").chmod(0o777)
    (shared_folder / forbidden).chmod(0)
    child = await Child.start("as_nobody", shared_folder / "store")
    [line] = await child.end()
    assert line.startswith("StoreUnavailable: no permission"), line


# --- The files ---


def cut(data: Path, size: int) -> None:
    os.truncate(data, size)


def overwrite(data: Path, begin: int, with_: bytes) -> None:
    with data.open("r+b") as file:
        file.seek(begin)
        file.write(with_)


def another_version(data: Path) -> None:
    """Both headers name a data format that no LMDB has."""
    head = bytearray(data.read_bytes()[:8192])
    for page in (0, 4096):
        at = head.index(MAGIC, page) + 4
        head[at : at + 4] = struct.pack("=I", 99)
    overwrite(data, 0, bytes(head))


def foreign(data: Path) -> None:
    shutil.rmtree(data.parent)
    with lmdb.open(str(data.parent)) as db, db.begin(write=True) as txn:
        txn.put(b"somebody", b"else's")


DAMAGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "no header": (lambda data: overwrite(data, 0, b"garbage!" * 2000), ["Corrupt"]),
    "zeros for a header": (lambda data: overwrite(data, 0, bytes(8192)), ["Corrupt"]),
    "cut in the header": (lambda data: cut(data, 100), ["Corrupt"]),
    "cut behind the header": (lambda data: cut(data, 8192), ["Corrupt"]),
    "cut to nothing": (lambda data: cut(data, 0), ["StoreMissing"]),
    "zeros for pages": (lambda data: overwrite(data, 8192, bytes(data.stat().st_size - 8192)), ["Corrupt"]),
    "noise for pages": (lambda data: overwrite(data, 8192, b"noise" * (data.stat().st_size // 5)), ["Corrupt"]),
    "another version": (another_version, ["StoreVersion"]),
    "somebody else's file": (foreign, ["StoreVersion"]),
    "a lock file of noise": (lambda data: (data.parent / "lock.mdb").write_bytes(b"noise" * 1000), ["read", "wrote"]),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_a_damaged_file_is_one_typed_error(tmp_path: Path, name: str) -> None:
    damage, expected = DAMAGES[name]
    await filled(tmp_path / "store")
    damage(tmp_path / "store" / "data.mdb")
    child = await Child.start("read_all", tmp_path / "store")
    lines = await child.end()
    assert [line.split(":")[0].split(" ")[0] for line in lines] == expected, lines


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
async def test_a_file_that_lost_its_end_does_not_end_the_process(tmp_path: Path, kept: float) -> None:
    """Which reads and writes meet the hole depends on where pages lie; none may be a bus error or a wrong answer."""
    await filled(tmp_path / "store")
    data = tmp_path / "store" / "data.mdb"
    cut(data, int(data.stat().st_size * kept))
    child = await Child.start("read_all", tmp_path / "store")
    lines = await child.end()
    assert lines
    assert any(line.startswith("Corrupt: ") for line in lines), lines


# --- The disk ---


@pytest.mark.parametrize("room", [0, 100_000, 1_000_001])
async def test_a_full_disk_refuses_writes_until_there_is_room(tmp_path: Path, room: int) -> None:
    child = await Child.start("full", tmp_path, room)
    lines = await child.end()
    assert lines[0].startswith(f"full: no space left for the store in {tmp_path}")
    assert lines[1:] == ["still full"] * 3 + ["recovered"]


@pytest.mark.parametrize("which", ["data", "header"])
async def test_a_failed_write_is_unknown_and_then_the_store_must_be_opened_again(tmp_path: Path, which: str) -> None:
    child = await Child.start("broken", tmp_path, which)
    assert await child.end() == ["CommitUnknown CommitUnknown", "failed", "failed", "failed", "reopened"]


async def test_too_little_address_space_is_said_so(tmp_path: Path) -> None:
    child = await Child.start("little_memory", tmp_path)
    [line] = await child.end()
    assert line.startswith("StoreUnavailable: no address space"), line


async def test_an_error_of_the_disk_is_no_full_disk(tmp_path: Path) -> None:
    """Only where there is hardly any room is an I/O error taken for a write cut short."""
    assert os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize > limits.LMDB_FREE_BYTES_LOW
    await filled(tmp_path)
    assert not lmdb_folder.is_full(tmp_path, errno.EIO)
    assert not lmdb_folder.is_full(tmp_path / "gone", errno.EIO)
    assert lmdb_folder.is_full(tmp_path, errno.ENOSPC)


# --- Forks ---


async def test_a_forked_child_is_told_to_start_otherwise(tmp_path: Path) -> None:
    child = await Child.start("fork", tmp_path)
    lines = await child.end()
    assert [line.split(":")[0] for line in lines] == ["StoreFailed", "StoreUnavailable"]
    assert all("spawn" in line for line in lines), lines


async def test_opening_the_files_behind_our_back_is_a_typed_error(tmp_path: Path) -> None:
    await filled(tmp_path)
    with lmdb.open(str(tmp_path)):
        await refused(tmp_path, errors.StoreUnavailable)
    engine = await engines.open(tmp_path, env_os.OsEnv(), create=False)
    await asyncio.gather(engine.close(), engine.close())


@pytest.mark.probe("lmdb.buffers-forgotten")
async def test_a_store_that_cannot_be_opened_again_answers_every_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the scrub of another process the file is opened again. If that fails, no commit of the group is left
    without an answer, and the store says that it is to be opened again.
    """
    engine = await engines.open(tmp_path, env_os.OsEnv(), create=True)
    await engine.commit(create(b"there"))

    def full(folder: Path, **_: object) -> lmdb.Environment:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    store = engine._store
    assert isinstance(store, engines._Store)
    store._scrubs = b"another process has scrubbed"
    queued = threading.Event()

    async def release() -> None:
        queued.set()

    with monkeypatch.context() as patched:
        patched.setattr(engines, "_open_db", full)
        # The writer thread is held until all three wait: else it may begin a group with the first of them alone.
        _, *said, _ = await asyncio.gather(
            engine._chore(lambda: queued.wait(60)),
            *(engine.commit(create(b"key/%d" % number)) for number in range(3)),
            release(),
            return_exceptions=True,
        )
    assert [type(each) for each in said] == [errors.StoreFull] * 3
    with pytest.raises(errors.StoreFailed, match="open it again"):
        await engine.commit(create(b"later"))
    await engine.close()
    again = await engines.open(tmp_path, env_os.OsEnv(), create=False)
    read = await again.read(kv.Range(b"\x01", b"\xff"))
    assert [key for key, _ in read.page(0).items if key.startswith((b"there", b"key", b"later"))] == [b"there"]
    await again.close()
