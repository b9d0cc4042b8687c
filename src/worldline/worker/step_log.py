"""What the host's log says of steps that are durable now: one line for each thing that waits for a person from here on,
with the command to type. Steps after which nothing does say nothing.

An effect that is parked is said by the process that tried it (`effects/attempt_log.py`).
"""

from __future__ import annotations

import shlex

from worldline.base import grammar
from worldline.codec import printable
from worldline.kernel import halts
from worldline.layers import step_commit
from worldline.model import inbox
from worldline.runtime import facts, halt_text
from worldline.worker.held_world import Adopted, HeldWorld
from worldline.worker.step_run import StepsDone

log = printable.logger("worldline.worker")

LINES_MAX = 8  # of a kind, of one commit: a flood of events that nothing takes does not fill the log


def tell(held: HeldWorld, done: StepsDone) -> None:
    about = facts.about(held.at, name=held.name, step=done.after.step)
    blocked = [each for each in done.halted if not each.effect]
    # Counted only if it is told: it looks at all live runs.
    now = f"{halts.count_blocked(held.machine)} of {grammar.count(len(held.machine.live), 'run')}" if blocked else ""
    for each in blocked[:LINES_MAX]:
        said = halt_text.blocked(held.name, each.run, each.why)
        log.warning("world %r: %s; blocked now: %s", held.name, said, now, extra=about)
    # A change of code shows only as runs continue: its first count was too early.
    if blocked and held.adopted is not None:
        _count_adopted(held, held.adopted, about)
    for text in done.warnings[:LINES_MAX]:
        log.warning("world %r: %s", held.name, text, extra=about)
    for letter in done.buried[:LINES_MAX]:
        log.warning("world %r: %s", held.name, _buried(held.name, letter), extra=about)
    for what, count in (("runs are blocked", len(blocked)), ("inputs were not processed", len(done.buried))):
        if count > LINES_MAX:
            log.warning(
                "world %r: %d more %s; see `worldline why %s`",
                held.name,
                count - LINES_MAX,
                what,
                shlex.quote(held.name),
                extra=about,
            )


def _count_adopted(held: HeldWorld, adopted: Adopted, about: dict[str, object]) -> None:
    """Whether code fits a run shows when the run next continues: what was said when it was adopted is counted again."""
    number = halts.count_blocked(held.machine, up_to=adopted.youngest)
    if number:
        log.warning(
            "world %r under the changed program %r: of %s that it was adopted with, %d %s blocked by now",
            held.name,
            held.program.name,
            grammar.count(adopted.runs, "run"),
            number,
            "is" if number == 1 else "are",
            extra=about,
        )


def _buried(world: str, letter: step_commit.Buried) -> str:
    which = f"{shlex.quote(world)} {letter.unread.stamp.hex()}"
    return (
        f"{_named(letter.unread.item)} was not processed: {' '.join(letter.reason.split())}; it is a dead letter: when "
        f"the cause is fixed, type `worldline dead retry {which}`; or `worldline dead drop {which}`"
    )


def _named(item: inbox.Item | None) -> str:
    match item:
        case inbox.InboxEvent(schema=name):
            return f"event {name}"
        case inbox.Message(name=name):
            return f"message {name}"
        case inbox.Control(command=name):
            return f"command {name}"
        case inbox.EffectReceipt():
            return "an answer of an effect"
        case inbox.TimerFired():
            return "a timer"
        case _:
            return "an input"
