"""The roles as processes: `worldline worker|adapter|timer|orchestrator|janitor|up`. Any number of each on one store.

Each says one line when it is ready, with `--json` one object, and then nothing until it ends but what goes wrong, on
stderr. SIGTERM and Ctrl-C end it in order: effects under way are given back, worlds are saved, leases are free, and the
exit code is 0. A second one ends it at once. A role that is stopped by a bug ends its process with a traceback.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import click
import msgspec

from worldline.api import hosting as many
from worldline.api import wiring
from worldline.base import errors
from worldline.codec import printable
from worldline.effects.egress import Egress
from worldline.host import process as hosts
from worldline.kernel.authoring.program import Program
from worldline.model import ids
from worldline.model.roles import ALL, Role
from worldline.model.settings import ON_HANG, Settings
from worldline.observe import dump as dumps
from worldline.runtime import placement
from worldline.runtime.universes import served_universes
from worldline.terminal import (
    command_session,
    configuration,
    output,
    payload_words,
    program_files,
    shutdown,
    store_choice,
    watch_options,
)
from worldline.terminal.command_session import CommandSession

POLL_SECONDS = 0.25
# A process of roles can be replaced by another; one of `worldline dev`, or of a program of your own, is worth more.
BASE = Settings(on_hang="exit")

Function = Callable[..., Any]


class RoleGroup(click.Group):
    """A noun that is also a role: `worldline timer` runs it, `worldline timer list` looks at timers.

    Arguments that do not begin with one of its commands are those of `start`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["start", *args]
        return super().parse_args(ctx, args)


# --- Options -------------------------------------------------------------------------------------------------------


def _files(function: Function) -> Function:
    return click.argument("targets", nargs=-1, metavar="[FILE[:NAME]]...")(function)


def _named(function: Function) -> Function:
    function = click.option(
        "--label", "labels", multiple=True, metavar="NAME[=VALUE]", help="What worlds may need: needs:NAME=VALUE."
    )(function)
    return click.option("--name", metavar="NAME", help="What worlds may be pinned to: pin=NAME.")(function)


def _called(function: Function) -> Function:
    return click.option("--name", metavar="NAME", help="What this process is called.")(function)


def _capacity(what: str) -> Callable[[Function], Function]:
    return click.option("--capacity", type=click.IntRange(min=1), metavar="N", help=what)


def _seconds(name: str, what: str) -> Callable[[Function], Function]:
    return click.option(name, type=click.FloatRange(min=0.05), metavar="SECONDS", help=what)


def _hangs(function: Function) -> Function:
    function = click.option(
        "--crash-budget",
        type=click.IntRange(min=1),
        metavar="N",
        help="Deaths over one input before a last attempt in a child process decides.",
    )(function)
    function = _seconds("--step-timeout", "How long a handler or workflow may run before it is interrupted.")(function)
    return click.option(
        "--on-hang",
        type=click.Choice(ON_HANG),
        help="What to do about code that cannot be interrupted.  [default: exit]",
    )(function)


_scan = _seconds("--scan", "Between two scans, which find what a lost hint did not announce.")
_lease_ttl = _seconds("--lease-ttl", "How long a worker without a heartbeat counts as alive.")
_claim_ttl = _seconds("--claim-ttl", "How long a claim holds without being renewed.")
_prove = click.option(
    "--prove-ms",
    type=click.IntRange(0, 60_000),
    metavar="N",
    help="Run steps again to prove them, for N ms of each minute; 0: never.",
)
_allow = click.option("--allow", multiple=True, metavar="HOST", help="A host that `wl.http.request` may reach.")


# --- Commands ------------------------------------------------------------------------------------------------------


@command_session.command("start", universes=True)
@_files
@_named
@_capacity("Worlds in memory at most.")
@_lease_ttl
@_hangs
@_scan
@_prove
@configuration.option
@watch_options.options
async def worker(desk: CommandSession, *, targets: tuple[str, ...], **options: Any) -> None:
    """Run worlds of the programs in FILE.

    Effect workers perform their effects, timer workers fire their timers.
    """
    await _serve(desk, "worker", [Role.WORLDS], _settings(desk, **options), _load(desk, targets))


@command_session.command("adapter", universes=True)
@_files
@_called
@_capacity("Effects at once at most.")
@_claim_ttl
@_scan
@_allow
@configuration.option
@watch_options.options
async def adapter(
    desk: CommandSession, *, targets: tuple[str, ...], allow: tuple[str, ...], capacity: int | None, **options: Any
) -> None:
    """Perform effects of the programs in FILE.

    The worlds may run in any process on the same store.
    """
    settings = _settings(desk, effects=capacity, **options)
    programs = _load(desk, targets)
    await _serve(desk, "adapter", [Role.ADAPTER], settings, programs, egress=_egress(desk, targets, allow))


@command_session.command("start", universes=True)
@_called
@_scan
@configuration.option
@watch_options.options
async def timer(desk: CommandSession, **options: Any) -> None:
    """Fire timers when they are due, for all worlds of the universe, or of many."""
    await _serve(desk, "timer", [Role.TIMERS], _settings(desk, **options))


@command_session.command("orchestrator", universes=True)
@_called
@_seconds("--turn", "Between two turns.")
@click.option("--moves", type=click.IntRange(min=0), metavar="N", help="Worlds moved for balance in one turn at most.")
@configuration.option
@watch_options.options
async def orchestrator(desk: CommandSession, **options: Any) -> None:
    """Place worlds on workers.

    By capacity, labels, pins and load. Any number of orchestrators may run.
    """
    await _serve(desk, "orchestrator", [Role.ORCHESTRATOR], _settings(desk, **options))


@command_session.command("janitor", universes=True)
@_called
@_seconds("--turn", "Between two parts of a round.")
@_seconds("--round", "Between two rounds.")
@configuration.option
@watch_options.options
async def janitor(desk: CommandSession, **options: Any) -> None:
    """Delete what has expired.

    Ids beyond the dedupe window, leases and claims of dead workers, leftover files.
    """
    await _serve(desk, "janitor", [Role.JANITOR], _settings(desk, **options))


@command_session.command("up", universes=True)
@_files
@_named
@_capacity("Worlds in memory at most.")
@_lease_ttl
@_claim_ttl
@_hangs
@_scan
@_prove
@_allow
@configuration.option
@watch_options.options
async def up(desk: CommandSession, *, targets: tuple[str, ...], allow: tuple[str, ...], **options: Any) -> None:
    """Run all roles in one process, for the programs in FILE."""
    programs = _load(desk, targets)  # before the store is opened: a slip in the file is said at once
    await _serve(desk, "up", ALL, _settings(desk, **options), programs, egress=_egress(desk, targets, allow))


def _load(desk: CommandSession, targets: Sequence[str]) -> list[Program]:
    chosen = list(targets) or desk.place.apps
    if not chosen:
        raise errors.BadInput(f'name the file that declares your program, or set app = "FILE" in {store_choice.FILE}')
    return program_files.load_all(chosen)


def _egress(desk: CommandSession, targets: Sequence[str], allow: Sequence[str]) -> Egress | None:
    """Return what `--allow` says; without it, what the files themselves say. Credentials are theirs in either case."""
    declared = program_files.egress_of(list(targets) or desk.place.apps)
    if not allow:
        return declared
    # Credentials are never typed: a command line is seen by every user of the machine.
    return Egress(allow=allow, credentials={} if declared is None else declared.credentials)


def _settings(
    desk: CommandSession,
    *,
    sets: tuple[str, ...] = (),
    name: str | None = None,
    labels: tuple[str, ...] = (),
    capacity: int | None = None,
    effects: int | None = None,
    lease_ttl: float | None = None,
    claim_ttl: float | None = None,
    scan: float | None = None,
    turn: float | None = None,
    round: float | None = None,
    moves: int | None = None,
    prove_ms: int | None = None,
    crash_budget: int | None = None,
    step_timeout: float | None = None,
    on_hang: str | None = None,
) -> Settings:
    """Return what was said on the command line, in the environment and in the project, and otherwise the defaults."""
    scan_ms, turn_ms = ("--scan", _ms(scan)), ("--turn", _ms(turn))
    options = configuration.said(
        worker__max_worlds_warm=("--capacity", capacity),
        worker__scan_ms=scan_ms,
        adapter__scan_ms=scan_ms,
        timer__scan_ms=scan_ms,
        worker__lease_ttl_ms=("--lease-ttl", _ms(lease_ttl)),
        worker__crash_budget=("--crash-budget", crash_budget),
        worker__step_timeout_ms=("--step-timeout", _ms(step_timeout)),
        adapter__concurrency=("--capacity", effects),
        adapter__claim_ttl_ms=("--claim-ttl", _ms(claim_ttl)),
        orchestrator__turn_ms=turn_ms,
        janitor__turn_ms=turn_ms,
        orchestrator__moves_max=("--moves", moves),
        janitor__round_ms=("--round", _ms(round)),
        janitor__prove_ms=("--prove-ms", prove_ms),
        on_hang=("--on-hang", on_hang),
    )
    found = configuration.configure(desk.place, sets, options, BASE).settings
    said = _labels(found.worker.labels, name, labels)
    return msgspec.structs.replace(found, worker=msgspec.structs.replace(found.worker, labels=said))


def _labels(configured: dict[str, str], name: str | None, labels: tuple[str, ...]) -> dict[str, str]:
    """The labels of a worker: those of its settings, and those of the command line. Its name is one of them."""
    said = {**configured, **payload_words.labels_of(labels)}
    for label, value in said.items():
        # A label that the worker sets itself must say what is true of it.
        if placement.reserved(ids.check_name(label, "a label's name")):
            raise errors.BadInput(f"the label {label!r} is set by the worker itself; a name is given with --name")
        if value:
            ids.check_name(value, "a label's value")
    if name is not None:
        said[placement.NAME] = ids.check_name(name, "a worker's name")
    return said


def _ms(seconds: float | None) -> int | None:
    if seconds is not None and not math.isfinite(seconds):  # `inf` and `nan` are numbers to click
        raise errors.BadInput(f"a length of time is a number of seconds, not {seconds:g}")
    return None if seconds is None else int(seconds * 1000)


# --- Running ---------------------------------------------------------------------------------------------------------


async def _serve(
    desk: CommandSession,
    what: str,
    roles: Sequence[Role],
    settings: Settings,
    programs: Sequence[Program] = (),
    *,
    egress: Egress | None = None,
) -> None:
    """Open the store, which is made if there is none, and run these roles until a signal comes."""
    ending = shutdown.Shutdown(lambda what, detail: _say_ending(desk, what, detail), as_json=desk.out.as_json)
    with desk.watch.logging() as always, ending.signals():
        # One universe has a connection of its own, as a client has; many share one host, and come and go while it runs.
        prepare = _many if desk.place.universes else _one
        async with prepare(desk, roles, settings, programs, egress) as (host, metrics_port):
            always |= {"worker": host.worker.hex(), "worker_name": host.name}
            record = {"ready": what, "metrics_port": metrics_port} if desk.watch.metrics else {"ready": what}
            host.start()
            ending.watch(host.doing)
            # In the loop, not in a handler of Python's own: a dump reads state that is changed on the loop.
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _dump, host)
            try:
                await _until_stopped(desk, record, host, programs, ending.asked)
            finally:
                await host.close()  # also after a bug of a role: leases must not wait for their time
                # A closed host has nothing to dump.
                asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
    left = shutdown.abandoned()  # after the store is closed: what still runs now is a thread of user code
    # Said when all is released: a script may start the next process on this line.
    desk.out.one({"stopped": what, "name": host.name}, [f"{what} {host.name} has stopped: leases are free{left}"])
    shutdown.leave(0)


@asynccontextmanager
async def _one(
    desk: CommandSession, roles: Sequence[Role], settings: Settings, programs: Sequence[Program], egress: Egress | None
) -> AsyncIterator[tuple[hosts.ProcessHost, int | None]]:
    """A host of one universe, which is made if there is none; and where its metrics are."""
    place = desk.place
    opened = wiring.open(
        place.store,
        universe=place.universe,
        objects=place.objects,
        create=True,
        metrics=desk.watch.metrics,
        peers=place.peers,
        codec=desk.codec(),
        settings=settings,
    )
    async with opened as universe:
        host = hosts.ProcessHost(
            universe.store,
            served_universes.Universes.only(universe.id, universe.name),
            programs,
            blobs=lambda _: universe.blobs,
            settings=settings,
            egress=egress,
            peers=universe.peers,
            roles=roles,
            telemetry=universe.telemetry,
            watchdog=True,
            secrets=place.secrets,
        )
        # The connection has no host of its own here: without this its metrics would show no worlds.
        universe.levels_from(host.levels)
        yield host, universe.metrics_port


@asynccontextmanager
async def _many(
    desk: CommandSession, roles: Sequence[Role], settings: Settings, programs: Sequence[Program], egress: Egress | None
) -> AsyncIterator[tuple[hosts.ProcessHost, int | None]]:
    """The same for many: those that are named are made if they are missing."""
    place = desk.place
    opened = many.prepared(
        place.store,
        programs,
        universes=place.universes,
        roles=roles,
        settings=settings,
        objects=place.objects,
        egress=egress,
        metrics=desk.watch.metrics,
        peers=place.peers,
        codec=desk.codec(),
        secrets=place.secrets,
    )
    async with opened as hosting:
        yield hosting.host, hosting.metrics_port


def _say_ending(desk: CommandSession, what: str, detail: str) -> None:
    desk.out.note(f"[{what}] {detail}")


def _dump(host: hosts.ProcessHost) -> None:
    """Say on stderr what a process is doing."""
    found = msgspec.structs.replace(host.dump(), stacks=dumps.stacks())
    output.write(printable.json({"dump": found}), err=True)


async def _until_stopped(
    desk: CommandSession,
    record: dict[str, Any],
    host: hosts.ProcessHost,
    programs: Sequence[Program],
    stopped: asyncio.Event,
) -> None:
    """Say so when others can count on this process, and notice if a bug stops a role."""
    said = False
    while not stopped.is_set():
        host.check()  # a role that a bug has stopped must end the process: a supervisor starts another
        if not said and host.ready:
            said = True
            _say_ready(desk, record, host, programs)
        try:
            # More often until it is ready: scripts wait for that line.
            async with asyncio.timeout(POLL_SECONDS if said else POLL_SECONDS / 10):
                await stopped.wait()
        except TimeoutError:
            pass


def _say_ready(
    desk: CommandSession, record: dict[str, Any], host: hosts.ProcessHost, programs: Sequence[Program]
) -> None:
    names = [program.name for program in programs]
    record |= {
        "name": host.name,
        "worker": host.worker.hex(),
        "pid": os.getpid(),
        "programs": names,
        "store": desk.place.shown,
    }
    if desk.place.universes:
        record |= {"universes": desk.place.universes, "served": len(host.universes.known)}
    else:
        record |= {"universe": desk.place.universe}
    of = f" for {', '.join(names)}" if names else ""
    desk.out.one(record, [f"{record['ready']} {host.name} is ready{of} in {desk.place.shown}; Ctrl-C ends it"])


COMMANDS: list[click.Command] = [adapter, orchestrator, janitor, up]
