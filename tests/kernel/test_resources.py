"""Resources as they are declared and replaced: what may use them, and that they are no part of a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import worldline as wl
from worldline import testing
from worldline.codec import canonical

if TYPE_CHECKING:
    from nowhere import Elsewhere  # type: ignore[import-not-found]


class Pool:
    def __init__(self, name: str = "real") -> None:
        self.name = name

    async def fetch(self, key: str) -> str:
        return f"{key} from {self.name}"


def program() -> tuple[wl.Program, wl.Resource[Pool]]:
    app = wl.Program("shop")

    @app.resource
    async def pool() -> AsyncIterator[Pool]:
        yield Pool()

    return app, pool


def test_it_is_no_part_of_a_call() -> None:
    app, pool = program()

    @app.effect
    async def find(key: str, limit: int = 5, db: Pool = wl.use(pool), *, log: Pool = wl.use(pool)) -> str:
        return await db.fetch(key)

    other = wl.Program("shop")

    @other.effect(name="find")
    async def find_without(key: str, limit: int = 5) -> str:
        return key

    assert list(find.signature.parameters.parameters) == ["key", "limit"]
    assert find.signature.uses == {"db": pool, "log": pool}
    assert canonical.decode(find("a").pack()) == {"key": "a"}
    assert find.signature.unpack(find("a", 3).pack()) == (("a", 3), {})
    assert app.hash == other.hash
    for call in (find("a", db=Pool()), find("a", 1, log=Pool())):
        with pytest.raises(wl.BadInput, match="is a resource, which the host passes; the call leaves it out"):
            call.pack()
    with pytest.raises(wl.BadInput, match="too many positional arguments"):
        find("a", 1, Pool()).pack()


def test_its_type_need_not_be_there_at_run_time() -> None:
    app, pool = program()

    @app.effect
    async def find(key: str, db: Elsewhere = wl.use(pool)) -> str:
        return key

    assert find.signature.hints == {"key": str, "return": str}
    with testing.world(app):
        pass


def mistakes() -> dict[str, Any]:
    app, pool = program()
    other = wl.Program("other")

    def in_a_workflow() -> None:
        @app.workflow
        async def flow(db: Pool = wl.use(pool)) -> None: ...

    def of_another_program() -> None:
        @other.effect
        async def find(db: Pool = wl.use(pool)) -> None: ...

    def of_another_program_in_a_resource() -> None:
        @other.resource
        async def cache(db: Pool = wl.use(pool)) -> AsyncIterator[str]:
            yield "x"

    def before_an_argument() -> None:
        @app.effect
        async def find(db: Pool = wl.use(pool), key: str = "") -> None: ...

    def before_more() -> None:
        @app.effect
        async def find(db: Pool = wl.use(pool), *keys: str) -> None: ...

    def by_position() -> None:
        @app.effect
        async def find(db: Pool = wl.use(pool), /) -> None: ...

    def with_an_argument() -> None:
        @app.resource
        async def cache(size: int) -> AsyncIterator[str]:
            yield "x"

    def twice() -> None:
        @app.resource
        async def pool() -> AsyncIterator[str]:
            yield "x"

    def not_one() -> None:
        wl.use(Pool())  # type: ignore[arg-type]

    def in_no_time() -> None:
        app.resource(timeout=-1)

    return {
        "workflow flow: 'db' is resource pool; only effects use resources": in_a_workflow,
        "effect find: 'db' is a resource of program 'shop', not of 'other'": of_another_program,
        "resource cache: 'db' is a resource of program 'shop'": of_another_program_in_a_resource,
        r"find\(\): put 'db', which is a resource, behind 'key'": before_an_argument,
        r"find\(\): put 'db', which is a resource, behind 'keys'": before_more,
        "must be passed by name": by_position,
        "resource cache: nothing passes 'size'": with_an_argument,
        "already has a resource named 'pool'": twice,
        r"wl.use\(\) takes what @app.resource has made": not_one,
        "timeout must be": in_no_time,
    }


@pytest.mark.parametrize(("message", "declare"), mistakes().items(), ids=lambda each: getattr(each, "__name__", ""))
def test_mistakes_are_found_at_declaration(message: str, declare: Any) -> None:
    with pytest.raises(wl.BadInput, match=message):
        declare()


def test_a_context_manager_is_one_too() -> None:
    app = wl.Program("shop")

    @app.resource(timeout=5)
    @asynccontextmanager
    async def pool() -> AsyncIterator[Pool]:
        """Where things are."""
        yield Pool()

    assert pool.timeout_us == 5_000_000
    assert pool.__doc__ == "Where things are."
    assert repr(pool) == "Resource('pool')"


async def test_outside_a_host_it_has_to_be_replaced() -> None:
    app, pool = program()

    @app.effect
    async def find(key: str, db: Pool = wl.use(pool)) -> str:
        return await db.fetch(key)

    with pytest.raises(
        wl.errors.OutsideWorkflow, match=r"find\(\) uses resource pool, which only a host opens; .*override"
    ):
        await find("a")
    with pool.override(Pool("outer")), pool.override(Pool("inner")) as inner:
        assert inner.name == "inner"
        assert await find("a") == "a from inner"
    assert not pool.is_overridden


def test_a_script_runs_the_effect_itself() -> None:
    app, pool = program()

    @app.effect
    async def find(key: str, db: Pool = wl.use(pool)) -> str:
        if wl.attempt().number == 1:
            raise ConnectionError("first")
        return await db.fetch(key)

    @app.effect
    def count(key: str, db: Pool = wl.use(pool)) -> int:
        return len(key) + len(db.name)

    @app.workflow
    async def flow() -> str:
        return f"{await find('a')}, {await count('abc')}"

    script = wl.Script().on(find, find).on(count, wl.Script.later(2, count))
    with testing.world(app, script) as world, pool.override(Pool("a fake")):
        assert world.run(flow()) == "a from a fake, 9"
        world.prove()
    with testing.world(app, script) as world, pytest.raises(wl.errors.OutsideWorkflow, match="only a host opens"):
        world.run(flow())
    with pytest.raises(wl.BadInput, match=r"script of find\(\): count is another effect"):
        wl.Script().on(find, count)  # type: ignore[arg-type]


def test_a_script_runs_what_waits() -> None:
    app, pool = program()

    class Slow(Pool):
        async def fetch(self, key: str) -> str:
            await asyncio.sleep(0.001)
            return await super().fetch(key)

    @app.effect
    async def find(key: str, db: Pool = wl.use(pool)) -> str:
        return await db.fetch(key)

    @app.workflow
    async def flow() -> str:
        return await find("a")

    with pool.override(Slow("a fake")), testing.world(app, wl.Script().on(find, find)) as world:
        assert world.run(flow()) == "a from a fake"
