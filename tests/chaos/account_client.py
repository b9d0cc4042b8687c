"""A process that makes operations on the account, one after the other, and writes down when each began and ended.

    account --record FILE --seed SEED [--hosts] --store URL --json

With `--hosts` it also hosts the account, and has two doors to it: its operations go in turn straight to the world it
may hold, and through the store as those of a stranger do. What began and was never answered is a line without a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

import worldline as wl
from tests.chaos import account, ledger
from tests.chaos.linearizability import End, Kind, Op
from worldline.api import open as opening
from worldline.api import wiring
from worldline.base import errors
from worldline.model.settings import Settings, TimerSettings, WorkerSettings

WORD = "account"
TTL_SECONDS = 1.5
SETTINGS = Settings(
    worker=WorkerSettings(lease_ttl_ms=int(TTL_SECONDS * 1000), heartbeat_ms=350, scan_ms=300),
    timer=TimerSettings(scan_ms=1_000),
)
HOST_DOOR = "host"
STORE_DOOR = "store"

KINDS = {Kind.ADD: 4, Kind.WITHDRAW: 2, Kind.TOTAL: 4}
NAMED_SHARE = 0.2
AMOUNT_MAX = 1_000_000  # large, so that a total tells which amounts are in it
OP_SECONDS = 40.0  # nothing that befalls a process lasts so long
AGAIN_SECONDS = 0.05


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    id: str
    kind: Kind
    amount: int
    named: bool
    at_ns: int  # on the machine's monotonic clock, which all processes share


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """`value` of an operation that ended well, `error` of another."""

    id: str
    at_ns: int
    end: End
    value: int | None = None
    error: str = ""
    stuck: bool = False


class Doings:
    """The file of one client, over all its lives."""

    def __init__(self, path: Path) -> None:
        self._file = ledger.opened(path)

    def note(self, line: Begun | Ended) -> None:
        """One line, by one write. Behind an empty one: the last of a life that was killed may be torn."""
        data = b"\n" + msgspec.json.encode(line) + b"\n"
        assert os.write(self._file, data) == len(data)

    async def do(self, doors: Sequence[wl.World], begun: Begun) -> None:
        """One operation, from its first line to its last. One that has a name is repeated until it is answered."""
        self.note(begun)
        ended = await _outcome(doors, begun)
        self.note(ended)

    def close(self) -> None:
        os.close(self._file)


async def _outcome(doors: Sequence[wl.World], begun: Begun) -> Ended:
    turn = 0
    try:
        async with asyncio.timeout(OP_SECONDS):
            while True:
                world = doors[turn % len(doors)]
                try:
                    value = await account.do(world, begun.kind, begun.id, begun.amount, named=begun.named)
                    return Ended(begun.id, time.monotonic_ns(), End.OK, value)
                except (errors.StoreError, errors.Lost) as error:
                    if not begun.named:
                        return Ended(begun.id, time.monotonic_ns(), End.UNKNOWN, error=repr(error))
                turn += 1
                await asyncio.sleep(AGAIN_SECONDS)
    except errors.Overloaded as error:
        return Ended(begun.id, time.monotonic_ns(), End.FAILED, error=repr(error))
    except TimeoutError:
        return Ended(begun.id, time.monotonic_ns(), End.UNKNOWN, error="never answered", stuck=True)


# --- The process --------------------------------------------------------------------------------------------------


def main(words: list[str], label: str) -> int:
    parser = argparse.ArgumentParser(WORD)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--hosts", action="store_true")
    parser.add_argument("--store", required=True)
    parser.add_argument("--json", action="store_true")
    return asyncio.run(_work(parser.parse_args(words), label))


async def _work(asked: argparse.Namespace, label: str) -> int:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    doings = Doings(asked.record)
    async with contextlib.AsyncExitStack() as opened:
        doors: dict[str, wl.World] = {}
        said = {"ready": WORD, "worker": ""}
        if asked.hosts:
            hosting = await opened.enter_async_context(
                opening.open(asked.store, host=account.program, create=False, settings=SETTINGS)
            )
            said["worker"] = wiring.host_of(hosting._connection).worker.hex()
            doors[HOST_DOOR] = hosting.world(account.WORLD)
        asking = await opened.enter_async_context(opening.open(asked.store, settings=SETTINGS))
        doors[STORE_DOOR] = asking.world(account.WORLD)
        print(msgspec.json.encode(said).decode(), flush=True)
        await _operations(doings, doors, label, random.Random(f"{asked.seed}/{label}"), stopped)
    doings.close()
    return 0


async def _operations(
    doings: Doings, doors: dict[str, wl.World], label: str, draws: random.Random, stopped: asyncio.Event
) -> None:
    """In bursts, because what follows another at once is the most likely to overtake it."""
    number = 0
    while not stopped.is_set():
        for _ in range(draws.randint(5, 20)):
            door = list(doors)[number % len(doors)]
            number += 1
            [kind] = draws.choices(list(KINDS), list(KINDS.values()))
            amount = 0 if kind is Kind.TOTAL else draws.randint(1, AMOUNT_MAX)
            named = draws.random() < NAMED_SHARE
            begun = Begun(op_id(label, door, number, named=named), kind, amount, named, time.monotonic_ns())
            await doings.do([doors[door], *doors.values()], begun)
            if stopped.is_set():
                return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(draws.uniform(0.01, 0.1)):
                await stopped.wait()


def op_id(label: str, door: str, number: int | str, *, named: bool = False) -> str:
    return f"{label} {door} {'named' if named else 'anonymous'} {number}"


# --- What it did --------------------------------------------------------------------------------------------------


def read(path: Path) -> tuple[list[Op], list[Ended]]:
    """A client's operations, and how those ended that ended."""
    begun: list[Begun] = []
    ended: dict[str, Ended] = {}
    for data in path.read_bytes().splitlines():
        try:
            line = msgspec.json.decode(data, type=Begun | Ended)
        except msgspec.DecodeError:
            continue  # empty, or torn by a kill: what was not written down to its end had not begun, or has no end
        if isinstance(line, Begun):
            begun.append(line)
        else:
            ended[line.id] = line
    return [_op(each, ended.get(each.id)) for each in begun], list(ended.values())


def _op(begun: Begun, ended: Ended | None) -> Op:
    if ended is None or ended.end is End.UNKNOWN:
        return Op(begun.id, begun.kind, begun.amount, begun.at_ns)
    return Op(begun.id, begun.kind, begun.amount, begun.at_ns, ended.at_ns, ended.end, ended.value)
