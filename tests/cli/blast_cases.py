"""Ways in which code goes wrong: for each the code before a crash, after it, and mended.

One program for each case. Beside what goes wrong it has a counter that answers, and a workflow that only waits.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from worldline.kernel.rows.row_records import RunStatus

HEAD = """
import os
import time
from dataclasses import dataclass, field
import worldline as wl

@dataclass(frozen=True)
class Go:
    name: str

@dataclass(frozen=True)
class Ping(wl.Request[int]):
    pass

@dataclass(frozen=True)
class Change(wl.Request[int]):
    pass

class Loud:
    def __str__(self):
        raise ValueError("no text")

def program(name):
    app = wl.Program(name)

    @app.reducer
    @dataclass
    class Pings:
        count: int = 0

        @wl.on
        def ping(self, event: Ping) -> int:
            self.count += 1
            return self.count

    @app.workflow
    async def steady(name: str) -> str:
        await wl.wait(Go, where=lambda event: event.name == name)
        return "steady"

    return app
"""

EFFECT = """
@{name}.effect(name="{effect}")
async def {name}_effect(text: str) -> str:
    return text
"""

FLOW = """
@{name}.workflow(name="victim")
async def {name}_victim(name: str) -> str:
{body}
"""

REDUCER = """
@{name}.reducer(name="Cell")
@dataclass
class {name}_cell:
    {field}

    @wl.on
    def change(self, event: Change) -> int:
        {fold}
        return 1
"""

Version = Literal[0, 1, 2]
BEFORE: Version = 0
EDITED: Version = 1
MENDED: Version = 2

WAIT_OP = 2  # of `PLAIN`, counted from 1
WAIT = "await wl.wait(Go, where=lambda event: event.name == name)"
PLAIN = f"""said = await ECHO("a")
{WAIT}
return said"""
TIMED = f"""said = await ECHO(str(time.time_ns()))
{WAIT}
return str(time.time_ns())"""
LOGS = f"""wl.log.info("reserved %s", Loud())
{PLAIN}"""
# The timer's firing is what the process dies of: an event would become a dead letter, and the run would wait on.
FATAL = f"""said = await ECHO("a")
{WAIT}
await wl.sleep(0.001)
if os.path.exists("FLAG"):
    FATE
return said"""
FLAG = "fatal"  # a file: while it is there, the handlers and workflows that hang or exit do
FOLD = "self.total += 1"
NUMBER = "total: int = 0"
LETTERS = "total: list[str] = field(default_factory=list)"
SLEEP = "time.sleep(1e9)"
LOOP = "while True: pass"
EXIT = "os._exit(3)"
RAISE = 'raise ValueError("always")'
EVERY_WAY = ("retry", "reset", "terminate", "answer")


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One way to go wrong.

    `flow`, `effect`, `field` and `fold`: code before, edited, mended; the last stands for those that are missing.
    `victims`: the runs concerned, each named by its way out. `status`: theirs after the crash, when they went on.
    `result`: what they return then. `letters`: inputs that become dead letters before the crash or right
    after it; `letters_later`: others, under the edited code.
    `trigger`: what is sent last before the crash, an event for the handler or for the first victim.
    """

    name: str
    flow: tuple[str, ...] = (PLAIN,)
    effect: tuple[str, ...] = ("echo",)
    field: tuple[str, ...] = (NUMBER,)
    fold: tuple[str, ...] = (FOLD,)
    victims: tuple[str, ...] = ("finish",)
    status: RunStatus = RunStatus.FINISHED
    result: str = "a"
    letters: int = 0
    letters_later: int = 0
    trigger: Literal["", "handler", "workflow"] = ""

    def code(self, version: Version) -> str:
        flow, effect, field, fold = (
            texts[min(version, len(texts) - 1)] for texts in (self.flow, self.effect, self.field, self.fold)
        )
        parts = [f'{self.name} = program("{self.name}")\n', EFFECT.format(name=self.name, effect=effect)]
        if flow:
            body = "\n".join(f"    {line}" for line in flow.splitlines())
            parts.append(FLOW.format(name=self.name, body=body).replace("ECHO", f"{self.name}_effect"))
        parts.append(REDUCER.format(name=self.name, field=field, fold=fold))
        return "".join(parts)


def _blocks(name: str, *, edited: str, victims: tuple[str, ...] = EVERY_WAY) -> Case:
    return Case(name=name, flow=(PLAIN, edited, PLAIN), victims=victims, status=RunStatus.BLOCKED)


def _bad_handler(name: str, fate: str) -> Case:
    fold = f'if os.path.exists("{FLAG}"):\n            {fate}\n        {FOLD}'
    return Case(name=name, fold=(fold,), trigger="handler", letters=1)


def _bad_workflow(name: str, fate: str, way: str) -> Case:
    flow = FATAL.replace("FLAG", FLAG).replace("FATE", fate)
    return Case(name=name, flow=(flow,), victims=(way,), status=RunStatus.BLOCKED, trigger="workflow")


CALM = [
    Case(name="nondeterministic", flow=(TIMED,), result=""),
    Case(name="log_that_raises", flow=(LOGS,)),
    _blocks("edit_before", edited=f'await ECHO("new")\n{PLAIN}'),
    _blocks("edit_at", edited=PLAIN.replace(WAIT, "await wl.sleep(0.1)")),
    Case(
        name="edit_after",
        flow=(PLAIN, PLAIN.replace("return said", 'return await ECHO("after")')),
        result="after",
        victims=("finish", "answer"),
    ),
    _blocks("deleted_workflow", edited="", victims=("retry", "terminate", "answer")),
    Case(name="renamed_effect", effect=("echo", "shout", "echo"), victims=EVERY_WAY, status=RunStatus.BLOCKED),
    Case(name="other_arguments", flow=(PLAIN, PLAIN.replace('"a"', '"b"'))),
    Case(name="changed_field", field=(NUMBER, LETTERS, NUMBER), letters_later=1),
    Case(name="raising_handler", fold=(RAISE, RAISE, FOLD), trigger="handler", letters=2),
]
FATAL_CASES = [
    _bad_handler("hanging_handler", SLEEP),
    _bad_workflow("hanging_workflow", LOOP, "retry"),
    _bad_handler("exiting_handler", EXIT),
    _bad_workflow("exiting_workflow", EXIT, "reset"),
    Case(name="beside_them"),  # nothing is wrong with it; its process dies all the same
]
CASES = {case.name: case for case in (*CALM, *FATAL_CASES)}
# Each file has a host of its own, so that the deaths of the one do not concern the other.
CALM_FILE, FATAL_FILE = "calm.py", "fatal.py"
FILES = {CALM_FILE: CALM, FATAL_FILE: FATAL_CASES}


def source(cases: list[Case], version: Version) -> str:
    return HEAD + "".join(case.code(version) for case in cases)
