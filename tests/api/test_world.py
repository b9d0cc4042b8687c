"""Worlds from outside: their state at a height, their runs, their status; and what is refused before it is sent."""

from __future__ import annotations

from typing import Any

import pytest

import worldline as wl
from tests.kits.kit import Kit
from tests.kits.sums import Add, AddUp, program


def reducer(app: wl.Program) -> type[Any]:
    [found] = app.reducers.values()
    cls: type[Any] = found.cls
    return cls


async def test_the_state_at_a_height_below_many_snapshots(memory_kit: Kit) -> None:
    """A step of many entries, and above it more snapshots than are read at once."""
    app = program()

    @app.workflow
    async def burst() -> None:
        for _ in range(200):
            wl.emit(Add(1))

    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await world.run(burst(), timeout=20)
        height = (await world.head()).height
        for number in range(1, 131):
            assert await world.ask(AddUp(1), timeout=20) == 200 + number
            await world.snapshot()
        assert (await world.head()).step < height, (
            "all of those snapshots are of steps that a step at the height could be"
        )
        assert (await world.state(reducer(app), at=height)).total == 200
        assert (await world.state(reducer(app), at=0)).total == 0
        assert (await world.state(reducer(app))).total == 330


@pytest.mark.parametrize("at", [1_000, -1])
async def test_a_height_that_is_not_there_names_the_head(memory_kit: Kit, at: int) -> None:
    app = program()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await (await world.send(Add(1))).applied(20)
        head = (await world.head()).height
        with pytest.raises(wl.BadInput, match=f"no height {at}: the journal's head is at height {head}"):
            await world.state(reducer(app), at=at)
        with pytest.raises(wl.BadInput, match="a height is a number, not '1'"):
            await world.state(reducer(app), at="1")  # type: ignore[call-overload]


async def test_runs_and_how_they_stand(memory_kit: Kit) -> None:
    app = program()

    @app.workflow
    async def wait() -> int:
        return (await wl.wait(Add)).number

    @app.workflow
    async def fail() -> None:
        raise wl.Fatal("no")

    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        waiting = await world.start(wait(), id="waiting")
        failing = await world.start(fail(), id="failing")
        with pytest.raises(wl.RunFailed):
            await failing.result(20)
        assert await waiting.status() is wl.RunStatus.RUNNING
        assert await failing.status() is wl.RunStatus.FAILED
        assert [(run.id, run.workflow) for run in await world.runs()] == [("failing", "fail"), ("waiting", "wait")]
        [found] = await world.runs(status=wl.RunStatus.RUNNING)
        await world.send(Add(7), to="waiting")
        assert await found.result(20) == 7
        assert await waiting.status() is wl.RunStatus.FINISHED
        assert await world.runs(status=wl.RunStatus.RUNNING) == []
        with pytest.raises(wl.BadInput, match=r"status must be a worldline.RunStatus, not 'running'"):
            await world.runs(status="running")  # type: ignore[arg-type]
    client = await memory_kit.process()  # knows no program: the journal tells
    there = client.universe.world("w")
    assert [(run.id, await run.status()) for run in await there.runs()] == [
        ("failing", wl.RunStatus.FAILED),
        ("waiting", wl.RunStatus.FINISHED),
    ]
    assert await (await there.attach("waiting")).result(20) == 7
    with pytest.raises(wl.NotFound, match="has no run 'other'"):
        _ = await there.attach("other")


async def test_pause_resume_archive_delete(memory_kit: Kit) -> None:
    app = program()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await world.pause()
        assert (await world.describe()).status is wl.Status.PAUSED
        await world.send(Add(1))
        await world.resume()
        assert await world.ask(AddUp(1), timeout=20) == 2
        await world.archive()
        with pytest.raises(wl.errors.Closed):
            await world.send(Add(1))
        await world.resume()
        assert (await world.describe()).status is wl.Status.ACTIVE
        await world.delete()
        with pytest.raises(wl.NotFound):
            await universe.world("w").send(Add(1))


async def test_what_has_the_wrong_type_is_said_at_once(memory_kit: Kit) -> None:
    app = program()

    @app.workflow
    async def go() -> None:
        pass

    wrong: Any = 5
    client = await memory_kit.process()
    world = await client.universe.ensure("w", app)
    for status in ("paused", 2):
        given: Any = status
        with pytest.raises(wl.BadInput, match=r"status must be one of worldline's Status\.ACTIVE, "):
            await world.change(status=given)
    for labels in (["a"], {"a": 1}):
        given = labels
        with pytest.raises(wl.BadInput, match="labels must be a dict of text to text"):
            await world.change(labels=given)
        with pytest.raises(wl.BadInput, match="labels must be a dict of text to text"):
            await client.universe.create("v", app, labels=given)
    with pytest.raises(wl.BadInput, match="an id must be text, not 5"):
        await world.send(Add(1), id=wrong)
    with pytest.raises(wl.BadInput, match="an id must be text, not 5"):
        await world.ask(AddUp(1), id=wrong)
    with pytest.raises(wl.BadInput, match="a run's id must be text, not 5"):
        await world.run(go(), id=wrong)
    with pytest.raises(wl.BadInput, match="a world's name must be text, not 5"):
        client.universe.world(wrong)
    assert (await world.describe()).status is wl.Status.ACTIVE


async def test_a_cancelled_run_says_what_cancelled_it(memory_kit: Kit) -> None:
    """To callers too: the run that a person cancelled, and the one that was cancelled with it and ended before."""
    app = program()
    ended: list[str] = []

    @app.effect
    async def note(text: str) -> None:
        ended.append(text)

    @app.workflow
    async def child() -> None:
        try:
            await wl.sleep(1000)
        finally:
            await note("child")

    @app.workflow
    async def parent() -> None:
        try:
            await wl.gather(child(), child())
        finally:
            await note("parent")

    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        run = await world.start(parent(), id="p")
        await run.cancel("timeout")
        with pytest.raises(wl.RunCancelled, match="timeout") as caught:
            await run.result(20)
        assert caught.value.kind is wl.CancelKind.USER
        [first, *_] = [each for each in await world.runs() if each.id == "p/0"]
        with pytest.raises(wl.RunCancelled, match="timeout") as caught:
            await first.result(20)
        assert caught.value.kind is wl.CancelKind.PARENT
    assert ended == ["child", "child", "parent"]
