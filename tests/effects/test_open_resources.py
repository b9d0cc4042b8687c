"""Resources in a host: opened once, before the first effect that uses them; closed with the host, whatever happened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from worldline.effects import open_resources
from worldline.kernel.authoring.resources import Resource

ALWAYS = bool(1)
RETRY = wl.Retry(attempts=3, initial_delay=0)


class Shop:
    """A program whose resources say what happens to them."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.broken = 0
        self.app = app = wl.Program("shop")

        @app.resource
        async def settings() -> AsyncIterator[dict[str, str]]:
            self.said.append("settings open")
            yield {"url": "db://"}
            self.said.append("settings closed")

        @app.resource
        async def pool(conf: dict[str, str] = wl.use(settings)) -> AsyncIterator[list[str]]:
            await asyncio.sleep(0)
            if self.broken:
                self.broken -= 1
                raise ConnectionError("refused")
            self.said.append(f"pool open at {conf['url']}")
            try:
                yield [conf["url"]]
            finally:
                self.said.append("pool closed")

        @app.effect(retry=RETRY)
        async def find(key: str, db: list[str] = wl.use(pool)) -> str:
            db.append(key)
            return f"{key} {db[0]} {len(db)}"

        @app.effect(retry=RETRY)
        def count(db: list[str] = wl.use(pool)) -> int:
            return len(db)

        @app.effect
        async def plain() -> str:
            return "plain"

        @app.workflow
        async def flow(keys: list[str]) -> list[str]:
            return await wl.gather(*[find(key) for key in keys])

        @app.workflow
        async def counts() -> int:
            return await count()

        @app.workflow
        async def without() -> str:
            return await plain()

        @app.workflow
        async def careful(key: str) -> str:
            try:
                return await find(key)
            except wl.EffectFailed as error:
                return f"{error.code}: {error}"

        self.settings, self.pool = settings, pool
        self.flow, self.counts, self.without, self.careful = flow, counts, without, careful

    def open(self, where: str = "memory://") -> Any:
        return wl.open(where, host=self.app)


async def test_opened_once_before_the_first_effect_and_closed_at_the_end() -> None:
    shop = Shop()
    async with shop.open() as universe:
        world = await universe.ensure("alice", shop.app)
        assert await world.run(shop.without(), timeout=10) == "plain"
        assert shop.said == []
        found = await world.run(shop.flow([f"k{n}" for n in range(20)]), timeout=10)
        assert sorted(int(each.split()[2]) for each in found) == list(range(2, 22))
        assert await world.run(shop.counts(), timeout=10) == 21  # in a thread, the same object
        assert shop.said == ["settings open", "pool open at db://"]
    assert shop.said[2:] == ["pool closed", "settings closed"]  # the other way round


async def test_each_host_has_its_own(tmp_path: Path) -> None:
    shop = Shop()
    for _ in range(2):
        async with shop.open(str(tmp_path / "store")) as universe:
            world = await universe.ensure("alice", shop.app)
            assert await world.run(shop.flow(["a"]), timeout=10) == ["a db:// 2"]
    assert shop.said == ["settings open", "pool open at db://", "pool closed", "settings closed"] * 2


async def test_the_journal_does_not_have_it() -> None:
    shop = Shop()
    async with shop.open() as universe:
        world = await universe.ensure("alice", shop.app)
        await world.run(shop.flow(["a"]), timeout=10)
        text = b"".join(each.payload for each in await world.journal())
        assert b"db://" in text  # in the answer
        assert b"\x62db" not in text  # a key "db"


async def test_closed_also_after_an_error() -> None:
    shop = Shop()

    async def fails() -> None:
        async with shop.open() as universe:
            world = await universe.ensure("alice", shop.app)
            await world.run(shop.flow(["a"]), timeout=10)
            raise KeyError("in the block")

    with pytest.raises(KeyError):
        await fails()
    assert shop.said[2:] == ["pool closed", "settings closed"]


async def test_one_that_fails_to_open_fails_the_attempt_and_is_opened_by_the_next() -> None:
    shop = Shop()
    shop.broken = 2
    async with shop.open() as universe:
        world = await universe.ensure("alice", shop.app)
        assert await world.run(shop.flow(["a"]), timeout=10) == ["a db:// 2"]
    assert shop.said == ["settings open", "pool open at db://", "pool closed", "settings closed"]


async def test_one_that_never_opens_is_a_clear_failure() -> None:
    shop = Shop()
    shop.broken = 100
    async with shop.open() as universe:
        world = await universe.ensure("alice", shop.app)
        said = await world.run(shop.careful("a"), timeout=10)
        assert said == ("resource_failed: find: find(): resource pool cannot be opened: ConnectionError: refused")
    assert shop.said == ["settings open", "settings closed"]


async def test_replaced_by_override(tmp_path: Path) -> None:
    shop = Shop()
    fake: list[str] = ["fake"]
    with shop.pool.override(fake):
        async with shop.open() as universe:
            world = await universe.ensure("alice", shop.app)
            assert await world.run(shop.flow(["a"]), timeout=10) == ["a fake 2"]
    assert shop.said == []
    with shop.settings.override({"url": "test://"}):  # what it uses is replaced, and it is opened itself
        async with shop.open() as universe:
            world = await universe.ensure("alice", shop.app)
            assert await world.run(shop.flow(["a"]), timeout=10) == ["a test:// 2"]
    assert shop.said == ["pool open at test://", "pool closed"]


async def test_it_belongs_to_no_attempt() -> None:
    app, keys = wl.Program("p"), list[str]()

    @app.resource
    async def pool() -> AsyncIterator[str]:
        keys.append(wl.attempt().key)
        yield "pool"

    @app.effect
    async def find(db: str = wl.use(pool)) -> str:
        keys.append(wl.attempt().key)
        return db

    @app.workflow
    async def flow() -> str:
        return await find()

    async with wl.open("memory://", host=app) as universe:
        world = await universe.ensure("alice", app)
        assert await world.run(flow(), timeout=10) == "pool"
    assert keys[0] == "outside"
    assert keys[1] != "outside"


# --- By themselves -------------------------------------------------------------------------------------------------


def made(function: Any, **options: Any) -> Resource[Any]:
    app = wl.Program("p")
    return app.resource(**options)(function) if options else app.resource(function)


async def test_an_attempt_that_is_cancelled_does_not_stop_the_opening() -> None:
    gate, said = asyncio.Event(), list[str]()

    async def slow() -> AsyncIterator[str]:
        await gate.wait()
        said.append("open")
        yield "value"
        said.append("closed")

    resource = made(slow)
    resources = open_resources.Resources()
    first = asyncio.create_task(resources.fill({"x": resource}))
    second = asyncio.create_task(resources.fill({"x": resource}))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    gate.set()
    assert await second == {"x": "value"}
    await resources.close()
    assert said == ["open", "closed"]


async def test_entered_and_left_in_one_task() -> None:
    tasks = []

    async def tied() -> AsyncIterator[str]:
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(60):  # refuses to be left in another task
            yield "value"
        tasks.append(asyncio.current_task())

    resources = open_resources.Resources()
    assert await resources.fill({"x": made(tied)}) == {"x": "value"}
    await resources.close()
    assert tasks[0] is tasks[1]
    assert tasks[0] is not asyncio.current_task()


async def opens_and_fails_to_close() -> AsyncIterator[str]:
    yield "value"
    raise RuntimeError("no close")


async def exits() -> AsyncIterator[str]:
    if ALWAYS:
        raise SystemExit(3)
    yield ""


async def cancels_itself() -> AsyncIterator[str]:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    yield ""


async def yields_nothing() -> AsyncIterator[str]:
    if not ALWAYS:
        yield ""


async def yields_twice() -> AsyncIterator[str]:
    yield "value"
    yield "again"


async def hangs() -> AsyncIterator[str]:
    await asyncio.Event().wait()
    yield ""


def gives_something_else() -> Any:
    return 5


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (exits, "SystemExit: 3"),
        (cancels_itself, "CancelledError"),
        (yields_nothing, "RuntimeError: generator didn't yield"),
        (gives_something_else, "gives int, not an async context manager"),
        (hangs, "not open after 0.01 s"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
async def test_whatever_goes_wrong_is_that_resource_alone(function: Any, why: str) -> None:
    resources = open_resources.Resources()
    broken = made(function, timeout=0.01)
    for _ in range(2):  # it is tried again
        with pytest.raises(wl.errors.ResourceFailed, match=f"resource {function.__name__} cannot be opened: .*{why}"):
            await resources.fill({"x": broken})
    good = made(yields_twice)
    assert await resources.fill({"x": good}) == {"x": "value"}
    await resources.close()


@pytest.mark.parametrize("function", [opens_and_fails_to_close, yields_twice], ids=lambda each: each.__name__)
async def test_one_that_fails_to_close_keeps_nothing_else_open(function: Any, caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []

    async def other() -> AsyncIterator[str]:
        yield "value"
        said.append("closed")

    resources = open_resources.Resources()
    await resources.fill({"a": made(other), "b": made(function)})
    await resources.close()
    assert said == ["closed"]
    assert "closing it failed" in caplog.text


async def test_one_that_hangs_in_closing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_resources, "CLOSE_SECONDS", 0.01)
    ended = asyncio.Event()

    async def sticks() -> AsyncIterator[str]:
        yield "value"
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    resources = open_resources.Resources()
    await resources.fill({"x": made(sticks)})
    await resources.close()
    await asyncio.wait_for(ended.wait(), 10)


async def test_what_is_being_opened_when_the_host_closes() -> None:
    resources = open_resources.Resources()
    resource = made(hangs)
    waiting = asyncio.create_task(resources.fill({"x": resource}))
    await asyncio.sleep(0)
    await resources.close()
    with pytest.raises(wl.errors.ResourceFailed):
        await waiting
    with pytest.raises(wl.errors.ResourceFailed, match="the host is closing"):
        await resources.fill({"x": resource})
