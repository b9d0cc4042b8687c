"""What operators do to the runs of a world, drawn from a seed: every command, to runs in all states, at any moment.

A world with chains of runs, runs that outlive those that started them, wait, sleep, fail or are parked, and a domain
gets commands one after the other: with what is there, with what is not there any more, and with bytes that nothing
wrote. It goes back to earlier steps, and goes on as a fork. Whatever a command says, it is taken or refused with an
error of ours, and the next input is taken.

Runs are drawn by what they are (`_sort_of`): the rare ones are those that commands go wrong for.

`Tender` does the rest of an operator's work, on a host: a world is paused, resumed, archived, deleted and made again
between inputs and commands. A paused world takes its inputs when it is resumed, and of a deleted one nothing is left.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import worldline as wl
from tests.hostile.making import Answering, Ping
from worldline import flow, testing
from worldline.base import errors
from worldline.codec import structs
from worldline.features.domains.pure import part as domain_part
from worldline.features.forks.pure import revert_step
from worldline.host.feature_list import PARTS
from worldline.kernel import control_commands, part_inputs, run_repair, user_values
from worldline.kernel.rows.row_records import ENDED
from worldline.kernel.runs import LiveRun
from worldline.model import inbox, payload
from worldline.model.change import Row
from worldline.model.world_records import ForkPolicy

ACTS = 60
FORKS = 0.03  # how often the world goes on as a fork
EFFECTS: tuple[Literal["drop", "reissue", "share"], ...] = ("drop", "reissue", "share")
INTENTS = ["i0", "i1", "i2"]
NAMES = [f"r{number}" for number in range(4)]
CHAIN_MAX = 10
TENDED = 40  # what is done to a world of a host
ANSWER_SECONDS = 60.0


class Note(flow.Domain):
    text: str = ""
    fetched: int | None = None
    refused: flow.Error | None = None

    @flow.action
    def write(self, text: str) -> None:
        self.text = text

    @flow.action
    def fetch(self, number: int) -> None:
        flow.perform(flow.ask("outside", number=number), into=self.fetched, fail=self.refused)


def program() -> wl.Program:
    app = wl.Program("operated")
    app.reducer()(Answering)
    app.domain(Note)

    @app.effect(retry=wl.Retry(attempts=2, on_exhausted="park"))
    async def outside(number: int) -> int:
        return number

    @app.workflow
    async def chain(length: int) -> int:
        if not length:
            await wl.sleep(50)
            return 0
        return 1 + await chain(length - 1)

    @app.workflow
    async def starts(number: int) -> int:
        run = wl.start(chain(number), id=f"started-{number % 3}")
        await wl.sleep(number)
        return number if number % 2 else await run

    @app.workflow
    async def scoped(number: int) -> int:
        try:
            async with wl.scope(timeout=5 + number):
                await wl.gather(outside(number), chain(number % 4), starts(number))
        finally:
            async with wl.scope(shield=True):
                await wl.sleep(1)
        raise ValueError("no")

    @app.workflow
    async def again(number: int) -> int:
        await wl.sleep(3)
        if number:
            wl.continue_as_new(again(number - 1))
        return await outside(number)

    return app


class Operator:
    def __init__(self, seed: int) -> None:
        self._draws = random.Random(f"operator {seed}")
        self._app = program()
        self._states: list[tuple[int, int, dict[bytes, Row]]] = []  # the steps and heights that were, and their rows
        self._forged = False  # the state that the last revert would go back to never was
        self.done: list[str] = []

    def play(self) -> list[str]:
        """Returns what went wrong."""
        script = wl.Script()
        script.on(next(iter(self._app.effects.values())), self._answer)
        with testing.world(self._app, script, seed=1) as world:
            for _ in range(ACTS):
                problem = self._one(world)
                if problem:
                    return [f"{problem} after {self.done[-8:]}"]
                if self._forged and self.done[-1].startswith(part_inputs.REVERT):
                    return []  # it was taken: nothing is known any more of what belongs together
                if self._draws.random() < FORKS:
                    world = self._forked(world)
            world.prove()
        return []

    def _one(self, world: testing.TestWorld) -> str:
        acts = self._acts(world)
        name, act = self._draws.choice(acts)
        self._states.append((world.head.step, world.head.height, revert_step._rows_of(world.machine)))
        try:
            act()
        except errors.Error:
            name = f"(refused) {name}"
        except Exception as error:  # noqa: BLE001 - whatever escapes is what is looked for
            place = traceback.extract_tb(error.__traceback__)[-1]
            return f"{name}: {type(error).__name__} at {place.filename}:{place.lineno}"
        self.done.append(name)
        if self._forged and name.startswith(part_inputs.REVERT):
            return ""  # it was taken, and may have left a run without its start: the stage refuses to go on with it
        pings = world.state(Answering).pings
        return "" if world.ask(Ping()) == pings + 1 else f"{name}: the next input was not taken"

    def _forked(self, world: testing.TestWorld) -> testing.TestWorld:
        """Go on as a fork."""
        at = self._draws.choice([each for _, each, _ in self._states[-5:]])
        effects = self._draws.choice(EFFECTS)
        self.done.append(f"fork at {at}, {effects}")
        self._states.clear()
        return world.fork(at=at, effects=effects, live=True)

    def _answer(self, number: int) -> int:
        if self._draws.random() < 0.3:
            raise wl.Fatal("no") if self._draws.random() < 0.5 else ConnectionError("down")
        return number

    def _acts(self, world: testing.TestWorld) -> list[tuple[str, Callable[[], object]]]:
        draws, machine = self._draws, world.machine
        found = self._drawn(world)
        run = found.record.id if found is not None else "nobody"
        ops = 0 if found is None else len(found.record.ops)
        op = draws.choice([ops, ops + 1, draws.randrange(-1, ops + 1)])
        intent = draws.choice([*machine.work.open, bytes(32)])
        data = draws.choice([user_values.NONE, user_values.dump(7), user_values.dump("x"), b"", b"\xff\x00"])
        error = draws.choice([None, "by hand"])
        flows = self._app.workflows
        flow_ = draws.choice([*flows.values(), flows["starts"], flows["starts"]])
        number = draws.randrange(CHAIN_MAX if flow_.name == "chain" else 6)
        act = draws.choice([Note.write("x"), Note.fetch(number)])
        patch: dict[str, Any] = draws.choice(
            [{"path": "text", "value": "y"}, {"path": ".".join("a" * 200), "value": 1}]
        )

        def send(name: str, wanted: object) -> tuple[str, Callable[[], object]]:
            return f"{name} {wanted!r:.300}", lambda: world.command(name, wanted)

        on_runs = [
            send(run_repair.TERMINATE, run_repair.TerminateRun(run, "enough")),
            send(run_repair.RESET, run_repair.ResetRun(run, draws.choice([0, max(0, op)]), draws.choice([-1, -1, 0]))),
            send(run_repair.RESET, run_repair.ResetRun(run)),
            send(run_repair.RETRY, run_repair.RetryRun(run)),
            send(run_repair.ANSWER, run_repair.AnswerRun(run, op, data, error)),
            send(control_commands.CANCEL, control_commands.CancelRun(run, "enough")),
        ]
        others = [
            send(run_repair.ANSWER_EFFECT, run_repair.AnswerEffect(intent, data, error, run)),
            send(control_commands.GIVE_UP, control_commands.GiveUp(intent, "enough")),
            send(control_commands.PARK, control_commands.ParkEffect(intent, 1, "by hand")),
            send(control_commands.RETRY, control_commands.RetryEffect(intent)),
            send(part_inputs.REVERT, self._revert(world)),
            send(domain_part.ABANDON, domain_part.AbandonIntent("Note", "", draws.choice(INTENTS))),
            send(
                domain_part.PATCH,
                domain_part.PatchCell(draws.choice(["Note", "none"]), "", [{"op": "set", **patch}], ""),
            ),
            ("crash", world.crash),
            ("bytes", lambda: self._bytes(world)),
        ]
        going_on: list[tuple[str, Callable[[], object]]] = [
            (f"start {flow_.name} {number}", lambda: world.start(flow_(number), id=draws.choice([*NAMES, None]))),
            ("time goes on", lambda: world.advance(draws.randrange(1, 20))),
            ("act", lambda: world.submit(act, id=draws.choice(INTENTS))),
        ]
        return draws.choice([on_runs, on_runs, on_runs, others, going_on, going_on])

    def _drawn(self, world: testing.TestWorld) -> LiveRun | None:
        sorts: dict[tuple[object, ...], list[LiveRun]] = {}
        for run in world.machine.runs.values():
            sorts.setdefault(_sort_of(world, run), []).append(run)
        if not sorts or self._draws.random() < 0.05:
            return None
        return self._draws.choice(sorts[self._draws.choice(list(sorts))])

    def _revert(self, world: testing.TestWorld) -> part_inputs.Revert:
        """To a state that was, or to one that never was."""
        draws, now = self._draws, revert_step._rows_of(world.machine)
        step, height, then = draws.choice(self._states or [(world.head.step, world.head.height, now)])
        rows = [[key, row.meaning, row.placement] for key, row in then.items() if now.get(key) != row]
        rows += [[key] for key in now if key not in then]
        self._forged = bool(rows) and draws.random() < 0.5
        if self._forged:
            key, *rest = draws.choice(rows)
            wrong = draws.choice(
                [[key], [key, b"", b""], [key, user_values.dump([1]), b""], [b"x"], [], [key, *rest, b""]]
            )
            rows[draws.randrange(len(rows))] = wrong
        return part_inputs.Revert(
            world.head.step, step, height, draws.choice([*ForkPolicy, ForkPolicy.DROP, ForkPolicy.REISSUE]), rows
        )

    def _bytes(self, world: testing.TestWorld) -> None:
        """A command with bytes that nothing wrote."""
        draws = self._draws
        names = [*control_commands._COMMANDS, *PARTS.commands]
        name = draws.choice([each for each in names if each not in control_commands.OF_WORKERS])
        data = draws.choice(
            [draws.randbytes(12), user_values.dump([1, 2]), structs.encode(run_repair.RetryRun("r0")), b""]
        )
        world.step(inbox.Control(name, payload.inline(data)), data)


class Tender:
    """What is done to one world of a host. `pings`: how many it has been sent since it was made."""

    def __init__(self, seed: int) -> None:
        self._draws = random.Random(f"tender {seed}")
        self._app = program()
        self._world: wl.World
        self._pings = 0
        self._waiting = False  # it is paused or archived
        self.done: list[str] = []

    async def play(self) -> list[str]:
        """Returns what went wrong."""
        async with wl.open("memory://", host=self._app) as universe:
            self._world = await universe.create("tended", self._app)
            beside = await universe.create("beside", self._app)
            for number in range(1, TENDED + 1):
                problem = await self._one(universe)
                if not problem and await beside.ask(Ping(), timeout=ANSWER_SECONDS) != number:
                    problem = "the world beside it has missed an input"
                if problem:
                    return [f"{problem} after {self.done[-8:]}"]
            await self._world.resume()
            return await self._checked()

    async def _one(self, universe: wl.Universe) -> str:
        """One act, and whether the world takes the next input, if it is to."""
        name, act = self._draws.choice(self._acts(universe))
        try:
            await act()
        except errors.Error as error:
            name = f"(refused: {error.code}) {name}"
        except Exception as error:  # noqa: BLE001 - whatever escapes is what is looked for
            return f"{name}: {type(error).__name__}: {error}"
        self.done.append(name)
        if self._waiting:
            return ""
        found = await self._checked()
        return found[0] if found else ""

    async def _checked(self) -> list[str]:
        self._pings += 1
        told = await self._world.ask(Ping(), timeout=ANSWER_SECONDS)
        return [] if told == self._pings else [f"it has taken {told} of {self._pings} inputs"]

    def _acts(self, universe: wl.Universe) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
        draws, flows = self._draws, self._app.workflows
        run, number = draws.choice(NAMES), draws.randrange(4)
        flow_ = draws.choice(list(flows.values()))
        return [
            ("pause", lambda: self._change(self._world.pause, waiting=True)),
            ("archive", lambda: self._change(self._world.archive, waiting=True)),
            ("resume", lambda: self._change(self._world.resume, waiting=False)),
            ("resume", lambda: self._change(self._world.resume, waiting=False)),
            ("delete", lambda: self._delete(universe, wait=draws.random() < 0.5)),
            ("send", self._send),
            (f"start {flow_.name} {run}", lambda: self._start(flow_(number), run)),
            (
                f"cancel {run}",
                lambda: self._command(control_commands.CANCEL, control_commands.CancelRun(run, "enough")),
            ),
            (f"terminate {run}", lambda: self._command(run_repair.TERMINATE, run_repair.TerminateRun(run, "enough"))),
            (f"reset {run}", lambda: self._command(run_repair.RESET, run_repair.ResetRun(run))),
        ]

    async def _change(self, act: Callable[[], Awaitable[None]], *, waiting: bool) -> None:
        await act()
        self._waiting = waiting

    async def _delete(self, universe: wl.Universe, *, wait: bool) -> None:
        """And make another of its name, which has nothing of it."""
        await self._world.delete(wait=wait)
        self._world = await universe.create("tended", self._app)
        self._pings, self._waiting = 0, False

    async def _send(self) -> None:
        await self._world.send(Ping())
        self._pings += 1

    async def _start(self, call: wl.Call[int], run: str) -> None:
        if not self._waiting:  # a start waits until the world has begun it
            _ = await self._world.start(call, id=run)

    async def _command(self, name: str, wanted: object) -> None:
        if not self._waiting:  # so does a command
            await self._world._handle.command(name, wanted)


def _sort_of(world: testing.TestWorld, run: LiveRun) -> tuple[object, ...]:
    """Runs are alike that have the same status, and whose parents and children stand alike."""
    record = run.record
    parent = world.machine.runs.get(record.parent)
    children = [each for each in world.machine.live_runs() if each.record.parent == record.id]
    ended = None if parent is None else parent.record.status in ENDED
    return record.status, ended, bool(children), record.again > 0
