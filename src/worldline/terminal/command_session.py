"""What every command shares: the options, opening the store, asking a person, waiting for an answer.

A command is a function, mostly async, that takes a `CommandSession` first and returns nothing, or the exit code of a
negative answer.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from worldline.base import errors
from worldline.client import connection, no_host
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.codec import printable
from worldline.inspect import store_queries
from worldline.kernel.authoring.program import Program
from worldline.layers import work as works
from worldline.model import ids
from worldline.model.work import WorkKind
from worldline.observe import log_format
from worldline.runtime import store_opening, world_holders
from worldline.runtime.feature import Feature
from worldline.runtime.store_wrapping import StoreCodec
from worldline.runtime.universes import served_universes
from worldline.store import urls
from worldline.terminal import configuration, output, program_files, store_choice, suggest, watch_options

LIST_DEFAULT = 50
NOT_HOSTED_AFTER_SECONDS = 2.0
LOOK_SECONDS = 0.25
TIMEOUT = click.option("--timeout", type=float, metavar="SECONDS", help="Wait no longer; exit code 6 then.")

T = TypeVar("T")
Function = Callable[..., Any]


class CommandLine(msgspec.Struct, frozen=True):
    """What the entry of the command line hands to every command."""

    features: tuple[Feature, ...]


class CommandSession:
    """One command at work: what it is about, and where its answer goes."""

    def __init__(
        self, place: store_choice.StoreChoice, out: output.Out, *, features: tuple[Feature, ...], yes: bool = False
    ) -> None:
        self.place = place
        self.out = out
        self.features = features
        self.watch = watch_options.WatchOptions()  # for processes that go on and on
        self._yes = yes

    def watch_as(self, watch: watch_options.WatchOptions) -> None:
        """Note how a process that runs until it is stopped is watched."""
        self.watch = watch

    @property
    def option(self) -> str:
        """What a command for the same store needs besides its own words."""
        said = urls.option("store", self.place.store) if self.place.given else ""
        if self.place.objects_given and self.place.objects:
            said += urls.option("objects", self.place.objects)
        if self.place.keys_given and self.place.keys:
            said += f" --keys {shlex.quote(self.place.keys)}"
        return (
            said if self.place.universe == store_choice.DEFAULT_UNIVERSE else f"{said} --universe {self.place.universe}"
        )

    @asynccontextmanager
    async def open(
        self,
        *,
        create: bool = False,
        programs: list[Program] | None = None,
        universe: str | None = None,
        patient: bool = False,
    ) -> AsyncIterator[Connection]:
        """The universe, as a client that knows the project's programs. `patient`: it waits for a host for as long as it
        takes, and says so.
        """
        known = program_files.load_all(self.place.apps) if programs is None else programs
        named = universe or self.place.universe
        settings = configuration.configure(self.place).settings
        if patient:
            settings = msgspec.structs.replace(settings, host_wait_ms=0)  # 0 is no limit
        # A command that waits for long has to show why, which the log says.
        with quiet_logs("warning" if patient else "error"):
            opening_store = store_opening.store(
                self.place.store,
                create=create,
                objects=self.place.objects,
                cache=settings.cache,
                codec=self.codec(),
                features=self.features,
            )
            async with opening_store as store:
                opened = connection.client(
                    store, named, settings, create=create, programs=known, peers=self.place.peers
                )
                async with opened as found:
                    yield found

    @asynccontextmanager
    async def open_store(
        self, url: str | None = None, *, objects: str | None = None, create: bool = False
    ) -> AsyncIterator[store_opening.Store]:
        """The store that the command is about, or another one with its objects."""
        if url is None:
            url, objects = self.place.store, self.place.objects
        async with store_opening.store(
            url, create=create, objects=objects, codec=self.codec(), features=self.features
        ) as store:
            yield store

    def codec(self) -> StoreCodec | None:
        """Return what the store is encrypted with, by the key file that was named."""
        if self.place.keys is None:
            return None
        wrap = store_opening.wrap_of(self.features)
        assert wrap is not None, "no feature here reads key files"
        return wrap.read_codec(Path(self.place.keys))

    async def universes(self) -> list[str]:
        """The one that was asked for, or all there are."""
        if self.place.universe_given:
            return [self.place.universe]
        async with self.open_store() as store:
            return [each.name for each in await served_universes.read_all(store.engine)]

    def confirm(self, question: str) -> None:
        """Ask before something that cannot be undone. Without a terminal, only `--yes` will do."""
        if self._yes:
            return
        if not sys.stdin.isatty():  # in a pipe there may be an answer by accident: it must not confirm a deletion
            raise errors.BadInput(f"{question} No terminal to ask at: pass --yes")
        if not click.confirm(printable.shown(question), err=True):
            raise output.Declined("declined: nothing was changed")

    async def world(self, connection: Connection, name: str) -> Handle:
        """The world of this name. One that is missing is said with names like it."""
        found = Handle(connection, name)
        try:
            await found.address()
        except errors.NotFound as error:
            # A deleted world has no name any more, so only its id can lead to what happened to it.
            at = ids.address_by_id(connection.id, name)
            gone = "" if at is None else await _what_became_of(connection.store, at)
            raise errors.NotFound(gone or f"{error}{await suggest.worlds(connection, name)}") from error
        return found

    async def address(self, connection: Connection, name: str) -> ids.Address:
        return await (await self.world(connection, name)).address()

    async def find_work(self, connection: Connection, text: str, kind: WorkKind) -> works.Open:
        """The open effect or timer whose id begins so."""
        try:
            return await store_queries.find_work(connection, text, kind=kind)
        except errors.NotFound as error:
            raise errors.NotFound(f"{error}{await suggest.work(connection, text, kind)}") from error

    async def program_of(self, connection: Connection, world: Handle) -> Program:
        """The program of a world, for a command that cannot do without."""
        meta = (await world.describe()).meta
        program = connection.programs.get(meta.program)
        if program is None:
            raise errors.BadInput(
                f"the program {meta.program!r} of world {meta.name!r} is not loaded; name its file with --app FILE, "
                f'or as app = "FILE" in {store_choice.FILE}{suggest.near(meta.program, connection.programs)}'
            )
        return program

    async def answer(
        self, world: Handle, work: Coroutine[Any, Any, T], timeout: float | None, *, waiting: str = ""
    ) -> T:
        """Wait for something that the world must do, as long as a process hosts it. `waiting`: wait for a host, too,
        and say this if it takes more than a moment.
        """
        said = functools.partial(self.out.note, waiting) if waiting else None
        try:
            return await wait(world, work, timeout, self.option, waiting=said)
        except (TimeoutError, errors.NotHosted) as error:
            if not waiting:
                raise
            raise type(error)(f"{error}; {waiting}") from error


async def _what_became_of(store: store_opening.Store, at: ids.Address) -> str:
    """Say what became of a world that is not there, if a feature knows."""
    for reasons in (each for feature in store.features for each in feature.reasons):
        if said := await reasons.of_missing(store.engine, at):
            return said
    return ""


@contextmanager
def quiet_logs(level: str = "error") -> Iterator[None]:
    """Keep what goes wrong out of the log: it is said once, as the command's error."""
    with log_format.written("text", lambda line: output.write(line, err=True), level=level, users=False):
        yield


async def wait(
    world: Handle,
    work: Coroutine[Any, Any, T],
    timeout: float | None,
    option: str,
    *,
    waiting: Callable[[], None] | None = None,
) -> T:
    """The outcome of `work`. `NotHosted` if no process hosts the world when the given time is up, or without a given
    time as soon as that is clear. With `waiting`, which is called once if it takes more than a moment, it waits on.
    """
    # A task, so that looking for a host does not cancel and restart the waiting itself.
    task = asyncio.ensure_future(work)
    store, at = world.connection.store, await world.address()
    missing, said = 0.0, False
    try:
        try:
            async with asyncio.timeout(timeout):
                while not (await asyncio.wait([task], timeout=LOOK_SECONDS))[0]:
                    if waiting is not None and not said:
                        said = True
                        waiting()
                    # A host that comes back starts the time again, so a failover is not an error.
                    missing = 0.0 if await world_holders.is_served(store, at) else missing + LOOK_SECONDS
                    if timeout is None and waiting is None and missing >= NOT_HOSTED_AFTER_SECONDS:
                        raise errors.NotHosted(await no_host.reason(world.connection, at, option=option))
        except TimeoutError:
            # The time may be up in the moment in which the answer comes: then the answer counts.
            if not task.done():
                raise await _timed_out(world, timeout, option) from None
        return task.result()
    finally:
        task.cancel()
        # Waited for: a cancelled task still uses the connection, which the caller closes next.
        await asyncio.gather(task, return_exceptions=True)


async def _timed_out(world: Handle, timeout: float | None, option: str) -> Exception:
    """Return why no answer came in time: no process hosts the world, or it takes longer."""
    at = await world.address()
    # The more useful reason: waiting longer does not help without a host.
    if not await world_holders.is_served(world.connection.store, at):
        return errors.NotHosted(await no_host.reason(world.connection, at, option=option))
    why = f"worldline why {world.name}{option}"
    return TimeoutError(f"no answer within {timeout:g} s; world {world.name!r} goes on with it: see `{why}`")


# --- Options -------------------------------------------------------------------------------------------------------


def command(
    name: str, *, app: bool = False, many: bool = False, asks: bool = False, universes: bool = False
) -> Callable[[Function], click.Command]:
    """Make an async function a command. `app`: it can use the program; `many`: it answers with a list; `asks`: it asks
    a person first; `universes`: it may be about many universes.
    """

    def made(function: Function) -> click.Command:
        wrapped: Function = _wrapped(function)
        if asks:
            wrapped = click.option("--yes", "-y", is_flag=True, help="Do not ask.")(wrapped)
        if many:
            wrapped = click.option("-q", "--quiet", is_flag=True, help="Ids alone, for piping.")(wrapped)
            wrapped = click.option(
                "--limit", type=click.IntRange(min=1), default=LIST_DEFAULT, show_default=True, help="How many at most."
            )(wrapped)
        if app:
            wrapped = click.option(
                "--app", "apps", multiple=True, metavar="FILE[:NAME]", help="The file that declares the program."
            )(wrapped)
        return click.command(name, help=function.__doc__)(shared(wrapped, universes=universes))

    return made


def shared(function: Function, *, universes: bool = False) -> Function:
    """The options that everything has."""
    function = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")(function)
    if universes:
        function = click.option("--all-universes", is_flag=True, help="Serve every universe of the store.")(function)
        function = click.option(
            "--universe",
            metavar="NAME|PATTERN",
            multiple=True,
            help="The universe within the store; several, or a pattern like 'tenant-*', to serve many.",
        )(function)
    else:
        function = click.option("--universe", metavar="NAME", help="The universe within the store.")(function)
    function = click.option(
        "--objects",
        metavar="URL",
        help="A folder or s3://bucket/prefix for large values; else worldline.toml, WORLDLINE_OBJECTS.",
    )(function)
    function = click.option(
        "--keys",
        envvar="WORLDLINE_KEYS",
        metavar="FILE",
        help="The key file of an encrypted store; else WORLDLINE_KEYS, worldline.toml.",
    )(function)
    return click.option(
        "--store",
        envvar="WORLDLINE_STORE",
        metavar="URL",
        help="A folder or postgresql://...; else WORLDLINE_STORE, worldline.toml, ./.worldline.",
    )(function)


def _wrapped(function: Function) -> Function:
    @functools.wraps(function)
    def run(
        *,
        store: str | None,
        objects: str | None,
        keys: str | None,
        universe: str | tuple[str, ...] | None,
        as_json: bool,
        **given: Any,
    ) -> Any:
        context = click.get_current_context()
        root = context.find_root().params
        as_json = as_json or bool(root.get("as_json"))
        context.find_root().params["as_json"] = as_json
        flagged = _is_flag(context, "store") or _is_flag(context.find_root(), "store")
        one, several = _universes(universe, every=bool(given.pop("all_universes", False)))
        place = store_choice.choose(
            # The flag of the command wins over the flag before it, and both win over the variable, which click fills in
            # here.
            store=store if _is_flag(context, "store") else root.get("store") or store,
            universe=one or root.get("universe"),
            apps=given.pop("apps", ()),
            store_given=flagged,
            objects=objects or root.get("objects"),
            keys=keys if _is_flag(context, "keys") else root.get("keys") or keys,
            keys_given=_is_flag(context, "keys") or _is_flag(context.find_root(), "keys"),
        )
        place = msgspec.structs.replace(place, universes=several)
        quiet = bool(given.pop("quiet", False))
        line = context.find_object(CommandLine)
        assert line is not None, "the entry of the command line hands it on"
        desk = CommandSession(
            place,
            output.Out(as_json=as_json, quiet=quiet),
            features=line.features,
            yes=bool(given.pop("yes", False)),
        )
        answer = function(desk, **given)
        return asyncio.run(_main(answer)) if inspect.isawaitable(answer) else answer

    return run


def _universes(named: str | tuple[str, ...] | None, *, every: bool) -> tuple[str | None, list[str]]:
    """The one universe that is meant; or those that are served, if there may be many."""
    if not isinstance(named, tuple):
        return named, []
    if every and named:
        raise errors.BadInput("give --universe or --all-universes, not both")
    if every:
        return None, [served_universes.ALL]
    if len(named) == 1 and not served_universes.is_pattern(named[0]):
        return named[0], []
    return None, served_universes.check_patterns(named) if named else []


def _is_flag(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


async def _main(work: Awaitable[Any]) -> Any:
    return await work
