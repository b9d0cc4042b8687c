"""What a folder of objects promises beyond the conformance suite: syncs, crashes, full disks, planted links."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import aio
from worldline.base import errors, limits
from worldline.store.objects import folder_objects as objects_folder

ROOT = Path(__file__).parents[2]
NOBODY = 65_534
FAR_FUTURE_US = 10**18


class Opened:
    """A store on a folder; closed with the test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._opened: list[objects_folder.FolderObjects] = []

    async def open(self, *, create: bool = True) -> objects_folder.FolderObjects:
        store = await objects_folder.open(self.root, create=create)
        self._opened.append(store)
        return store

    async def aclose(self) -> None:
        while self._opened:
            await self._opened.pop().close()


@pytest.fixture
def folder(tmp_path: Path) -> Opened:
    return Opened(tmp_path / "objects")


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


async def names(store: objects_folder.FolderObjects) -> list[str]:
    return [found.name for found in await store.list("")]


# --- Syncs -------------------------------------------------------------------------------------------------


@contextmanager
def traced(root: Path) -> Iterator[list[str]]:
    """The syncs, links and unlinks below `root`, in order. A temporary file is called `*`."""
    calls: list[str] = []
    patch = pytest.MonkeyPatch()
    fsync, link, unlink = os.fsync, os.link, os.unlink

    def where(descriptor: int) -> str:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        return "*" if path.name.startswith(objects_folder.TEMPORARY) else str(path.relative_to(root.parent))

    def traced_fsync(descriptor: int) -> None:
        calls.append(f"sync {where(descriptor)}")
        fsync(descriptor)

    def traced_link(*args: object, **kwargs: object) -> None:
        calls.append(f"link {args[1]}")
        link(*args, **kwargs)  # type: ignore[arg-type]

    def traced_unlink(name: str, *, dir_fd: int) -> None:
        calls.append("unlink *" if name.startswith(objects_folder.TEMPORARY) else f"unlink {name}")
        unlink(name, dir_fd=dir_fd)

    for name, function in (("fsync", traced_fsync), ("link", traced_link), ("unlink", traced_unlink)):
        patch.setattr(os, name, function)
    try:
        yield calls
    finally:
        patch.undo()


async def test_an_object_is_synced_before_and_its_folders_before_the_answer(folder: Opened) -> None:
    with traced(folder.root) as calls:
        store = await folder.open()
        assert calls == ["sync ."]
        calls.clear()
        await store.put("a/b/c", b"x")
        assert calls == ["sync objects", "sync objects/a", "sync *", "link c", "unlink *", "sync objects/a/b"]
        calls.clear()
        await store.put("a/b/d", b"x")
        assert calls == ["sync *", "link d", "unlink *", "sync objects/a/b"]
        calls.clear()
        await store.put("e", b"x")
        assert calls == ["sync *", "link e", "unlink *", "sync objects"]
        calls.clear()
        await store.delete("a/b/c")
        await store.delete("a/b/c")
        assert calls == ["unlink c", "sync objects/a/b"] * 2


async def test_a_folder_that_another_process_made_is_synced_too(folder: Opened) -> None:
    await (await folder.open()).put("a/b/c", b"x")
    with traced(folder.root) as calls:
        other = await folder.open()
        assert calls == ["sync ."]
        calls.clear()
        await other.put("a/b/d", b"x")
        assert calls == ["sync objects", "sync objects/a", "sync *", "link d", "unlink *", "sync objects/a/b"]


async def test_a_folder_that_was_removed_is_made_and_synced_again(folder: Opened) -> None:
    store = await folder.open()
    await store.put("a/b", b"x")
    await store.delete("a/b")
    (folder.root / "a").rmdir()
    with traced(folder.root) as calls:
        await store.put("a/b", b"y")
        assert calls[0] == "sync objects"
    assert await store.get("a/b") == b"y"


async def test_many_known_folders_are_forgotten_not_kept_for_ever(
    folder: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OBJECT_FOLDERS_KNOWN_MAX", 4)
    store = await folder.open()
    for number in range(20):
        await store.put(f"{number}/x", b"")
        assert len(store._known) <= 4
    assert len(await names(store)) == 20


async def test_missing_parents_of_the_root_are_made_and_synced(tmp_path: Path) -> None:
    root = tmp_path / "x" / "y" / "objects"
    with traced(tmp_path) as calls:
        store = await objects_folder.open(root, create=True)
        await store.close()
    assert calls == [f"sync {path.relative_to(tmp_path.parent)}" for path in reversed(root.parents[:3])]


async def test_a_failed_sync_is_an_error_and_leaves_no_object(folder: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await folder.open()
    await store.put("a/first", b"x")

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(errors.StoreUnavailable, match="put a/b") as caught:
            await store.put("a/b", b"x")
        assert isinstance(caught.value.__cause__, OSError)
    assert files(folder.root) == ["a/first"]


# --- The loop is never stopped -------------------------------------------------------------------------------


@contextmanager
def stuck_syncs() -> Iterator[threading.Event]:
    """Syncs that hang until the event is set."""
    release = threading.Event()
    patch = pytest.MonkeyPatch()
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        assert release.wait(30)
        fsync(descriptor)

    patch.setattr(os, "fsync", slow)
    try:
        yield release
    finally:
        release.set()
        patch.undo()


async def test_a_slow_disk_does_not_stop_the_loop(folder: Opened) -> None:
    store = await folder.open()
    await store.put("a/b", b"x")
    with stuck_syncs() as release:
        call = asyncio.ensure_future(store.put("a/c", b"y"))
        for _ in range(20):
            assert await store.get("a/b") == b"x"
        assert not call.done()
        assert await names(store) == ["a/b"], "not visible before it is synced"
        release.set()
        await call
    assert await store.get("a/c") == b"y"


async def test_closing_waits_for_calls_whose_callers_have_gone(folder: Opened) -> None:
    store, other = await folder.open(), await folder.open()
    await store.put("a/first", b"")
    with stuck_syncs() as release:
        call = asyncio.ensure_future(store.put("a/b", b"x"))
        await aio.until(lambda: _has_temporary(folder.root))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        release.set()
        await closing
    assert await other.get("a/b") == b"x"
    assert files(folder.root) == ["a/b", "a/first"]


async def _has_temporary(root: Path) -> bool:
    return any(objects_folder.TEMPORARY in name for name in files(root))


async def test_a_call_cancelled_before_it_began_does_nothing(folder: Opened) -> None:
    store = await folder.open()
    with stuck_syncs() as release:
        running = [asyncio.ensure_future(store.put(f"a/{number}", b"")) for number in range(8)]
        waiting = [asyncio.ensure_future(store.put(f"b/{number}", b"")) for number in range(8)]
        await asyncio.sleep(0)
        for call in waiting:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        release.set()
        await asyncio.gather(*running)
    assert await names(store) == [f"a/{number}" for number in range(8)]


# --- Opening -------------------------------------------------------------------------------------------------


async def test_a_missing_folder_is_not_made_unasked(folder: Opened) -> None:
    with pytest.raises(errors.StoreMissing, match="creating one was not asked for"):
        await folder.open(create=False)
    assert not await asyncio.to_thread(folder.root.exists)
    await (await folder.open()).put("a/b", b"x")
    assert await (await folder.open(create=False)).get("a/b") == b"x"


@pytest.mark.parametrize("below", ["file", "file/x", "file/x/y"])
@pytest.mark.parametrize("create", [True, False])
async def test_a_file_is_not_a_folder(tmp_path: Path, below: str, create: bool) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    with pytest.raises(errors.StoreUnavailable, match="not a folder"):
        await objects_folder.open(tmp_path / below, create=create)
    assert (tmp_path / "file").read_bytes() == b"precious"


@contextmanager
def powerless() -> Iterator[None]:
    """As root, whom no permission stops, be somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("create", [True, False])
async def test_an_unreadable_folder_is_named(folder: Opened, create: bool) -> None:
    await (await folder.open()).put("a/b", b"x")
    folder.root.chmod(0)
    try:
        with powerless(), pytest.raises(errors.StoreUnavailable, match=str(folder.root)) as caught:
            await folder.open(create=create)
        assert isinstance(caught.value.__cause__, PermissionError)
    finally:
        folder.root.chmod(0o755)


async def test_a_folder_that_cannot_be_written_is_named(folder: Opened) -> None:
    store = await folder.open()
    await store.put("a/b", b"x")
    folder.root.chmod(0o755)
    (folder.root / "a" / "b").chmod(0o444)
    (folder.root / "a").chmod(0o555)
    try:
        with powerless():
            with pytest.raises(errors.StoreUnavailable, match="put a/c") as caught:
                await store.put("a/c", b"y")
            assert isinstance(caught.value.__cause__, PermissionError)
            with pytest.raises(errors.StoreUnavailable, match="delete a/b"):
                await store.delete("a/b")
            assert await store.get("a/b") == b"x"
    finally:
        (folder.root / "a").chmod(0o755)


# --- What is not an object ------------------------------------------------------------------------------------


async def test_planted_links_are_not_followed(folder: Opened, tmp_path: Path) -> None:
    store = await folder.open()
    await store.put("in/side", b"mine")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (folder.root / "out").symlink_to(outside)
    (folder.root / "in" / "out").symlink_to(outside)
    (folder.root / "in" / "file").symlink_to(outside / "secret")
    (folder.root / "in" / "dangling").symlink_to(outside / "nothing")

    assert await names(store) == ["in/side"]
    for name in ("out/secret", "in/out/secret", "in/file", "in/dangling", "in/out"):
        with pytest.raises(errors.StoreUnavailable):
            await store.get(name)
    for name in ("out/new", "in/out/new", "out/deep/new"):
        with pytest.raises(errors.StoreUnavailable, match="symbolic link"):
            await store.put(name, b"x")
    for name in ("in/file", "in/dangling", "in/out", "out"):
        with pytest.raises(errors.Exists):
            await store.put(name, b"x")
    with pytest.raises(errors.StoreUnavailable, match="symbolic link"):
        await store.delete("out/secret")
    for name in ("in/file", "in/out"):
        await store.delete(name)
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"


async def test_what_is_not_a_plain_file_is_not_an_object(folder: Opened) -> None:
    store = await folder.open()
    await store.put("a/b", b"x")
    os.mkfifo(folder.root / "a" / "pipe")
    (folder.root / "a" / "README.md").write_text("hello")
    (folder.root / "Upper").mkdir()
    (folder.root / "Upper" / "x").write_text("hello")
    assert await names(store) == ["a/b"]
    with pytest.raises(errors.NotFound):
        await store.get("a/pipe")


async def test_no_name_is_the_folder_of_another(folder: Opened) -> None:
    store = await folder.open()
    await store.put("a/b/c", b"x")
    with pytest.raises(errors.BadInput, match="a/b is a folder"):
        await store.put("a/b", b"y")
    with pytest.raises(errors.BadInput, match="a/b/c is an object"):
        await store.put("a/b/c/d", b"y")
    assert files(folder.root) == ["a/b/c"]


async def test_an_object_cannot_be_written_again_by_mistake(folder: Opened) -> None:
    await (await folder.open()).put("a/b", b"x")
    assert (folder.root / "a" / "b").stat().st_mode & 0o222 == 0


async def test_a_file_larger_than_any_object_is_not_read(folder: Opened) -> None:
    store = await folder.open()
    await store.put("a/b", b"x")
    (folder.root / "a" / "huge").touch()
    os.truncate(folder.root / "a" / "huge", 2 * 1024**3)
    with pytest.raises(errors.Corrupt, match="more than can be put"):
        await store.get("a/huge")


# --- Left by the dead ------------------------------------------------------------------------------------------


@pytest.mark.probe("folder.temporary-name-taken")
async def test_leftovers_are_invisible_in_nobodys_way_and_swept(folder: Opened) -> None:
    store = await folder.open()
    await store.put("a/b", b"x")
    left = [folder.root / f"{objects_folder.TEMPORARY}{os.getpid()}-{number}" for number in range(5)]
    left += [folder.root / "a" / f"{objects_folder.TEMPORARY}{os.getpid()}-{number}" for number in range(5)]
    for number, path in enumerate(left):
        path.write_bytes(b"torn")
        os.utime(path, ns=(0, (1_000 + number) * 1_000))
    os.link(folder.root / "a" / "b", folder.root / "a" / f"{objects_folder.TEMPORARY}0-0")  # died after its link

    await store.put("a/c", b"y")
    await store.put("d", b"z")
    assert await names(store) == ["a/b", "a/c", "d"]
    assert [await store.count_temporary(1_007, under=under) for under in ("", "a", "absent")] == [7, 2, 0]
    assert await store.sweep_temporary(FAR_FUTURE_US, under="absent") == 0
    assert await store.sweep_temporary(1_000) == 0
    assert await store.sweep_temporary(1_007) == 7
    assert [path.exists() for path in left] == [False] * 7 + [True] * 3
    assert await store.sweep_temporary(FAR_FUTURE_US) == 4
    assert await store.sweep_temporary(FAR_FUTURE_US) == 0
    assert files(folder.root) == ["a/b", "a/c", "d"]
    assert await store.get("a/b") == b"x"


async def test_what_a_process_has_found_unchanged_for_long_is_swept(folder: Opened) -> None:
    """By its monotonic clock alone: the times of the files are those of 1970, which no clock takes for new."""
    store, other = await folder.open(), await folder.open()
    await store.put("a/b", b"x")
    left, written, other_file = (folder.root / "a" / f"{objects_folder.TEMPORARY}0-{number}" for number in range(3))
    for path in (left, written, other_file):
        path.write_bytes(b"torn")
        os.utime(path, (0, 0))
    assert [await store.sweep_unchanged(now_us, 100) for now_us in (5, 50, 104)] == [0, 0, 0]
    written.write_bytes(b"torn, and more")
    other_file.unlink()
    other_file.write_bytes(b"torn")  # the same name, size and time, but another file
    os.utime(other_file, (0, 0))
    assert await store.sweep_unchanged(105, 100) == 1
    assert [path.exists() for path in (left, written, other_file)] == [False, True, True]
    assert await store.sweep_unchanged(205, 100) == 2
    assert await other.sweep_unchanged(10**15, 100) == 0, "a process that begins has seen nothing for long"
    assert files(folder.root) == ["a/b"]


def body_of(name: str) -> bytes:
    """Up to 300 kB that only this name has, so that a torn or mixed body shows."""
    seed = hashlib.sha256(name.encode()).digest()
    return random.Random(seed).randbytes(int.from_bytes(seed[:4], "big") % 300_000)


class Child:
    """`python this-file TASK ROOT ARGS`: a process of its own on the folder, which writes lines."""

    def __init__(self, task: str, root: Path, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.store.test_objects_folder", task, str(root), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert self.line() == "open"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def rest(self) -> list[str]:
        """The lines up to the end of the process, which is reaped."""
        out, _ = self.process.communicate(timeout=60)
        return [line.decode() for line in out.splitlines(keepends=False)]


def test_kill_at_any_instant_loses_no_acked_object_and_tears_none(tmp_path: Path) -> None:
    root = tmp_path / "objects"
    source = random.Random(9)
    for turn in range(10):
        child = Child("write", root, f"{turn:02x}")
        child.say()
        acked = [child.line() for _ in range(source.randrange(1, 25))]
        child.process.kill()
        acked += [line for line in child.rest() if line in written(turn)]  # a last line may be cut
        aio.run(check_whole(root, acked))
    aio.run(check_swept(root))


def written(turn: int) -> frozenset[str]:
    return frozenset(f"{turn:02x}/{number % 3}/{number:04x}" for number in range(2000))


async def check_whole(root: Path, acked: list[str]) -> None:
    store = await objects_folder.open(root, create=False)
    for name in acked:
        assert await store.get(name) == body_of(name), f"acked {name} is lost"
    for found in await store.list("", count_max=10_000):
        assert await store.get(found.name) == body_of(found.name), f"{found.name} is torn"
    await store.close()


async def check_swept(root: Path) -> None:
    store = await objects_folder.open(root, create=False)
    before = await names(store)
    assert before
    await store.sweep_temporary(FAR_FUTURE_US)
    assert files(root) == before
    await store.close()


def test_of_racing_processes_exactly_one_wins_each_name(tmp_path: Path) -> None:
    root = tmp_path / "objects"
    children = [Child("race", root, str(number)) for number in range(3)]
    for child in children:
        child.say()
    won = [child.rest() for child in children]
    assert sorted(name for names_won in won for name in names_won) == [f"race/{number:03d}" for number in range(200)]
    assert sum(1 for names_won in won if names_won) >= 2, "they did race"

    async def check() -> None:
        store = await objects_folder.open(root, create=False)
        for number, names_won in enumerate(won):
            for name in names_won:
                assert await store.get(name) == b"%d" % number
        await store.close()

    aio.run(check())
    assert len(files(root)) == 200


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    """A file may have 4 kB here: the kernel's refusal in the middle of a write is that of a full disk."""
    root = tmp_path / "objects"
    child = Child("full", root)
    child.say()
    assert child.rest() == ["StoreFull cause OSError", "[]", "[]", "['a/small']"]
    assert files(root) == ["a/small"]


async def serve(task: str, root: Path, *args: str) -> None:
    store = await objects_folder.open(root, create=True)
    say("open")
    await asyncio.to_thread(sys.stdin.readline)
    match task:
        case "write":
            await serve_write(store, *args)
        case "race":
            await serve_race(store, *args)
        case "full":
            await serve_full(store, root)
    await store.close()


async def serve_write(store: objects_folder.FolderObjects, turn: str) -> None:
    async def one(name: str) -> None:
        await store.put(name, body_of(name))
        say(name)

    todo = sorted(written(int(turn, 16)))
    for at in range(0, len(todo), 6):
        await asyncio.gather(*(one(name) for name in todo[at : at + 6]))


async def serve_race(store: objects_folder.FolderObjects, racer: str) -> None:
    async def one(name: str) -> None:
        try:
            await store.put(name, racer.encode())
            say(name)
        except errors.Exists:
            pass

    for number in range(0, 200, 4):
        await asyncio.gather(*(one(f"race/{number + step:03d}") for step in range(4)))


async def serve_full(store: objects_folder.FolderObjects, root: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        await store.put("a/large", b"x" * 100_000)
    except errors.StoreFull as error:
        say(f"StoreFull cause {type(error.__cause__).__name__}")
    say(str(await names(store)))
    say(str(files(root)))
    await store.put("a/small", b"x" * 4096)
    say(str(await names(store)))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
