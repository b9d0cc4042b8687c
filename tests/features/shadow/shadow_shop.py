"""A shop whose code is edited: the program whose upgrades are tried. Its effects may be called nowhere."""

from __future__ import annotations

from dataclasses import dataclass, field

import worldline as wl

app = wl.Program("shop")


@dataclass(frozen=True)
class Paid:
    cents: int


@dataclass(frozen=True)
class Approved:
    by: str


@dataclass(frozen=True)
class Total(wl.Request[int]):
    pass


@dataclass(frozen=True)
class Remind:
    text: str


@app.effect
async def charge(cents: int) -> str:
    raise AssertionError("nothing outside is called")


@app.effect
async def inform(text: str) -> str:
    raise AssertionError("nothing outside is called")


@app.effect(retry=wl.Retry(attempts=1, on_exhausted="park"))
async def stuck(text: str) -> str:
    raise AssertionError("nothing outside is called")


@app.workflow
async def order(cents: int) -> str:
    paid = await charge(cents)
    wl.emit(Paid(cents))
    await wl.sleep(60)
    return f"{paid}, {await inform('shipped')}"


@app.workflow
async def approval(name: str) -> str:
    try:
        event = await wl.wait(Approved, timeout=30)
    except TimeoutError:
        return "nobody"
    return event.by


@app.workflow
async def tell(text: str) -> str:
    await wl.send("till", Remind(text))
    return "told"


@app.workflow
async def patrol(rounds: int) -> int:
    await wl.sleep(10)
    await inform(f"round {rounds}")
    if rounds > 1:
        wl.continue_as_new(patrol(rounds - 1))
    return 0


@app.workflow
async def parent(cents: int) -> list[str]:
    return list(await wl.gather(order(cents), order(cents + 1)))


@app.workflow
async def many(count: int) -> int:
    return len(await wl.gather(*[inform(str(number)) for number in range(count)]))


@app.workflow
async def question() -> int:
    return await wl.ask("till", Total())


@app.workflow
async def question_later(seconds: int) -> int:
    await wl.sleep(seconds)
    return await wl.ask("till", Total())


@app.workflow
async def help_me() -> list[str]:
    said = [await stuck("first"), await stuck("second")]
    await wl.sleep(1000)
    return said


@app.reducer()
@dataclass
class Books:
    total: int = 0
    last: list[int] = field(default_factory=list)

    @wl.on
    def paid(self, event: Paid) -> None:
        self.total += event.cents
        self.last.append(event.cents)

    @wl.on
    def remind(self, event: Remind) -> None:
        wl.after(20, Paid(len(event.text)))

    @wl.on
    def asked(self, event: Total) -> int:
        return self.total
