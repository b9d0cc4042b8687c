"""Every example runs as a script on a folder of one's own, ends by itself, and says something."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    "counter": ["examples/counter.py"],
    "order_saga": ["examples/order_saga.py"],
    "order_domain": ["examples/order_domain.py"],
    "chat_room": ["examples/chat_room.py"],
    "schedule": ["examples/schedule.py"],
    "what_if": ["examples/what_if.py"],
    "template": ["examples/template.py"],
    "lost_update": ["examples/lost_update.py"],
    "shadow_upgrade": ["-m", "examples.shadow_upgrade"],
    "agent_tools": ["examples/agent_tools.py"],
    "todo": ["examples/todo/todo.py"],
    "agent": ["-m", "examples.agent"],
}
# Attempts at effects that fail on purpose: the host's log has a line for each, and stderr nothing else.
FAILS = {"order_saga": 4, "order_domain": 1, "shadow_upgrade": 4}


async def run(command: list[str], folder: Path) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, str(folder), cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, error = await process.communicate()
    return process.returncode, out.decode(), error.decode()


async def test_every_script_ends_well(tmp_path: Path) -> None:
    shown = await asyncio.gather(*(run(command, tmp_path / name) for name, command in COMMANDS.items()))
    for name, (code, out, error) in zip(COMMANDS, shown, strict=True):
        said = error.splitlines()
        assert (code, len(said)) == (0, FAILS.get(name, 0)), (name, error)
        assert [line for line in said if not line.startswith(("effect ship ", "effect charge "))] == [], name
        assert len(out.splitlines()) >= 6, name
    assert "says Ada" in shown[-1][1]


def test_every_example_is_run_and_described() -> None:
    folder = ROOT / "examples"
    names = {path.stem for path in [*folder.glob("*.py"), *folder.glob("todo/*.py")]}
    names |= {path.parent.name for path in folder.glob("*/__main__.py")}
    assert names == {*COMMANDS, "greeter"}
    readme = (folder / "README.md").read_text()
    assert [name for name in sorted(names) if name not in readme] == []
