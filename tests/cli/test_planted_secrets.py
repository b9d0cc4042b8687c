"""Passwords, keys and secrets of a deployment, planted, are in nothing that any command writes.

Every command is run against a PostgreSQL that wants the password, with an encrypted store; what is written to stdout,
stderr, files, logs, metrics and dumps is searched for every planted value, also as it stands in URLs and in hexadecimal
or base64.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import signal
import subprocess
import traceback
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
import zstandard

import worldline as wl
from tests import aio
from tests.cli import cli_kit, every_command, payments, shop
from tests.cli.cli_kit import COMMAND, SHOP, run
from tests.features.domains import orders
from tests.servers import postgres
from worldline.base import errors
from worldline.bench import cluster_bench
from worldline.features.anchors import anchor_signature
from worldline.features.encryption import master_keys
from worldline.inspect import store_queries
from worldline.model.work import WorkKind, WorkState
from worldline.terminal import store_choice

PASSWORD = "pa/ss@w0rd planted"  # with what must be escaped in a URL
KEY = "5ec2e7" * 10 + "abcd"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIAVISIBLE",
    "AWS_SECRET_ACCESS_KEY": "planted-s3-secret-key",
    "AWS_SESSION_TOKEN": "planted-s3-session-token",
    "AWS_ENDPOINT_URL_S3": "https://127.0.0.1:9",
    "PGPASSWORD": "planted-pg-password",
    "WORLDLINE_SECRET_STRIPE": "sk_planted_4eC39HqLyjWDarjtT1zdp7dc",
}
SIGNING_KEY = "51600d" * 10 + "beef"
PAYMENTS = str(Path(payments.__file__))
WEBHOOK_SECRET = "planted-webhook-secret-0123"
PEER_PASSWORD = "planted-peer-password"
# Whoever adds a kind of secret plants one of it here.
PLANTED = {
    "the password of the store": PASSWORD,
    "the master key": KEY,
    "the password of a peer": PEER_PASSWORD,
    "the webhook's secret": WEBHOOK_SECRET,
    "the secret key of S3": ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
    "the token of S3": ENVIRONMENT["AWS_SESSION_TOKEN"],
    "PGPASSWORD": ENVIRONMENT["PGPASSWORD"],
    "a secret of an effect": ENVIRONMENT["WORLDLINE_SECRET_STRIPE"],
    "the key that signs anchors and receipts": SIGNING_KEY,
}


def forms(secret: str) -> Iterator[bytes]:
    """A secret as it may stand in a text."""
    raw = secret.encode()
    yield raw
    yield urllib.parse.quote(secret, safe="").encode()
    yield urllib.parse.quote(secret).encode()
    yield urllib.parse.quote_plus(secret).encode()
    yield raw.hex().encode()
    yield base64.b64encode(raw).rstrip(b"=")
    with contextlib.suppress(ValueError):
        yield bytes.fromhex(secret)  # a key, as it is used


FORMS = [(name, form) for name, secret in PLANTED.items() for form in dict.fromkeys(forms(secret))]


def check(data: bytes | str, where: object) -> None:
    raw = data.encode(errors="surrogateescape") if isinstance(data, str) else data
    for name, form in FORMS:
        at = raw.find(form)
        assert at < 0, f"{where} shows {name}: ...{raw[max(0, at - 80) : at + 40]!r}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose files hold secrets."""
    made = tmp_path_factory.mktemp("planted")
    (made / "keys.json").write_text(msgspec.json.encode({"current": "a", "keys": {"a": KEY}}).decode())
    (made / "keys.json").chmod(0o600)
    (made / "secret").write_text(WEBHOOK_SECRET)
    (made / "secret").chmod(0o600)
    anchor_signature.SigningKey(bytes.fromhex(SIGNING_KEY)).write(made / "sign.key")
    (made / "out").mkdir()
    (made / "worldline.toml").write_text(
        f'app = {msgspec.json.encode([SHOP, str(Path(orders.__file__))]).decode()}\nkeys = "keys.json"\n'
        f'peers = {{ billing = "postgresql://u:{PEER_PASSWORD}@127.0.0.1:9/billing" }}\n'
    )
    return made


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A store of a role that must give its password, on a server of this file's own."""
    server = postgres.start(tcp=True)

    async def execute(statement: str) -> None:
        raw = await asyncpg.connect(server.url())
        try:
            await raw.execute(statement)
        finally:
            await raw.close()

    access = server.data / "pg_hba.conf"
    access.write_text(f"host all planted 127.0.0.1/32 scram-sha-256\n{access.read_text()}")
    aio.run(execute(f"CREATE ROLE planted LOGIN SUPERUSER PASSWORD '{PASSWORD}'; SELECT pg_reload_conf()"))
    yield server.url(schema="planted", user="planted", password=PASSWORD, tcp=True)
    server.close()


@pytest.fixture(scope="module")
def things(url: str, folder: Path) -> dict[str, str]:
    """What the words of commands stand for, in a store that is stocked now."""
    codec = wl.ops.AesGcm.from_file(str(folder / "keys.json"))

    async def make() -> dict[str, str]:
        found: dict[str, str] = {}
        await cli_kit.stock_now(url, codec)
        async with wl.open(url, host=orders.app, codec=codec) as universe:
            world = await universe.ensure("shop", orders.app)
            await world.act(orders.Order.fill(5), key="o-1")
        async with wl.open(url, codec=codec) as universe:
            async for each in store_queries.open_work(universe._connection, None):
                parked = each.work.state is WorkState.PARKED
                kind = "timer" if each.work.kind is WorkKind.TIMER else "parked" if parked else "effect"
                found[kind] = each.intent.hex()
        return found

    (folder / "document.json").write_text(msgspec.json.encode(orders.Order.document()).decode())
    return {
        "app": SHOP,
        "domain": f"{orders.__file__}:Order",
        "document": str(folder / "document.json"),
        "folder": str(folder / "out"),
        "secret": str(folder / "secret"),
        "hostile": "nowhere",
        "other": url.replace("schema=", "schema=other_"),
        **aio.run(make()),
    }


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def test_every_command_that_ends(url: str, folder: Path, things: dict[str, str]) -> None:
    succeeded: dict[str, None] = {}
    for words in every_command.cases(things):
        said = run(*words, "--store", url, cwd=folder)
        check(said.out + said.err, words)
        assert "Traceback" not in said.err, (words, said.err)
        if said.code == 0:
            succeeded[words[0]] = None
    assert len(succeeded) >= 40, "most have something to say"
    for path in (each for each in (folder / "out").rglob("*") if each.is_file()):
        check(path.read_bytes(), path)
        for data in unpacked(path.read_bytes()):
            check(data, path)


def unpacked(data: bytes) -> Iterator[bytes]:
    """The compressed parts of a file."""
    at = data.find(zstandard.FRAME_HEADER)
    while at >= 0:
        with contextlib.suppress(zstandard.ZstdError):
            yield zstandard.ZstdDecompressor().decompressobj().decompress(data[at:])
        at = data.find(zstandard.FRAME_HEADER, at + 1)


def test_what_is_typed_in_the_wrong_place(url: str, folder: Path) -> None:
    """Also where click, or a driver, repeats what it was given."""
    wrong = url.replace("planted:", "other:")
    for words in (
        ["list", url],
        ["show", url],
        ["send", "alice", url],
        ["lisst", url],
        ["backup", "verify", url],
        ["--stroe", url],
        ["list", "--limit", url],
        ["verify", "--file", url],
        ["check", url],
        ["--objects", url, "list"],
        ["--keys", url, "list"],
        ["list", "--store", wrong],
        ["list", "--store", url.replace("://", ":/")],
        ["list", "--store", f"{url}&sslmode=perhaps"],
        ["list", "--store", url.replace("/postgres", "/missing")],
        ["list", "--store", url, "--objects", "s3://bucket/prefix"],
        ["restore", "out/none", url],
    ):
        for more in ([], ["--json"]):
            said = run(*words, *more, cwd=folder)
            assert said.code not in (0, None), words
            check(said.out + said.err, words)


def test_every_process_that_goes_on(url: str, folder: Path, things: dict[str, str]) -> None:
    """Their lines, logs at the lowest level, metrics, and what they say of themselves when asked."""
    started: dict[str, subprocess.Popen[bytes]] = {}
    outputs: dict[str, Path] = {}
    env = cli_kit.environment({**ENVIRONMENT, "WORLDLINE_STORE": url})
    try:
        for name, words in every_command.serving(things):
            watched = name in every_command.WATCHED
            more = ["--metrics", "127.0.0.1:0", "--log", "json", "--log-level", "debug"] if watched else []
            outputs[name] = folder / f"{name}.txt"
            with outputs[name].open("wb") as file:
                started[name] = subprocess.Popen(
                    [*COMMAND, *words, *more, "--json"],
                    cwd=folder,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
        for name, process in started.items():
            cli_kit.wait_for(outputs[name], b'"ready"', b'"hosting"')
            if name in every_command.WATCHED:
                process.send_signal(signal.SIGUSR1)
                cli_kit.wait_for(outputs[name], b'"dump"')
                check(metrics(outputs[name].read_text()), f"metrics of {name}")
        assert run("run", "carol", "greet", "name=x", "--timeout", "0.1", "--store", url, cwd=folder).code != 0
    finally:
        for process in started.values():
            process.send_signal(signal.SIGTERM)
        for process in started.values():
            process.wait(cli_kit.SECONDS)
    for name, path in outputs.items():
        check(path.read_bytes(), name)


def test_what_an_effect_reads_and_what_signs(url: str, folder: Path, things: dict[str, str]) -> None:
    """In the lines, logs, metrics and dumps of the process that performs the effect, and whatever shows it later."""
    del things  # the store is stocked
    env = cli_kit.environment(
        {**ENVIRONMENT, "WORLDLINE_STORE": url, "WORLDLINE_SET_ADAPTER_RECEIPT_KEY": str(folder / "sign.key")}
    )
    common = ["--app", PAYMENTS, "--store", url, "--keys", str(folder / "keys.json")]
    watched = ["--metrics", "127.0.0.1:0", "--log-level", "debug", "--json"]
    for number, more in enumerate((["up", *watched], ["up", *watched, "--log", "json"], ["dev"], ["dev", "--json"])):
        output, world = folder / f"payments-{number}.txt", f"till-{number}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*COMMAND, more[0], PAYMENTS, *more[1:]],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            cli_kit.wait_for(output, b'"ready"', b"hosting")
            assert run("create", world, *common).code == 0
            said = run("run", world, "paid", "order=o1", "--id", "o1", "--timeout", "0.1", *common)
            check(said.out + said.err, "run")
            cli_kit.wait_for(output, b"401 for <secret stripe>")
            if more[0] == "up":
                process.send_signal(signal.SIGUSR1)
                cli_kit.wait_for(output, b'"dump"')
                check(metrics(output.read_text()), "metrics")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(cli_kit.SECONDS)
        check(output.read_bytes(), more)
        shown = 0
        for words in (
            ["effect", "list"],
            ["why", world],
            ["runs", "show", world, "o1"],
            ["journal", world],
            ["log", world],
            ["verify", world],
            ["verify", world, "--receipt-key", anchor_signature.SigningKey(bytes.fromhex(SIGNING_KEY)).public],
            ["anchor", world, "--sign", "sign.key"],
            ["anchor", "--all", "--sign", "sign.key", "--out", f"out/signed-{number}"],
            ["journal", world, "--export", f"out/till-{number}.jsonl"],
            ["export", world, f"out/{world}.world"],
        ):
            said = run(*words, "--store", url, "--keys", "keys.json", cwd=folder)
            assert said.code == 0, (words, said)
            check(said.out + said.err, words)
            shown += "<secret stripe>" in said.out
        assert shown >= 2, "its name is"
    for path in (folder / "out").iterdir():
        if path.is_file() and path.name.startswith(("signed", "till")):
            for data in (path.read_bytes(), *unpacked(path.read_bytes())):
                check(data, path)


def metrics(said: str) -> bytes:
    ready = next(each for each in map(msgspec.json.decode, said.splitlines()) if "ready" in each)
    with urllib.request.urlopen(f"http://127.0.0.1:{ready['metrics_port']}/metrics") as answer:
        found: bytes = answer.read()
    return found


async def test_the_python_api(url: str, folder: Path, things: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    del things  # the store is stocked
    keys = str(folder / "keys.json")
    codec = wl.ops.AesGcm.from_file(keys)
    place = store_choice.StoreChoice(url, "default", None, [], True, False, peers={"billing": PEER_PASSWORD})
    mine: list[object] = [codec, place, master_keys.read(Path(keys))]
    async with wl.open(url, codec=codec, settings=wl.Settings(host_wait_ms=2_500)) as universe:
        inner = universe._connection
        mine += [universe, universe.world("alice"), inner, inner.store, inner.store.engine, inner.peers]
        for each in mine:
            check(f"{each!r} {each}", "repr")
        with pytest.raises(errors.NotHosted, match=r"worldline .* --store ") as caught:
            await universe.world("alice").run(shop.greet("x"))
        check("".join(traceback.format_exception(caught.value)), "NotHosted")
        assert "no process hosts" in caplog.text
        check(caplog.text, "the log")


async def test_no_process_is_started_with_the_url_as_an_argument(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    async def start(*words: str, **more: Any) -> None:
        given.append((words, more["env"]["WORLDLINE_STORE"]))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    await cluster_bench._start(url, "w1", ["worker"])
    [(words, store)] = given
    check(" ".join(words), "the arguments")
    assert store == url
