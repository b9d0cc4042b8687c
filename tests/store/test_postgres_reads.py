"""Reads that wait for a connection together: one statement answers them all, each with what it asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.conformance import batches
from tests.servers import postgres as servers
from tests.store.postgres_kit import Place, Raw
from worldline.base import errors
from worldline.store import kv
from worldline.store.postgres import postgres_connections, postgres_engine

CONTENTS = {b"k/%02d" % number: b"%d" % number for number in range(20)}


@pytest.fixture
def place() -> Place:
    return Place(servers.shared())


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each read statement has carried."""
    sent: list[int] = []
    real = postgres_connections.PostgresSession.read

    async def read(self: postgres_connections.PostgresSession, arguments: Sequence[Any], *, backwards: bool) -> Any:
        sent.append(len(arguments[0]) + len(arguments[1]))
        return await real(self, arguments, backwards=backwards)

    monkeypatch.setattr(postgres_connections.PostgresSession, "read", read)
    return sent


async def _blocked(
    place: Place, *, statement_timeout_ms: int = 30_000
) -> tuple[postgres_engine.PostgresEngine, Raw, asyncio.Future[kv.ReadResult]]:
    """An engine whose only reading connection waits for a lock."""
    opened = await place.open(read_connections=1, statement_timeout_ms=statement_timeout_ms)
    await batches.fill(opened, CONTENTS)
    raw = await place.raw()
    await raw.execute("BEGIN; LOCK TABLE kv IN ACCESS EXCLUSIVE MODE")
    first = asyncio.ensure_future(opened.read(kv.Get(b"k/00")))
    await place.blocked(raw)
    return opened, raw, first


async def test_what_waits_together_is_asked_together(place: Place, statements: list[int]) -> None:
    opened, raw, first = await _blocked(place)
    del statements[:-1]
    waiting = [asyncio.ensure_future(opened.read(kv.Get(b"k/%02d" % number), kv.Get(b"none"))) for number in range(10)]
    some = asyncio.ensure_future(opened.read(kv.Range(b"k/", b"k0", 3)))
    last = asyncio.ensure_future(opened.read(kv.Range(b"k/", b"k0", 2, reverse=True), kv.Get(b"k/07")))
    nothing = asyncio.ensure_future(opened.read())
    await asyncio.sleep(0)
    await raw.execute("COMMIT")
    assert (await first).answers == [b"0"]
    for number, each in enumerate(waiting):
        assert (await each).answers == [b"%d" % number, None]
    page = (await some).page(0)
    assert (page.items, page.more) == ([(b"k/00", b"0"), (b"k/01", b"1"), (b"k/02", b"2")], True)
    assert (await last).page(0).items == [(b"k/19", b"19"), (b"k/18", b"18")]
    assert (await last).value(1) == b"7"
    assert (await nothing).answers == []
    assert statements == [1, 23], "the one that was under way, and one for all others"
    assert len({(await each).time_us for each in waiting}) == 1, "one snapshot"


async def test_a_statement_is_not_made_too_long(place: Place, statements: list[int]) -> None:
    opened, raw, first = await _blocked(place)
    del statements[:-1]
    ranges = [asyncio.ensure_future(opened.read(kv.Range(b"k/%02d" % (number % 20), b"k0", 1))) for number in range(40)]
    gets = [asyncio.ensure_future(opened.read(*[kv.Get(b"k/01")] * 600)) for _ in range(2)]
    await asyncio.sleep(0)
    await raw.execute("COMMIT")
    await first
    for number, each in enumerate(ranges):
        assert (await each).page(0).items[0][0] == b"k/%02d" % (number % 20)
    for each in gets:
        assert (await each).answers == [b"1"] * 600
    assert sorted(statements) == [1, 32, 600, 608]


async def test_who_goes_away_leaves_the_others_alone(place: Place) -> None:
    opened, raw, first = await _blocked(place)
    waiting = [asyncio.ensure_future(opened.read(kv.Get(b"k/%02d" % number))) for number in range(4)]
    await asyncio.sleep(0)
    for index in (0, 2):
        waiting[index].cancel()
    await raw.execute("COMMIT")
    await first
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in done] == [True, False, True, False]
    assert [each.answers for each in done if isinstance(each, kv.ReadResult)] == [[b"1"], [b"3"]]
    assert await batches.get(opened, b"k/05") == b"5"


async def test_all_are_told_if_it_cannot_be_answered(place: Place) -> None:
    opened, raw, first = await _blocked(place, statement_timeout_ms=300)
    waiting = [asyncio.ensure_future(opened.read(kv.Get(b"k/%02d" % number))) for number in range(3)]
    for each in [first, *waiting]:
        with pytest.raises(errors.StoreUnavailable, match="took too long"):
            await each
    await raw.execute("COMMIT")
    assert await batches.get(opened, b"k/05") == b"5"


async def test_closing_waits_for_them(place: Place) -> None:
    opened, raw, first = await _blocked(place)
    waiting = asyncio.ensure_future(opened.read(kv.Get(b"k/01")))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(opened.close())
    await raw.execute("COMMIT")
    await closing
    assert (await first).answers == [b"0"]
    assert (await waiting).answers == [b"1"]
