"""The story: two worlds at work, a worker killed with -9, another that goes on, and proof of what happened."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path

from rich.console import Console

import worldline as wl
from worldline.base import env_os, errors
from worldline.codec import structs
from worldline.control import bench, proving
from worldline.control.demo import program, server
from worldline.kernel import replay
from worldline.kernel.machine import Ended
from worldline.model.journal import Entry, Kind

console = Console(highlight=False)
lock = threading.Lock()
BENCH_SECONDS = 5.0


def say(who: str, text: str, style: str = "") -> None:
    with lock:
        console.print(f"[bold]{who:>8}[/] │ {text}", style=style, soft_wrap=True)


class Worker:
    """A process that hosts the worlds."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, folder: Path, port: int) -> Worker:
        command = [sys.executable, "-m", "worldline.control.demo.program", str(folder), str(port)]
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))

    async def report(self) -> dict[str, object]:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), 30)
        found: dict[str, object] = json.loads(line)
        return found

    async def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await asyncio.wait_for(self.process.wait(), 30)


async def show_entries(world: wl.World, seen: list[Entry]) -> None:
    """Print a world's entries as they are journaled."""
    async for entry in world.follow(above=0):
        if isinstance(entry, Entry):
            seen.append(entry)
            text = replay.describe(entry.kind, entry.payload)
            say(world.name, f"{entry.height:>3}  {text[:96]}", "cyan" if world.name == "orders" else "magenta")


async def story(folder: Path, outside: server.Outside) -> tuple[int, int]:
    """Run everything in `folder`. Returns how many steps were proved, of how many."""
    async with wl.open(str(folder), create=True) as universe:
        universe.programs |= {each.name: each for each in (program.shop, program.agency)}
        orders = await universe.ensure("orders", program.shop)
        agent = await universe.ensure("agent", program.agency)
        journals: dict[str, list[Entry]] = {"orders": [], "agent": []}
        followers = [asyncio.create_task(show_entries(world, journals[world.name])) for world in (orders, agent)]
        try:
            await play(folder, outside, orders, agent)
        finally:
            for task in followers:
                task.cancel()
            await asyncio.gather(*followers, return_exceptions=True)
        check_journal(journals["orders"], outside)
        return await prove(folder, universe, [orders, agent])


async def play(folder: Path, outside: server.Outside, orders: wl.World, agent: wl.World) -> None:
    first = await Worker.start(folder, outside.port)
    epochs = [(await first.report())["epoch"] for _ in range(2)]
    assert epochs == [1, 1]
    say("worker 1", "holds both worlds at epoch 1", "green")
    shipping = await orders.start(program.fulfil("o-1", 4200), id="o-1")
    travel = await agent.start(program.plan_trip("Lisbon"), id="trip")
    assert await asyncio.to_thread(outside.shipping.wait, 20), "the order never got to shipping"
    await first.kill()
    say("worker 1", "killed with -9, in the middle of shipping", "bold red")
    second = await Worker.start(folder, outside.port)
    for _ in range(2):
        report = await second.report()
        assert report["epoch"] == 2
        say("worker 2", f"has {report['world']}: epoch 1 → 2, restored in {report['restored_ms']:.1f} ms", "green")
    say("orders", f"returned: {await shipping.result(timeout=30)}", "bold cyan")
    assert outside.count("/ship") == 2
    assert len(outside.keys("/ship")) == len(outside.parcels) == 1
    say("outside", "shipping: 2 requests, 1 key, 1 parcel — at least once outside, honestly", "yellow")
    await agent.send(program.Approved("you"), to="trip")
    say("agent", f"returned: {await travel.result(timeout=30)}", "bold magenta")
    assert (await orders.state(program.Orders)).parcels == {"o-1": "parcel-1"}
    await second.stop()
    say("worker 2", "stopped: worlds saved, leases free", "green")


def check_journal(entries: list[Entry], outside: server.Outside) -> None:
    """Nothing lost, nothing answered twice: the journal has one receipt for each effect, and the run's one end."""
    receipts = [entry for entry in entries if entry.kind is Kind.RECEIPT]
    intents = [entry for entry in entries if entry.kind is Kind.INTENT]
    ended = [structs.decode(Ended, entry.payload) for entry in entries if entry.kind is Kind.RUN_FINISHED]
    assert len(receipts) == len(intents) == 2
    assert [each.run for each in ended] == ["o-1"]
    assert len(outside.charges) == 1


async def prove(folder: Path, universe: wl.Universe, worlds: list[wl.World]) -> tuple[int, int]:
    proved = total = 0
    for world in worlds:
        result = await proving.prove(universe, world)
        assert result.difference is None, result.difference
        proved, total = proved + result.proved, total + result.steps
        say("prove", f"{world.name}: {result.proved} of {result.steps} steps run again, byte-identical", "bold green")
    copy = folder.parent / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("hints", "workers"))
    height = flip_a_byte(copy)
    say("prove", f"one byte flipped in a copy: {await named(copy)}", "bold green")
    assert height
    return proved, total


def flip_a_byte(copy: Path) -> bool:
    """Damage one stored journal entry of the copied store, as a bad disk would."""
    data = bytearray((copy / "data.mdb").read_bytes())
    place = data.rfind(b"parcel-1")
    assert place > 0
    data[place] ^= 1
    (copy / "data.mdb").write_bytes(bytes(data))
    return True


async def named(copy: Path) -> str:
    """What the proof says about a damaged store."""
    async with wl.open(str(copy)) as universe:
        universe.programs |= {each.name: each for each in (program.shop, program.agency)}
        for name in ("orders", "agent"):
            try:
                result = await proving.prove(universe, universe.world(name))
            except errors.Corrupt as error:
                return f"{name}: {error}"
            if result.difference is not None:
                return f"{name}: {result.difference}"
    raise AssertionError("a flipped byte went unnoticed")


def main() -> int:
    clock = env_os.OsEnv()
    started_us = clock.monotonic_us()
    outside = server.Outside(lambda text: say("outside", text, "yellow"))
    with tempfile.TemporaryDirectory(prefix="worldline-demo-") as temporary:
        folder = Path(temporary) / "universe"
        say("demo", f"a universe in {folder}")
        proved, total = asyncio.run(story(folder, outside))
        outside.close()
        figures = bench.run(["A"], seconds=BENCH_SECONDS)
        say("bench", bench.sentence(figures))
    assert proved == total
    lost = 0 if outside.parcels else 1
    twice = len(outside.parcels) - 1
    console.print(f"\nlost {lost} · answered twice {twice} · proved {proved}/{total}", style="bold")
    console.print(f"{(clock.monotonic_us() - started_us) / 1e6:.1f} s in all", style="dim")
    return 0


if __name__ == "__main__":
    sys.exit(main())
