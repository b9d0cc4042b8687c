"""Large values on stores that have no objects: events, requests, messages, arguments, results and effects' answers."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.kits import kit as kits
from tests.servers import postgres, web
from tests.servers.web import Reply
from worldline.base import errors, limits
from worldline.inspect import verify
from worldline.model.journal import Kind

STORES = ["lmdb", "postgres"]
KB30, MB1, MB10 = 30_000, 1_000_000, 10_000_000
LOCAL = wl.ops.Egress(allow=["127.0.0.1"], response_bytes_max=4_000_000)

_SCHEMAS = itertools.count()


@dataclass(frozen=True)
class Put:
    text: str


@dataclass(frozen=True)
class Turned(wl.Request[str]):
    text: str


def program(performed: list[int]) -> wl.Program:
    app = wl.Program("large")

    @app.reducer
    @dataclass
    class Shelf:
        count: int = 0
        last: str = ""

        @wl.on
        def put(self, event: Put) -> None:
            self.count += 1
            self.last = event.text

        @wl.on
        def turned(self, event: Turned) -> str:
            return event.text[::-1]

    @app.effect(retry=wl.Retry(attempts=5, initial_delay=0.01))
    async def make(size: int) -> str:
        performed.append(size)
        return "x" * size

    @app.workflow
    async def sizes(*sizes: int) -> list[int]:
        return [len(await make(size)) for size in sizes]

    @app.workflow
    async def whole(text: str, size: int) -> str:
        return text + await make(size)

    @app.workflow
    async def write(to: str, size: int) -> str:
        await wl.send(to, Put("m" * size))
        answer: str = await wl.ask(to, Turned("ab" * (size // 2)))
        return answer

    @app.workflow
    async def fetch(url: str) -> int:
        return len((await wl.http.request("GET", url)).body)

    return app


def url_of(store: str, folder: Path) -> str:
    if store == "lmdb":
        return str(folder / "store")
    return postgres.shared().url(schema=f"large_{os.getpid()}_{next(_SCHEMAS)}")


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("WORLDLINE_OBJECTS", raising=False)
    return url_of(request.param, tmp_path)


async def test_large_answers_are_performed_once_and_survive_a_restart(url: str) -> None:
    performed: list[int] = []
    app = program(performed)
    async with wl.open(url, host=app) as universe:
        world = await universe.ensure("w", app)
        assert await world.run(app.workflows["sizes"](KB30, MB10), timeout=60) == [KB30, MB10]
        assert (await kits.kinds(world)).count(Kind.EFFECT_RESULT) == 2
    assert performed == [KB30, MB10]
    async with wl.open(url, host=app) as universe:
        world = universe.world("w")
        assert await world.run(app.workflows["sizes"](KB30 + 1), timeout=60) == [KB30 + 1]
        await kits.prove(world, app)
        await verify.verify(universe._connection, await world._handle.address())
    assert performed == [KB30, MB10, KB30 + 1]


async def test_ten_megabytes_in_and_out_of_a_run_are_read_by_another_client(url: str) -> None:
    performed: list[int] = []
    app = program(performed)
    whole: Any = app.workflows["whole"]
    async with wl.open(url, host=app) as universe:
        await universe.ensure("w", app)
        async with wl.open(url, programs=app) as client:
            world = client.world("w")
            run = await world.start(whole("a" * 2_000_000, MB10 - 2_000_000), id="r")
            assert await run.result(60) == "a" * 2_000_000 + "x" * (MB10 - 2_000_000)
            run = await world.start(whole("b" * MB10, 1), id="s")
            assert await run.result(60) == "b" * MB10 + "x"
    assert performed == [MB10 - 2_000_000, 1]


async def test_large_events_requests_and_messages_are_taken(url: str) -> None:
    app = program([])
    async with wl.open(url, host=app) as universe, wl.open(url, programs=app) as client:
        await universe.ensure("w", app)
        await universe.ensure("other", app)
        world = client.world("w")
        await (await world.send(Put("e" * MB1))).applied(60)
        assert await world.ask(Turned("ab" * (MB1 // 2)), timeout=60) == "ba" * (MB1 // 2)
        assert await world.run(app.workflows["write"]("other", MB1), timeout=60) == "ba" * (MB1 // 2)
        for each, last in ((world, "e"), (client.world("other"), "m")):
            shelf = await each.state(app.reducers["Shelf"].cls)
            assert (shelf.count, shelf.last) == (1, last * MB1)


async def test_a_large_http_answer_is_fetched_once(url: str) -> None:
    app = program([])
    async with (
        web.serving(web.always(Reply(200, {}, b"x" * 3_000_000))) as server,
        wl.open(url, host=app, egress=LOCAL) as universe,
    ):
        world = await universe.ensure("w", app)
        assert await world.run(app.workflows["fetch"](server.url), timeout=60) == 3_000_000
        assert len(server.seen) == 1


async def test_what_is_too_large_is_refused_where_it_is_given(url: str) -> None:
    """Before anything is written: the type says what is wrong, and the message how much it may be."""
    app = program([])
    async with wl.open(url, host=app) as universe:
        world = await universe.ensure("w", app)
        before = await world.head()
        huge = "x" * limits.CBOR_BYTES_MAX
        for give in (
            lambda: world.send(Put(huge)),
            lambda: world.ask(Turned(huge)),
            lambda: world.run(app.workflows["whole"](huge, 1)),
        ):
            with pytest.raises(errors.ValueTooLarge, match=str(limits.CBOR_BYTES_MAX)):
                await give()
        assert await world.head() == before


async def test_objects_that_are_named_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder has objects beside it for what is too large for itself; those that are named take all that is large."""
    monkeypatch.delenv("WORLDLINE_OBJECTS", raising=False)
    app = program([])
    for number, objects in enumerate((None, str(tmp_path / "named"))):
        url = str(tmp_path / f"store {number}")
        async with wl.open(url, host=app, objects=objects) as universe:
            world = await universe.ensure("w", app)
            await (await world.send(Put("e" * MB1))).applied(60)
            found = await universe._connection.store.objects.list("")
            assert bool(found) == (objects is not None)
            assert (await world.state(app.reducers["Shelf"].cls)).last == "e" * MB1
