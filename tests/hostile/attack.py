"""The whole attack: three hosts on one folder, hostile worlds and innocent ones, and what came of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

import worldline as wl
from tests.hostile import client, innocent, programs
from tests.hostile.host import ROOT, Host
from worldline.features.proofs import calls as proofs

HOSTS = 3


class Outcome(msgspec.Struct):
    problems: list[str] = []
    programs: int = 0
    acts: int = 0
    refused: list[str] = []
    proved: int = 0
    seconds: float = 0
    innocent_asks: int = 0
    innocent_p50: float = 0
    innocent_p99: float = 0
    innocent_max: float = 0
    lag: float = 0


async def attack(folder: Path, first: int, end: int, *, proofs: int) -> Outcome:
    """Attack with these programs. Problems are told, not raised."""
    url = str(folder / "store")
    began = time.monotonic()
    async with wl.open(url, create=True) as universe:
        hosts = [await Host.start(url, first, end, number=number, folder=folder) for number in range(HOSTS)]
        try:
            chosen = [programs.program(number) for number in range(first, end)]
            await asyncio.gather(*(each.ready() for each in hosts))
            outcome = await _hostilities(universe, chosen)
            for host in hosts:
                wrong = await host.check()
                if wrong:
                    outcome.problems.append(f"a host is not well: {wrong}")
            for host in hosts:
                with contextlib.suppress(TimeoutError):
                    code = await host.end()
                    if code:
                        outcome.problems.append(f"a host ended with {code}:\n{host.said}")
        finally:
            for host in hosts:
                await host.kill()
    sick = [each.number for each in chosen if each.sick]
    sample = [number for number in range(first, end) if number not in sick]
    sample = sorted(random.Random(programs.SEED).sample(sample, min(proofs, len(sample))))
    outcome.problems += _proved(url, sample)
    outcome.proved = len(sample)
    outcome.seconds = time.monotonic() - began
    return outcome


async def _hostilities(universe: wl.Universe, chosen: list[programs.Hostile]) -> Outcome:
    attacking, innocents = client.Attack(universe), client.Innocents(universe)
    await innocents.begin()
    asking = asyncio.create_task(innocents.ask_on())
    try:
        await attacking.attack(chosen)
        await attacking.ping(chosen)
    finally:
        asking.cancel()
        await asyncio.wait([asking])
    problems = [str(each) for each in attacking.problems] + innocents.wrong
    return Outcome(
        problems,
        len(chosen),
        attacking.acts,
        attacking.refused,
        innocent_asks=len(innocents.seconds),
        innocent_p50=innocents.percentile(0.5),
        innocent_p99=innocents.percentile(0.99),
        innocent_max=innocents.percentile(1),
        lag=innocents.lag_seconds,
    )


def _proved(url: str, numbers: Sequence[int]) -> list[str]:
    """Replay these worlds in a fresh process, which hashes text in its own way."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.hostile", "prove", url, *map(str, numbers)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=False,
    )
    problems = [line for line in ran.stdout.splitlines() if line]
    if ran.returncode:
        problems.append(f"the proof ended with {ran.returncode}:\n{ran.stderr[-2_000:]}")
    return problems


async def prove(url: str, numbers: list[int]) -> None:
    """The fresh process's side: a line for each world that does not replay."""
    async with wl.open(url) as universe:
        for number in numbers:
            hostile = programs.program(number)
            world = universe.world(client.world_name(number))
            try:
                proof = await proofs.prove(world._handle, programs=[hostile.program])
            except BaseException as error:  # noqa: BLE001 - whatever escapes is what is looked for
                name = type.__getattribute__(type(error), "__qualname__")
                _say(f"{hostile}: its journal cannot be proved: {name}")
            else:
                if not proof.holds:
                    _say(f"{hostile}: its journal does not replay: {proof.difference}".replace("\n", " "))
        for each in range(innocent.WORLDS):
            proof = await proofs.prove(universe.world(innocent.name(each))._handle, programs=[innocent.app])
            if not proof.holds:
                _say(f"{innocent.name(each)} does not replay: {proof.difference}".replace("\n", " "))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
