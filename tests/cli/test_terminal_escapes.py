"""Texts that users choose, made to act on a terminal: every command shows them, and none lets them through."""

from __future__ import annotations

import json
import signal
import subprocess
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.cli import cli_kit, escapes, every_command
from tests.cli.cli_kit import COMMAND, run
from tests.cli.escapes import HOSTILE
from worldline import testing
from worldline.client.run_handle import Sent
from worldline.inspect import store_queries
from worldline.kernel import event_dispatch, user_values
from worldline.model.work import WorkKind, WorkState
from worldline.terminal import output
from worldline.terminal import screen as terminal

APP = str(Path(escapes.__file__))
RAW = ("\x1b]", escapes.COLOUR, "\x9b", "\u202e", "\u2066", "\x08", "\x7f", "\u2028", "\U000e0041")
# What the table of all commands has no words for, since it is made for another program.
MORE = [
    ["state", "alice"],
    ["state", "alice", "Notes", HOSTILE],
    ["runs", "show", "alice", "parked"],
    ["why", "alice"],
    ["runs", "show", "alice", "[red]PWNED[/red"],
    ["send", "alice", "Noted", f"text={HOSTILE}", "--id", HOSTILE],
    ["runs", "list", "alice"],
    ["journal", "alice"],
    ["dead", "list"],
    ["list", "--label", "note"],
    ["show", "alice"],
    ["diff", "alice@3", "alice"],
    ["diff", "alice@3", "alice", "--all"],
    ["trace", "alice"],
    ["effect", "list"],
    ["explain", "alice", "Order.fill", "--key", HOSTILE],
    ["state", "alice", "Order", HOSTILE],
    ["dead", HOSTILE],
    [HOSTILE],
    [f"--{HOSTILE}"],
    ["list", f"--limit={HOSTILE}"],
    ["journal", "alice", "--app", HOSTILE],
    ["list", "--store", HOSTILE],
    ["list", "--universe", HOSTILE],
    ["list", "--keys", HOSTILE],
    ["list", "--objects", f"s3://{HOSTILE}"],
    ["list", "--store", f"postgresql://{HOSTILE}"],
    ["follow", HOSTILE],
]


def check(shown: str, what: object) -> None:
    for raw in RAW:
        at = shown.find(raw)
        assert at < 0, f"{what} lets {raw!r} through: {shown[max(0, at - 60) : at + 30]!r}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("escapes")
    (made / "out").mkdir()
    (made / "secret").write_text("0123456789abcdef")
    (made / "secret").chmod(0o600)
    (made / "worldline.toml").write_text(f'store = "store"\napp = "{APP}"\n')
    return made


@pytest.fixture(scope="module")
def things(folder: Path) -> dict[str, str]:
    """A store with hostile texts wherever there can be some, and what commands are told of it."""
    found: dict[str, str] = {}

    async def make() -> None:
        async with wl.open(str(folder / "stocked"), host=escapes.app) as universe:
            alice = await universe.ensure("alice", escapes.app, labels={"note": escapes.MARKUP})
            for text in (HOSTILE, f"fail{HOSTILE}"):
                await aio.journaled(await alice.send(escapes.Noted(text), id=f"{text}"))
            assert await alice.run(escapes.echoes(HOSTILE), id="[red]PWNED[/red") == HOSTILE
            with pytest.raises(wl.RunFailed):
                await alice.run(escapes.fails(HOSTILE), id="bad")
            _ = await alice.start(escapes.waits(HOSTILE), id="order")
            _ = await alice.start(escapes.parked(HOSTILE), id="parked")
            _ = await alice.start(escapes.retried(HOSTILE), id="retried")
            await alice.act(escapes.Order.fill(HOSTILE), key=HOSTILE)
            await alice._handle.send(
                *event_dispatch.sealed(escapes.MARKUP, user_values.dump(HOSTILE), {"note": HOSTILE})
            )
            await aio.until(lambda: settled(universe))
            await universe.ensure("bob", escapes.app)
            await universe.ensure("carol", escapes.app)
            async for each in store_queries.open_work(universe._connection, None):
                parked = each.work.state is WorkState.PARKED
                kind = "timer" if each.work.kind is WorkKind.TIMER else "parked" if parked else "effect"
                found[kind] = each.intent.hex()

    async def settled(universe: wl.Universe) -> bool:
        return sum([bool(each.work.error) async for each in store_queries.open_work(universe._connection, None)]) == 2

    aio.run(make())
    (folder / "document.json").write_text(
        json.dumps({**escapes.Order.document(), "meta": {"name": HOSTILE, "description": HOSTILE}})
    )
    return {
        "app": APP,
        "domain": f"{APP}:Order",
        "document": str(folder / "document.json"),
        "folder": str(folder / "out"),
        "secret": str(folder / "secret"),
        "hostile": HOSTILE,
        "other": str(folder / "other"),
        **found,
    }


def test_every_command_that_ends(folder: Path, things: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    cli_kit.copy(folder / "stocked", folder / "store")
    harmless = 0
    for words in [*MORE, *([*each, "--json"] for each in MORE), *every_command.cases(things)]:
        said = run(*words, cwd=folder, terminal=True)
        check(said.out + said.err, words)
        assert "Traceback" not in said.err, (words, said.err)
        harmless += "PWNED" in said.out
        if said.code > output.NEGATIVE and "--json" not in words:
            assert "error: " in said.err.splitlines()[-1], f"{words}: more than one line: {said.err}"
    assert harmless > 40, "the texts are shown, harmlessly"


def test_json_means_what_was_stored(folder: Path, things: dict[str, str]) -> None:
    del things
    said = run("journal", "alice", "--json", "--store", folder / "stocked")
    check(said.out, "the journal")
    assert HOSTILE in [each["data"]["text"] for each in said.lines if each.get("event") == "Noted"]


def test_what_processes_say(folder: Path, things: dict[str, str], tmp_path: Path) -> None:
    """`dev` in its three forms, and a worker's log, while hostile things happen."""
    store = cli_kit.copy(folder / "stocked", tmp_path / "store")
    env = cli_kit.environment({"WORLDLINE_STORE": str(store), "TERM": "xterm", "COLUMNS": "200", "FORCE_COLOR": "1"})
    forms = {
        "blocks": ["dev", APP],
        "entries": ["dev", APP, "--entries"],
        "json": ["dev", APP, "--json"],
        "text log": ["up", APP, "--log-level", "debug"],
        "json log": ["up", APP, "--log", "json", "--log-level", "debug"],
    }
    for number, (name, words) in enumerate(forms.items()):
        written = tmp_path / f"{number}.txt"
        with written.open("wb") as file:
            process = subprocess.Popen(
                [*COMMAND, *words], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )
        try:
            cli_kit.wait_for(written, b"hosting", b"ready")
            for words in (["send", "bob", "Noted", f"text=fail{HOSTILE}"], ["run", "bob", "echoes", f"text={HOSTILE}"]):
                said = run(*words, "--id", f"{number}", "--timeout", "60", "--store", store, cwd=folder)
                assert said.code == 0, said.err
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(cli_kit.SECONDS)
        shown = written.read_text()
        assert "PWNED" in shown, name
        check(shown, name)
        if "json" in name:
            assert all(isinstance(msgspec.json.decode(line), dict) for line in shown.splitlines() if line[0] == "{")


async def test_what_a_host_logs_is_harmless_whichever_handler_writes_it(caplog: pytest.LogCaptureFixture) -> None:
    """A program of a user's own, which has not set up any: Python's handler writes warnings to the terminal."""
    caplog.set_level("DEBUG", "worldline")
    async with wl.open("memory://", host=escapes.app, create=True) as universe:
        alice = await universe.create("alice", escapes.app)
        await aio.journaled(await alice.send(escapes.Noted(f"fail{HOSTILE}")))
        with pytest.raises(wl.RunFailed):
            await alice.run(escapes.fails(HOSTILE), id="bad")
        _ = await alice.start(escapes.parked(HOSTILE), id="parked")
        _ = await alice.start(escapes.retried(HOSTILE), id="retried")
        await alice._handle.send(f"Sch{HOSTILE}", user_values.dump({}))
        expected = ("was not processed: Notes.noted raised", "is parked", "tried again in", "takes a Sch")

        async def logged() -> bool:
            return all(each in caplog.text for each in expected)

        await aio.until(logged)
    assert caplog.text.count("PWNED") > len(expected), "the texts are shown, harmlessly"
    check(caplog.text, "the log")


async def raised(waiting: Awaitable[object]) -> tuple[Exception, str]:
    """What was raised, and what Python writes to a terminal of it if nobody catches it."""
    try:
        await waiting
    except wl.errors.Error as error:
        return error, "".join(traceback.format_exception(error))
    raise AssertionError("nothing was raised")


async def test_what_a_caller_gets_raised_is_harmless() -> None:
    """In a program of a user's own: Python writes an exception that nobody catches to the terminal, with its notes."""
    async with wl.open("memory://", host=escapes.app, create=True) as universe:
        alice = await universe.create("alice", escapes.app)
        cancelled = await alice.start(escapes.waits(HOSTILE), id="cancelled")
        await cancelled.cancel(HOSTILE)
        parked = await alice.start(escapes.parked(HOSTILE), id="parked")
        sent = await alice.send(escapes.Noted(f"fail{HOSTILE}"), id=HOSTILE)
        unknown = await alice._handle.send(f"Sch{HOSTILE}", user_values.dump({}))
        found = {
            "Unhandled": await raised(sent.applied()),
            "Unhandled, by nothing": await raised(Sent(universe._connection, unknown, event=f"Sch{HOSTILE}").applied()),
            "RunFailed": await raised(alice.run(escapes.fails(HOSTILE), id="bad")),
            "RunCancelled": await raised(cancelled.result()),
            "RunBlocked": await raised(parked.result(on_blocked="raise")),
            "Refused": await raised(alice.ask(escapes.Asked(HOSTILE))),
            "an answer that failed": await raised(alice.ask(escapes.Counted(HOSTILE))),
            "IdReused": await raised(alice.send(escapes.Noted("other"), id=HOSTILE)),
            "NotFound": await raised(alice.attach(f"no{HOSTILE}")),
            "a run's id": await raised(alice.start(escapes.waits(""), id=HOSTILE)),
            "a world's name": await raised(universe.create(HOSTILE, escapes.app)),
            "a label": await raised(universe.create("bob", escapes.app, labels={"note": HOSTILE})),
        }
        [*_, letter] = [each async for each in alice.dead()]
    for what, (error, shown) in found.items():
        check(shown, what)
        check(str(error), what)
        assert "PWNED" in shown, f"{what}: the text is shown, harmlessly"
    check(repr(letter), "a dead letter")
    assert HOSTILE in letter.reason, "data is what it was"
    refused, _ = found["Refused"]
    assert isinstance(refused, wl.Refused)
    assert refused.data == {"text": HOSTILE}, "data is what it was"


def test_what_a_test_gets_raised_is_harmless() -> None:
    with testing.world(escapes.app) as world:
        asked: list[Callable[[], object]] = [
            lambda: world.send(escapes.Noted(f"fail{HOSTILE}")),
            lambda: world.ask(escapes.Asked(HOSTILE)),
            lambda: world.ask(escapes.Counted(HOSTILE)),
            lambda: world.run(escapes.fails(HOSTILE)),
        ]
        for each in asked:
            with pytest.raises(wl.errors.Error, match="PWNED") as caught:
                each()
            check("".join(traceback.format_exception(caught.value)), caught.value.code)


def test_markup_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = cli_kit.Screen()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stderr", screen)
    terminal.print_table([HOSTILE], [[HOSTILE]])
    terminal.print_lines([(HOSTILE, "red")])
    with terminal.progress_bar(escapes.MARKUP) as update:
        update(1, 2, f"{escapes.MARKUP}{escapes.TITLE}")
    check(screen.getvalue(), "a screen")
    assert screen.getvalue().count(escapes.MARKUP) >= 4, "brackets are shown as they are"
