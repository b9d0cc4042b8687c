"""Forking everywhere: a scenario is lived once, and then forked behind every step of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worldline.base import failures
from worldline.codec import canonical, structs
from worldline.kernel import replay, run_requests, user_values
from worldline.kernel.authoring.calls import Seconds
from worldline.kernel.authoring.program import Program
from worldline.kernel.authoring.scripts import Script
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import JournaledFailure
from worldline.kernel.run_operations import OpKind
from worldline.model import ids, inbox
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.testing import fork_following, journal_tail, stage, tested_world
from worldline.testing.life import Life
from worldline.testing.tested_world import TestWorld

REST: Seconds = 60
_WORK = (OpKind.EFFECT, OpKind.TIMER, OpKind.ASK, OpKind.SEND)


def fork(
    scenario: Callable[[TestWorld], object],
    program: Program,
    script: Script | None = None,
    /,
    *,
    rest: Seconds = REST,
    **options: Any,
) -> int:
    """Run a scenario, fork the world behind every step of it, let all of them come to rest, and compare.

    Behind each step there is one dry fork for each policy, and one that gets every input and every answer that its
    parent got. `Diverged` unless

    - the world, and every other one that it talks to, is the same with and without forks, digest for digest;
    - what was open has its fate in every fork: no run waits for work that is open nowhere, none is blocked by it;
    - every fork comes back from its rows, and its journal comes out the same again;
    - the fork that got the same ends in the same cells, and its runs in the same results.

    `rest`: how long they go on behind the scenario. Returns how many forks there were. `options` are those of
    `testing.world`.
    """
    with tested_world.world(program, script, **options) as twin:
        expected = scenario(twin)
        twin.advance(rest)  # both worlds rest for the same time, so their heads can be compared
        heads = twin.heads()
    # The twin has done every step twice already.
    with tested_world.world(program, script, **{**options, "twice": False}) as world:
        found = scenario(world)
        heights = _step_ends(world)
        # Made before anything rests: a fork and its parent live at the same time, which is where one could touch the
        # other.
        forks = [_forked(world, height, policy) for height in heights for policy in ("drop", "reissue", "share")]
        rules = _answers(world)
        if rules:
            forks += [_forked(world, height, "script", rules) for height in heights]
        world.advance(rest)
        # The forks themselves are no worlds of the twin.
        left = {name: head for name, head in world.heads().items() if name in heads}
        if (left, found) != (heads, expected):
            name = next((name for name in heads if left[name] != heads[name]), world.name)
            raise failures.Diverged(
                f"with forks, world {name!r} ended differently:\n"
                f"  without: {expected!r}, height {heads[name].height}, state {heads[name].state.hex()[:16]}\n"
                f"  with:    {found!r}, height {left[name].height}, state {left[name].state.hex()[:16]}\n{world.tail()}"
            )
        for each in forks:
            _check(each.life, each.name)
        return len(forks) + _follow(world, heights)


def _forked(world: TestWorld, height: int, policy: Any, rules: list[dict[str, Any]] | None = None) -> TestWorld:
    return world.fork(f"{world.name}@{height}-{policy}", at=height, effects=policy, script=rules)


def _check(made: Life, name: str) -> None:
    lost = _lost(made.machine)
    if lost:
        raise failures.Diverged(f"fork {name!r}: {lost}\n{_tail(made)}")
    made.restore()  # a fork comes back from its own rows, with the parent's below
    made.prove()


def _tail(made: Life) -> str:
    return "\n".join(journal_tail.lines(made.filled(), start_us=made.entries[0].time_us, count=20))


def _lost(machine: Machine) -> str:
    """An operation that nothing will answer."""
    awaited = [(each.run, each.op) for each in (*machine.work.open.values(), *machine.work.unsent)]
    for run in machine.live_runs():
        for number, op in enumerate(run.record.ops):
            if op.outcome is None and op.kind in _WORK and (run.record.id, number) not in awaited:
                return f"run {run.record.id!r} waits for {op.kind.name.lower()} {op.name}, which is open nowhere"
    return ""


def _follow(world: TestWorld, heights: list[int]) -> int:
    """Forks that get what their parent got."""
    parent = world.life
    what = fork_following.lived(parent)
    for height in heights:
        made = parent.branch(stage.address(0), height)
        if fork_following.follow(made, parent, what):
            other = fork_following.difference(made.machine, parent.machine)
            if other:
                raise failures.Diverged(
                    f"a fork at height {height} that got the same answers ended differently; {other}\n{_tail(made)}"
                )
        _check(made, f"{world.name}@{height}")
        made.machine.close()  # its coroutines, before the next one: there is a fork for each step
    return len(heights)


def _step_ends(world: TestWorld) -> list[int]:
    base = world.life.baseline.head.height
    return [base, *(each.height for each in world.journal() if each.chain and each.height > base)]


def _answers(world: TestWorld) -> list[dict[str, Any]]:
    """The answers that the world got, as the rules of a script."""
    asked: dict[bytes, tuple[str, bytes]] = {}
    rules: list[dict[str, Any]] = []
    for entry in world.journal():
        if entry.kind is Kind.EFFECT_REQUESTED:
            ordinal, name, _, _, params, _ = user_values.load(list[Any], entry.payload)
            address = world.life.line.owner(entry.height)
            intent = ids.intent_id(address, step=entry.step, ordinal=ordinal, kind=name, params=params)
            asked[intent] = (name, params)
        elif entry.kind is Kind.EFFECT_RESULT:
            receipt = replay.item_of(entry)
            # Answers to what was asked below a fork's baseline have no question here.
            if isinstance(receipt, inbox.EffectReceipt) and receipt.intent in asked:
                rules.append(_rule(*asked[receipt.intent], receipt, world.life.load(receipt.payload)))
    return rules


def _rule(name: str, params: bytes, receipt: inbox.EffectReceipt, data: bytes) -> dict[str, Any]:
    rule: dict[str, Any] = {"effect": name, "arguments": run_requests.effect_arguments(params), "times": 1}
    if receipt.status is ReceiptStatus.OK:
        return {**rule, "answer": canonical.decode(data)}
    why = structs.decode(JournaledFailure, data)
    return {**rule, "error": why.message, "code": why.code}
