"""One `worldline dev`, over all reloads: hosting the programs of a file, and adopting edits of it.

An edited file is loaded first. If that fails, the old code goes on and the error is said in one line. If not, every
world is saved and released, and taken again under the new code; what that meant for them is said in one line too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from worldline.api import wiring
from worldline.api.universe_api import Universe
from worldline.base import errors, grammar
from worldline.cli.dev import dev_output as dev_show
from worldline.client.connection import Connection
from worldline.kernel.authoring.program import Program
from worldline.kernel.execution import divergence_report
from worldline.model.settings import Settings
from worldline.terminal import program_files, shutdown
from worldline.terminal.command_session import CommandSession

POLL_SECONDS = 0.25


class DevSession:
    """One `dev`, over all reloads."""

    def __init__(
        self, desk: CommandSession, target: str, names: Sequence[str], show: dev_show.Show, settings: Settings
    ) -> None:
        self._desk = desk
        self._settings = settings
        self._target = target
        self._names = list(names)
        self.show = show
        self.shutdown = shutdown.Shutdown(show.say, as_json=desk.out.as_json)

    async def run(self, *, reload: bool) -> None:
        loaded = program_files.load(self._target)
        before: list[Program] = []
        # The store is opened again for each version: no object of the old code can be left in a worker.
        while (following := await self._host(loaded, before, reload=reload)) is not None:
            before, loaded = loaded.programs, following

    async def _host(
        self, loaded: program_files.LoadedPrograms, replaced: Sequence[Program], *, reload: bool
    ) -> program_files.LoadedPrograms | None:
        """Host these programs until they change or all is over. Returns what to host next."""
        place = self._desk.place
        self.show.mute(muted=bool(replaced))  # a reload releases and takes every world, which is no news line by line
        opened = wiring.open(
            place.store,
            host=loaded.programs,
            universe=place.universe,
            objects=place.objects,
            egress=loaded.egress,
            sinks=self.show.listeners(),
            peers=place.peers,
            codec=self._desk.codec(),
            secrets=place.secrets,
            settings=self._settings,
        )
        async with opened as universe:
            self.shutdown.watch(wiring.host_of(universe).doing)
            async with self.show.showing(universe):
                await self._begin(universe, loaded, replaced)
                self.show.mute(muted=False)
                following = await self._watch(universe, loaded, reload=reload)
        if following is None:
            self.show.say("stopped", f"worlds are saved, leases are free{shutdown.abandoned()}")
        return following

    async def _begin(
        self, connection: Connection, loaded: program_files.LoadedPrograms, replaced: Sequence[Program]
    ) -> None:
        for name in self._names:
            await Universe(connection).ensure(name, loaded.programs[0])
        if not replaced:
            programs = ", ".join(program.name for program in loaded.programs)
            self.show.say("hosting", f"{programs} from {self._target} in {self._desk.place.shown}; Ctrl-C ends it")
            return
        old = {program.name: program.hash for program in replaced}
        if all(old.get(program.name) == program.hash for program in loaded.programs):
            self.show.say("reloaded", f"{self._target}: nothing that recorded runs depend on has changed")
        else:
            self.show.say("reloaded", f"{self._target}: {await self._adopted(connection)}")

    async def _adopted(self, connection: Connection) -> str:
        """Take the worlds that were held before, and say what became of them."""
        assert connection.host is not None
        adopted = runs = 0
        unfit: dict[str, str] = {}
        refused: list[str] = []
        # A copy: worlds that are taken do steps, and are added meanwhile.
        for at, name in list(self.show.worlds.items()):
            try:
                hosted = await connection.host.worlds.hold(at)
            except errors.Closed as error:
                refused.append(f"{name} cannot go on ({' '.join(str(error).split())})")
                continue
            except errors.NotFound:
                continue  # deleted, or of a program that is no longer in the file
            if hosted is not None:
                await hosted.quiet()  # a step may be under way, and it changes which runs there are
                found = await connection.host.worlds.misfits(hosted)
                adopted += 1
                runs += len(hosted.machine.live_runs()) - len(found)
                unfit |= {f"{name}/{run}": divergence_report.addressed(report, name) for run, report in found.items()}
        said = f"{grammar.count(adopted, 'world')} adopted it, {grammar.clause(runs, 'run', 'goes on', 'go on')}"
        if unfit:
            named = ", ".join(list(unfit)[:5])
            fits = "does not fit and is blocked when it next continues"
            several = "do not fit and are blocked when they next continue"
            said += f", {len(unfit)} {fits if len(unfit) == 1 else several}: {named}"
        return "\n".join(["; ".join([said, *refused[:5]]), *list(unfit.values())[:1]])

    async def _watch(
        self, connection: Connection, loaded: program_files.LoadedPrograms, *, reload: bool
    ) -> program_files.LoadedPrograms | None:
        """Until the end (None), or until the file holds something new that can be loaded."""
        assert connection.host is not None
        seen = _marks(loaded.files)
        stopped = self.shutdown.asked
        while not stopped.is_set():
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await stopped.wait()
            except TimeoutError:
                pass
            # A role that a bug has stopped must end `dev`, or it would show a process that does nothing.
            connection.host.check()
            marks = _marks(loaded.files)
            # While an editor replaces a file it is missing for a moment: the next look finds it whole.
            if not reload or marks == seen or None in marks or stopped.is_set():
                continue
            seen = marks  # also if it cannot be loaded: the same error is said once
            try:
                return program_files.load(self._target)
            except errors.BadInput as error:
                self.show.say("kept", f"the old code: {error}")
        return None


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
