"""What the tests of the command line share: running a command, stocked stores, and a host in another process."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import worldline as wl
from tests import aio, options
from tests.cli import shop
from worldline import cli
from worldline.inspect import store_queries
from worldline.keys import ready as ready_keys
from worldline.keys import work as work_keys
from worldline.model import ids
from worldline.model.work import WorkState
from worldline.model.world_records import Status
from worldline.store import kv, paging

SHOP = str(Path(shop.__file__))
COMMAND = [sys.executable, "-m", "worldline.cli"]
SECONDS = 120.0  # for what comes soon, on a machine with other things to do


class Said(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)

    @property
    def lines(self) -> list[Any]:
        return [msgspec.json.decode(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, str]:
        found: dict[str, str] = msgspec.json.decode(self.err)["error"]
        return found


class Screen(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def run(*words: object, cwd: Path | None = None, stdin: str = "", terminal: bool = False) -> Said:
    """A command, in this process: quicker than a process of its own, and the same code from the entry point on."""
    out, err = (Screen(), Screen()) if terminal else (io.StringIO(), io.StringIO())
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode(errors="surrogateescape")))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(cwd or Path.cwd()):
            code = cli.main([str(word) for word in words])
    finally:
        sys.stdin = before
    return Said(code, out.getvalue(), err.getvalue())


def spawn(*words: object, cwd: Path, env: dict[str, str] | None = None, seconds: float = 60) -> Said:
    """A command in a process of its own."""
    done = subprocess.run(
        [*COMMAND, *map(str, words)],
        cwd=cwd,
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """Return variables for a process: the caller's, without those that the product reads, and `more`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("WORLDLINE") or name in (options.DOSE, options.SINGLE)
    }
    return {**kept, "PYTHONUNBUFFERED": "1", **(more or {})}


class Dev:
    """A `worldline dev` in a process of its own."""

    def __init__(self, *words: object, cwd: Path) -> None:
        self.seen = ""
        self._process = subprocess.Popen(
            [*COMMAND, "dev", *map(str, words)],
            cwd=cwd,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, text: str, *, count: int = 1) -> None:
        """Until it has written this so often."""
        until(lambda: self.read().count(text) >= count or self._process.poll() is not None, f"{text!r}: {self.pid}")
        assert self.read().count(text) >= count, self.seen

    def read(self) -> str:
        """All that it has written so far."""
        assert self._process.stdout is not None
        found = self._process.stdout.read()
        self.seen += (found or b"").decode()
        return self.seen

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.send(number)
        code = self._process.wait(SECONDS)
        self.read()
        return code

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def dev(*words: object, cwd: Path) -> Iterator[Dev]:
    started = Dev(*words, cwd=cwd)
    try:
        started.wait_for('"hosting"' if "--json" in words else "[hosting]")
        yield started
    finally:
        started.close()


def until(holds: Callable[[], bool], what: str = "the condition") -> None:
    """Ask again until it holds; the process that must bring it about is not ours to wait on otherwise."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.02)


def wait_for(file: Path, *texts: bytes) -> None:
    """Until one of these is in a file that a process writes."""
    until(lambda: any(each in file.read_bytes() for each in texts), f"{texts} in {file}")


# --- Stores ----------------------------------------------------------------------------------------------------------


def stock(store: str) -> None:
    """Worlds in all kinds of states, in a store that nobody hosts any more."""
    aio.run(stock_now(store))


async def stock_now(store: str, codec: wl.ops.AesGcm | None = None) -> None:
    async with wl.open(store, host=shop.app, codec=codec) as universe:
        alice = await universe.ensure("alice", shop.app, labels={"team": "red"})
        await (await alice.send(shop.Deposited("bob", 5))).applied()
        assert await alice.run(shop.greet("Alice"), id="hello") == "HELLO ALICE"
        with contextlib.suppress(wl.RunFailed):
            await alice.run(shop.broken(), id="bad")
        for call, run_id in (
            (shop.nap(), "nap"),
            (shop.approval("o1"), "order"),
            (shop.call_flaky("o2"), "flaky"),
            (shop.call_stuck(), "stuck"),
        ):
            assert (await alice.start(call, id=run_id)).id == run_id
        await aio.journaled(await alice.send(shop.Deposited("bob", -1)))
        await aio.until(lambda: _settled(universe))
        await universe.ensure("bob", shop.app)
        await (await universe.ensure("carol", shop.app)).change(status=Status.PAUSED)


async def _settled(universe: wl.Universe) -> bool:
    """Whether the effects have failed as they must; the nap and the approval's limit are timers."""
    found = [each.work async for each in store_queries.open_work(universe._connection, None)]
    effects = [work for work in found if work.error]
    machine = await universe.world("alice")._handle.machine()
    told = any(pending.parked for pending in machine.work.open.values())
    return len(found) == 4 and len(effects) == 2 and any(work.state is WorkState.PARKED for work in effects) and told


def copy(store: Path, to: Path) -> Path:
    shutil.copytree(store, to, ignore=shutil.ignore_patterns("hints", "workers"))
    return to


def with_universe(store: str | Path, do: Callable[[wl.Universe], Awaitable[Any]]) -> Any:
    """Something done to a store, with the shop at hand."""

    async def main() -> Any:
        async with wl.open(str(store)) as universe:
            universe._connection.programs[shop.app.name] = shop.app
            return await do(universe)

    return aio.run(main())


def derived(universe: ids.UniverseId) -> list[tuple[bytes, bytes]]:
    """The ranges of keys that can be derived."""
    return [work_keys.open_all(universe), work_keys.due_all(universe), ready_keys.every_hint(universe)]


async def delete_derived(universe: wl.Universe) -> int:
    """Delete every open, due and ready key. Returns how many there were."""
    count = 0
    for begin, end in derived(universe._connection.id):
        async for key, raw in paging.RangeItems(universe._connection.store.engine, kv.Range(begin, end)):
            await put(universe, key, raw, None)
            count += 1
    return count


async def put(universe: wl.Universe, key: bytes, before: bytes | None, after: bytes | None) -> None:
    """Write or delete one key, as nobody ought to."""
    batch = kv.Batch()
    if before is None:
        batch.absent(key)
    else:
        batch.expect(key, before)
    if after is None:
        batch.delete(key)
    else:
        batch.put(key, after)
    [outcome] = await universe._connection.store.engine.commit(batch)
    assert isinstance(outcome, kv.Ok)


def wait_finished(store: str | Path, world: str, run_id: str) -> Any:
    """The result of a run that another process drives."""

    async def main(universe: wl.Universe) -> Any:
        found = universe.world(world)

        async def started() -> bool:
            return run_id in (await found._handle.machine()).runs

        await aio.until(started, seconds=SECONDS)
        async with asyncio.timeout(SECONDS):
            return await (await found.attach(run_id)).result()

    return with_universe(store, main)
