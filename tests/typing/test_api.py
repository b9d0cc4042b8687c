"""The public API under `mypy --strict`: the documented usage is clean, revealed types are exact, mistakes are found."""

from __future__ import annotations

from pathlib import Path

from tests.typing import checking

# Behind `#:` stands what mypy says of a line, or the beginning of it. Of all other lines it must say nothing.
SAMPLE = """
from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import worldline as wl
from worldline import flow, testing

app = wl.Program("shop")


@app.effect
async def shout(text: str) -> str:
    return text.upper()


@app.workflow
async def greet(name: str) -> str:
    wl.log.info("greeting", name=name, level=3, claim=object())
    wl.log.exception("%s failed", name, exc_info=ValueError(name), stacklevel=2, extra={"a": 1})
    wl.log.warning("x", stacklevel="two")  #: Argument "stacklevel" to "warning" of "Log" has incompatible type "str"
    wl.log.info()  #: Too few arguments for "info" of "Log"
    await wl.sleep(5)
    return await shout(f"hello {name}")


async def main() -> None:
    async with wl.open("worlds", host=app) as universe:
        world = await universe.ensure("alice", app)
        reveal_type(await world.run(greet("Alice"), id="hello"))  #: Revealed type is "str"
        run = await world.start(greet("Bob"))
        number: int = await run.result(5)  #: Incompatible types in assignment
        run.results  #: "Run[str]" has no attribute "results"
        _ = await world.start(greet("Carol"))
        kept: wl.Run[str] = await world.start(greet("Dora"), id="dora")
        reveal_type(await kept.result(5))  #: Revealed type is "str"
        status: wl.RunStatus = await kept.status()
        status = await kept.retry()
        status = await kept.reset(to=3)
        await kept.answer(3, "by hand")
        await kept.terminate("too old")
        for each in await world.runs(status=status):
            reveal_type(each.workflow)  #: Revealed type is "str"
        for effect in await world.effects(state=wl.WorkState.PARKED):
            reveal_type(effect.args)  #: Revealed type is "Any"
            await effect.answer(7)
            await effect.answer(error="never mind")
            await effect.retry()
        opened: wl.ops.OpenEffect = await world.effect("0123abcd")
        await world.effects(state="parked")  #: Argument "state" to "effects" of "World" has incompatible type "str"
        await world.runs(status="running")  #: Argument "status" to "runs" of "World" has incompatible type "str"
        await world.pause()
        await world.change(status="paused")  #: Argument "status" to "change" of "World" has incompatible type "str"
        await world.change(status=wl.Status.ACTIVE, labels={"team": "red"})
        async for meta in universe.worlds(status=wl.Status.PAUSED, labels={"team": ""}, program="shop", prefix="a"):
            reveal_type(meta.labels)  #: Revealed type is "dict[str, str]"
        async for letter in universe.dead(prefix="a"):
            reveal_type(letter.reason)  #: Revealed type is "str"
        entries: list[wl.Entry] = [entry for entry in await world.journal() if entry.kind is wl.Kind.EVENT]
        head: wl.Head = await world.head()
        meta = await world.describe()
        universe.store  #: "Universe" has no attribute "store"
        world.universe  #: "World" has no attribute "universe"
        reveal_type(await (await world.send(Deposited("a", 5), id="d1")).applied())  #: Revealed type is "int"


@dataclass(frozen=True)
class Deposited:
    account: str
    cents: int


@dataclass(frozen=True)
class Withdraw(wl.Request[int]):
    account: str
    cents: int


@app.reducer(key="account")
@dataclass
class Account:
    cents: int = 0

    @wl.on
    def deposited(self, event: Deposited) -> None:
        self.cents += event.cents
        wl.start(greet(event.account), id=f"greet-{event.account}")

    @wl.on
    def withdraw(self, event: Withdraw) -> int:
        if event.cents > self.cents:
            raise wl.Refused("insufficient funds")
        self.cents -= event.cents
        return self.cents


@app.effect(timeout=10, retry=wl.Retry(attempts=5, initial_delay=1, max_delay=60))
def charge(card: str, cents: int) -> str:
    key = wl.attempt().key
    if card == "stolen":
        raise wl.Fatal("declined", code="declined")
    return key


class Pool:
    async def fetch(self, key: str) -> str:
        return key


@app.resource
async def pool() -> AsyncIterator[Pool]:
    yield Pool()


@app.resource(timeout=5)
@asynccontextmanager
async def cache(db: Pool = wl.use(pool)) -> AsyncIterator[dict[str, str]]:
    yield {"a": await db.fetch("a")}


reveal_type(pool)  #: Revealed type is "worldline.kernel.authoring.resources.Resource[sample.Pool]"
reveal_type(cache)  #: Revealed type is "worldline.kernel.authoring.resources.Resource[dict[str, str]]"


PATIENT = wl.Retry(initial_delay=1, max_delay=9, on_exhausted="park", fatal=(KeyError,), jitter=0.5)


@app.effect(name="find", retry=PATIENT)
async def look_up(key: str, db: Pool = wl.use(pool), *, known: dict[str, str] = wl.use(cache)) -> str:
    reveal_type(db)  #: Revealed type is "sample.Pool"
    return known.get(key) or await db.fetch(key)


@app.effect
async def mistaken(key: str, db: str = wl.use(pool)) -> str:  #: Incompatible default for parameter "db"
    return key


@app.effect(retry=wl.Retry(on_exhausted="wait"))  #: Argument "on_exhausted" to "Retry" has incompatible type
def wrong() -> None: ...


@app.workflow(name="find_all")
async def each_by_itself(keys: list[str]) -> list[str]:
    found = await wl.gather(*[look_up(key) for key in keys], return_exceptions=True)
    reveal_type(found)  #: Revealed type is "list[str | worldline.base.errors.Error]"
    one, two = await wl.gather(look_up("a"), child(1), return_exceptions=True)
    reveal_type(one)  #: Revealed type is "str | worldline.base.errors.Error"
    reveal_type(two)  #: Revealed type is "int | worldline.base.errors.Error"
    try:
        await look_up("x")
    except wl.EffectFailed as error:
        reveal_type(error.code)  #: Revealed type is "str"
        reveal_type(error.data)  #: Revealed type is "dict[str, Any]"
    return [each for each in found if not isinstance(each, wl.Error)]


@app.reducer
@dataclass
class Plain:
    n: int = 0

    @wl.on
    def deposited(self, event: Deposited) -> None:
        self.n += 1


reveal_type(Plain())  #: Revealed type is "sample.Plain"


def test_with_a_fake() -> None:
    with pool.override(Pool()) as fake, testing.world(app, wl.Script().on(look_up, look_up)) as w:
        reveal_type(fake)  #: Revealed type is "sample.Pool"
        w.run(each_by_itself(["a"]))
    with pool.override("no pool"):  #: Argument 1 to "override" of "Resource" has incompatible type "str"
        pass


@dataclass(frozen=True)
class Approved:
    order: str
    by: str


@app.workflow
async def child(n: int) -> int:
    return n


@app.workflow
async def checkout(order: str, cents: int) -> str:
    try:
        ok = await wl.wait(Approved, where=lambda e: e.order == order, timeout=timedelta(days=2))
    except TimeoutError:
        return "expired"
    paid = await charge.options(key=f"order-{order}")("tok", cents)
    a, b = await wl.gather(shout(ok.by), child(3))
    reveal_type(a)  #: Revealed type is "str"
    reveal_type(b)  #: Revealed type is "int"
    many = await wl.gather(*[child(i) for i in range(50)])
    reveal_type(many)  #: Revealed type is "list[int]"
    try:
        left = await wl.ask("bank", Withdraw("a", 5), timeout=5)
        reveal_type(left)  #: Revealed type is "int"
    except wl.Refused:
        async with wl.scope(shield=True):
            await shout("refund")
    async with wl.scope(timeout=30) as s:
        run = s.start(child(1))
        await run
    reveal_type(s.timed_out)  #: Revealed type is "bool"
    try:
        async with wl.scope(grace=None):
            both = await wl.gather(child(1), shout("a"), grace=timedelta(seconds=30))
            reveal_type(both)  #: Revealed type is "tuple[int, str]"
    except wl.Cancelled as cancelled:
        reveal_type(cancelled.kind)  #: Revealed type is "worldline.base.failures.CancelKind"
        raise
    except wl.RunCancelled as ended:
        reveal_type(ended.kind)  #: Revealed type is "worldline.base.failures.CancelKind"
    return paid


@app.workflow
async def starts() -> int:
    wl.start(child(1))
    wl.start(child(2), id="two")
    started: list[wl.Started[int]] = [wl.start(child(n)) for n in range(3)]
    first: int = await started[0]
    kept = wl.start(child(4))
    kept.cancel("not needed")
    text: str = await wl.start(child(5))  #: Argument 1 to "start" has incompatible type "Call[int]"
    wl.start(5)  #: Argument 1 to "start" has incompatible type "int"
    async with wl.scope() as scope:
        scope.start(child(6))
        return first + len(text)


@app.workflow
async def shielded() -> int:
    async with wl.scope(shield=True):
        return await child(1)


@app.workflow
async def forgets_the_timeout() -> int:  #: Missing return statement
    async with wl.scope(timeout=1):
        return await child(1)


@app.workflow
async def minds_the_timeout() -> int:
    async with wl.scope(timeout=1):
        return await child(1)
    return 0


async def outside(world: wl.World) -> None:
    reveal_type(await world.ask(Withdraw("alice", 5)))  #: Revealed type is "int"
    reveal_type(await world.state(Account, "alice"))  #: Revealed type is "sample.Account"
    reveal_type(await world.state())  #: Revealed type is "dict[str, dict[str, Any]]"
    found = await world.diff(at=1, to=2)
    reveal_type(found)  #: Revealed type is "worldline.features.diff.records.Diff"
    reveal_type(found.cells[0].fields[0].path)  #: Revealed type is "tuple[str | int, ...]"
    reveal_type((await world.shadow(app, last=5)).effects[0].run)  #: Revealed type is "str"
    report: wl.ops.ShadowReport = await world.shadow(app)
    print(report.differs)


def test_expires() -> None:
    with testing.world(app, wl.Script().on(charge, "ch_1")) as w:
        assert w.run(checkout("o1", 5)) == "expired"
        assert w.schedule("nightly", child(1), cron="0 3 * * *")
        reveal_type(w.start(child(1)).result())  #: Revealed type is "int"
        w.prove()
        fork = w.fork(before="effect charge", effects="share", script=wl.Script().on(charge, lambda card, cents: card))
        reveal_type(fork)  #: Revealed type is "worldline.testing.tested_world.TestWorld"
        assert fork.answer(charge, "ch_2") + fork.answer("bank", 5) >= 0
        w.fork("x", effects="keep")  #: Argument "effects" to "fork" of "TestWorld" has incompatible type


@app.domain(keyed=True)
class Order(flow.Domain):
    cents: int = 0
    receipt: str | None = None

    @flow.action
    def pay(self, card: str) -> None:
        flow.perform(charge(card, self.cents), into=self.receipt)


todos = app.domain({"id": "x:todos"}, keyed=False)


async def acts(world: wl.World) -> None:
    done = await world.act(Order.pay("tok"), key="o-7", id="try-1")
    reveal_type(done)  #: Revealed type is "worldline.flow_core.authoring.action_calls.Acted[sample.Order]"
    reveal_type(done.state.receipt)  #: Revealed type is "str | None"
    reveal_type((await world.preview(Order.pay("tok"))).state)  #: Revealed type is "sample.Order"
    reveal_type((await world.act(todos.action("add")(title="milk"))).state)  #: Revealed type is "dict[str, Any]"
    reveal_type(await world.explain(Order.pay))  #: Revealed type is "worldline.features.domains.previews.Explained"
    reveal_type(await world.state(Order, "o-7"))  #: Revealed type is "sample.Order"
    reveal_type((await world.tools(Order)).documents)  #: Revealed type is "list[dict[str, Any]]"
    await world.patch(Order, [flow.set("cents", 5)], key="o-7")
    await world.act(Order.pay)  #: Argument 1 to "act" of "Acts" has incompatible type
    reveal_type((await wl.act(Order.pay("tok"), key="o-7")).state.receipt)  #: Revealed type is "str | None"
    await wl.act(Order.pay, key="o-7")  #: Argument 1 to "act" has incompatible type
    Order.pay(5)  #: Argument 1 to "__call__" of "Action" has incompatible type "int"; expected "str"


@app.effect
async def pay(cents: int) -> int:
    key = wl.secret("stripe")
    reveal_type(key)  #: Revealed type is "worldline.base.secret.Secret"
    reveal_type(key.reveal())  #: Revealed type is "str"
    text: str = key  #: Incompatible types in assignment
    wl.secret(5)  #: Argument 1 to "secret" has incompatible type "int"; expected "str"
    return cents


async def opened_with() -> None:
    named = wl.ops.Egress(credentials={"pay": wl.ops.Credential(origin="https://a.example")})
    async with wl.open("worlds", host=app, egress=named, secrets={"stripe": "x"}):
        pass
    async with wl.open("worlds", host=app, secrets=lambda name: None):
        pass
    async with wl.open("worlds", host=app, secrets="/run/secrets"):
        pass
    async with wl.open("worlds", host=app, secrets=5):  #: Argument "secrets" to "open" has incompatible type "int"
        pass
    await wl.http.request("GET", "https://a.example", credential="pay")
    await wl.http.request("GET", "x", credential=5)  #: Argument "credential" to "__call__" of "Effect" has incompatible


async def bad(world: wl.World) -> None:
    await world.run(greet(3))  #: Argument 1 to "__call__" of "Workflow" has incompatible type "int"; expected "str"
    await charge("tok")  #: Missing positional argument "cents" in call to "__call__" of "Effect"
    await world.ask(Deposited("a", 5))  #: Argument 1 to "ask" of "World" has incompatible type "Deposited"
    wl.Script().on(charge, 5)  #: Argument 2 to "on" of "Script" has incompatible type "int"
    greet("x")  #: Value of type "Call[str]" must be used
"""


def test_the_documented_usage(tmp_path: Path) -> None:
    said = checking.check({"sample": SAMPLE}, tmp_path)
    found = {each.line: each.text for each in said if "Are you missing an await" not in each.text}
    expected = {
        number: line.partition("#:")[2].strip() for number, line in enumerate(SAMPLE.splitlines(), 1) if "#:" in line
    }
    assert list(found) == list(expected), found
    for line, text in expected.items():
        assert found[line].startswith(text), (line, found[line])
