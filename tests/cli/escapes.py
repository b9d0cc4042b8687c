"""A program whose texts are hostile to a terminal: names apart, everything that users choose."""

from __future__ import annotations

from dataclasses import dataclass

import worldline as wl
from worldline import flow

TITLE = "\x1b]0;PWNED\x07"
COLOUR = "\x1b[31mPWNED"
C1 = "\x9b31mPWNED"
BIDI = "\u202ePWNED\u2066"
MARKUP = "[red]PWNED[/red]"
HOSTILE = f"{TITLE}{COLOUR}{C1}{BIDI}\r\x08\x7f\u2028\U000e0041{MARKUP}"

app = wl.Program("escapes")


@dataclass(frozen=True)
class Noted:
    text: str


@dataclass(frozen=True)
class Asked(wl.Request[str]):
    text: str


@dataclass(frozen=True)
class Counted(wl.Request[str]):
    text: str


@app.reducer
@dataclass
class Desk:
    asked: int = 0

    @wl.on
    def refuse(self, event: Asked) -> str:
        raise wl.Refused(event.text, data={"text": event.text})

    @wl.on
    def count(self, event: Counted) -> str:
        raise KeyError(f"no {event.text}")


@app.reducer(key="text")
@dataclass
class Notes:
    text: str = ""

    @wl.on
    def noted(self, event: Noted) -> None:
        wl.log.info(event.text)
        self.text = event.text
        if "fail" in event.text:
            raise ValueError(event.text)


@app.effect(retry=wl.Retry(attempts=1, on_exhausted="park"))
async def parks(text: str) -> str:
    raise OSError(text)


@app.effect(retry=wl.Retry(attempts=None, initial_delay=3600, max_delay=3600))
async def retries(text: str) -> str:
    raise OSError(text)


@app.effect
async def streams(text: str) -> str:
    wl.attempt().emit(f"{text}\n")
    wl.attempt().emit({text: text})
    return text


@app.workflow
async def waits(text: str) -> str:
    await wl.wait(Noted, timeout=3600)
    return text


@app.workflow
async def parked(text: str) -> str:
    return await parks(text)


@app.workflow
async def retried(text: str) -> str:
    return await retries(text)


@app.workflow
async def echoes(text: str) -> str:
    return await streams(text)


@app.workflow
async def fails(text: str) -> str:
    raise ValueError(text)


@app.domain(keyed=True)
class Order(flow.Domain):
    note: str = ""

    @flow.action
    def fill(self, note: str) -> None:
        self.note = note
