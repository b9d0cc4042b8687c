"""Exit codes, one-line errors and their JSON, and which store and program a command is about."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import worldline
from tests.cli import cli_kit
from tests.cli.cli_kit import SHOP, run
from worldline.base import errors, failures
from worldline.terminal import command_session, output, store_choice

# Every code, by commands that end with it on the stocked store.
ENDINGS: list[tuple[int, list[str], str]] = [
    (0, ["list"], ""),
    (0, ["verify", "alice"], ""),
    (1, ["check", "bad.py"], ""),
    (2, ["nope"], "No such command 'nope'"),
    (2, ["list", "--nope"], "No such option"),
    (2, ["show"], "Missing argument 'WORLD'"),
    (2, ["replay", "alice"], "name its file with --app FILE"),
    (2, ["run", "alice", "greet", "Alice"], "has no name; write NAME=VALUE"),
    (2, ["send", "alice", "Deposited", "--data", "{"], "--data is not JSON"),
    (2, ["delete", "alice"], "No terminal to ask at: pass --yes"),
    (2, ["verify"], "name a world, or all with --all"),
    (2, ["list", "--store", "ftp://nowhere"], "no store is opened by ftp://"),
    (2, ["effect", "show", "ab"], "at least 4 characters"),
    (2, ["check", "absent.py"], "cannot be read"),
    (2, ["dev"], "name the file that declares your program"),
    (2, ["dev", "bad.py"], "bad.py cannot be loaded: line 2: NameError"),
    (3, ["show", "nobody"], "no world 'nobody'"),
    (3, ["list", "--universe", "nowhere"], "no universe 'nowhere'"),
    (3, ["effect", "show", "00000000"], "no open effect"),
    (3, ["runs", "show", "alice", "nope"], "has no run 'nope'"),
    (4, ["ref", "delete", "alice", "--yes"], "own name"),
    (4, ["create", "alice", "--app", SHOP], "there is a world named 'alice' already"),
    (5, ["list", "--store", "missing"], "there is no store"),
    (6, ["ask", "bob", "Withdraw", "account=a", "cents=1"], "no process hosts world 'bob'"),
    (6, ["ask", "carol", "Withdraw", "account=a", "cents=1"], "world 'carol' is paused"),
    (6, ["ask", "bob", "Withdraw", "account=a", "cents=1", "--timeout", "0.05"], "no process hosts world 'bob'"),
    (6, ["run", "bob", "greet", "name=x", "--timeout", "0.05"], "no process hosts world 'bob'"),
    (6, ["run", "carol", "greet", "name=x", "--timeout", "0.05"], "world 'carol' is paused"),
    (2, ["dev", "starts.py"], 'starts.py runs itself when it is imported (line 7): put that under `if __name__ == "__'),
    (2, ["dev", "indirect.py"], "indirect.py runs itself when it is imported (line 9): put that under `if __name__"),
    (2, ["dev", "exits.py"], "exits.py runs itself when it is imported (line 3): put that under `if __name__"),
    (2, ["simulate", "starts.py"], "starts.py runs itself when it is imported (line 7)"),
]

COMMANDS = [
    "list",
    "show",
    "why",
    "state",
    "journal",
    "follow",
    "create",
    "send",
    "ask",
    "run",
    "pause",
    "resume",
    "archive",
    "delete",
    "label",
    "ref",
    "runs",
    "effect",
    "timer",
    "dead",
    "init",
    "dev",
    "replay",
    "verify",
    "check",
    "doctor",
    "bench",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, stocked: Path) -> Path:
    folder = tmp_path_factory.mktemp("exits")
    cli_kit.copy(stocked, folder / ".worldline")
    starts = "import asyncio\nimport worldline as wl\napp = wl.Program('a')\nasync def main():\n"
    starts += "    async with wl.open('ran', host=app):\n        raise SystemExit(9)\n"
    (folder / "starts.py").write_text(starts + "asyncio.run(main())\n")
    (folder / "indirect.py").write_text(starts + "def go():\n    asyncio.run(main())\ngo()\n")
    (folder / "exits.py").write_text("import sys\nimport worldline\nsys.exit(0)\n")
    (folder / "bad.py").write_text("import time\n@app.workflow\nasync def f():\n    time.time()\n")
    return folder


@pytest.mark.parametrize(("code", "words", "message"), ENDINGS, ids=[" ".join(row[1])[:40] for row in ENDINGS])
def test_exit_codes(place: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: list[str], message: str) -> None:
    monkeypatch.setattr(command_session, "NOT_HOSTED_AFTER_SECONDS", 0.3)
    said = run(*words, cwd=place)
    assert said.code == code, said
    assert message in said.err
    if code > 1:
        assert said.err.startswith("error: ")
        assert said.err.count("\n") == 1, "one line"


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (["show", "nobody"], 3, "not_found"),
        (["list", "--store", "missing"], 5, "store_missing"),
        (["nope"], 2, "usage"),
        (["follow", "alice", "--timeout", "0.05"], 6, "timeout"),
        (["delete", "alice"], 2, "bad_input"),
    ],
)
def test_errors_as_json(place: Path, words: list[str], code: int, name: str) -> None:
    said = run(*words, "--json", cwd=place)
    assert (said.code, said.out) == (code, "")
    assert said.error["code"] == name
    assert said.error["message"]
    assert sorted(said.error) == ["code", "hint", "message"]


def test_an_error_that_says_what_to_do_gets_no_other_hint(capsys: pytest.CaptureFixture[str]) -> None:
    refused = errors.StoreUnavailable("cannot connect to postgresql://h; check that the server runs")
    assert output.complain(refused, as_json=False) == 5
    assert capsys.readouterr().err == "error: cannot connect to postgresql://h; check that the server runs\n"


def test_refused(store: Path) -> None:
    assert run("archive", "bob", "--store", store).code == 0
    said = run("send", "bob", "Deposited", "account=a", "cents=1", "--store", store)
    assert said.code == 4
    assert "is archived and takes no input" in said.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.BadInput("x"), 2),
        (errors.TooLarge("x", size=2, limit=1), 2),
        (errors.IdReused("x"), 4),
        (errors.NotFound("x"), 3),
        (errors.Exists("x"), 4),
        (errors.Closed("x"), 4),
        (errors.Conflicted("x"), 4),
        (errors.DedupeExpired("x"), 4),
        (failures.Refused("x"), 4),
        (output.Declined("x"), 4),
        (errors.Overloaded("x", retry_after=1), 4),
        (errors.QuotaExceeded("worlds", used=1, limit=1, advice="x"), 4),
        (errors.RunBlocked("x", "w", "y"), 4),
        (errors.StoreUnavailable("x"), 5),
        (errors.StoreVersion("x"), 5),
        (errors.DecodeError("x"), 5),
        (failures.RunFailed("x"), 1),
        (failures.Diverged("x"), 1),
        (failures.EffectTimeout("x"), 1),
        (errors.Unhandled("x"), 1),
        (TimeoutError(), 6),
        (errors.NotHosted("x"), 6),
    ],
)
def test_every_error_has_its_code(error: Exception, code: int) -> None:
    assert output.exit_code(error) == code


def test_a_store_that_is_not_one(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o700)
    (tmp_path / "store" / "data.mdb").write_bytes(b"not a store" * 1000)
    said = run("list", "--store", tmp_path / "store")
    assert said.code == 5
    assert said.err.count("\n") == 1


def test_help_and_version(tmp_path: Path) -> None:
    assert run("--version").out == f"worldline {worldline.__version__}\n"
    assert "Usage: worldline" in run("--help").out
    nothing = run()
    assert (nothing.code, "Usage: worldline" in nothing.out) == (2, True)
    every = run("--help").out
    for name in COMMANDS:
        assert re.search(rf"\n  {name}[ ,]", every)
        assert run(name, "--help").code == 0


def test_interrupted(stocked: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*cli_kit.COMMAND, "follow", "alice", "--above", "0", "--store", str(stocked)],
        cwd=tmp_path,
        env=cli_kit.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell in the background ignores it
    )
    assert process.stdout is not None
    assert "event=Deposited" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=cli_kit.SECONDS)
    assert (process.returncode, err.strip()) == (130, "")
    assert "Traceback" not in out


# --- Which store, which program --------------------------------------------------------------------------------------


def toml(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "worldline.toml").write_text(text)


def test_the_flag_comes_first_then_the_environment_then_the_project(
    stocked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml(tmp_path, f'store = "{stocked}"')
    found = ["carol", "bob", "alice"]
    monkeypatch.setenv("WORLDLINE_STORE", "missing")
    assert run("list", "-q", "--store", stocked, cwd=tmp_path).out.split() == found
    assert run("--store", stocked, "list", "-q", cwd=tmp_path).out.split() == found
    assert "missing, and creating one was not asked for" in run("list", "-q", cwd=tmp_path).err
    monkeypatch.delenv("WORLDLINE_STORE")
    below = tmp_path / "deep" / "down"
    below.mkdir(parents=True)
    assert run("list", "-q", cwd=below).out.split() == found


def test_paths_in_a_project_are_relative_to_it(store: Path, tmp_path: Path) -> None:
    toml(tmp_path, f'store = "{store.name}"\napp = "{SHOP}"')
    below = tmp_path / "below"
    below.mkdir()
    assert run("state", "alice", "Account", "bob", cwd=below).out == '{"cents":5}\n'
    toml(below, 'store = "elsewhere"')
    assert run("list", cwd=below).code == 5


def test_without_anything_the_store_is_here(tmp_path: Path, stocked: Path) -> None:
    assert ".worldline, and creating one was not asked for" in run("list", cwd=tmp_path).err
    cli_kit.copy(stocked, tmp_path / ".worldline")
    assert run("list", cwd=tmp_path).code == 0


@pytest.mark.parametrize("text", ["store = ", 'sotre = "x"', "store = 5"])
def test_a_project_file_with_a_mistake_in_it(tmp_path: Path, text: str) -> None:
    toml(tmp_path, text)
    said = run("list", cwd=tmp_path)
    assert said.code == 2
    assert "worldline.toml" in said.err


def test_a_universe_of_its_own(tmp_path: Path) -> None:
    assert run("create", "a", "--store", tmp_path / "s", "--universe", "lab", "--app", SHOP).code == 0
    assert run("list", "-q", "--store", tmp_path / "s", "--universe", "lab").out == "a\n"
    assert run("list", "-q", "--store", tmp_path / "s").code == 3
    toml(tmp_path, 'store = "s"\nuniverse = "lab"')
    assert run("list", "-q", cwd=tmp_path).out == "a\n"


OWN, SERVER = "own", "postgresql://user@host/database"
PROJECT = f'store = "{OWN}"\nobjects = "bodies"'
CHOICES: list[tuple[str, str | None, str | None, str | None]] = [
    (PROJECT, None, None, "bodies"),
    (PROJECT, OWN, None, "bodies"),
    (PROJECT, SERVER, None, "bodies"),
    (PROJECT, "another", None, None),
    (PROJECT, "another", "s3://a/b", "s3://a/b"),
    (PROJECT, None, "s3://a/b", "s3://a/b"),
    (f'store = "{SERVER}"\nobjects = "s3://c/d"', "postgresql://other@host/database", None, "s3://c/d"),
    ('objects = "s3://c/d"', None, None, "s3://c/d"),
    ('objects = "s3://c/d"', ".worldline", None, "s3://c/d"),
    ('store = "s"', None, None, None),
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_objects_of_the_project_go_with_its_store_and_with_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: tuple[str, str | None, str | None, str | None]
) -> None:
    text, store, objects, expected = choice
    toml(tmp_path, text)
    monkeypatch.chdir(tmp_path)
    place = store_choice.choose(store=store, universe=None, apps=(), store_given=store is not None, objects=objects)
    assert place.objects == expected


def test_objects_are_named_like_the_store(tmp_path: Path) -> None:
    """Before the command or after it."""
    big = f"by={'x' * 40_000}"
    store = ["--store", tmp_path / "s"]
    for words in (
        ["--objects", tmp_path / "o", "create", "w"],
        ["send", "w", "Approved", big, "--objects", tmp_path / "o"],
    ):
        said = run(*words, *store, "--app", SHOP)
        assert (said.code, said.err) == (0, "")
    assert list((tmp_path / "o").rglob("*-*"))
    assert not list((tmp_path / "s").rglob("objects/*"))


EXTRAS = ("asyncpg", "cryptography", "obstore", "opentelemetry", "prometheus_client")
WITHOUT_EXTRAS = (
    f"import sys; sys.modules.update(dict.fromkeys({EXTRAS})); from worldline import cli; sys.exit(cli.main())"
)


def test_commands_run_without_any_extra(tmp_path: Path) -> None:
    """What a plain installation lacks. A command that needs an extra says so, or why it has nothing to do."""
    for code, words in ((0, ["create", "w", "--app", SHOP]), (5, ["keys"])):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_EXTRAS, *words, "--store", "new"],
            cwd=tmp_path,
            env=cli_kit.environment(),
            capture_output=True,
            text=True,
            timeout=cli_kit.SECONDS,
            check=False,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


def test_bench_is_one_object(tmp_path: Path) -> None:
    said = run("bench", "--only", "B1", "--seconds", "0.1", "--json", cwd=tmp_path)
    assert said.code == 0
    assert {"B1", "floor", "store", "machine"} <= set(said.json)
    assert said.json["B1"]["per_s"] > 0
    assert not (tmp_path / ".worldline").exists(), "it measures in a folder of its own"
    assert run("bench", "--only", "Z").code == 2
