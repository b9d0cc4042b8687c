"""`upgrade`: worlds go on under other code; with `--shadow`, what would differ if they did.

A shadow upgrade answers a question, and changes nothing: code 1 if something would differ.
"""

from __future__ import annotations

import click

from worldline.base import errors
from worldline.client.connection import Connection
from worldline.features.shadow import calls, report_text
from worldline.inspect import store_queries
from worldline.kernel.authoring.program import Program
from worldline.runtime import death_witness, placement, program_versions, world_holders
from worldline.runtime.feature import parts_of
from worldline.terminal import command_session, output, program_files, suggest
from worldline.terminal.command_session import CommandSession


@command_session.command("upgrade", app=True)
@click.argument("worlds", nargs=-1, metavar="[WORLD...]")
@click.option("--all", "every", is_flag=True, help="All worlds; with --app, those of its programs.")
@click.option(
    "--to", "code", default="", metavar="CODE", help="The code, or how it begins: see `worldline worker list`."
)
@click.option("--shadow", "dry", is_flag=True, help="Change nothing: say what would differ under the code of --app.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="With --shadow: over the last N steps.")
async def upgrade(
    desk: CommandSession, *, worlds: tuple[str, ...], every: bool, code: str, dry: bool, last: int | None
) -> int:
    """Move worlds to other code, or only try it.

    Moving works also while workers with their present code still run. Without it, a world stays under its code until
    the last worker that has it is gone or drained. A shadow upgrade runs the recorded inputs of the last steps through
    the code of --app and says what would differ. It writes nothing and calls no effect.
    """
    if every == bool(worlds):
        raise errors.BadInput("name worlds, or all with --all")
    if last is not None and not dry:
        raise errors.BadInput("--last says how many steps --shadow tries: give --shadow with it")
    if dry and code:
        raise errors.BadInput("--to names code that a worker has; --shadow tries the code of --app FILE")
    apps = desk.place.apps if dry or _app_given() else []
    if dry and not apps:
        raise errors.BadInput("which code should be tried? Name its file with --app FILE")
    # From the last file to the first: of two programs with one name, the first file decides.
    programs = {program.name: program for program in reversed(program_files.load_all(apps))}
    async with desk.open(programs=[]) as universe:
        names = await _all(universe, programs) if every else list(worlds)
        codes = []
        for name in names:
            try:
                if dry:
                    codes.append(await _try(desk, universe, name, programs, last=last, or_fewer=every))
                else:
                    codes.append(await _move(desk, universe, name, programs, code))
            except (errors.NotFound, errors.BadInput, errors.Corrupt) as error:
                # One world of all must not keep the others from being tried.
                if not every:
                    raise
                desk.out.one({"world": name, "error": str(error)}, [f"{name}: {error}"])
                codes.append(output.NEGATIVE)
    return max(codes, default=0)


def _app_given() -> bool:
    """Whether the file was named in the command itself, and not only by the project."""
    return click.get_current_context().get_parameter_source("apps") is click.core.ParameterSource.COMMANDLINE


async def _all(connection: Connection, programs: dict[str, Program]) -> list[str]:
    found = await store_queries.list_worlds(connection, label=None, status=None, program=None, limit=2**62)
    names = sorted(each.name for each in found if not programs or each.program in programs)
    if found and not names:
        raise errors.NotFound(f"no world here is of {' or '.join(map(repr, programs))}")
    return names


async def _program_of(desk: CommandSession, connection: Connection, name: str, programs: dict[str, Program]) -> Program:
    meta = (await (await desk.world(connection, name)).describe()).meta
    program = programs.get(meta.program)
    if program is None:
        files, there = " and ".join(desk.place.apps), ", ".join(map(repr, programs))
        raise errors.BadInput(
            f"world {name!r} is of program {meta.program!r}, which {files} does not declare; it declares {there}"
            f"{suggest.near(meta.program, programs)}"
        )
    return program


async def _try(
    desk: CommandSession,
    connection: Connection,
    name: str,
    programs: dict[str, Program],
    *,
    last: int | None,
    or_fewer: bool,
) -> int:
    program = await _program_of(desk, connection, name, programs)
    described = await (await desk.world(connection, name)).describe()
    store = connection.store
    with desk.out.progress(f"trying {name}"):
        report = await calls.try_out(
            store.engine,
            connection.blobs,
            store.env,
            described,
            program,
            parts=parts_of(store.features),
            last=last,
            or_fewer=or_fewer,
        )
    desk.out.one(report_text.data(name, report), report_text.lines(name, report))
    return output.NEGATIVE if report.differs else 0


async def _move(
    desk: CommandSession, connection: Connection, name: str, programs: dict[str, Program], code: str
) -> int:
    """Have a world go on under other code: that of a file, if one is named."""
    store, at = connection.store, await desk.address(connection, name)
    if programs and not code:
        code = placement.code_of((await _program_of(desk, connection, name, programs)).hash)
    others = death_witness.DeathWitness(store.env, lambda worker: world_holders.is_gone(store, worker))
    life, changed = await program_versions.upgrade(store.engine, store.env, others, at, code=code)
    worker = life.sign.labels.get(placement.NAME) or life.worker.hex()
    said = {"name": name, "worker": life.worker.hex(), "changed": changed}
    what = f"goes to worker {worker}" if changed else "has this code already, or is on its way"
    desk.out.one(said, [f"{name} {what}"])
    return 0
