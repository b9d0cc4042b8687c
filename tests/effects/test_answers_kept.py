"""What was performed is not performed again because its answer cannot be stored, now or ever."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from tests import aging, aio
from tests.kits import kit as kits
from tests.kits.kit import Around, Env, Kit
from tests.layers import scenario
from tests.worker.test_objects_down import Flaky
from worldline.base import errors, limits
from worldline.cluster import janitor as janitors
from worldline.kernel import user_values
from worldline.keys import cas as cas_keys
from worldline.keys import chunks as chunk_keys
from worldline.keys import space
from worldline.layers import cas
from worldline.model import ids
from worldline.model.journal import Kind
from worldline.model.work import WorkState
from worldline.store import kv
from worldline.store.objects import memory_objects as objects_memory

LARGE = "x" * 30_000
MANY = wl.Retry(attempts=5, initial_delay=0.01)


@dataclass(frozen=True)
class Go:
    pass


class Model:
    """A value whose own code is asked for its data."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def model_dump(self, *, mode: str) -> Any:
        raise self._error


class Deep:
    def model_dump(self, *, mode: str) -> Any:
        return self.model_dump(mode=mode)


def endless() -> list[Any]:
    found: list[Any] = []
    for _ in range(5_000):
        found = [found]
    return found


NEVER: dict[str, tuple[Any, str]] = {
    "bytes": (lambda: b"x" * limits.USER_VALUE_BYTES_MAX, "value_too_large"),
    "more bytes": (lambda: b"x" * (limits.CBOR_BYTES_MAX + 1), "value_too_large"),
    "text": (lambda: "x" * (limits.CBOR_BYTES_MAX + limits.MIB), "value_too_large"),
    "items": (lambda: [0] * (limits.CBOR_ITEMS_MAX + 1), "value_too_large"),
    "no memory": (lambda: Model(MemoryError()), "value_too_large"),
    "no form": (object, "encode_error"),
    "deep": (endless, "encode_error"),
    "recursion": (Deep, "encode_error"),
    "exit": (lambda: Model(SystemExit(3)), "encode_error"),
    "interrupt": (lambda: Model(KeyboardInterrupt()), "encode_error"),
}


def program(performed: list[str], *, results: dict[str, Any] | None = None) -> wl.Program:
    app = wl.Program("p")
    made = results or {}

    @app.effect(retry=MANY)
    async def make(which: str) -> Any:
        performed.append(which)
        return made[which]() if which in made else LARGE

    @app.effect(retry=MANY)
    def make_in_thread(which: str) -> Any:
        performed.append(which)
        return made[which]()

    @app.effect(retry=wl.Retry(attempts=1))
    async def fail(which: str) -> None:
        performed.append(which)
        error = wl.Fatal("\U0001f30d" * 4_096, code="sad")
        error.told = "x" * 3_000  # type: ignore[attr-defined]
        raise error

    @app.effect
    async def measure(text: str) -> int:
        return len(text)

    @app.workflow
    async def then_large() -> int:
        await make("small")
        return await measure(LARGE)

    @app.workflow
    async def hold(which: str) -> int:
        answer = await make(which)
        await wl.wait(Go)
        return len(answer)

    @app.workflow
    async def go(which: str) -> list[Any]:
        effect = fail if which == "failure" else make_in_thread if which.startswith("thread ") else make
        try:
            return ["ok", len(await effect(which.removeprefix("thread ")))]  # type: ignore[arg-type]
        except wl.EffectFailed as error:
            return [error.code, error.attempts, str(error)]

    return app


@pytest.mark.parametrize("place", ["", "thread "])
@pytest.mark.parametrize("which", NEVER)
async def test_an_answer_that_can_never_be_stored_is_one_error_receipt(memory_kit: Kit, which: str, place: str) -> None:
    performed: list[str] = []
    app = program(performed, results={name: make for name, (make, _) in NEVER.items()})
    memory_kit.without_objects()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        code, attempts, said = await kits.run(world, app.workflows["go"](place + which), id="r")
        assert (code, attempts) == (NEVER[which][1], 1)
        assert "was performed, and its answer cannot be stored: " in said
        assert performed == [which]
        assert (await kits.kinds(world)).count(Kind.EFFECT_RESULT) == 1
        await kits.prove(world, app)


async def test_an_answer_over_the_limit_is_one_error_receipt_on_every_engine(kit: Kit) -> None:
    performed: list[str] = []
    app = program(performed, results={"bytes": NEVER["bytes"][0]})
    kit.without_objects()
    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        code, attempts, said = await kits.run(world, app.workflows["go"]("bytes"), id="r")
        assert (code, attempts, performed) == ("value_too_large", 1, ["bytes"])
        assert str(limits.USER_VALUE_BYTES_MAX) in said
        assert (await kits.kinds(world)).count(Kind.EFFECT_RESULT) == 1


@pytest.mark.probe("effects.answer-not-storable")
async def test_an_answer_whose_place_is_damaged_is_one_error_receipt(memory_kit: Kit) -> None:
    """Its bytes are in the store already, under a record that cannot be read: no other attempt would help."""
    performed: list[str] = []
    app = program(performed)
    memory_kit.without_objects()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        of = cas.address(user_values.dump(LARGE))
        key = cas_keys.blob_key(universe._connection.id, of)
        engine = await memory_kit.engine()
        assert isinstance((await engine.commit(scenario.replaced(key, None, b"damaged")))[0], kv.Ok)
        code, attempts, said = await kits.run(world, app.workflows["go"]("large"), id="r")
        assert (code, attempts, performed) == ("decode_error", 1, ["large"])
        assert "cannot be stored: " in said


async def test_a_failure_of_wide_characters_needs_no_blob(memory_kit: Kit) -> None:
    performed: list[str] = []
    app = program(performed)
    memory_kit._objects = objects = Flaky(memory_kit.env)
    objects.down = True
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        code, _, said = await kits.run(world, app.workflows["go"]("failure"), id="r")
        assert (code, performed) == ("sad", ["failure"])
        assert "\U0001f30d" * 1_000 in said


# --- For now ---------------------------------------------------------------------------------------------------------


async def claim_until_us(kit: Kit, at: ids.Address) -> int:
    """When the claim of the one open effect runs out."""
    [opened] = await kits.opened(await kit.engine(), at)
    return opened.work.due_us


@pytest.mark.probe("effects.answer-kept")
async def test_an_answer_is_kept_while_the_objects_are_out_of_reach(memory_kit: Kit) -> None:
    """For longer than the claim lasts, with another worker that would take it."""
    performed: list[str] = []
    app = program(performed)
    memory_kit._objects = objects = Flaky(memory_kit.env)
    async with memory_kit.hosting(app) as first, memory_kit.hosting(app):
        world = await first.ensure("w", app)
        at = await world._handle.address()
        objects.down = True
        running = asyncio.ensure_future(kits.run(world, app.workflows["go"]("large"), id="r"))

        async def done() -> bool:
            return performed == ["large"]

        await aio.until(done)
        first_us = await claim_until_us(memory_kit, at)

        async def renewed() -> bool:
            return await claim_until_us(memory_kit, at) > first_us + 2_000 * kits.CLAIM_TTL_MS

        await aio.until(renewed)
        assert not running.done()
        objects.down = False
        assert await running == ["ok", len(LARGE)]
        assert performed == ["large"]
        assert (await kits.kinds(world)).count(Kind.EFFECT_RESULT) == 1


async def test_a_host_that_closes_gives_back_what_it_cannot_store(memory_kit: Kit) -> None:
    """It is the end of the answer, and the next host performs the effect at once."""
    performed: list[str] = []
    app = program(performed)
    memory_kit._objects = objects = Flaky(memory_kit.env)
    process = await memory_kit.process(app)
    world = await process.universe.ensure("w", app)
    objects.down = True
    await kits.begin(world, app.workflows["go"]("large"), id="r")

    async def done() -> bool:
        return performed == ["large"]

    await aio.until(done)
    async with asyncio.timeout(20):
        await process.close()
    objects.down = False
    async with memory_kit.hosting(app) as universe:
        run = await kits.start(universe.world("w"), app.workflows["go"]("large"), id="r")
        assert await run.result(60) == ["ok", len(LARGE)]
    assert performed == ["large"] * 2


class Stuck(objects_memory.MemoryObjects):
    """Objects that take nothing until they are told to."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.free = asyncio.Event()

    async def put(self, name: str, body: bytes) -> None:
        await self.free.wait()
        await super().put(name, body)


@pytest.mark.probe("effects.answer-not-taken-in-time")
async def test_an_answer_that_its_world_does_not_take_in_time_goes_to_the_inbox(memory_kit: Kit) -> None:
    """The world is here, and its next step cannot be stored: the answer does not wait for that until its claim ends."""
    performed: list[str] = []
    app = program(performed, results={"small": lambda: "x"})
    memory_kit._objects = objects = Stuck(memory_kit.env)
    async with memory_kit.hosting(app) as first, memory_kit.hosting(app):
        world = await first.ensure("w", app)
        running = asyncio.ensure_future(kits.run(world, app.workflows["then_large"](), id="r"))
        at = await world._handle.address()

        async def settled() -> bool:
            found = await kits.opened(await memory_kit.engine(), at)
            return [each.work.state for each in found] == [WorkState.SETTLED]

        await aio.until(settled)
        await memory_kit.jump(2 * kits.CLAIM_TTL_MS / 1000)
        objects.free.set()
        assert await running == len(LARGE)
        assert performed == ["small"]
        assert (await kits.kinds(world)).count(Kind.EFFECT_RESULT) == 2


class Gated(Around):
    """A store that refuses what is written while it is shut."""

    error: errors.StoreError | None = None

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        if self.error is not None:
            raise self.error
        return await super().commit(*batches)


@pytest.mark.parametrize("which", ["small", "large", "never"])
@pytest.mark.parametrize("error", [errors.StoreUnavailable("away"), errors.StoreFull("full")], ids=["away", "full"])
async def test_an_answer_is_kept_while_the_store_is_out_of_reach(
    memory_kit: Kit, which: str, error: errors.StoreError
) -> None:
    performed: list[str] = []
    gates: list[Gated] = []
    down = asyncio.Event()

    def make() -> Any:
        gates[0].error = error
        down.set()
        return {"small": "x", "large": LARGE, "never": object()}[which]

    app = program(performed, results={which: make})
    memory_kit.without_objects()

    def wrap(engine: kv.Engine) -> Gated:
        gates.append(Gated(engine))
        return gates[-1]

    async with memory_kit.hosting(app, wrap=wrap) as universe:
        world = await universe.ensure("w", app)
        running = asyncio.ensure_future(kits.run(world, app.workflows["go"](which), id="r"))
        await down.wait()
        await memory_kit.jump(2 * kits.CLAIM_TTL_MS / 1000)  # the claim has run out, and no worker has taken it
        gates[0].error = None
        expected = {"small": ["ok", 1], "large": ["ok", len(LARGE)]}.get(which)
        found = await running
        assert found == expected if expected else found[0] == "encode_error"
        assert performed == [which]
        assert (await kits.kinds(world)).count(Kind.EFFECT_RESULT) == 1


# --- Killed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [30_000, 10_000_000])
async def test_a_host_killed_after_it_has_stored_a_large_answer(kit: Kit, size: int) -> None:
    """The answer is in the journal, and no other host performs it again."""
    performed: list[str] = []
    app = program(performed, results={"large": lambda: "y" * size})
    kit.without_objects()
    first = await kit.process(app)
    world = await first.universe.ensure("w", app)
    await kits.begin(world, app.workflows["hold"]("large"), id="r")

    async def answered() -> bool:
        return Kind.EFFECT_RESULT in await kits.kinds(world)

    await aio.until(answered)
    await first.kill()
    await kit.jump(1.5)
    async with kit.hosting(app) as universe:
        world = universe.world("w")
        await world.send(Go())
        run = await kits.start(world, app.workflows["hold"]("large"), id="r")
        assert await run.result(30) == size
        assert performed == ["large"]
        await kits.prove(world, app)


class Dies(Around):
    """A store whose process is killed at the first commit of the given kind, after it."""

    def __init__(self, engine: kv.Engine, part: space.InUniverse, died: asyncio.Event) -> None:
        super().__init__(engine)
        self._mark = space.part(part)
        self._died = died

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        if self._died.is_set():
            await asyncio.Event().wait()  # nothing more is heard of it
        outcomes = await super().commit(*batches)
        if any(key[19:].startswith(self._mark) for batch in batches for key in batch.puts):
            self._died.set()
            await asyncio.Event().wait()
        return outcomes


async def test_a_host_killed_while_it_stores_a_large_answer(kit: Kit) -> None:
    """The next one performs it, as after any kill; what the first has written of it is swept."""
    performed: list[str] = []
    app = program(performed, results={"large": lambda: "y" * 10_000_000})
    kit.without_objects()
    died = asyncio.Event()
    first = await kit.process(app, wrap=lambda engine: Dies(engine, space.InUniverse.UPLOAD, died))
    world = await first.universe.ensure("w", app)
    await kits.begin(world, app.workflows["go"]("large"), id="r")
    await asyncio.wait_for(died.wait(), 30)
    await first.kill()
    await kit.jump(1.5)
    async with kit.hosting(app) as universe:
        world = universe.world("w")
        run = await kits.start(world, app.workflows["go"]("large"), id="r")
        assert await run.result(30) == ["ok", 10_000_000]
        assert performed == ["large"] * 2
        connection = universe._connection
        engine, blobs = connection.store.engine, connection.blobs
        begin, end = chunk_keys.uploads(connection.id)
        assert len((await engine.read(kv.Range(begin, end))).page(0).items) == 1
        assert await blobs.abandoned(period_us=janitors.UPLOAD_US_MAX, remove=True) == 0
        await aging.older(engine, connection.id, 2 * janitors.UPLOAD_US_MAX)
        assert await blobs.abandoned(period_us=janitors.UPLOAD_US_MAX, remove=True) == 1
        await kits.prove(world, app)
