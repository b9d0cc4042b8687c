"""`wl.start` with an id that is taken: the same call attaches, another one fails; as `World.run` has it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import worldline as wl
from worldline import testing
from worldline.kernel import run_requests as kernel_work
from worldline.kernel.rows.row_records import RunStatus
from worldline.model.journal import Kind

app = wl.Program("attaching")


@app.effect
async def work(n: int) -> int:
    return n


@app.workflow
async def shared(n: int) -> int:
    await wl.sleep(60)
    return await work(n)


@app.workflow
async def long_lived(n: int) -> int:
    await wl.sleep(60)
    if n:
        wl.continue_as_new(long_lived(n - 1))
    return 7


@app.workflow
async def broken() -> int:
    raise ValueError("it broke")


@app.workflow
async def asks(n: int) -> str:
    try:
        return f"got {await wl.start(shared(n), id='one')}"
    except wl.RunFailed as error:
        return f"{type(error).__name__} {error.code}"


@app.workflow
async def asks_broken() -> str:
    try:
        return f"got {await wl.start(broken(), id='bad')}"
    except wl.RunFailed as error:
        return f"{type(error).__name__} {error.code}"


@app.workflow
async def asks_long(n: int) -> str:
    return f"got {await wl.start(long_lived(n), id='long')}"


@app.workflow
async def gives_up() -> str:
    started = wl.start(shared(1), id="one")
    started.cancel("not needed")
    return "gave up"


@app.workflow
async def itself() -> str:
    try:
        return await wl.start(itself(), id="me")
    except wl.RunFailed as error:
        return error.code


@app.workflow
async def twice(left: int) -> str:
    """Attaches, then starts over: nobody waits for what the first life attached to."""
    started = wl.start(shared(1), id="one")
    if left:
        await wl.sleep(1)
        wl.continue_as_new(twice(left - 1))
    await wl.sleep(120)
    return f"got {await started}"


@dataclass(frozen=True)
class Ordered:
    id: str
    n: int


@app.reducer()
@dataclass
class Orders:
    count: int = 0

    @wl.on
    def ordered(self, event: Ordered) -> None:
        self.count += 1
        wl.start(shared(event.n), id=event.id)


SCRIPT = wl.Script().on(work, lambda n: n * 10)


def test_the_same_call_attaches() -> None:
    with testing.world(app, SCRIPT) as world:
        runs = [world.start(asks(1), id=f"r{number}") for number in range(3)]
        world.crash()
        outside = world.start(shared(1), id="one")
        assert [run.result() for run in runs] == ["got 10"] * 3
        assert outside.result() == 10
        assert sum(entry.kind is Kind.RUN_STARTED for entry in world.journal()) == 4, "one shared run, three that ask"
        assert world.machine.runs["one"].record.followers == []
        world.prove()


def test_a_run_that_has_ended_gives_what_it_returned() -> None:
    with testing.world(app, SCRIPT) as world:
        assert world.run(shared(1), id="one") == 10
        before = world.now
        assert world.run(asks(1)) == "got 10"
        assert world.now == before, "nothing was done again"
        assert world.run(asks_broken()) == world.run(asks_broken()) == "RunFailed ValueError"
        world.prove()


@pytest.mark.parametrize("wait", [0, 120], ids=["while it runs", "when it has ended"])
def test_other_arguments_fail(wait: int) -> None:
    with testing.world(app, SCRIPT) as world:
        world.start(shared(2), id="one")
        world.advance(wait)
        assert world.run(asks(1)) == "RunFailed id_reused"
        assert world.attach("one").result() == 20
        world.prove()


def test_a_run_that_continues_as_new_is_still_the_same() -> None:
    with testing.world(app, SCRIPT) as world:
        first = world.start(asks_long(2), id="r1")
        world.advance(90)
        second = world.start(asks_long(2), id="r2")
        assert (first.result(), second.result()) == ("got 7", "got 7")
        world.prove()


def test_who_only_attached_cannot_end_it() -> None:
    with testing.world(app, SCRIPT) as world:
        one = world.start(shared(1), id="one")
        assert world.run(gives_up()) == "gave up"
        assert one.status is RunStatus.RUNNING
        assert one.result() == 10
        world.prove()


def test_a_run_cannot_wait_for_itself() -> None:
    with testing.world(app, SCRIPT) as world:
        assert world.run(itself(), id="me") == "id_reused"


def test_one_that_starts_over_attaches_anew() -> None:
    with testing.world(app, SCRIPT) as world:
        world.start(shared(1), id="one")
        run = world.start(twice(1), id="t")
        world.advance(2)
        assert [(each.run, each.op) for each in world.machine.runs["one"].record.followers] == [("t", 0)]
        assert run.result() == "got 10"
        world.prove()


def test_a_cancelled_run_cancels_whoever_waits_for_it() -> None:
    with testing.world(app, SCRIPT) as world:
        world.start(shared(1), id="one")
        run = world.start(asks(1))
        world.attach("one").cancel("enough")
        assert run.result() == "RunCancelled cancelled"
        world.prove()


def test_followers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_work, "FOLLOWERS_MAX", 2)
    with testing.world(app, SCRIPT) as world:
        world.start(shared(1), id="one")
        runs = [world.start(asks(1)) for _ in range(3)]
        assert [run.result() for run in runs] == ["got 10", "got 10", "RunFailed limit_exceeded"]


def test_a_handler_that_starts_another_call_under_the_id_fails() -> None:
    with testing.world(app, SCRIPT) as world:
        world.send(Ordered("one", 1))
        world.send(Ordered("one", 1))
        with pytest.raises(testing.NotTaken, match="id 'one' was used before"):
            world.send(Ordered("one", 2))
        assert world.state(Orders).count == 2
        assert world.attach("one").result() == 10
        world.prove()
