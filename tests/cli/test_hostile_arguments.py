"""Arguments, files and standard input that make no sense: every command ends with a documented code and one line.

Seeded: a case that fails prints its words. The option `argument_cases` sets how many there are.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click
import msgspec
import pytest

from tests import options
from tests.cli import cli_kit, every_command
from tests.cli.cli_kit import SHOP, Said, run
from worldline.base import errors
from worldline.terminal import output, store_choice

CASES = options.number("argument_cases")
SEED = 20_261_118
CODES = (
    0,
    output.NEGATIVE,
    output.USAGE,
    output.NOT_FOUND,
    output.REFUSED,
    output.STORE,
    output.TIMEOUT,
)
SECONDS_MAX = 60
# They run until they are stopped, or for as long as they are told.
LEFT_OUT = (*every_command.SERVING, "bench", "simulate", "follow", "init")

DEEP = "[" * 100_000
TEXTS = [
    "",
    " ",
    "-",
    "--",
    "@",
    "@missing",
    "@folder",
    "@deep.json",
    "@bytes",
    "\udcff",
    "a\udc80b",
    "\x1b[31m",
    "\u202e",
    "x" * 5_000,
    DEEP,
    '{"a":' * 400 + "1" + "}" * 400,
    "{}",
    "[]",
    "null",
    '"\\ud800"',
    "1e999",
    "9" * 5_000,
    "NaN",
    "../..",
    "folder",
    "missing",
    "deep.json",
    "bytes",
    "x/../../y",
    "alice",
    "bob",
    "alice@3",
    "alice@-1",
    "alice@99999999999",
    "Deposited",
    "Account",
    "a=b",
    "=",
    "a=",
    "cents=" + "9" * 400,
    "account=" + DEEP[:2_000],
    "cents=1e5",
    "name=\udcff",
    "%s%n{}",
    "nap",
    "order",
    "bad",
    "default",
    "tenant-*",
    "[",
    "*",
    "0",
    "1",
    "-1",
    str(2**64),
    "0x10",
    "٣",
    "\ufeff",
    "é" * 200,
]
NUMBERS = [
    "0",
    "1",
    "-1",
    "3",
    str(2**31),
    str(2**63),
    str(2**64),
    "9" * 400,
    "nan",
    "inf",
    "-inf",
    "1e400",
    "x",
    "",
    "٣",
]
STDIN = ["", DEEP, '{"a": 1}\n', "\udcff", "null\n" * 3, '"\\ud800"', "9" * 5_000, '{"account": "x", "cents": 1}']


@contextmanager
def limited(words: list[str]) -> Iterator[None]:
    def too_long(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it does not end: {words!r}")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS_MAX)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(words: list[str], said: Said) -> None:
    about = [word[:80] for word in words]
    assert said.code in CODES, (about, said.code)
    assert "Traceback" not in said.err, about
    lines = [line for line in said.err.splitlines() if line]
    if "--json" in words:
        assert all(isinstance(msgspec.json.decode(line), dict) for line in lines), (about, said.err[:500])
    elif said.code > output.NEGATIVE:
        assert lines, about
        assert lines[-1].startswith("error: "), (about, said.err[:500])
        assert len(lines[-1]) < 5_000, (about, "an error repeats what it was given")


@pytest.fixture
def folder(stocked: Path, tmp_path: Path) -> Path:
    """A project with files that are not what they should be."""
    cli_kit.copy(stocked, tmp_path / "store")
    (tmp_path / "worldline.toml").write_text(f'store = "store"\napp = "{SHOP}"\n')
    (tmp_path / "folder").mkdir()
    (tmp_path / "deep.json").write_text(DEEP)
    (tmp_path / "bytes").write_bytes(bytes(range(256)) * 20)
    return tmp_path


def test_any_words(folder: Path) -> None:
    rng = random.Random(SEED)
    commands = [(name, each) for name, each in every_command.leaves() if name not in LEFT_OUT]
    codes: dict[int, int] = {}
    for number in range(CASES):
        name, command = commands[number % len(commands)]
        words = [*name.split(), *words_of(command, rng)]
        with limited(words):
            said = run(*words, cwd=folder, stdin=rng.choice(STDIN))
        check(words, said)
        codes[said.code] = codes.get(said.code, 0) + 1
    assert len(codes) >= 4, "more than the parser of words is reached"


def words_of(command: click.Command, rng: random.Random) -> Iterator[str]:
    """Words for each of its parameters, of which some are left out and some are right."""
    for each in command.params:
        if isinstance(each, click.Argument):
            count = 1 if each.required else rng.randrange(0, 3 if each.nargs == -1 else 2)
            yield from (
                "alice" if each.name == "world" and rng.random() < 0.7 else value(each, rng) for _ in range(count)
            )
        elif each.opts[-1] == "--timeout":
            yield f"--timeout={rng.choice(['0.01', '0', '-1', 'nan', 'x'])}"
        elif isinstance(each, click.Option) and rng.random() < (0.7 if each.opts[0] == "--yes" else 0.2):
            if each.opts[-1] in ("--wait", "--store") and rng.random() < 0.7:
                continue
            yield each.opts[0] if each.is_flag else f"{each.opts[0]}={value(each, rng)}"


def value(parameter: click.Parameter, rng: random.Random) -> str:
    if isinstance(parameter.type, click.types.FloatParamType | click.types.IntParamType | click.IntRange):
        return rng.choice(NUMBERS)
    if isinstance(parameter.type, click.Choice) and rng.random() < 0.8:
        return str(rng.choice(list(parameter.type.choices)))
    return rng.choice(TEXTS)


@pytest.mark.parametrize("seconds", ["inf", "nan", "-1", "1e400", "x", "\udcff"])
def test_roles_are_not_started_with_times_that_are_none(folder: Path, seconds: str) -> None:
    for words in (["up", "--lease-ttl"], ["timer", "--scan"], ["janitor", "--round"], ["orchestrator", "--turn"]):
        said = run(*words, seconds, cwd=folder)
        check(words, said)
        assert said.code == output.USAGE


TOML = [
    b"store = " + b"[" * 20_000,
    b'store = "a\\u0000b"',
    b"x = 1" + b"0" * 5_000,
    b"store = 1" + b"0" * 5_000,
    b"\xff",
    b'store = "a',
    b"store = 5",
    b"[a.b.c]\nx = 1",
    b'app = ["a.py", 5]',
    b"peers = 3",
    b"peers = { a = 1 }",
    b"\x00",
    b'store = ""',
    b'keys = ""',
    b'universe = "\\u001b"',
    b'app = "\\u0000"',
    b'objects = "s3://\\u202e"',
    b'app = "."',
    b"a.a" * 3_000 + b" = 1",
    b"store = { x = " * 3_000,
    b'"" = 1',
    b'store = "' + b"x" * 5_000 + b'"',
    b"store = nan",
    b"[[a]]\n" * 1_000,
    b'peers = { "a\\nb" = "x" }',
    b'store = "postgresql://[::1"',
    b'keys = "worldline.toml"',
    b"a" * 2_000_000,
]


@pytest.mark.parametrize("data", TOML, ids=lambda data: repr(data[:24]))
def test_any_project_file(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "worldline.toml").write_bytes(data)
    for words in (["list"], ["list", "--json"], ["keys"]):
        said = run(*words, cwd=tmp_path)
        check(words, said)
        assert said.code, "there is no store"


def test_mutated_project_files(tmp_path: Path) -> None:
    """What is read is a project or `BadInput`."""
    rng = random.Random(SEED)
    whole = (
        b'store = "s"\napp = ["a.py", "b.py:x"]\nuniverse = "u"\npeers = { b = "postgresql://h/d" }\nkeys = "k.json"\n'
    )
    file, read = tmp_path / "worldline.toml", 0
    for _ in range(1_000):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(3)] = rng.choice(
                [b"", b"[", b"]", b"{", b'"', b"\\", b"\xff", b"=", b"\n", b"1", b"'''"]
            )
        file.write_bytes(data)
        try:
            read += isinstance(store_choice.read(file), store_choice.Project)
        except errors.BadInput:
            continue
    assert read


KEY_FILES = [
    DEEP.encode(),
    b'{"current":"a","keys":' + b'{"a":' * 100_000,
    b"",
    b"\xff",
    b"[]",
    b"{" * 99_999,
    b'{"current":"a","keys":{"a":"x"}}',
]


@pytest.mark.parametrize("data", KEY_FILES, ids=lambda data: repr(data[:24]))
def test_any_key_file(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(data)
    (tmp_path / "keys.json").chmod(0o600)
    said = run("list", "--keys", "keys.json", "--store", "memory://", cwd=tmp_path)
    check(["list"], said)
    assert said.code == output.USAGE
