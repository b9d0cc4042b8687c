"""`worldline dev`: host the programs of a file, show what happens, and take over edits while it runs.

An edited file is loaded first. If that fails, the old code goes on and the error is said in one line. If not, every
world is saved and released, and taken again under the new code; what that meant for them is said in one line too.

Ctrl-C and SIGTERM end it in order: effects under way are given back, worlds are saved, leases are free. The exit code
is 130 after Ctrl-C and 0 after SIGTERM. A second Ctrl-C does not wait.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich import text

from worldline.base import errors
from worldline.cli import common, look, output, places
from worldline.cli.common import Desk
from worldline.client import connection
from worldline.client.connection import Connection
from worldline.client.universe import Universe
from worldline.host import program_files
from worldline.inspect import queries, render
from worldline.kernel.authoring.program import Program
from worldline.kernel.runs import RunStatus
from worldline.model import ids, journal
from worldline.model.journal import Kind
from worldline.roles.world import step_batch
from worldline.roles.world.held_world import Done, Hosted

POLL_SECONDS = 0.25
SHOWN_AT_ONCE_MAX = 200

_STYLES = {
    Kind.FAILED: "red", Kind.REJECTED: "red", Kind.RUN_STARTED: "green", Kind.RUN_FINISHED: "green",
    Kind.INTENT: "yellow", Kind.RECEIPT: "yellow", Kind.PROGRAM_CHANGED: "magenta",
}  # fmt: skip


@common.command("dev")
@click.argument("target", required=False, metavar="[FILE[:NAME]]")
@click.option("--world", "names", multiple=True, metavar="NAME", help="Make this world if it is not there.")
@click.option("--reload/--no-reload", default=True, show_default=True, help="Take over edits of the file.")
async def dev(desk: Desk, *, target: str | None, names: tuple[str, ...], reload: bool) -> int:
    """Host the programs of FILE here, and show entries as they are journaled.

    Requests of `worldline.http` go only where `egress = worldline.Egress(allow=[...])` in FILE says.
    """
    chosen = target or next(iter(desk.place.apps), None)
    if chosen is None:
        raise errors.BadInput(f'name the file that declares your program, or set app = "FILE" in {places.FILE}')
    session = Session(desk, chosen, names)
    with _logging(session), _stopping(session):
        await session.run(reload=reload)
    return session.code


class Session:
    """One `dev`, over all reloads."""

    def __init__(self, desk: Desk, target: str, names: Sequence[str]) -> None:
        self._desk = desk
        self._target = target
        self._names = list(names)
        self._known: dict[ids.Address, str] = {}
        self._lines: asyncio.Queue[tuple[ids.Address, list[journal.Entry]] | None] = asyncio.Queue()
        self._screen = output.screen()
        self.stopped = asyncio.Event()
        self.code = 0
        self.muted = False  # a reload says in one line what logs say in many

    async def run(self, *, reload: bool) -> None:
        loaded = program_files.load(self._target)
        before: list[Program] = []
        while (following := await self._host(loaded, before, reload=reload)) is not None:
            before, loaded = loaded.programs, following

    async def _host(
        self, loaded: program_files.Loaded, before: Sequence[Program], *, reload: bool
    ) -> program_files.Loaded | None:
        """Host these programs until they change or all is over. Returns what to host next."""
        place = self._desk.place
        self.muted = bool(before)
        opened = connection.open(
            place.store, host=loaded.programs, universe=place.universe, objects=place.objects, egress=loaded.egress
        )
        async with opened as universe:
            assert universe.host is not None
            universe.host.worlds.on_act.append(self._acted)
            printing = asyncio.ensure_future(self._print(universe))
            try:
                await self._begin(universe, loaded, before)
                self.muted = False
                following = await self._watch(universe, loaded, reload=reload)
            finally:
                if self.stopped.is_set():
                    self.say("stopping", "saving worlds and giving back leases")
                self._lines.put_nowait(None)
                await printing
        if following is None:
            self.say("stopped", "worlds are saved, leases are free")
        return following

    async def _begin(self, universe: Connection, loaded: program_files.Loaded, before: Sequence[Program]) -> None:
        for name in self._names:
            await Universe(universe).ensure(name, loaded.programs[0])
        if not before:
            programs = ", ".join(program.name for program in loaded.programs)
            self.say("hosting", f"{programs} from {self._target} in {self._desk.place.store}; Ctrl-C ends it")
            return
        old = {program.name: program.hash for program in before}
        if all(old.get(program.name) == program.hash for program in loaded.programs):
            self.say("reloaded", f"{self._target}: nothing that recorded runs depend on has changed")
        else:
            self.say("reloaded", f"{self._target}: {await self._adopted(universe)}")

    async def _adopted(self, universe: Connection) -> str:
        """Take the worlds that were held before, and say what became of them."""
        assert universe.host is not None
        adopted = runs = 0
        blocked: list[str] = []
        refused: list[str] = []
        for at, name in list(self._known.items()):
            try:
                hosted = await universe.host.worlds.hold(at)
            except errors.Closed as error:
                refused.append(f"{name} cannot go on ({' '.join(str(error).split())})")
                continue
            except errors.NotFound:
                continue  # deleted, or of a program that is no longer in the file
            if hosted is not None:
                await hosted.quiet()
                live = hosted.machine.live_runs()
                adopted += 1
                runs += sum(run.record.status is RunStatus.RUNNING for run in live)
                blocked += [f"{name}/{run.record.id}" for run in live if run.record.status is RunStatus.BLOCKED]
        said = f"{adopted} worlds adopted it, {runs} runs go on, {len(blocked)} blocked"
        if blocked:
            said += (
                f" ({', '.join(blocked[:5])}; see `worldline why {blocked[0].partition('/')[0]}{self._desk.option}`)"
            )
        return "; ".join([said, *refused[:5]])

    async def _watch(
        self, universe: Connection, loaded: program_files.Loaded, *, reload: bool
    ) -> program_files.Loaded | None:  # fmt: skip
        """Until the end (None), or until the file holds something new that can be loaded."""
        assert universe.host is not None
        seen = _marks(loaded.files)
        while not self.stopped.is_set():
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self.stopped.wait()
            except TimeoutError:
                pass
            universe.host.check()
            marks = _marks(loaded.files)
            if not reload or marks == seen or None in marks or self.stopped.is_set():
                continue
            seen = marks
            try:
                return program_files.load(self._target)
            except errors.BadInput as error:
                self.say("kept", f"the old code: {error}")
        return None

    # --- Showing -------------------------------------------------------------------------------------------------

    def _acted(self, hosted: Hosted, done: Done, built: step_batch.Built) -> None:
        """After a commit, and not to be held up: what there is to show goes into a queue."""
        del built
        self._lines.put_nowait((hosted.at, list(done.entries)))

    async def _print(self, universe: Connection) -> None:
        while (item := await self._lines.get()) is not None:
            at, entries = item
            if at not in self._known:
                self._known |= await queries.world_names(universe, [at])
            for entry in entries[:SHOWN_AT_ONCE_MAX]:
                self._show(self._known[at], entry)
            if len(entries) > SHOWN_AT_ONCE_MAX:
                self.say("skipped", f"{len(entries) - SHOWN_AT_ONCE_MAX} more entries of {self._known[at]}")

    def _show(self, name: str, entry: journal.Entry) -> None:
        if self._desk.out.as_json:
            self._desk.out.json({"world": name, **render.entry(entry)})
        else:
            self._screen.print(text.Text(look.entry_line(entry, name), style=_STYLES.get(entry.kind, "")))

    def say(self, what: str, detail: str) -> None:
        """Something about `dev` itself."""
        if self._desk.out.as_json:
            self._desk.out.json({"dev": what, "message": detail})
        else:
            self._screen.print(text.Text(f"[{what}] {detail}", style="bold"))


def _marks(files: Sequence[Path]) -> list[tuple[int, int] | None]:
    """What tells one version of the files from the next. None: one is not there, as while an editor replaces it."""
    found: list[tuple[int, int] | None] = []
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            found.append(None)
        else:
            found.append((stat.st_mtime_ns, stat.st_size))
    return found


@contextmanager
def _stopping(session: Session) -> Iterator[None]:
    """Signals end the session in order. The second Ctrl-C is the system's again."""
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        session.code = output.INTERRUPTED if number is signal.SIGINT else 0
        session.stopped.set()
        loop.remove_signal_handler(number)

    wanted = (signal.SIGINT, signal.SIGTERM)
    for each in wanted:
        loop.add_signal_handler(each, stop, each)
    try:
        yield
    finally:
        for each in wanted:
            loop.remove_signal_handler(each)


class _Handler(logging.Handler):
    """Shows what the roles and the user's own `wl.log` say."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def emit(self, record: logging.LogRecord) -> None:
        user = record.name == "worldline.user"
        if record.levelno < (logging.INFO if user else logging.WARNING) or (self._session.muted and not user):
            return
        self._session.say("log" if user else record.levelname.lower(), " ".join(record.getMessage().split()))


@contextmanager
def _logging(session: Session) -> Iterator[None]:
    log, user = logging.getLogger("worldline"), logging.getLogger("worldline.user")
    handler = _Handler(session)
    before = log.propagate, user.level
    log.addHandler(handler)
    log.propagate = False
    user.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before[0]
        user.setLevel(before[1])


COMMANDS: list[click.Command] = [dev]
