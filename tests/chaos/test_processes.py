"""Whoever starts processes here and dies leaves nobody behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests import aio
from tests.chaos import child
from tests.chaos.processes import ROOT, Crew, Nursery, Process

STARTS_ONE = """
import sys, pathlib
from tests.chaos import field, processes
crew = processes.Crew(processes.Nursery(), sys.argv[1], pathlib.Path(sys.argv[2]))
made = [crew.start("forked", *field.TIMER), crew.start("of its own", *field.TIMER, exec_=True)]
print(*(each.pid for each in made), flush=True)
sys.stdin.read()
"""


async def test_they_end_with_whoever_made_them(tmp_path: Path) -> None:
    maker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", STARTS_ONE, str(tmp_path / "store"), str(tmp_path / "crew")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert maker.stdout is not None
    assert maker.stdin is not None
    pids = [int(word) for word in (await maker.stdout.readline()).split()]
    made = [Process("", pid, tmp_path) for pid in pids]
    try:
        assert len(made) == 2
        assert all(each.alive for each in made)
        maker.send_signal(signal.SIGKILL)
        await maker.wait()
        await asyncio.gather(*(each.wait_ended() for each in made))
    finally:
        for each in made:
            each.close()
    maker.stdin.close()


async def test_how_a_process_ended_is_told(nursery: Nursery, tmp_path: Path) -> None:
    crew = Crew(nursery, str(tmp_path / "store"), tmp_path / "crew")
    try:
        first, second = crew.start("one", "timer"), crew.start("two", "timer")
        await asyncio.gather(first.wait_ready(), second.wait_ready())
        assert first.pid != second.pid
        assert os.getpgid(first.pid) == first.pid
        first.signal(signal.SIGSTOP)
        await first.wait_stopped()
        first.signal(signal.SIGCONT)

        async def runs() -> bool:
            return not first.stopped

        await aio.until(runs)
        await first.end()
        assert (first.folder / "exit").read_text() == "0"
        await crew.kill(second)
        assert not (second.folder / "exit").exists()
        assert list(crew.killed) == [second.label]
        refused = crew.start("three", "no such command")
        await refused.wait_ended()
        assert (refused.folder / "exit").read_text() == "2"
    finally:
        crew.close()


def test_labels_are_variables_of_the_tests() -> None:
    """The command line reads none of them: what users have is what is tested."""
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert not [name for name in (child.LABEL, child.FATE, child.LEDGER) if name in source]
