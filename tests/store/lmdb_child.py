"""Other processes for the tests of the embedded engine: `python -m tests.store.lmdb_child ROLE FOLDER [ARGUMENT...]`.

Each role is a function below. A child says things line by line on its output, and waits for lines on its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path

import lmdb

from worldline.base import env_os, errors, limits
from worldline.store import kv
from worldline.store.lmdb import lmdb_driver as engines

ROOT = Path(__file__).parents[2]
VALUE = b"v" * 32 * limits.KIB


class Child:
    """The parent's end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, role: str, folder: Path, *arguments: object) -> Child:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.store.lmdb_child", role, str(folder), *map(str, arguments)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        return cls(process)

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            return (await self.process.stdout.readline()).decode().strip()

    async def lines(self) -> list[str]:
        """What is left to be said, until the child ends."""
        found = []
        while line := await self.line():
            found.append(line)
        return found

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")

    async def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        self.let_go()

    async def end(self) -> list[str]:
        """Let it run to its end, which must be a good one."""
        self.go()
        left = await self.lines()
        assert await self.process.wait() == 0
        self.let_go()
        return left

    def let_go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def wait_for_go() -> None:
    sys.stdin.readline()


def create(key: bytes, value: bytes = b"") -> kv.Batch:
    batch = kv.Batch()
    batch.absent(key)
    batch.put(key, value)
    return batch


async def opened(folder: Path, *, map_bytes: int = limits.LMDB_MAP_BYTES) -> kv.Engine:
    return await engines.open(folder, env_os.OsEnv(), create=True, map_bytes=map_bytes)


# --- Roles ---


async def write_for(folder: Path, name: str, seconds: str, map_bytes: str) -> None:
    """Commit one value after the other for some time, then say how many."""
    engine = await opened(folder, map_bytes=int(map_bytes))
    say("open")
    wait_for_go()
    count = 0
    deadline = time.monotonic() + float(seconds)
    while time.monotonic() < deadline:
        [outcome] = await engine.commit(create(f"{name}/{count:06d}".encode(), VALUE))
        assert isinstance(outcome, kv.Ok)
        count += 1
        if count % 8 == 0:
            page = (await engine.read(kv.Range(name.encode() + b"/", name.encode() + b"0", 2, reverse=True))).page(0)
            assert page.items[0][0] == f"{name}/{count - 1:06d}".encode()
    await engine.close()
    say(str(count))


async def write_for_ever(folder: Path, name: str) -> None:
    """Commit, and say each number when it is acked."""
    engine = await opened(folder)
    for count in range(1_000_000):
        [outcome] = await engine.commit(create(f"{name}/{count:06d}".encode(), b"%d" % count * 100))
        assert isinstance(outcome, kv.Ok)
        say(str(count))


async def write_once(folder: Path, key: str, size: str) -> None:
    """Commit a value of this size, in as many keys as it takes, when told to."""
    engine = await opened(folder)
    say("open")
    wait_for_go()
    batch = create(key.encode())
    for index in range(int(size) // len(VALUE)):
        batch.put(f"{key}/{index:06d}".encode(), VALUE)
    [outcome] = await engine.commit(batch)
    say(type(outcome).__name__)
    wait_for_go()
    await engine.close()


async def forgetful(folder: Path, secret: str) -> None:
    """Write secrets and delete them; when told to, go on writing other things; then end when told to."""
    engine = await opened(folder)
    for turn in range(20):
        batch = create(b"turn/%d" % turn)
        for index in range(40):
            batch.put(b"secret/%d/%d" % (turn, index), (secret * 20).encode())
        await engine.commit(batch)
    batch = create(b"forgotten")
    batch.delete_range(b"secret/", b"secret0")
    await engine.commit(batch)
    say("forgotten")
    wait_for_go()
    for turn in range(60):
        await engine.commit(create(b"later/%d" % (turn * 7_919 % 60)))
    say("wrote")
    wait_for_go()
    await engine.close()


async def wait_for(folder: Path, prefix: str, poll_ms: str) -> None:
    """Wait for a hint; the slow look comes after this time only."""
    limits.HINT_POLL_MS = int(poll_ms)
    engine = await opened(folder)
    seen = (await engine.read()).seen
    waiting = asyncio.ensure_future(engine.wait(prefix.encode(), seen, 30_000))
    await asyncio.sleep(0)
    say("open")
    say("woken" if await waiting else "timeout")
    await engine.close()


async def hold(folder: Path, what: str) -> None:
    """Hold LMDB's write lock, a reader, or every reader that is free, until told to let go."""
    db = lmdb.open(str(folder), map_size=limits.LMDB_MAP_BYTES)
    held = [db.begin(write=what == "writer")]
    with contextlib.suppress(lmdb.ReadersFullError):
        while what == "all readers":
            held.append(db.begin())
    say("held")
    wait_for_go()
    for txn in held:
        txn.abort()
    db.close()


async def full(folder: Path, room: str) -> None:
    """Write until the file may not grow any more; go on when it may."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    engine = await opened(folder)
    await engine.commit(create(b"before", b"1"))
    size = (folder / "data.mdb").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + int(room), resource.RLIM_INFINITY))
    acked = 0
    try:
        while True:
            batch = create(b"fill/%06d" % acked)
            batch.put(b"fill/%06d/value" % acked, VALUE)
            await engine.commit(batch)
            acked += 1
    except errors.StoreFull as error:
        say(f"full: {error}")
    for _ in range(3):  # it stays full, and says so each time
        try:
            await engine.commit(create(b"more", VALUE))
        except errors.StoreFull:
            say("still full")
    page = (await engine.read(kv.Range(b"a", b"z"))).page(0)
    assert [key for key, _ in page.items if not key.endswith(b"value")] == [
        b"before",
        *(b"fill/%06d" % index for index in range(acked)),
    ], "nothing of a refused batch, all of the others"
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert await engine.commit(create(b"after", VALUE)) == [kv.Ok()]
    await engine.close()
    say("recovered")


async def broken(folder: Path, which: str) -> None:
    """Take away the file under a commit: its data, or the header page that makes it valid."""
    engine = await opened(folder)
    await engine.commit(create(b"before", b"1"))
    _replace_file(folder, header=which == "header")
    outcomes = await engine.commit(create(b"lost"), create(b"lost too"))
    say(" ".join(type(outcome).__name__ for outcome in outcomes))
    for call in (engine.commit(create(b"more")), engine.read(kv.Get(b"before")), engine.durability()):
        try:
            await call
        except errors.StoreFailed:
            say("failed")
    again = await opened(folder)  # the failed one is not closed yet, and not in the way
    answers = (await again.read(kv.Get(b"before"), kv.Get(b"lost"), kv.Get(b"lost too"))).answers
    assert answers[0] == b"1"
    assert answers[1] == answers[2], "all of a group or nothing"
    assert await again.commit(create(b"after")) == [kv.Ok()]
    await engine.close()
    assert (await again.read(kv.Get(b"after"))).answers == [b""]
    await again.close()
    say("reopened")


def _replace_file(folder: Path, *, header: bool) -> None:
    """LMDB writes headers through a second, synchronous file number; find the one meant and point it elsewhere."""
    data = folder / "data.mdb"
    for path in Path("/proc/self/fd").iterdir():
        if path.is_symlink() and path.readlink() == data:
            info = Path("/proc/self/fdinfo", path.name).read_text()
            flags = int(info.split("flags:")[1].split()[0], 8)
            if bool(flags & os.O_DSYNC) == header:
                os.dup2(os.open("/dev/full", os.O_WRONLY) if header else os.open(data, os.O_RDONLY), int(path.name))
                return
    raise AssertionError


async def as_nobody(folder: Path) -> None:
    """Open without the right to; say what that gives."""
    with tempfile.TemporaryDirectory() as scratch:
        lmdb.open(scratch).close()  # imports the rest of the driver, which nobody may not read
    if os.getuid() == 0:
        os.setuid(65534)
    try:
        await engines.open(folder, env_os.OsEnv(), create=False)
    except errors.Error as error:
        say(f"{type(error).__name__}: {error}")


async def little_memory(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 * 1024 * limits.MIB, resource.RLIM_INFINITY))
    try:
        await opened(folder)
    except errors.Error as error:
        say(f"{type(error).__name__}: {error}")


async def read_all(folder: Path) -> None:
    """Open and read what is there; say what that gives. A child, because a damaged file may end the process."""
    try:
        engine = await engines.open(folder, env_os.OsEnv(), create=False)
    except errors.Error as error:
        say(f"{type(error).__name__}: {error}")
        return
    try:
        found = (await engine.read(kv.Range(b"\x00", b"\xff", 100_000, 1 << 30))).page(0)
        say(f"read {len(found.items)}")
    except errors.Error as error:
        say(f"{type(error).__name__}: {error}")
    try:
        await engine.commit(create(b"new"))
        say("wrote")
    except errors.Error as error:
        say(f"{type(error).__name__}: {error}")
    await engine.close()


async def fork(folder: Path) -> None:
    """Use the parent's engine, and open another, in a forked child."""
    engine = await opened(folder)
    await engine.commit(create(b"parent"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            await engine.read(kv.Get(b"parent"))
        except errors.StoreFailed as error:
            say(f"{type(error).__name__}: {error}")
            code = 0
        try:
            await opened(folder)
            code = 1
        except errors.StoreUnavailable as error:
            say(f"{type(error).__name__}: {error}")
        os._exit(code)
    _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - nothing else runs here
    assert os.waitstatus_to_exitcode(status) == 0
    assert await engine.commit(create(b"parent again")) == [kv.Ok()]
    await engine.close()


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:]))
