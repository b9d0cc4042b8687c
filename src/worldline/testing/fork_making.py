"""Forks in tests: what one is made with, and where it begins.

The first step of a fork is the kernel's, as in a store (`worldline.features.forks.pure`). Answers of a script that are
data go into it, too. Functions and answers that come later cannot be stored: those effects are played by the stage.
"""

from __future__ import annotations

from typing import Any

from worldline.base import errors
from worldline.codec import canonical
from worldline.effects import attempt as attempts
from worldline.features.forks import calls as forks
from worldline.features.forks import fork_commit as cluster_forks
from worldline.features.forks import script_rules
from worldline.kernel import run_requests, runs
from worldline.kernel.authoring import scripts
from worldline.kernel.machine import Machine
from worldline.kernel.part_inputs import ForkBeginning
from worldline.kernel.rows.branch_rows import ScriptRule
from worldline.kernel.rows.row_records import Op
from worldline.kernel.run_operations import OpKind
from worldline.model import journal
from worldline.model.inbox import ReceiptStatus
from worldline.model.work import WorkKind
from worldline.model.world_records import ForkPolicy
from worldline.testing import effect_loop, stage
from worldline.testing.life import Life, WorldStanding


def start(life: Life, name: str, *, at: int | None, before: str | None) -> WorldStanding:
    """Where the fork begins: now, at the step end at or below a height, or before something happened last."""
    if before is not None:
        if at is not None:
            raise errors.BadInput("give at= or before=, not both")
        at = _height_before(life.filled(), name, before)
    height = forks.check_height(at)
    if height is not None and height > life.head.height:
        raise errors.BadInput(f"no height {height}: the journal's head is at height {life.head.height}")
    return life.standing_at(life.head.height if height is None else height)


def _height_before(entries: list[journal.JournalEntry], name: str, what: str) -> int:
    kind, named = cluster_forks.named_before(what)
    for entry in reversed(entries):  # the last time that it happened is meant
        if cluster_forks.happened(entry, kind, named):
            # A fork begins at a step's end: the one before the step in which it happened.
            return next(each.height for each in entries if each.step == entry.step) - 1
    raise errors.NotFound(f"world {name!r} has no {kind} {named!r} in its history")


def enter(
    around: stage.Stage,
    parent: stage.Actor,
    name: str,
    life: Life,
    *,
    effects: str,
    script: script_rules.Given | None,
    live: bool,
) -> stage.Actor:
    """Put a fork on the stage, and let it begin."""
    policy = forks.policy_of(effects, script)
    data, played = script.parted() if isinstance(script, scripts.Script) else (script, scripts.Script())
    given = script_rules.rules_of(data, life.program)
    # A live fork is answered as its parent is, from where the parent's script is now; a dry one has its own answers
    # only.
    reading = parent.reading.also(played) if live else scripts.ScriptProgress(played)
    if policy is ForkPolicy.SCRIPT:
        given = [*_played_now(life.machine, played, reading), *given]
    head, owner = life.head, life.line.sections[-1].world
    said = ForkBeginning(life.at.world, owner, parent.name, head.step, head.height, policy, live, given)
    return around.fork(name, life, reading, said)


def _played_now(machine: Machine, played: scripts.Script, reading: scripts.ScriptProgress) -> list[bytes]:
    """Rules for the effects that are open: what the functions of the script answer to them now."""
    found: list[bytes] = []
    for pending in machine.work.open.values():
        run = machine.runs.get(pending.run)
        if pending.kind is WorkKind.TIMER or (run is None and not pending.event):
            continue
        op = Op(OpKind.EFFECT, pending.name, pending.params) if run is None else run.record.ops[pending.op]
        effect = machine.program.find_effect(op.name)
        if op.kind is not OpKind.EFFECT or op.name not in played.answers or effect is None:
            continue
        if any(isinstance(each, scripts.Later) for each in played.answers[op.name]):
            raise errors.BadInput(
                f'script of {op.name}(): effects="script" answers at once what is open; an answer that comes later '
                f'needs effects="reissue"'
            )
        arguments, options = run_requests.unpack_effect(op.params)
        # The function may ask for its attempt, as in an effect worker.
        token = attempts.current.set(attempts.Attempt(options.key or "forked", 1, lambda _: None))
        try:
            answer = reading.attempt(effect, arguments, drive=effect_loop.run)
        finally:
            attempts.current.reset(token)
        found.append(canonical.encode(_rule(op.name, op.params, answer).write()[0]))
    return found


def _rule(name: str, params: bytes, answer: scripts.Scripted) -> ScriptRule:
    given: dict[str, Any] = run_requests.effect_arguments(params)
    exactly = {key: canonical.encode(value) for key, value in given.items()}
    if answer.ok:
        return ScriptRule(name, False, exactly, ReceiptStatus.OK, answer.data, times=1)
    why = runs.failure(answer.code, answer.message, attempts=1, data=answer.failed_with)
    return ScriptRule(name, False, exactly, ReceiptStatus.ERROR, why, times=1)
