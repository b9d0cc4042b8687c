"""What `worldline dev` writes: runs as blocks, or entries one by one, or JSON; and lines about itself.

Steps, failed attempts and streamed chunks come by callbacks on the event loop, which only put them into a queue; a task
writes them. A queue that grows too long loses the oldest, and that is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator

from worldline.base import env_os, grammar
from worldline.base.bounded_map import BoundedMap
from worldline.cli.dev import run_blocks
from worldline.client.connection import Connection
from worldline.inspect import entry_text
from worldline.model import ids, journal, traces
from worldline.model.journal import Kind
from worldline.observe import sinks
from worldline.runtime import live_hub, traceback_reader
from worldline.terminal import entry_lines, output, screen

QUEUE_MAX = 10_000
PLACES_MAX = 1_000
IDLE_SECONDS = 0.5  # after so long without news, what lasts is named
INDENT = "    "

_STYLES = {
    Kind.HANDLER_FAILED: "red",
    Kind.UNDECODABLE_INPUT: "red",
    Kind.RUN_STARTED: "green",
    Kind.RUN_FINISHED: "green",
    Kind.EFFECT_REQUESTED: "yellow",
    Kind.EFFECT_RESULT: "yellow",
    Kind.PROGRAM_CHANGED: "magenta",
}

Piece = tuple[ids.Address, live_hub.Chunk]
Item = sinks.Journaled | sinks.Notice | Piece


class Show:
    def __init__(self, out: output.Out, *, rows: bool) -> None:
        self._out = out
        self._rows = rows
        self._screen = screen.screen()
        self._env = env_os.OsEnv()
        self._places = FailurePlaces()
        self._blocks = run_blocks.Blocks(self._places.of)
        self._names: dict[ids.Address, entry_lines.Names] = {}
        self._heading = ""  # of the block that was written last
        self._queue: asyncio.Queue[Item | None] = asyncio.Queue()
        self._skipped = 0
        self.muted = False  # a reload says in one line what logs say in many
        self.worlds: dict[ids.Address, str] = {}  # all that have done something here

    def mute(self, *, muted: bool) -> None:
        """Whether log lines are left out."""
        self.muted = muted

    def listeners(self) -> sinks.Sinks:
        """Return what the process that hosts has to call."""
        return sinks.Sinks(log=self._put, replay=self._put)

    @contextlib.asynccontextmanager
    async def showing(self, connection: Connection) -> AsyncIterator[None]:
        """Write what comes as long as the block lasts, and what has come until then."""
        following = asyncio.ensure_future(self._write_all(connection))
        try:
            yield
        finally:
            self._queue.put_nowait(None)  # behind everything that came: the writer ends when it has written that
            await following

    def say(self, what: str, detail: str) -> None:
        """Something about `dev` itself."""
        if self._out.as_json:
            self._out.json({"dev": what, "message": detail})
            return
        self._screen.print(screen.styled(f"[{what}] {detail}", "bold"))
        if what != "log":  # a log line belongs to the block that it stands in; others interrupt it
            self._heading = ""

    @contextlib.contextmanager
    def logging(self) -> Iterator[None]:
        """Show what the roles and the user's own `wl.log` say, and learn where user code fails."""
        # Failures are logged at debug, for this handler alone: it learns places from them and shows none.
        levels = {"worldline.user": logging.INFO, "worldline.failures": logging.DEBUG}
        log, handler = logging.getLogger("worldline"), _Handler(self, self._places)
        before = log.propagate, {name: logging.getLogger(name).level for name in levels}
        log.addHandler(handler)
        log.propagate = False  # else the root's handlers write each line a second time
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.propagate = before[0]
            for name, level in before[1].items():
                logging.getLogger(name).setLevel(level)

    # --- The queue ---------------------------------------------------------------------------------------------

    def _put(self, item: Item) -> None:
        if self._queue.qsize() >= QUEUE_MAX:
            self._queue.get_nowait()  # the oldest: what happens now is what a person looks at
            self._skipped += 1
        self._queue.put_nowait(item)

    async def _write_all(self, connection: Connection) -> None:
        assert connection.host is not None
        with contextlib.ExitStack() as stack:
            followed: dict[ids.Address, None] = {}
            while True:
                try:
                    async with asyncio.timeout(IDLE_SECONDS):
                        item = await self._queue.get()
                except TimeoutError:
                    self._lines(self._blocks.idle(self._env.wall_us()))
                    continue
                if item is None:
                    return
                if isinstance(item, sinks.Journaled) and item.address not in followed:
                    # Followed from its first step on: which worlds run here shows only when they do something.
                    followed[item.address] = None
                    stack.enter_context(self._streams(connection.host.live, item.address))
                await self._write(connection, item)

    @contextlib.contextmanager
    def _streams(self, live: live_hub.Hub, at: ids.Address) -> Iterator[None]:
        """Put what effects of a world stream into the queue."""
        with live.following(at) as queue:
            task = asyncio.ensure_future(_pass_on(queue, lambda chunk: self._put((at, chunk))))
            try:
                yield
            finally:
                task.cancel()

    async def _write(self, connection: Connection, item: Item) -> None:
        if self._skipped:
            self.say("skipped", f"{grammar.count(self._skipped, 'step')}: they came faster than they could be written")
            self._skipped = 0
        now_us = self._env.wall_us()
        if isinstance(item, sinks.Journaled):
            self.worlds[item.address] = item.name
            await self._step(connection, item)
        elif self._out.as_json or self._rows:
            return
        elif isinstance(item, sinks.Notice):
            lines = self._blocks.notice(item, now_us)
            self._lines(lines)
            if lines:
                self._trace(item.trace)
        else:
            self._lines(self._blocks.chunk(item[1], now_us))

    # --- Writing -----------------------------------------------------------------------------------------------

    async def _step(self, connection: Connection, step: sinks.Journaled) -> None:
        found: list[traces.TracedFailure] = []
        if any(_fails(entry) for entry in step.entries):  # a read of the store, for failures only
            found = await traceback_reader.of_step(connection.store.engine, step.address, step.entries[0].step)
        if self._out.as_json:
            for entry in step.entries:
                self._out.json({"world": step.name, **entry_text.entry(entry), **_traced(entry, found)})
        elif self._rows:
            # Per world: an id means something in its own journal only.
            names = self._names.setdefault(step.address, entry_lines.Names(step.address))
            await names.learn(connection, step.entries)
            for entry in step.entries:
                self._screen.print(screen.styled(names.line(entry, step.name), _STYLES.get(entry.kind, "")))
        else:
            self._lines(self._blocks.step(step.address, step.name, step.entries))
        for each in found:
            # What an effect failed with is part of the traceback of a run that ended with it.
            if not any(each is not other and each.text.rstrip() in other.text for other in found):
                self._trace(each.text)

    def _trace(self, trace: str) -> None:
        """Where user code failed, below what is said of it."""
        if trace and not self._out.as_json:
            lines = "\n".join(f"{2 * INDENT}{line}" for line in trace.rstrip().splitlines())
            self._screen.print(screen.styled(lines, "dim"))

    def _lines(self, lines: list[run_blocks.BlockLine]) -> None:
        if self._out.as_json or self._rows:
            return
        for line in lines:
            # Runs take turns, and a line must stand below its own heading.
            if line.fresh or line.block != self._heading:
                time = output.local(entry_text.when(line.time_us))
                self._screen.print(screen.styled(f"{time}  ", "dim") + screen.styled(line.block, "bold"))
                self._heading = line.block
            if line.text:
                self._screen.print(screen.styled(f"{INDENT}{line.text}", line.style))


def _fails(entry: journal.JournalEntry) -> bool:
    """Whether an entry says that user code failed."""
    if entry.kind is Kind.HANDLER_FAILED:
        return True
    return entry.kind in (Kind.RUN_FINISHED, Kind.EFFECT_RESULT) and "error" in entry_text.fields(entry)


def _traced(entry: journal.JournalEntry, traced_failures: list[traces.TracedFailure]) -> dict[str, str]:
    """The traceback of a failure, as a field of its entry."""
    text = ""
    if entry.kind is Kind.HANDLER_FAILED:
        text = traceback_reader.find(traced_failures, traces.TraceSource.HANDLER)
    elif entry.kind is Kind.RUN_FINISHED:
        text = traceback_reader.find(traced_failures, traces.TraceSource.RUN, entry.correlation)
    elif entry.kind is Kind.EFFECT_RESULT:
        text = traceback_reader.find(traced_failures, traces.TraceSource.EFFECT)
    return {"trace": text} if text else {}


async def _pass_on(queue: asyncio.Queue[live_hub.Live], put: Callable[[live_hub.Chunk], None]) -> None:
    while True:
        item = await queue.get()
        if isinstance(item, live_hub.Chunk):
            put(item)


class FailurePlaces:
    """Where user code raised what failures say: file and line, by the text of the failure."""

    def __init__(self) -> None:
        self._places: BoundedMap[str, str] = BoundedMap(PLACES_MAX)

    def learn(self, message: str, place: str) -> None:
        self._places[message] = place

    def of(self, message: str) -> str:
        return self._places.get(message, "")


class _Handler(logging.Handler):
    """Shows what the roles and the user's own `wl.log` say."""

    def __init__(self, show: Show, places: FailurePlaces) -> None:
        super().__init__()
        self._show = show
        self._places = places

    def emit(self, record: logging.LogRecord) -> None:
        # Not shown: these records only say where in user code a failure was raised.
        if record.name == "worldline.failures":
            place = str(getattr(record, "place", ""))
            for message in (record.getMessage(), str(getattr(record, "text", ""))):
                self._places.learn(message, place)
            return
        user = record.name == "worldline.user"
        if record.levelno < (logging.INFO if user else logging.WARNING) or (self._show.muted and not user):
            return
        self._show.say("log" if user else record.levelname.lower(), " ".join(record.getMessage().split()))
