"""`wl.secret`: read where an effect runs, and found nowhere afterwards, whatever the effect does with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.servers import web
from tests.servers.web import Reply, Seen
from worldline import testing
from worldline.base.secret import KNOWN
from worldline.kernel import user_errors
from worldline.observe import log_format
from worldline.store import kv

PLANTED = "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc"
MARK = "told-by-the-effect"
ONCE = wl.Retry(attempts=1)


@pytest.fixture(autouse=True)
def nothing_known() -> Any:
    """Each test begins and ends in a process that has read no secret."""
    assert not KNOWN
    yield
    KNOWN.forget([PLANTED, PLANTED + "-2"])
    assert not KNOWN


@dataclass
class Look:
    pass


@dataclass
class Piece:
    text: str


class Talkative(Exception):
    """Says the secret in every way that an exception has."""

    def __init__(self, value: str) -> None:
        super().__init__(f"{MARK} {value}", value.encode(), {"key": value})
        self.code = f"code-{value}"
        self.fields = {"nested": [value, (value.encode(), value.encode().hex())], value: 1}
        self.add_note(f"note {value}")


def leaky() -> wl.Program:
    app = wl.Program("leaky")

    @app.effect(retry=ONCE)
    async def leak(how: str) -> Any:
        value = wl.secret("stripe").reveal()
        wl.attempt().emit(value)
        wl.attempt().emit({"piece": [value], "mark": MARK})
        wl.attempt().emit(Piece(value))
        wl.attempt().emit(Piece(MARK))
        wl.log.warning("%s %s", MARK, value, carried=value)
        logging.getLogger("worldline.adapter").warning("%s %s", MARK, value, extra={"carried": value})
        match how:
            case "raise":
                raise Talkative(value)
            case "chain":
                try:
                    raise Talkative(value)
                except Talkative as error:
                    raise wl.Fatal(f"{MARK} {value!r}") from error
            case "long":
                raise ValueError(MARK + "x" * (user_errors.TEXT_CHARACTERS_MAX - 15 - len(MARK)) + value)
            case "return":
                return {"deep": [f"Bearer {value}"]}
            case "return bytes":
                return b"\x00" + value.encode() + b"\x00"
            case "return key":
                return {value: 1}
            case "personal":
                return wl.Personal(value, of="ada")
            case "object":
                return wl.secret("stripe")
            case _:
                return MARK

    @app.effect(retry=ONCE)
    def leak_in_thread(how: str) -> str:
        raise ValueError(f"{MARK} {wl.secret('stripe').reveal()}")

    @app.resource
    async def pool() -> AsyncIterator[str]:
        value = wl.secret("stripe").reveal()
        if value.endswith("-2"):
            raise ConnectionError(f"{MARK} {value}")
        yield value

    @app.effect(retry=ONCE)
    async def with_resource(how: str, db: str = wl.use(pool)) -> str:
        return f"{MARK} {len(db)}"

    @app.workflow
    async def flow(kind: str, how: str) -> list[Any]:
        effect = {"leak": leak, "leak_in_thread": leak_in_thread, "with_resource": with_resource}[kind]
        try:
            return ["ok", await effect(how)]
        except wl.EffectFailed as error:
            return [error.code, str(error), sorted(map(str, error.data)), str(error.data)]

    return app


CASES = [
    ("leak", "raise"),
    ("leak", "chain"),
    ("leak", "long"),
    ("leak", "return"),
    ("leak", "return bytes"),
    ("leak", "return key"),
    ("leak", "personal"),
    ("leak", "object"),
    ("leak_in_thread", ""),
]


async def stored(universe: wl.Universe) -> bytes:
    """Every key and value of the store."""
    engine = universe._connection.store.engine
    found, start = b"", b"\0"
    while True:
        page = (await engine.read(kv.Range(start, b"\xff" * 8, count_max=1_000))).page(0)
        found += b"".join(key + value for key, value in page.items)
        if not page.items or len(page.items) < 1_000:
            return found
        start = page.items[-1][0] + b"\0"


@pytest.mark.parametrize(("kind", "how"), CASES)
async def test_it_stands_nowhere_whatever_the_effect_does_with_it(kind: str, how: str) -> None:
    app = leaky()
    lines: list[str] = []
    facts: list[str] = []
    sinks = wl.ops.Sinks(
        metrics=lambda fact: facts.append(repr(fact)),
        log=lambda fact: facts.append(repr(fact)),
        replay=lambda fact: facts.append(repr(fact)),
    )
    with (
        log_format.written("json", lines.append, level="debug"),
        log_format.written("text", lines.append, level="debug"),
    ):
        async with wl.open("memory://", host=app, create=True, secrets={"stripe": PLANTED}, sinks=sinks) as universe:
            world = await universe.create("w", app)
            seen: list[Any] = []
            following = asyncio.create_task(_collect(world, seen))
            await asyncio.sleep(0)
            outcome = await world.run(app.workflows["flow"](kind, how))
            data = await stored(universe)
            following.cancel()
    said = "\n".join([str(outcome), *lines, *facts, *map(repr, seen)])
    for hidden in (PLANTED, PLANTED.encode().hex(), PLANTED[:12]):
        assert hidden not in said
        assert hidden.encode() not in data
    assert "<secret stripe>" in said or outcome[0] in ("secret_in_answer", "encode_error")
    assert outcome[0] != "ok"
    if how in ("raise", "chain", "long") or kind == "leak_in_thread":
        assert MARK.encode() in data, "what else the failure says is stored"
        assert b"<secret stripe>" in data
    if kind == "leak":
        assert f"Piece(text='{MARK}')" in said
        assert any(MARK in line for line in lines)
        assert any(MARK in repr(each) for each in seen)


@pytest.mark.parametrize("kind", ["leak", "leak_in_thread"])
async def test_what_is_logged_is_clean_for_any_handler(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    app = leaky()
    with caplog.at_level(logging.DEBUG, "worldline"):
        async with wl.open("memory://", host=app, create=True, secrets={"stripe": PLANTED}) as universe:
            world = await universe.create("w", app)
            await world.run(app.workflows["flow"](kind, "raise"))
    # What the effect writes by itself, past `wl.log`, is its own.
    records = [each for each in caplog.records if each.name in ("worldline.failures", "worldline.user")]
    said = [vars(record) for record in records if MARK in record.getMessage()]
    assert said
    assert PLANTED not in str(said)


async def _collect(world: wl.World, seen: list[Any]) -> None:
    async for each in world.follow():
        seen.append(each)


async def test_resources_have_secrets_too_and_their_failures_show_none() -> None:
    app = leaky()
    for value, expected in ((PLANTED, ["ok", f"{MARK} {len(PLANTED)}"]), (PLANTED + "-2", None)):
        async with wl.open("memory://", host=app, create=True, secrets={"stripe": value}) as universe:
            world = await universe.create("w", app)
            outcome = await world.run(app.workflows["flow"]("with_resource", ""))
            assert outcome == expected or (outcome[0] == "resource_failed" and "<secret stripe>" in outcome[1])
            assert PLANTED.encode() not in await stored(universe)


async def test_it_is_read_anew_at_each_attempt_and_a_missing_one_is_looked_for_again(tmp_path: Path) -> None:
    app = wl.Program("rotation")
    read: list[str] = []

    @app.effect(retry=wl.Retry(attempts=3, initial_delay=0))
    async def use() -> int:
        if wl.attempt().number == 2:
            (tmp_path / "stripe").write_text(PLANTED)
        read.append(wl.secret("stripe").reveal())
        if len(read) == 1:
            (tmp_path / "stripe").write_text(PLANTED + "-2")
            raise ConnectionError(f"once more, {read}")
        return len(read)

    @app.workflow
    async def flow() -> int:
        return await use()

    async with wl.open("memory://", host=app, create=True, secrets=tmp_path) as universe:
        world = await universe.create("w", app)
        assert await world.run(flow()) == 2
        assert read == [PLANTED, PLANTED + "-2"]
        assert PLANTED.encode() not in await stored(universe)


async def test_a_missing_one_says_what_to_do(tmp_path: Path) -> None:
    app = leaky()
    async with wl.open("memory://", host=app, create=True, secrets=str(tmp_path)) as universe:
        world = await universe.create("w", app)
        code, message, *_ = await world.run(app.workflows["flow"]("leak", "return"))
    assert code == "secret_missing"
    assert f"write it to {tmp_path}/stripe" in message
    assert "WORLDLINE_SECRET_STRIPE=..." in message


@pytest.mark.parametrize("value", ["short", "x" * 100_000, 5])
async def test_one_that_cannot_be_hidden_is_refused(value: Any) -> None:
    app = leaky()
    async with wl.open("memory://", host=app, create=True, secrets={"stripe": value}) as universe:
        world = await universe.create("w", app)
        code, message, *_ = await world.run(app.workflows["flow"]("leak", "return"))
    assert code in ("bad_input", "too_large")
    assert "'stripe'" in message


# --- Where it is refused -------------------------------------------------------------------------------------------


def test_workflows_and_handlers_get_none() -> None:
    app = wl.Program("curious")

    @app.workflow
    async def peek() -> str:
        try:
            return wl.secret("stripe").reveal()
        except wl.errors.OutsideEffect as error:
            return f"{error.code}: {error}"

    @app.reducer
    @dataclass
    class Peeking:
        seen: str = ""

        @wl.on
        def look(self, event: Look) -> None:
            try:
                wl.secret("stripe")
            except wl.errors.OutsideEffect as error:
                self.seen = error.code

    with testing.secrets({"stripe": PLANTED}), testing.world(app) as world:
        assert "call it in the effect that needs it" in world.run(peek())
        world.send(Look())
        assert world.state(Peeking).seen == "outside_effect"


def test_it_is_no_argument() -> None:
    app = wl.Program("caller")

    @app.effect
    async def call(key: Any) -> str:
        return "called"

    with testing.secrets({"stripe": PLANTED}):
        secret = wl.secret("stripe")
        for given in (secret, [secret], {"a": {"b": secret}}):
            with pytest.raises(
                wl.Error, match=r"<secret stripe> has no stored form; .* wl.secret\('stripe'\)"
            ) as caught:
                call(given).pack()
            assert PLANTED not in str(caught.value)


@pytest.mark.parametrize("name", ["", "Stripe", "../stripe", "a b", "a" * 64, "é", 5, "-a", "a\n"])
def test_names(name: Any) -> None:
    with testing.secrets({"stripe": PLANTED}), pytest.raises(wl.BadInput, match="a secret's name"):
        wl.secret(name)


def test_outside_of_everything_it_says_so() -> None:
    with pytest.raises(wl.errors.OutsideEffect, match=r"with testing.secrets\(\{'stripe'"):
        wl.secret("stripe")


# --- The test kit --------------------------------------------------------------------------------------------------


def test_the_kit_gives_secrets_and_shows_what_production_does() -> None:
    app = wl.Program("shop")

    @app.effect(retry=ONCE)
    def charge(how: str) -> str:
        key = wl.secret("stripe").reveal()
        if how == "raise":
            raise ValueError(f"refused: {key}")
        return key if how == "return" else f"charged with {len(key)}"

    @app.workflow
    async def flow(how: str) -> list[str]:
        try:
            return ["ok", await charge(how)]
        except wl.EffectFailed as error:
            return [error.code, str(error)]

    with testing.secrets({"stripe": PLANTED}), testing.world(app, wl.Script().on(charge, charge)) as world:
        assert world.run(flow("")) == ["ok", f"charged with {len(PLANTED)}"]
        assert world.run(flow("return"))[0] == "secret_in_answer"
        raised = world.run(flow("raise"))
        assert raised == ["ValueError", "charge: ValueError: refused: <secret stripe>"]
        assert "<secret stripe>" in str(world.traces)
        assert PLANTED not in str(world.traces)
        with testing.secrets({"mail": "another one"}):
            assert wl.secret("mail").reveal() == "another one"
            assert wl.secret("stripe").reveal() == PLANTED
        with pytest.raises(wl.errors.SecretMissing, match=r"testing\.secrets"):
            wl.secret("mail")
    with testing.world(app, wl.Script().on(charge, charge)) as world, pytest.raises(wl.errors.OutsideEffect):
        world.run(flow(""))


# --- Credentials of wl.http.request --------------------------------------------------------------------------------


def fetching() -> wl.Program:
    app = wl.Program("fetching")

    @app.workflow
    async def fetch(url: str, credential: str) -> list[str]:
        request = wl.http.request.options(retry=ONCE)
        try:
            answer = await request("GET", url, credential=credential)
        except wl.EffectFailed as error:
            return [error.code, str(error)]
        return [str(answer.status), answer.text]

    return app


async def test_a_credential_goes_to_its_origin_and_is_journaled_nowhere() -> None:
    app = fetching()
    async with web.serving(web.always(Reply(200, body=b"far"))) as other:

        async def answer(seen: Seen) -> Reply:
            match seen.target:
                case "/away":
                    return Reply(302, {"location": f"{other.url}/far"})
                case "/near":
                    return Reply(302, {"location": "/ok"})
                case "/echo":
                    return Reply(200, body=seen.headers["x-api-key"].encode())
                case "/down":
                    return Reply(500, body=b"what is " + seen.headers["x-api-key"].encode())
            return Reply(200, body=b"ok")

        async with web.serving(answer) as server:
            declared = wl.ops.Credential(origin=server.url, secret="stripe", header="X-Api-Key", form="key {}")
            egress = wl.ops.Egress(allow=["127.0.0.1"], credentials={"pay": declared})
            async with wl.open(
                "memory://", host=app, create=True, secrets={"stripe": PLANTED}, egress=egress
            ) as universe:
                world = await universe.create("w", app)
                fetch = app.workflows["fetch"]
                outcomes = {
                    path: await world.run(fetch(f"{server.url}/{path}", "pay"))
                    for path in ("ok", "near", "away", "echo", "down")
                }
                elsewhere = await world.run(fetch(f"{other.url}/", "pay"))
                unknown = await world.run(fetch(server.url, "mail"))
                data = await stored(universe)
    assert outcomes["ok"] == outcomes["near"] == ["200", "ok"]
    assert outcomes["away"] == ["200", "far"]
    assert outcomes["echo"][0] == "secret_in_answer"
    assert outcomes["down"] == [
        "http_500",
        f"http.request: {server.url}/down answered 500: what is key <secret stripe>",
    ]
    assert elsewhere == [
        "egress_refused",
        f"http.request: GET {other.url}/: its credential goes to {server.url} and nowhere else",
    ]
    assert unknown[0] == "egress_refused"
    assert "no credential 'mail'; declare it: wl.ops.Egress(credentials={'mail'" in unknown[1]
    assert {seen.headers.get("x-api-key") for seen in server.seen} == {f"key {PLANTED}"}
    assert ["x-api-key" in seen.headers for seen in other.seen] == [False]
    assert PLANTED.encode() not in data
