"""Checking: replay, prove, verify, check, doctor, bench. Each answers a question; a negative answer is exit code 1."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from worldline.base import errors, grammar, private_files
from worldline.client.connection import Connection
from worldline.features.anchors import commands as anchor_commands
from worldline.features.copies import commands as copy_commands
from worldline.features.domains import lint_findings
from worldline.features.proofs import calls as proofs
from worldline.features.proofs import entry_proof, row_proof
from worldline.inspect import doctor, entry_text, lint, store_queries
from worldline.inspect import verify as verification
from worldline.model import row_keys
from worldline.model.settings import WorkerSettings
from worldline.terminal import command_session, output, program_files
from worldline.terminal.command_session import CommandSession


@command_session.command("replay", app=True)
@click.argument("world")
@click.option("--prove", is_flag=True, help="From the very beginning, and every snapshot on the way.")
@click.option("--from", "since", type=click.IntRange(min=0), metavar="HEIGHT", help="From the snapshot at or below.")
@click.option("--at", type=click.IntRange(min=0), metavar="HEIGHT", help="Up to this height.")
async def replay(desk: CommandSession, *, world: str, prove: bool, since: int | None, at: int | None) -> int:
    """Run a world's journal again and compare every digest."""
    # Once: the proof compares hashes of these very programs, and loading makes new objects.
    programs = program_files.load_all(desk.place.apps)
    async with desk.open(programs=programs) as universe:
        found = await desk.world(universe, world)
        try:
            await desk.program_of(universe, found)
        except errors.BadInput:
            if not (await found.machine()).domains.alone:  # a journal of flow domains alone has their documents
                raise
        with desk.out.progress(f"replaying {world}") as progress:
            try:
                proof = await proofs.prove(
                    found, programs=programs, up_to=at, whole=prove, since=since, progress=progress
                )
            except verification.Damaged as error:
                return _say_damaged(desk, world, error)
    said = {"world": world, "proved": proof.proved, "steps": proof.steps, "holds": proof.holds, **_proof(proof)}
    desk.out.one(said, _proof_lines(world, proof))
    return 0 if proof.holds else output.NEGATIVE


def _proof(proof: proofs.Proof) -> dict[str, Any]:
    said: dict[str, Any] = entry_text.plain(proof)
    below = max((span.last + 1 for span in proof.unverifiable), default=None)
    return {**said, "unverifiable_below": below}


def _proof_lines(world: str, proof: proofs.Proof) -> list[str]:
    lines = [f"begins at the snapshot of height {proof.start}: earlier steps are not run"] if proof.start else []
    for span in proof.unverifiable:
        lines.append(
            f"unverifiable below {span.last + 1}: heights {span.first} to {span.last} were written by program "
            f"{span.program_hash[:12]}, which is not loaded (name its file with another --app); their chain holds"
        )
    for span in proof.erased:
        lines.append(
            f"erased at heights {span.first} to {span.last}: personal values are gone; not run again, their chain holds"
        )
    if proof.difference is not None:
        return [*lines, f"{world} diverges: the code does not do what the journal says, {proof.difference}"]
    lines.append(
        f"{world}: {proof.proved} of {grammar.count(proof.steps, 'step')} run again, byte-identical "
        f"up to height {proof.height}; {grammar.count(proof.snapshots, 'snapshot')} the same"
    )
    return [*lines, f"chain {proof.chain}", f"state {proof.state}"]


def _say_damaged(desk: CommandSession, world: str, error: verification.Damaged) -> int:
    said = {"world": world, "holds": False, "height": error.height, "damage": str(error)}
    desk.out.one(said, [f"{world}: {error}"])
    return output.NEGATIVE


@command_session.command("prove")
@click.argument("world")
@click.argument("height", type=click.IntRange(min=1), required=False)
@click.option("--state", "key", metavar="KEY", help='A row of its state: "Reducer[\'key\']", "run ID", or hex.')
@click.option("--at", type=click.IntRange(min=1), metavar="HEIGHT", help="For the chain digest at this height.")
@anchor_commands.SINCE
@click.option("--out", "file", type=click.Path(path_type=Path), metavar="FILE", help="Write the proof to a file.")
@command_session.TIMEOUT
async def prove_(
    desk: CommandSession,
    *,
    world: str,
    height: int | None,
    key: str | None,
    at: int | None,
    file: Path | None,
    timeout: float | None,
    since: Path | None,
) -> None:
    """Write a proof of an entry or row, or since an anchor.

    `tools/check_proof.py` checks it without this package, against the chain digest that `show` says. No code is run.
    For a row, the world makes a step that says what its state is: a process must host it.
    """
    if [height, key, since].count(None) != 2:
        raise errors.BadInput(
            "name a HEIGHT, to prove an entry, or --state KEY, to prove a row of the state, or --since FILE, to prove "
            "that the history goes on from an anchor"
        )
    if since is not None:
        text, said, lines = await anchor_commands.prove(desk, world, since, at)
        _say_proof(desk, file, text, {**said, "file": str(file)}, lines)
        return
    if height is not None:
        await _prove_entry(desk, world, height, at, file)
        return
    if at is not None:
        raise errors.BadInput("a row is proved as it is now: --at goes with a HEIGHT")
    await _prove_state(desk, world, key or "", file, timeout)


async def _prove_entry(desk: CommandSession, world: str, height: int, at: int | None, file: Path | None) -> None:
    async with desk.open(programs=[]) as universe:
        found = await entry_proof.prove_entry(await desk.world(universe, world), height, up_to=at)
    said = {"world": world, "height": height, "step": found.step, "chain": found.chain.hex(), "file": str(file)}
    later = f"its step and the digests of {grammar.count(len(found.later), 'later one')}"
    lines = [f"height {height} of {world}: {later} written to {file}", f"chain {found.chain.hex()}"]
    _say_proof(desk, file, found.text(), said, lines)


async def _prove_state(desk: CommandSession, world: str, key: str, file: Path | None, timeout: float | None) -> None:
    row_keys.named(key)  # what names no row is said before the world is asked
    async with desk.open(programs=[]) as universe:
        there = await desk.world(universe, world)
        witnessed = await row_proof.last_witnessed(there)  # a root that was journaled before needs no host
        if witnessed is None:
            witnessed = await desk.answer(there, row_proof.witness_now(there), timeout)
        found = await row_proof.prove_state(there, key, witnessed)
    name, chain = row_keys.describe(found.key), found.entry.chain.hex()
    said = {
        "world": world,
        "key": found.key.hex(),
        "row": name,
        "present": found.row is not None,
        "step": witnessed.step,
        "height": witnessed.height,
        "root": witnessed.root.hex(),
        "chain": chain,
        "file": str(file),
    }
    has = "has" if found.row is not None else "does not have"
    lines = [
        f"the state of {world} at the end of step {witnessed.step} {has} {name}: proof written to {file}",
        f"chain {chain}",
    ]
    _say_proof(desk, file, found.text(), said, lines)


def _say_proof(desk: CommandSession, file: Path | None, text: str, said: dict[str, Any], lines: list[str]) -> None:
    """The proof itself is the answer, unless it goes to a file."""
    if file is None:
        output.write(text, nl=False)
        return
    # A proof holds values of the world: the file is for its owner.
    private_files.write(file, text.encode("ascii"), replace=True)
    desk.out.one(said, lines)


@command_session.command("verify")
@click.argument("world", required=False)
@click.option("--all", "every", is_flag=True, help="All worlds.")
@click.option("--file", type=click.Path(path_type=Path), metavar="FILE", help="An exported world, without a store.")
@copy_commands.BYTES_MAX
@anchor_commands.SINCE
@anchor_commands.KEY
@click.option(
    "--receipt-key",
    "receipt_keys",
    multiple=True,
    metavar="HEX",
    help="A public key of effect workers: one of these must have signed the receipt of every effect.",
)
async def verify(
    desk: CommandSession,
    *,
    world: str | None,
    every: bool,
    file: Path | None,
    bytes_max: int | None,
    since: Path | None,
    key: str,
    receipt_keys: tuple[str, ...],
) -> int:
    """Check every stored byte of a world's history. No code is needed or run.

    With --since, first whether it goes on from where it stood when `anchor` wrote that file, or was cut, rolled back or
    rewritten.
    """
    if since is None and key:
        raise errors.BadInput("--key goes with --since")
    if file is not None and since is not None:
        raise errors.BadInput("--since is for worlds of a store; a file is a world of its own")
    if file is not None and receipt_keys:
        raise errors.BadInput("--receipt-key is for worlds of a store: import the file, as a copy that does nothing")
    # An empty key, as of a variable that is not set, would ask for nothing, and everything would hold.
    if not all(each.strip() for each in receipt_keys):
        raise errors.BadInput("--receipt-key is empty: it takes a public key of 64 hexadecimal digits")
    if file is not None and not every and world is None:
        return await copy_commands.verify_file(desk, file, bytes_max)
    # Exactly one of the three: else it would be unclear what the exit code is about.
    if every == (world is not None) or file is not None:
        raise errors.BadInput("name a world, or all with --all, or an exported one with --file")
    async with desk.open(programs=[]) as universe:
        names = [world] if world is not None else [each.name for each in await _all(universe)]
        # First whether it goes on from the anchor: a history that was rewritten as a whole is consistent in itself.
        codes = [await _since(desk, universe, names, since, key, every=every)] if since is not None else []
        trusted = WorkerSettings(receipt_keys=",".join(receipt_keys)).trusted_keys()
        codes += [await _verify(desk, universe, name, trusted) for name in names]
    return max(codes, default=0)  # one bad world among many makes the answer negative


async def _since(
    desk: CommandSession, connection: Connection, names: list[str], file: Path, key: str, *, every: bool
) -> int:
    found = anchor_commands.read(file)
    worlds = [await desk.world(connection, name) for name in names]
    if every:
        return await anchor_commands.check_all(desk, connection, worlds, found, key)
    [world] = worlds
    own = anchor_commands.of_world(found, await world.address(), world.name, file)
    return await anchor_commands.check(desk, world, own, key)


async def _all(connection: Connection) -> list[store_queries.WorldRow]:
    return await store_queries.list_worlds(connection, label=None, status=None, program=None, limit=2**62)


async def _verify(desk: CommandSession, connection: Connection, name: str, receipt_keys: tuple[bytes, ...]) -> int:
    at = await desk.address(connection, name)
    with desk.out.progress(f"verifying {name}") as progress:
        try:
            found = await verification.verify(connection, at, progress, receipt_keys=receipt_keys)
        except verification.Damaged as error:
            return _say_damaged(desk, name, error)
        except errors.KeyDestroyed as error:
            desk.out.one({"world": name, "holds": True, "erased": True}, [f"{name}: {error}: nothing to be checked"])
            return 0
    said = {"world": name, "holds": True, **entry_text.plain(found)}
    line = (
        f"{name}: {grammar.count(found.entries, 'entry')} in {grammar.count(found.frames, 'frame')}, "
        f"{grammar.count(found.snapshots, 'snapshot')}, all as written"
    )
    if found.personal:
        line += f"; {grammar.count(found.personal, 'personal value')} apart, {found.erased} of them erased"
    if found.signed:
        line += f"; {grammar.count(found.signed, 'receipt')} signed"
    gone = [f"entries up to height {found.entries_above} are not kept any more"] if found.entries_above else []
    desk.out.one(said, [line, *gone])
    return 0


@command_session.command("check")
@click.argument("files", nargs=-1, required=True, metavar="FILE|CLASS...")
async def check(desk: CommandSession, *, files: tuple[str, ...]) -> int:
    """Find code that would not replay, and slips in flow domains.

    Clocks, randomness, sets, I/O. The source is read and not run. A flow domain is named as its JSON file, or as
    FILE.py:Class, which is imported: unguarded effects, computed values read too early, containers compared.
    """
    count = 0
    for file in files:
        of_domain = program_files.split(file)[1] or Path(file).suffix == ".json"
        for said in lint_findings.of_domain(file) if of_domain else _of_source(desk, Path(file)):
            desk.out.one(said, [str(said)])
            count += 1
    if not count:
        desk.out.note("nothing found")
    return output.NEGATIVE if count else 0  # a finding is a negative answer, so that continuous integration stops at it


def _of_source(desk: CommandSession, file: Path) -> list[lint.LintFinding]:
    text = _source(file)
    found = lint.lint(text, str(file))
    for name in lint.domain_classes(text):
        desk.out.note(f"{name} is a flow domain: `worldline check {file}:{name}` imports and checks it")
    return found


def _source(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise errors.BadInput(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise errors.BadInput(f"{file} is not text") from error


@command_session.command("doctor", app=True)
@click.option("--repair", is_flag=True, help="Write the derived queues again where they are wrong.")
async def doctor_(desk: CommandSession, *, repair: bool) -> int:
    """Check the whole store; with --repair, rebuild queues.

    Records, history, leases, and derived queues against journals.
    """
    reports: list[doctor.DoctorReport] = []
    for number, name in enumerate(await desk.universes()):
        with desk.out.progress("looking") as progress:
            async with desk.open(universe=name) as universe:
                # What is of no universe is looked at once.
                found = await doctor.examine(universe, repair=repair, store_too=not number, progress=progress)
                reports.append(found)
    for report in reports:  # after all: a progress bar must not stand between the lines
        _say_report(desk, report)
    return 0 if all(report.healthy for report in reports) else output.NEGATIVE


def _say_report(desk: CommandSession, report: doctor.DoctorReport) -> None:
    said = {**entry_text.plain(report), "healthy": report.healthy}
    desk.out.one(said, _report_lines(report))


def _report_lines(report: doctor.DoctorReport) -> list[str]:
    lines = []
    for finding in report.findings:
        done = "repaired" if finding.repaired else finding.advice or "type `worldline doctor --repair`"
        lines.append(f"{finding.world or report.universe}: {finding.what}; {done}")
    if report.left_over:
        cleaned = "cleaned" if report.cleaned else "harmless"
        lines.append(
            f"{grammar.count(report.left_over, 'key')} left over from cancelled work or deleted worlds, {cleaned}"
        )
    if report.uploads:
        one = report.uploads == 1
        harmless = f"harmless: `worldline doctor --repair` removes {'it' if one else 'them'}"
        removed = "removed" if report.uploads_cleaned else harmless
        dead = grammar.clause(
            report.uploads,
            "upload",
            "whose process died before it was whole",
            "whose process died before they were whole",
        )
        lines.append(f"{dead}, {removed}")
    if report.deletions:
        removed = "finished" if report.deletions_finished else "which janitors, or `worldline doctor --repair`, finish"
        lines.append(f"{grammar.count(report.deletions, 'deletion')} of worlds that are not finished, {removed}")
    verdict = "nothing wrong" if not report.findings else grammar.count(len(report.findings), "finding")
    mended = sum(finding.repaired for finding in report.findings)
    return [
        *lines,
        f"universe {report.universe}: {grammar.count(report.worlds, 'world')}, "
        f"{grammar.count(report.entries, 'entry')}, {verdict}" + (f", {mended} repaired" if mended else ""),
    ]


@command_session.command("bench")
@click.option("--only", metavar="A,B,...", default="", help="Only these workloads.")
@click.option("--seconds", type=float, default=5.0, show_default=True, help="How long each takes.")
@click.option("--cluster", is_flag=True, help="Roles as processes of their own, on the server that --store names.")
@click.option("--check", is_flag=True, help="With --cluster: exit code 1 if a promised p95 is missed.")
def bench(desk: CommandSession, *, only: str, seconds: float, cluster: bool, check: bool) -> int:
    """Measure this machine: throughput, latency, timers, restore."""
    from worldline import bench as benches  # noqa: PLC0415 - its workloads are loaded when asked for

    if not 0 < seconds < math.inf:  # also refuses nan, which compares with nothing
        raise errors.BadInput(f"--seconds takes a number above 0, not {seconds:g}")
    if check and not cluster:
        raise errors.BadInput("--check goes with --cluster: the targets are those of roles on a server")
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    store = desk.place.store if desk.place.given else None
    with desk.out.progress("bench") as progress:
        if cluster:
            figures = benches.run_cluster(store or "", seconds=seconds, check=check, progress=progress)
        else:
            figures = benches.run(wanted, seconds=seconds, store=store, progress=progress)
    desk.out.one(figures, benches.lines(figures))
    return output.NEGATIVE if benches.missed(figures) else 0


COMMANDS: list[click.Command] = [replay, prove_, verify, check, doctor_, bench]
