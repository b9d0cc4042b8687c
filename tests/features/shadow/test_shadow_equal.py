"""The same code, tried on what it did itself, would do the same: whatever it did, wherever the trial begins.

Also if something else was edited: then the change of program is a step of its own, every step behind it has another
number, and everything that is open has another id.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import worldline as wl
from tests.features.shadow.shadowing import shadow
from tests.kernel import test_random_programs as programs
from tests.kernel.test_random_programs import ACTS, EXAMPLES, answer, app, live, outside
from worldline import testing
from worldline.features.shadow.report_text import lines

NOTHING = dict.fromkeys(("blocked", "effects", "timers", "messages", "cells", "runs", "inputs"), 0)


@functools.cache
def edited(*words: str) -> wl.Program:
    """The same program, loaded again, with one more workflow, and some of its text replaced: pairs of old and new."""
    text = Path(programs.__file__).read_text()
    for old, new in zip(words[::2], words[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    folder = Path(tempfile.mkdtemp(prefix="edited-"))
    try:
        file = folder / "edited_programs.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        program: wl.Program = module.app

        @program.workflow
        async def another() -> int:
            return 1

        assert program.hash != app.hash
        assert program.routes is not None
    finally:
        sys.modules.pop("edited_programs", None)
        shutil.rmtree(folder)
    return program


OTHERS = [
    ("await outside(number))", "await outside(number + number % 2))"),
    ("await wl.sleep(seconds)\n            said", "await wl.sleep(seconds * 2)\n            said"),
    ("await wl.sleep(seconds)\n            said", "wl.emit(Ping(seconds))\n            said"),
    ("        self.total += event.number", "        self.total += 7 // (event.number - 3)"),
    ('case "emit", [number]:', 'case "emit", [number]:\n            said.append(wl.now().timestamp())'),
    ("started.append(wl.start(interpret(plan, depth + 1)))", "said += await interpret(plan, depth + 1)"),
    ("timeout=timeout)\n            said", "timeout=(timeout or 0) + 1)\n            said"),
    ("wl.after(seconds, Ping(seconds))", "wl.after(seconds + 1, Ping(5))\n            wl.after(0, Ping(5))"),
    ("async def interpret", "async def interpreted", "interpret(", "interpreted("),
]


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """All of them, before anything is drawn: the file that they are made of has tests that draw."""
    for words in ((), *OTHERS):
        edited(*words)


def check(world: testing.TestWorld, last: int) -> None:
    for program in (app, edited()):
        found = shadow(world, program, last)
        assert (found.stopped, found.counts, found.skipped) == ("", NOTHING, 0)
        assert (found.steps, found.differs) == (last, False)


@hypothesis.settings(max_examples=EXAMPLES)
@hypothesis.given(
    acts=st.lists(ACTS, min_size=2, max_size=9),
    seed=st.integers(0, 1000),
    parts=st.lists(st.floats(0, 1), min_size=1, max_size=3),
)
def test_nothing_would_differ(acts: list[Any], seed: int, parts: list[float]) -> None:
    script = wl.Script().on(outside, answer)
    with testing.world(app, script, seed=seed, shuffle=True, drops=False, twice=False) as world:
        live(world, acts)
        steps = world.head.step
        for last in [steps, *(int(part * steps) for part in parts)]:
            check(world, last)


@hypothesis.settings(max_examples=max(2, EXAMPLES // 10))
@hypothesis.given(acts=st.lists(ACTS, min_size=20, max_size=40), seed=st.integers(0, 1000))
def test_nothing_would_differ_after_many_steps(acts: list[Any], seed: int) -> None:
    script = wl.Script().on(outside, answer)
    with testing.world(app, script, seed=seed, shuffle=True, drops=False, twice=False) as world:
        for _ in range(50):
            if world.head.step >= 200:
                break
            for number in range(8):
                world.start(programs.interpret([["sleep", number], ["effect", number], ["wait", 5, 1]], 0))
            live(world, acts, until=20)
        assert world.head.step >= 200
        for last in (200, 77):
            check(world, last)


@hypothesis.settings(max_examples=EXAMPLES)
@hypothesis.given(
    acts=st.lists(ACTS, min_size=2, max_size=9),
    seed=st.integers(0, 1000),
    which=st.integers(0, len(OTHERS) - 1),
    part=st.floats(0, 1),
)
def test_any_other_code_is_tried_to_the_end(acts: list[Any], seed: int, which: int, part: float) -> None:
    """Whatever differs, the trial ends, says the same again, and leaves the world as it is."""
    script = wl.Script().on(outside, answer)
    with testing.world(app, script, seed=seed, shuffle=True, drops=False, twice=False) as world:
        live(world, acts)
        last = max(1, int(part * world.head.step))
        other = edited(*OTHERS[which])
        found = shadow(world, other, last)
        assert found.stopped == ""
        assert shadow(world, other, last) == found
        world.prove()
        for line in lines("w", found):
            assert len(line) < 1_000
