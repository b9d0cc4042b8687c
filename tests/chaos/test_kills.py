"""kill -9, again and again, of whatever comes: every role, on every store."""

from __future__ import annotations

from pathlib import Path

from tests.chaos import field
from tests.chaos.field import Field
from tests.chaos.processes import Nursery
from tests.servers import postgres
from tests.store import postgres_kit

SPLIT = {
    "worker-1": field.WORKER,
    "worker-2": field.WORKER,
    "adapter-1": field.ADAPTER,
    "adapter-2": field.ADAPTER,
    "timer-1": field.TIMER,
    "timer-2": field.TIMER,
    "orchestrator": field.ORCHESTRATOR,
    "janitor": field.JANITOR,
}


async def killing(chaos: Field, *, exec_: bool = False) -> None:
    """One after the other, drawn: a new life begins right away, while others are dying."""
    hit: dict[str, int] = {}
    chaos.work()
    await chaos.answered(20)
    async for _ in chaos.for_a_while(0.05, 0.6):
        name = chaos.draws.choice(list(chaos.roles))
        await chaos.kill(name)
        chaos.revive(name, exec_=exec_)
        hit[name] = hit.get(name, 0) + 1
    for name in [name for name in chaos.roles if name not in hit]:
        await chaos.kill(name)
        chaos.revive(name, exec_=exec_)
    await chaos.finish()


async def test_every_role_on_postgres(nursery: Nursery, tmp_path: Path) -> None:
    url = postgres.shared().url(schema=postgres_kit.fresh_schema())
    chaos = await Field(nursery, url, tmp_path / "field", seed="kills on postgres").open()
    try:
        for name, words in SPLIT.items():
            chaos.begin(name, words)
        await killing(chaos)
    finally:
        await chaos.aclose()


async def test_every_role_on_a_folder(nursery: Nursery, tmp_path: Path) -> None:
    chaos = await Field(nursery, str(tmp_path / "store"), tmp_path / "field", seed="kills in a folder").open()
    try:
        for name, words in SPLIT.items():
            chaos.begin(name, words)
        await killing(chaos)
    finally:
        await chaos.aclose()


async def test_two_that_do_everything_in_one_folder(nursery: Nursery, tmp_path: Path) -> None:
    """With interpreters of their own, as a shell starts them."""
    chaos = await Field(nursery, str(tmp_path / "store"), tmp_path / "field", seed="two in a folder").open()
    try:
        for name in ("up-1", "up-2"):
            chaos.begin(name, field.UP, exec_=True)
        await killing(chaos, exec_=True)
    finally:
        await chaos.aclose()
