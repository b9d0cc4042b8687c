"""The story: two worlds at work, a worker killed with -9, another that goes on, a fork of one of them compared with it,
and proof of what happened.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

import worldline as wl
from worldline import bench
from worldline.api import wiring
from worldline.base import env_os, errors, grammar
from worldline.client import connection
from worldline.client.world_handle import Handle
from worldline.demo import demo_program, server
from worldline.features.forks import lineage_tree as trees
from worldline.features.proofs import calls as proofs
from worldline.inspect import entry_text
from worldline.keys import journal as journal_keys
from worldline.model.journal import JournalEntry, Kind
from worldline.store import kv

console = Console(highlight=False)
lock = threading.Lock()  # the server's threads write lines, too
BENCH_SECONDS = 5.0
PROGRAMS = [demo_program.shop, demo_program.agency]


def say(who: str, text: str, style: str = "") -> None:
    with lock:
        console.print(f"[bold]{who:>8}[/] │ {text}", style=style, soft_wrap=True)


class DemoWorker:
    """A process that hosts the worlds."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, folder: Path, port: int) -> DemoWorker:
        command = [sys.executable, "-m", "worldline.demo.demo_program", str(folder), str(port)]
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


async def show_entries(world: wl.World, seen: list[JournalEntry]) -> None:
    """Print a world's entries as they are journaled."""
    async for entry in world.follow(above=0):
        if isinstance(entry, JournalEntry):
            seen.append(entry)
            style = "cyan" if world.name == "orders" else "magenta"
            text = f"{entry.kind.name.lower():<17} {entry_text.line(entry)}"
            say(world.name, f"{entry.height:>3}  {escape(text[:108])}", style)


class Figures(msgspec.Struct):
    """What the run came to, counted in its own journals and proofs."""

    lost: int = 0
    twice: int = 0
    proved: int = 0
    steps: int = 0


async def story(folder: Path, outside: server.DemoServer) -> Figures:
    """Run everything in `folder`."""
    figures = Figures()
    async with wiring.open(str(folder), create=True, programs=PROGRAMS) as link:
        universe = wl.Universe(link)
        orders = await universe.ensure("orders", demo_program.shop)
        agent = await universe.ensure("agent", demo_program.agency)
        journals: dict[str, list[JournalEntry]] = {"orders": [], "agent": []}
        followers = [asyncio.create_task(show_entries(world, journals[world.name])) for world in (orders, agent)]
        try:
            await play(folder, outside, link, orders, agent)
        finally:
            for task in followers:
                task.cancel()
            await asyncio.gather(*followers, return_exceptions=True)
        for world in (orders, agent):
            count_answers(await world.journal(limit=10_000), figures)
        await prove(folder, [Handle(link, name) for name in ("orders", "agent", "what-if")], figures)
    return figures


async def play(
    folder: Path, outside: server.DemoServer, link: connection.Connection, orders: wl.World, agent: wl.World
) -> None:
    first = await DemoWorker.start(folder, outside.port)
    epochs = [(await first.report())["epoch"] for _ in range(2)]
    assert epochs == [1, 1]
    say("worker 1", "holds both worlds at epoch 1", "green")
    shipping = await asyncio.wait_for(orders.start(demo_program.fulfil("o-1", 4200), id="o-1"), 20)
    travel = await agent.start(demo_program.plan_trip("Lisbon"), id="trip")
    assert await asyncio.to_thread(outside.shipping.wait, 20), "the order never got to shipping"
    await first.kill()
    say("worker 1", "killed with -9, in the middle of shipping", "bold red")
    second = await DemoWorker.start(folder, outside.port)
    for _ in range(2):
        report = await second.report()
        assert report["epoch"] == 2
        say("worker 2", f"has {report['world']}: epoch 1 → 2, restored in {report['restored_ms']:.1f} ms", "green")
    say("orders", f"returned: {await shipping.result(timeout=30)}", "bold cyan")
    assert outside.count("/ship") == 2
    assert len(outside.keys("/ship")) == len(outside.parcels) == 1
    say("outside", "shipping: 2 requests, 1 key, 1 parcel — effects run at least once", "yellow")
    await asyncio.wait_for(asks_for_approval(agent), 30)
    await agent.send(demo_program.Approved("you"), to="trip")
    say("agent", f"returned: {await travel.result(timeout=30)}", "bold magenta")
    assert (await orders.state(demo_program.Orders)).parcels == {"o-1": "parcel-1"}
    await what_if(link, agent, outside)
    await second.stop()
    say("worker 2", "stopped: worlds saved, leases free", "green")


async def asks_for_approval(agent: wl.World) -> None:
    """Wait until the agent has got every answer that it needs before."""
    answers = 0
    async for entry in agent.follow(above=0):
        answers += isinstance(entry, JournalEntry) and entry.kind is Kind.EFFECT_RESULT
        if answers == demo_program.ANSWERS_BEFORE_APPROVAL:
            return


async def what_if(link: connection.Connection, agent: wl.World, outside: server.DemoServer) -> None:
    """Fork the agent where it was allowed to go on, let its model say something else, and compare the two."""
    asked = outside.count("/think")
    fork = await agent.fork("what-if", before="event Approved", script=[{"effect": "think", "answer": "stay at home"}])
    await fork.send(demo_program.Approved("your twin"), to="trip")
    say("what-if", f"returned: {await (await fork.attach('trip')).result(timeout=30)}", "bold blue")
    assert outside.count("/think") == asked, "nothing leaves a dry fork"
    for line in trees.drawn(trees.find(await trees.tree(link), await Handle(link, "agent").address())):
        say("tree", line, "blue")
    found = await agent.diff(fork)
    [run] = found.runs
    [effect] = [each for each in found.effects if each.left is not None and each.right is not None]
    assert effect.left is not None
    assert effect.right is not None
    say("diff", f"since {found.ancestor}@{found.height}, before the approval", "blue")
    for name, side, what in (("agent", run.left, effect.left), ("what-if", run.right, effect.right)):
        assert side is not None
        mark = "-" if name == "agent" else "+"
        say("diff", f"{mark} {name}: {what.name} said {what.answer!r}, the trip is {side.result!r}", "blue")


def count_answers(entries: Sequence[JournalEntry], figures: Figures) -> None:
    """Every effect that a world asked for has one result in its journal; every run one end."""
    asked = sum(1 for entry in entries if entry.kind is Kind.EFFECT_REQUESTED)
    answers = [entry.payload for entry in entries if entry.kind is Kind.EFFECT_RESULT]
    late = sum(1 for entry in entries if entry.kind is Kind.LATE_ANSWER)
    ends = sum(1 for entry in entries if entry.kind is Kind.RUN_FINISHED)
    starts = sum(1 for entry in entries if entry.kind is Kind.RUN_STARTED)
    figures.lost += max(0, asked - len(answers)) + (starts - ends)
    figures.twice += max(0, len(answers) - late - asked)


async def prove(folder: Path, worlds: list[Handle], figures: Figures) -> None:
    for world in worlds:
        result = await proofs.prove(world)
        assert result.holds, result.difference
        figures.proved += result.proved
        figures.steps += result.steps
        say(
            "prove",
            (f"{world.name}: {result.proved} of {grammar.count(result.steps, 'step')} run again, byte-identical"),
            "bold green",
        )
    copy = folder.parent / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("hints", "workers", "lock.mdb"))
    say("prove", f"one byte flipped in a copy: {await named(copy)}", "bold green")


async def flip_a_byte(link: connection.Connection) -> None:
    """Damage one stored frame of the orders' journal, as a bad disk would."""
    at = await Handle(link, "orders").address()
    begin, end = journal_keys.frames(at)
    key, raw = (await link.store.engine.read(kv.Range(begin, end))).page(0).items[-1]
    damaged = bytearray(raw)
    damaged[len(raw) // 2] ^= 1
    batch = kv.Batch()
    batch.expect(key, raw)
    batch.put(key, bytes(damaged))
    await link.store.engine.commit(batch)


async def named(copy: Path) -> str:
    """What the proof says about a store in which one byte was flipped."""
    async with wiring.open(str(copy), programs=PROGRAMS) as link:
        await flip_a_byte(link)
        for name in ("orders", "agent"):
            try:
                result = await proofs.prove(Handle(link, name))
            except errors.Corrupt as error:
                return f"{name}: {error}"
            if result.difference is not None:
                return f"{name}: {result.difference}"
    raise AssertionError("a flipped byte went unnoticed")


def main() -> int:
    clock = env_os.OsEnv()
    started_us = clock.monotonic_us()
    outside = server.DemoServer(lambda text: say("outside", text, "yellow"))
    with tempfile.TemporaryDirectory(prefix="worldline-demo-") as temporary:
        folder = Path(temporary) / "universe"
        say("demo", f"a universe in {folder}")
        figures = asyncio.run(story(folder, outside))
        outside.close()
        say("bench", bench.sentence(bench.run(["A"], seconds=BENCH_SECONDS)))
    assert (figures.lost, figures.twice) == (0, 0)
    assert figures.proved == figures.steps > 0
    closing = f"lost {figures.lost} · answered twice {figures.twice} · proved {figures.proved}/{figures.steps}"
    console.print(f"\n{closing}", style="bold")
    console.print(f"{(clock.monotonic_us() - started_us) / 1e6:.1f} s in all", style="dim")
    return 0


if __name__ == "__main__":
    sys.exit(main())
