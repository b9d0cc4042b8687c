"""What idle hosts host: worlds that wait, for times far away, for events, for an effect's next attempt."""

from __future__ import annotations

from dataclasses import dataclass

import worldline as wl

app = wl.Program("idle")
FAR = 7 * 86_400


@dataclass(frozen=True)
class Add(wl.Request[int]):
    number: int


@dataclass(frozen=True)
class Go:
    by: str


@app.reducer
@dataclass
class Sum:
    total: int = 0

    @wl.on
    def add(self, event: Add) -> int:
        self.total += event.number
        return self.total


@app.effect(retry=wl.Retry(attempts=None, initial_delay=FAR, max_delay=FAR))
async def call(number: int) -> int:
    raise ConnectionError(f"no answer for {number}")


@app.workflow
async def sleeps() -> str:
    await wl.sleep(FAR)
    return "slept"


@app.workflow
async def waits() -> str:
    return (await wl.wait(Go, timeout=FAR)).by


@app.workflow
async def calls(number: int) -> int:
    return await call(number)
