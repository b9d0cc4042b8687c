"""Garbage collections in the middle of a step: what they close must harm neither the step nor the process."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading

import worldline as wl
from worldline.kernel import context

app = wl.Program("collected")


@dataclasses.dataclass(frozen=True)
class Add:
    n: int


@app.reducer()
@dataclasses.dataclass
class Total:
    n: int = 0

    @wl.on
    def add(self, event: Add) -> None:
        self.n += event.n


# A collection at every allocation, each of which closes a coroutine as the kernel does. Other context variables make
# the context as deep as it is in a real process. A `ContextVar` as `current` ends this process by SIGSEGV on 3.11.
_COLLECTED = """
import contextvars, gc
from tests.kernel import test_garbage
from worldline import testing
from worldline.kernel import context

class Nothing:
    def __await__(self):
        yield

async def suspended():
    await Nothing()

def collected(phase, info):
    if phase == "start":
        coroutine = suspended()
        coroutine.send(None)
        context.close(coroutine)

others = [contextvars.ContextVar(f"other {n}") for n in range(40)]
for other in others:
    other.set(other)
with testing.world(test_garbage.app) as world:
    gc.callbacks.append(collected)
    gc.set_threshold(1)
    for n in range(300):
        world.send(test_garbage.Add(1))
    gc.callbacks.remove(collected)
    print(world.state(test_garbage.Total).n)
"""


def test_a_collection_inside_a_step_that_closes_a_coroutine_harms_nothing() -> None:
    ended = subprocess.run([sys.executable, "-c", _COLLECTED], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, "300"), ended.stderr[-2000:]


def test_what_runs_in_one_thread_is_not_seen_in_another() -> None:
    seen: list[object] = []
    closing = context.ClosingRun()
    before = context.current.set(closing)
    try:
        other = threading.Thread(target=lambda: seen.append(context.current.get()))
        other.start()
        other.join()
        assert context.current.get() is closing
    finally:
        context.current.reset(before)
    assert seen == [None]
    assert context.current.get() is None
