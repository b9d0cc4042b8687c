"""Hostile programs on the kernel alone: every step twice, coroutines dropped, worlds restored and proved.

What is looked for: a step that lets something escape, that comes out differently when it is done again, or that leaves
a world which does not answer any more. Effects are answered by a script here; what they do themselves is for the hosts.
"""

from __future__ import annotations

import faulthandler
import gc
import sys
import traceback
from typing import Any

import msgspec

import worldline as wl
from tests.hostile import making
from tests.hostile.behaviours import quiet
from tests.hostile.making import Act, Ask, Cancel, Door, Run, Send
from tests.hostile.programs import Hostile, Part, program
from worldline import testing
from worldline.base import errors
from worldline.codec import digest, structs
from worldline.kernel import control_commands, user_values
from worldline.kernel.event_dispatch import Answer
from worldline.kernel.rows.row_records import ENDED, RunStatus
from worldline.model import inbox, journal
from worldline.model.journal import Kind

HANG_SECONDS = 60.0
BAD = (Kind.HANDLER_FAILED, Kind.UNDECODABLE_INPUT)


class Stuck(Exception):
    """A run has no end."""


class Blocked(Exception):
    """A run that its own code does not fit."""


class Anything(dict[str, str]):
    def __contains__(self, key: object) -> bool:
        return True


class Report(msgspec.Struct):
    """What came of one program. `digest`: of the whole journal, the same in every process."""

    number: int
    digest: str = ""
    problems: list[str] = []


def rehearse(number: int) -> Report:
    """Play one program through. Problems are told, not raised; a hang ends the process."""
    hostile = program(number)
    report = Report(number)
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    try:
        _play(hostile, report)
    except errors.CannotStep as error:
        if not hostile.sick:
            report.problems.append(f"its step cannot be made: {error}")
    except KeyboardInterrupt:
        pass  # in the thread of a test it ends the test, whoever raised it; what hosts make of it, hosts show
    except Stuck as error:
        report.problems.append(str(error))
    except BaseException as error:  # noqa: BLE001 - whatever escapes is what is looked for
        report.problems.append(f"{type.__getattribute__(type(error), '__qualname__')} escaped at {_where(error)}")
    finally:
        faulthandler.cancel_dump_traceback_later()
    return report


def _where(error: BaseException) -> str:
    """The frames of ours that it came through, innermost last."""
    trace = BaseException.__dict__["__traceback__"].__get__(error)
    frames = [each for each in traceback.extract_tb(trace) if "/worldline/" in each.filename]
    return " > ".join(f"{each.filename.rpartition('/worldline/')[2]}:{each.name}" for each in frames[-6:])


def _play(hostile: Hostile, report: Report) -> None:
    script = wl.Script()
    for effect in hostile.program.effects.values():
        script.on(effect, lambda *_, **__: 1)
    with testing.world(hostile.program, script, seed=hostile.number, strict=False) as world:
        world._actor.life._blocked = Anything()  # which of them may be is judged by the acts
        for part in hostile.parts:
            for act in part.acts:
                try:
                    _judge(report, part, act, _do(world, act))
                except Blocked as error:
                    if not any(each.place.blocks for each in hostile.parts):
                        report.problems.append(str(error))
        world.advance(5)
        for count in (1, 2):
            answered = world.ask(making.Ping())
            if answered != count and not _pinged_by_itself(hostile):
                report.problems.append(f"Ping was answered {answered}, not {count}")
            world.crash()
        report.digest = digest.sha256(world.head.chain + world.head.state).hex()[:16]


def _pinged_by_itself(hostile: Hostile) -> bool:
    return any("thread" in part.behaviour.name for part in hostile.parts)


def _judge(report: Report, part: Part, act: Act, fine: bool | None) -> None:
    """Compare an act's end with what its part allows. None: it has no end, and may have none."""
    if fine is None or not act.judged or part.outside:
        return
    if fine and part.must_fail:
        report.problems.append(f"{part.label}: {type(act).__name__} came out well")
    if not fine and part.must_hold:
        report.problems.append(f"{part.label}: {type(act).__name__} failed")


def _do(world: testing.TestWorld, act: Act) -> bool | None:
    match act:
        case Send():
            item = inbox.InboxEvent(act.schema, world._actor.life.carry(act.data), act.to or "")
            return _taken(world.step(item, act.data).drafts)
        case Ask():
            item = inbox.InboxEvent(act.schema, world._actor.life.carry(act.data), correlation=f"c{world.head.height}")
            return _answered(world.step(item, act.data).drafts)
        case Run():
            return _run(world, act)
        case Cancel():
            return _cancel(world, act)
        case Door():
            return through_the_door(act)


def _taken(drafts: list[journal.EntryDraft]) -> bool:
    return not any(each.kind in BAD for each in drafts)


def _answered(drafts: list[journal.EntryDraft]) -> bool:
    [answer] = [each for each in drafts if each.kind is Kind.ANSWERED]
    return structs.decode(Answer, answer.payload).ok


def _run(world: testing.TestWorld, act: Run) -> bool | None:
    with quiet:
        packed = act.call.pack()
    seed = digest.sha256(act.id.encode())[:16]
    wanted = control_commands.StartRun(act.id, act.call.target.name, packed, seed, named=True)
    try:
        world.command(control_commands.RUN, wanted)
    except errors.Error:
        return False
    if act.begun:
        return None
    world.play(until=lambda: world.machine.runs[act.id].record.status in ENDED, limit_us=world._stage.now_us + 10**8)
    return _ended(world, act.id)


def _ended(world: testing.TestWorld, run_id: str) -> bool:
    record = world.machine.runs[run_id].record
    if any(run.record.status is RunStatus.BLOCKED for run in world.machine.live_runs()):
        raise Blocked(f"run {run_id} is {record.status.name}, and some run is blocked: {record.blocked}")
    if record.status not in ENDED:
        raise Stuck(f"run {run_id} is {record.status.name}: {record.blocked or world.why(run_id)}")
    return record.status is RunStatus.FINISHED


def _cancel(world: testing.TestWorld, act: Cancel) -> bool | None:
    if act.id in world.machine.runs:
        world.command(control_commands.CANCEL, control_commands.CancelRun(act.id, "enough"))
        world.advance(1)
        return _ended(world, act.id) if act.ends else None
    return None


def through_the_door(act: Door) -> bool:
    """Whether a value could be made into bytes. Anything but an error of ours escapes."""
    try:
        made: Any = act.make()
        _ = made.pack() if isinstance(made, wl.Call) else user_values.dump(made)
    except errors.Error:
        return False
    return True


def main(first: int, end: int) -> None:
    """Rehearse these programs, a line of JSON for each. Before each its number, in case it is the last."""
    sys.unraisablehook = lambda _: None  # some objects refuse to die quietly
    for number in range(first, end):
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        sys.stdout.write(f"{msgspec.json.encode(rehearse(number)).decode()}\n")
        if number % 50 == 0:
            gc.collect()
    sys.stdout.flush()
