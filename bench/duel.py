"""Is this code quicker than another commit's? `python -m bench.duel REF --only A,C --json`

Both run the same workload of `worldline bench` at the same time on the same core, in a folder in memory where there is
one, so what others do to the machine is done to both, and the disk to neither. What each got done in the same time is
compared; rounds change the core and who starts first. This measures the CPU that the code needs, and the bytes that a
step takes in the journal (keys and values of frames, without blobs), and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CHILD = "--child"
FIGURES = {"A": "per_s", "B1": "per_s", "B64": "per_s", "C": "workflows_per_s", "F": "per_s"}
START_SECONDS = 3.0  # for both to be ready
IN_MEMORY = Path("/dev/shm")
PLACE = IN_MEMORY if IN_MEMORY.is_dir() else None


def main() -> None:
    if CHILD in sys.argv:
        _, _, name, seconds, start = sys.argv
        print(json.dumps(asyncio.run(_child(name, float(seconds), float(start)))))
        return
    asked = argparse.ArgumentParser(prog="python -m bench.duel", description=(__doc__ or "").split("\n", 1)[0])
    asked.add_argument("ref", help="the commit to compare with")
    asked.add_argument("--only", default="A,C", help=f"of {', '.join(FIGURES)}")
    asked.add_argument("--rounds", type=int, default=4)
    asked.add_argument("--seconds", type=float, default=3.0)
    asked.add_argument("--json", action="store_true")
    given = asked.parse_args()
    names = given.only.split(",")
    if unknown := [name for name in names if name not in FIGURES]:
        asked.error(f"no workload {unknown[0]!r}; there are {', '.join(FIGURES)}")
    here = Path(__file__).parent.parent
    with tempfile.TemporaryDirectory(prefix="worldline-duel-") as temporary:
        there = Path(temporary) / "there"
        subprocess.run(["git", "-C", here, "worktree", "add", "--quiet", "--detach", there, given.ref], check=True)
        try:
            found = {name: _compare(name, here, there, rounds=given.rounds, seconds=given.seconds) for name in names}
        finally:
            subprocess.run(["git", "-C", here, "worktree", "remove", "--force", there], check=True)
    if given.json:
        print(json.dumps(found))
        return
    for name, each in found.items():
        ratios, here_bytes, there_bytes = each["ratios"], each["step_bytes"], each["step_bytes_there"]
        print(f"{name}: {statistics.median(ratios):.2f} times {given.ref} ({', '.join(map(str, ratios))})")
        times = f"{here_bytes / there_bytes:.2f} times {given.ref} ({there_bytes:.0f})"
        print(f"{name}: {here_bytes:.0f} bytes of journal for each step, {times}")


def _compare(name: str, here: Path, there: Path, *, rounds: int, seconds: float) -> dict[str, Any]:
    """Of each round: how much more was done here than there; and the bytes of a step, here and there."""
    cores = sorted(os.sched_getaffinity(0))
    ratios = []
    sizes: dict[Path, list[float]] = {here: [], there: []}
    for number in range(rounds):
        core = cores[number % len(cores)]
        start = time.time() + START_SECONDS
        order = (here, there) if number % 2 == 0 else (there, here)
        sides = {tree: _start(name, tree, core, seconds, start) for tree in order}
        done = {tree: json.loads(side.communicate()[0]) for tree, side in sides.items()}
        ratios.append(round(done[here]["done"] / done[there]["done"], 3))
        for tree, size in sizes.items():
            size.append(done[tree]["step_bytes"])
    return {
        "ratios": ratios,
        "step_bytes": statistics.median(sizes[here]),
        "step_bytes_there": statistics.median(sizes[there]),
    }


def _start(name: str, tree: Path, core: int, seconds: float, start: float) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, CHILD, name, str(seconds), str(start)]
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    side = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(side.pid, {core})
    return side


async def _child(name: str, seconds: float, start: float) -> dict[str, float]:
    """One side, by the code it finds on its path."""
    import worldline as wl  # noqa: PLC0415 - whose it is shows only now
    from worldline.base import env_os  # noqa: PLC0415

    workloads = _first_of("bench.bench_workloads", "bench.workloads", "control.bench.workloads")
    env = env_os.OsEnv()
    with tempfile.TemporaryDirectory(prefix="worldline-duel-", dir=PLACE) as folder:
        durable = _first_of("bench.domain_bench", "bench.durable_domains") if name == "F" else None
        apps = [workloads.app] if durable is None else [workloads.app, durable.app]
        async with wl.open(folder, host=apps) as universe:
            await asyncio.sleep(max(0.0, start - time.time()))
            if name == "A":
                figures = await workloads.many_worlds(universe, env, seconds)
            elif name == "C":
                figures = await workloads.workflows(universe, env, seconds)
            elif durable is not None:  # actions of counters, and as long again of domains with an effect
                counted = await durable.counters(universe, env, seconds / 2)
                figures = {"per_s": counted + await durable.effects(universe, env, seconds / 2)}
            else:
                figures = await workloads.one_world(universe, env, seconds, int(name[1:]))
            size = await _step_bytes(universe)
    return {"done": float(figures[FIGURES[name]]), "step_bytes": size}


async def _step_bytes(universe: Any) -> float:
    """What the frames of all worlds take, for each step."""
    from worldline.keys import journal as keys  # noqa: PLC0415 - see above
    from worldline.store import kv  # noqa: PLC0415

    engine = universe._connection.store.engine
    size = steps = 0
    async for listed in universe.worlds():
        at = await universe.world(listed.name)._handle.address()
        steps += keys.HEAD.unpack((await engine.read(kv.Get(keys.head_key(at)))).value(0)).step
        begin, end = keys.frames(at)
        while begin:
            page = (await engine.read(kv.Range(begin, end))).page(0)
            size += sum(len(key) + len(value) for key, value in page.items)
            begin = page.items[-1][0] + b"\x00" if page.more else b""
    return size / steps


def _first_of(*names: str) -> Any:
    """A module of the side's own commit; older commits have it in other places."""
    for name in names[:-1]:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(f"worldline.{name}")
    return importlib.import_module(f"worldline.{names[-1]}")


if __name__ == "__main__":
    main()
