"""One column of the table of crashes: all cases in one store, hosts killed, code edited, code mended.

Real processes host the cases: one those that hang or end their process, one the others. A host that has died is
started again. After `kill -9` the hosts come back with the edited code, and then with the mended code.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

import worldline as wl
from tests import aio
from tests.cli import blast_cases, cli_kit
from tests.cli.blast_cases import CALM_FILE, FATAL_FILE, Case, Version
from tests.kits import kit as kits
from worldline.kernel.rows.row_records import RunStatus
from worldline.runtime import world_holders
from worldline.terminal import program_files

STEP_TIMEOUT_SECONDS = 0.6  # no other step takes as long, also on a busy machine
ANSWER_SECONDS = 5.0
WAIT_SECONDS = 60.0
LOOK_SECONDS = 0.03


class Found(msgspec.Struct):
    """What became of a case. `seconds`: from its world's last restore to the answer. `epoch`: before the crash."""

    seconds: float = 0.0
    epoch: int = 0
    error: BaseException | None = None


class Hosts:
    """A process for each file, started again when it has died."""

    def __init__(self, url: str, folder: Path, *, crash_budget: int) -> None:
        self._url = url
        self._flags: dict[str, list[object]] = {
            CALM_FILE: ["--lease-ttl", 2],
            FATAL_FILE: ["--lease-ttl", 1, "--step-timeout", STEP_TIMEOUT_SECONDS, "--crash-budget", crash_budget],
        }
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.deaths: list[tuple[str, int]] = []

    @contextlib.contextmanager
    def up(self, files: Sequence[str], version: Version) -> Iterator[None]:
        """They run with this version of the code, and are killed in the end."""
        for name in files:
            (self._folder / name).write_text(blast_cases.source(blast_cases.FILES[name], version))
        ended = threading.Event()
        watch = threading.Thread(target=self._watch, args=[files, ended])
        watch.start()
        try:
            yield
        finally:
            ended.set()
            watch.join()
            for process in self._running.values():
                process.kill()
                process.wait()
            self._running.clear()

    def _watch(self, files: Sequence[str], ended: threading.Event) -> None:
        while not ended.is_set():
            for name in files:
                self._look(name)
            ended.wait(LOOK_SECONDS)

    def _look(self, name: str) -> None:
        known = self._running.get(name)
        if known is not None and known.poll() is None:
            return
        if known is not None:
            self.deaths.append((name, known.returncode))
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*cli_kit.COMMAND, "up", name, "--store", self._url, "--scan", "0.5", *map(str, self._flags[name])],
                cwd=self._folder,
                env=cli_kit.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def logs(self) -> str:
        return "\n".join(each.read_text()[-3_000:] for each in sorted(self._folder.glob("*.log")))


class Play:
    """One store, one delay, all cases."""

    def __init__(
        self, url: str, folder: Path, *, pause_seconds: float, files: Sequence[str], crash_budget: int
    ) -> None:
        self.found = {case.name: Found() for name in files for case in blast_cases.FILES[name]}
        self.hosts = Hosts(url, folder, crash_budget=crash_budget)
        # Two of the fatal cases hang, one after the other, in the one thread that makes steps.
        self._fatal_seconds = ANSWER_SECONDS + 2 * crash_budget * STEP_TIMEOUT_SECONDS
        # Two end their process: once uncounted, then as often as the budget says. After a sleep that was given up the
        # process ends as well, once for each time that it was begun.
        self.deaths_max = 2 * (1 + crash_budget) + 1 + crash_budget
        self._files = files
        self._url = url
        self._folder = folder
        self._pause_seconds = pause_seconds
        self._names: dict[str, Any] = {}

    def run(self) -> None:
        flag = self._folder / blast_cases.FLAG
        flag.touch()
        with self.hosts.up(self._files, blast_cases.BEFORE):
            for name in self._files:
                loaded = program_files.load(str(self._folder / name))
                self._names[name] = program_files.member(loaded, "__dict__")
            self._each(self._begin, create=True)
            self._each(self._trigger)
            time.sleep(self._pause_seconds)
        self._each(self._note_epoch)
        with self.hosts.up(self._files, blast_cases.EDITED):
            self._each(self._answers_soon)
            self._each(self._goes_on)
            flag.unlink()
            self._drop_letters()
            self._retry_letters(FATAL_FILE)
            self._each(self._is_tried_again, FATAL_FILE)
        if CALM_FILE in self._files:
            with self.hosts.up([CALM_FILE], blast_cases.MENDED):
                self._retry_letters(CALM_FILE)
                self._each(self._is_mended, CALM_FILE)

    def _each(
        self, do: Callable[[Case, wl.World, Any], Awaitable[None]], only: str = "", *, create: bool = False
    ) -> None:
        """This for all cases at once that have not failed."""

        async def one(universe: wl.Universe, case: Case, names: Any) -> None:
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    if create:
                        await universe.create(case.name, names[case.name])
                    await do(case, universe.world(case.name), names)
            except Exception as error:  # noqa: BLE001 - kept for the test of this case
                error.add_note(f"{case.name}: {do.__name__}")
                self.found[case.name].error = error

        async def main() -> None:
            async with wl.open(self._url, create=True) as universe:
                await asyncio.gather(
                    *(
                        one(universe, case, self._names[name])
                        for name in self._files
                        if only in ("", name)
                        for case in self._well(name)
                    )
                )

        aio.run(main(), seconds=2 * WAIT_SECONDS)

    # --- Before the crash ----------------------------------------------------------------------------------------

    async def _begin(self, case: Case, world: wl.World, names: Any) -> None:
        """The world has runs that wait, a cell, and has given an answer."""
        program = names[case.name]
        for run_id in case.victims:
            _ = await world.start(program.workflows["victim"](run_id), id=run_id)
        _ = await world.start(program.workflows["steady"]("steady"), id="steady")
        assert await world.ask(names["Ping"](), timeout=WAIT_SECONDS) == 1
        if case.trigger != "handler":
            assert await world.ask(names["Change"](), timeout=WAIT_SECONDS) == 1

        async def wait() -> bool:
            runs = (await world._handle.machine()).runs
            return all(any(op.name == "Go" for op in run.record.ops) for run in runs.values())

        while not await wait():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(LOOK_SECONDS)

    async def _trigger(self, case: Case, world: wl.World, names: Any) -> None:
        for _ in range(case.letters):
            await world.send(names["Change"]())
        if case.trigger == "workflow":
            [victim] = case.victims
            await world.send(names["Go"](victim), to=victim)

    async def _note_epoch(self, case: Case, world: wl.World, names: Any) -> None:
        holder = await world_holders.find(world._universe.store, await world._handle.address())
        self.found[case.name].epoch = 0 if holder is None else holder.epoch

    # --- After it, under edited code -----------------------------------------------------------------------------

    async def _answers_soon(self, case: Case, world: wl.World, names: Any) -> None:
        """An answer soon after the moment when a host has the world, and does not die with it."""
        found, store, at = self.found[case.name], world._universe.store, await world._handle.address()
        asking = asyncio.ensure_future(world.ask(names["Ping"](), timeout=WAIT_SECONDS))
        epoch, restored = found.epoch, time.monotonic()
        while not asking.done():
            holder = await world_holders.find(store, at)
            if holder is not None and holder.epoch != epoch:
                epoch, restored = holder.epoch, time.monotonic()
            await asyncio.wait([asking], timeout=LOOK_SECONDS)
        found.seconds = time.monotonic() - restored if epoch != found.epoch else 0.0
        assert await asking == 2
        assert found.seconds < (self._fatal_seconds if case in blast_cases.FATAL_CASES else ANSWER_SECONDS)

    async def _goes_on(self, case: Case, world: wl.World, names: Any) -> None:
        """All runs but those concerned go on, and the ways out work that need no mended code."""
        await (await world.send(names["Go"]("steady"), to="steady")).applied(WAIT_SECONDS)
        assert await (await world.attach("steady")).result(WAIT_SECONDS) == "steady"
        for run_id in case.victims:
            await self._let_go(case, world, names, run_id)
        for run_id in case.victims:
            assert await _settled(await world.attach(run_id)) is case.status, run_id
        is_blocked = case.status is RunStatus.BLOCKED
        blocked = [run.id for run in await world.runs(status=RunStatus.BLOCKED)]
        assert sorted(blocked) == sorted(case.victims if is_blocked else [])
        for run_id in case.victims:
            await self._way_out(case, await world.attach(run_id))
        for _ in range(case.letters_later):
            await aio.journaled(await world.send(names["Change"]()), WAIT_SECONDS)
        assert await _letters(world) == case.letters + case.letters_later
        assert await world.ask(names["Ping"](), timeout=WAIT_SECONDS) == 3

    async def _let_go(self, case: Case, world: wl.World, names: Any, run_id: str) -> None:
        if case.trigger == "workflow":
            return  # that was done before the crash
        if run_id == "answer":
            await (await world.attach(run_id)).answer(blast_cases.WAIT_OP, {"name": run_id})
        else:
            await (await world.send(names["Go"](run_id), to=run_id)).applied(WAIT_SECONDS)

    async def _way_out(self, case: Case, run: wl.Run[Any]) -> None:
        if case.status is RunStatus.FINISHED:
            assert case.result in ("", await run.result(WAIT_SECONDS))
        elif run.id == "terminate":
            await run.terminate("gone")
            assert await run.status() is RunStatus.CANCELLED
        elif case.trigger != "workflow":
            assert await run.retry() is RunStatus.BLOCKED, "the code does not fit yet"
            if run.id == "reset":
                await run.reset()  # the event that it was sent waits in its buffer
                assert await run.result(WAIT_SECONDS) == case.result

    def _drop_letters(self) -> None:
        """Of several dead letters, all but the newest are dropped."""
        for case in [case for name in self._files for case in self._well(name) if case.letters > 1]:
            for letter in self._command("dead", "list", case.name, "--json").lines[1:]:
                self._command("dead", "drop", case.name, letter["id"], "--yes")

    # --- When the cause is gone ------------------------------------------------------------------------------------

    def _retry_letters(self, name: str) -> None:
        for case in self._well(name):
            if case.letters or case.letters_later:
                self._command("dead", "retry", case.name, "--all")

    async def _is_tried_again(self, case: Case, world: wl.World, names: Any) -> None:
        """What it died of is gone from outside: the same code goes on."""
        for run_id in case.victims if case.trigger == "workflow" else []:
            run = await world.attach(run_id)
            if run_id == "reset":
                await run.reset()  # the event that it had taken is in its buffer again
            else:
                await run.retry()
        await self._is_mended(case, world, names)

    async def _is_mended(self, case: Case, world: wl.World, names: Any) -> None:
        """What was blocked goes on, under changed code by itself, and the dead letter that was put back is taken."""
        assert await world.ask(names["Ping"](), timeout=WAIT_SECONDS) == 4
        for run_id in case.victims:
            if run_id in ("retry", "reset", "answer"):
                assert await (await world.attach(run_id)).result(WAIT_SECONDS) == case.result
        assert await world.runs(status=RunStatus.BLOCKED) == []
        assert await _letters(world) == 0
        assert (await world.state())["Cell"] == {"": {"total": 2 if case.letters_later else 1}}

    # --- Their parts -----------------------------------------------------------------------------------------------

    def _well(self, name: str) -> list[Case]:
        """The cases of a file that have not failed."""
        known = blast_cases.FILES[name] if name in self._files else []
        return [case for case in known if self.found[case.name].error is None]

    def _command(self, *words: object) -> cli_kit.Said:
        said = cli_kit.run(*words, "--store", self._url)
        assert said.code == 0, (words, said)
        return said


async def _letters(world: wl.World) -> int:
    return len(await kits.dead(world._universe.store.engine, await world._handle.address()))


async def _settled(run: wl.Run[Any]) -> RunStatus:
    found = RunStatus.RUNNING

    async def settled() -> bool:
        nonlocal found
        found = await run.status()
        return found is not RunStatus.RUNNING

    await aio.until(settled, seconds=WAIT_SECONDS)
    return found
