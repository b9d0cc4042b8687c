"""A process that writes as fast as it can, says what was acknowledged, and is killed.

`python -m tests.conformance.killed_writer` is not the writer but its maker: a process that has imported everything,
opens nothing, and forks a writer for each line of its input; starting Python anew for each would be most of the time.
A line is `ENGINE WHERE FROM DELAY_US`: the writer is killed that long after FROM, which is its `fork`, or `ready`,
its first ack. The output is the writer's acks, then `dead`.

What a writer writes are *chains*. Chain c at n is: a head that says n and the stamp of its log item; n log items; the
parts of the last batches, by `parts`; and counters that say n. Each batch takes one chain from n to n + 1, touches all
of that, and expects the head, so a store is either at n or at n + 1, and `check` can tell if it is in between.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

import msgspec

from tests.conformance import batches, kits
from worldline.base import limits
from worldline.store import kv

ROOT = Path(__file__).parents[2]
# Which chains each concurrent writer moves by one call of `commit`.
WRITERS = ([0], [1], [2], [3, 4, 5])
CHAINS = [chain for chains in WRITERS for chain in chains]
PARTS = 4
SWEEP = 16  # every so many batches, the parts of older ones are deleted by a range
# Small, so that the map grows while writers are killed.
MAP_BYTES = 1 << 20
READY_SECONDS = 60.0
WRITER_SECONDS = 120.0


# --- What is written ---


def head_key(chain: int) -> bytes:
    return b"head/%d" % chain


def log_prefix(chain: int) -> bytes:
    return b"log/%d/" % chain


def part_key(chain: int, n: int, index: int) -> bytes:
    return b"part/%d/" % chain + batches.number(n) + b"/%d" % index


def part_value(chain: int, n: int, index: int) -> bytes:
    """Of different sizes, some larger than a page of LMDB."""
    digest = hashlib.sha256(b"%d %d %d" % (chain, n, index)).digest()
    return digest * (1 + digest[0] % 8 + (200 if digest[1] < 8 else 0))


def parts(chain: int, n: int) -> dict[bytes, bytes]:
    """The parts there are at n: all of the last batch, all but one of those before it, back to a sweep."""
    swept = n - n % SWEEP - SWEEP
    return {
        part_key(chain, at, index): part_value(chain, at, index)
        for at in range(max(1, swept), n + 1)
        for index in range(PARTS if at == n else PARTS - 1)
    }


def step(chain: int, n: int, head: bytes | None) -> kv.Batch:
    """From n - 1, where the head is `head`, to n."""
    batch = kv.Batch()
    key = head_key(chain)
    if head is None:
        batch.absent(key)
    else:
        batch.expect(key, head)
    batch.put(key, batches.number(n), stamp=batch.append(log_prefix(chain), batches.number(n)))
    for index in range(PARTS):
        batch.put(part_key(chain, n, index), part_value(chain, n, index))
    if n > 1:
        batch.delete(part_key(chain, n - 1, PARTS - 1))
    if n % SWEEP == 0 and n > SWEEP:
        batch.delete_range(part_key(chain, 0, 0), part_key(chain, n - SWEEP, 0))
    batch.add(b"count/%d" % chain, 1)
    batch.add(b"total", 1)
    return batch


# --- What must be there ---


class Chain(msgspec.Struct):
    """One chain as far as it was checked, with the last log item."""

    n: int = 0
    stamp: bytes = bytes(limits.STAMP_BYTES)


async def check(engine: kv.Engine, known: dict[int, Chain]) -> None:
    """Read everything in one snapshot, check that it is whole, and move `known` on to what is there."""
    requests: list[kv.Request] = [kv.Get(b"total")]
    for chain in CHAINS:
        log = kv.Range(log_prefix(chain) + known[chain].stamp, batches.after(log_prefix(chain)), 1 << 30, 1 << 40)
        requests += [kv.Get(head_key(chain)), kv.Get(b"count/%d" % chain), log, batches.under(b"part/%d/" % chain)]
    snapshot = await engine.read(*requests)
    total = 0
    for place, chain in enumerate(CHAINS):
        at = 1 + 4 * place
        head = snapshot.value(at)
        log_items = snapshot.page(at + 2).items
        if log_items and log_items[0][0] == log_prefix(chain) + known[chain].stamp:
            del log_items[0]
        else:
            assert known[chain].n == 0, f"chain {chain}: an old log item is gone"
        n = 0 if head is None else int.from_bytes(head[:8], "big")
        total += n
        written = [batches.number(number) for number in range(known[chain].n + 1, n + 1)]
        assert [value for _, value in log_items] == written, f"chain {chain} at {n}: the log is torn"
        if head is not None:
            last = log_items[-1][0][len(log_prefix(chain)) :] if log_items else known[chain].stamp
            assert head[8:] == last, f"chain {chain} at {n}: the head has another stamp than the log"
            known[chain] = Chain(n, last)
        assert _counter(snapshot.value(at + 1)) == n, f"chain {chain} at {n}: its counter is torn"
        assert dict(snapshot.page(at + 3).items) == parts(chain, n), f"chain {chain} at {n}: the parts are torn"
    assert _counter(snapshot.value(0)) == total, "the counter of all chains is torn"


def _counter(value: bytes | None) -> int:
    return 0 if value is None else kv.counter(value)


# --- The maker, as the test sees it ---


class Life(msgspec.Struct):
    """What one writer said: where each chain was when it last looked, and the last acked step of each."""

    started: dict[int, int]
    acked: dict[int, int]
    acks: int


class Maker:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.killed_writer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )

    def live(self, place: kits.Place, *, since: str, delay_us: int) -> Life:
        """Make a writer and let it be killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{place.engine} {place.where} {since} {delay_us}\n".encode())
        self._process.stdin.flush()
        life = Life({}, {}, 0)
        while True:
            line = self._process.stdout.readline().decode().split()
            assert line, "the maker has ended"
            if line[0] == "dead":
                assert int(line[1]) == signal.SIGKILL, f"the writer ended by itself: {line[1]}"
                return life
            chain, n = int(line[1]), int(line[2])
            if line[0] == "start":
                life.started[chain] = n
            else:
                life.acked[chain] = n
                life.acks += 1

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


# --- The processes themselves ---


def make_writers() -> None:
    for line in sys.stdin:
        engine, where, since, delay_us = line.split()
        hear, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(hear)
            _write_until_killed(kits.Place(engine, where), tell)
        os.close(tell)
        if since == "ready":
            select.select([hear], [], [], READY_SECONDS)
        time.sleep(int(delay_us) / 1_000_000)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(hear)
        _say(f"dead {os.waitstatus_to_exitcode(status) * -1}")


def _write_until_killed(place: kits.Place, tell: int) -> NoReturn:
    try:
        asyncio.run(_write(place, tell))
    except BaseException:  # noqa: BLE001 - a forked process must not return into its maker's code
        traceback.print_exc()
    os._exit(1)


async def _write(place: kits.Place, tell: int) -> None:
    async with asyncio.timeout(WRITER_SECONDS):
        engine = await kits.open_place(place, create=True, map_bytes=MAP_BYTES)
        await asyncio.gather(*(_move(engine, chains, tell) for chains in WRITERS))


async def _move(engine: kv.Engine, chains: list[int], tell: int) -> NoReturn:
    while True:
        heads = (await engine.read(*(kv.Get(head_key(chain)) for chain in chains))).answers
        at: dict[int, tuple[int, bytes | None]] = {}
        for chain, head in zip(chains, heads, strict=True):
            assert head is None or isinstance(head, bytes)
            at[chain] = (0 if head is None else int.from_bytes(head[:8], "big"), head)
            _say(f"start {chain} {at[chain][0]}")
        while await _move_once(engine, at):
            os.write(tell, b"!")


async def _move_once(engine: kv.Engine, at: dict[int, tuple[int, bytes | None]]) -> bool:
    """One call, one step of each chain. False: a step of a writer killed before has arrived only now; look again."""
    outcomes = await engine.commit(*(step(chain, n + 1, head) for chain, (n, head) in at.items()))
    held = True
    for (chain, (n, _)), outcome in zip(list(at.items()), outcomes, strict=True):
        assert not isinstance(outcome, kv.CommitUnknown), outcome
        if isinstance(outcome, kv.Conflict):
            held = False
        else:
            _say(f"ack {chain} {n + 1}")
            at[chain] = (n + 1, batches.number(n + 1) + outcome.stamps[0])
    return held


def _say(text: str) -> None:
    """One write of a short line to a pipe is whole or not at all, also when its writer is killed."""
    os.write(1, text.encode() + b"\n")


if __name__ == "__main__":
    make_writers()
