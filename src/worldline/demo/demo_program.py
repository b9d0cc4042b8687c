"""The demo's programs, and the worker process that hosts them until it is killed.

An order is charged and shipped; an agent asks a (scripted) model what to do, looks something up, and asks a person
before it acts. Both touch a real HTTP server through effects, with the idempotency key that Worldline offers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from dataclasses import dataclass, field

import httpx

import worldline as wl
from worldline.api import wiring
from worldline.client.world_handle import Handle

shop = wl.Program("shop")
agency = wl.Program("agency")


async def post(path: str, body: dict[str, object]) -> dict[str, object]:
    """One request to the demo's server, with this effect's own key."""
    async with httpx.AsyncClient(timeout=30) as client:
        headers = {"Idempotency-Key": wl.attempt().key, "Attempt": str(wl.attempt().number)}
        answer = await client.post(f"http://127.0.0.1:{Where.port}{path}", json=body, headers=headers)
        answer.raise_for_status()
        found: dict[str, object] = answer.json()
        return found


class Where:
    """Where the server listens. Known to effects only: they are the outside."""

    port = 0


@dataclass(frozen=True)
class Shipped:
    order: str
    parcel: str


@shop.reducer()
@dataclass
class Orders:
    parcels: dict[str, str] = field(default_factory=dict)

    @wl.on
    def shipped(self, event: Shipped) -> None:
        self.parcels[event.order] = event.parcel


@shop.effect(retry=wl.Retry(attempts=5, initial_delay=0.2))
async def charge(order: str, cents: int) -> str:
    return str((await post("/charge", {"order": order, "cents": cents}))["charge"])


@shop.effect(retry=wl.Retry(attempts=5, initial_delay=0.2))
async def ship(order: str) -> str:
    return str((await post("/ship", {"order": order}))["parcel"])


@shop.workflow
async def fulfil(order: str, cents: int) -> str:
    paid = await charge(order, cents)
    parcel = await ship(order)
    wl.emit(Shipped(order, parcel))
    return f"{parcel} after {paid}"


@dataclass(frozen=True)
class Approved:
    by: str


@agency.effect(retry=wl.Retry(attempts=5, initial_delay=0.2))
async def think(transcript: list[str]) -> str:
    return str((await post("/think", {"transcript": transcript}))["say"])


@agency.effect
async def look_up(what: str) -> str:
    return str((await post("/look", {"what": what}))["found"])


ANSWERS_BEFORE_APPROVAL = 3  # a thought, what was looked up, a thought


@agency.workflow
async def plan_trip(city: str) -> str:
    transcript = [f"plan a trip to {city}"]
    while True:
        said = await think(transcript)
        transcript.append(said)
        if said.startswith("look up "):
            transcript.append(await look_up(said.removeprefix("look up ")))
        elif said.startswith("ask: "):
            approved = await wl.wait(Approved, timeout=60)
            transcript.append(f"approved by {approved.by}")
        else:
            return said


async def work(folder: str, port: int) -> None:
    """Host both programs until killed or until standard input ends. Says on standard output what it has taken over."""
    Where.port = port
    async with wiring.open(folder, host=[shop, agency]) as link:
        assert link.host is not None
        for name in ("orders", "agent"):
            held = await link.host.worlds.hold(await Handle(link, name).address())
            assert held is not None
            report = {"world": name, "epoch": held.lease.epoch, "restored_ms": link.host.worlds.restored_ms}
            sys.stdout.write(json.dumps(report) + "\n")
            sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    # By the name that the process which made the worlds knows it by: code of a module called __main__ has another hash.
    from worldline.demo import demo_program  # noqa: PLW0406 - this file, as a module and not as the script

    logging.basicConfig(level=logging.ERROR)
    asyncio.run(demo_program.work(sys.argv[1], int(sys.argv[2])))
