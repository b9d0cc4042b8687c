"""The first steps of a fork: what becomes of everything that was open, under every policy, dry and live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import worldline as wl
from tests.features.forks.everything_open import (
    COUNT,
    KEYS,
    OPEN,
    ROOM,
    RULES,
    Added,
    Till,
    app,
    asks,
    asks_away,
    charge,
    charges,
    check,
    chooses,
    hurries,
    keyed,
    last_of_first_step,
    naps,
    outcome,
    parent,
    patient,
    rings,
    script,
    tells,
    tells_away,
    then_waits,
    waits,
)
from worldline import testing
from worldline.base import limits
from worldline.kernel import run_repair, user_values
from worldline.kernel.rows.row_records import RunStatus


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STEP_EFFECTS_MAX", ROOM)


# --- The table -------------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[], wl.Call[Any]]] = {
    "effect": lambda: charges("a"),
    "ask": asks,
    "send": tells,
    "ask away": asks_away,
    "send away": tells_away,
}
DRY = "the fork is dry"
FATES: list[tuple[str, str, bool, Any]] = [
    ("effect", "drop", False, OPEN),
    ("effect", "drop", True, OPEN),
    ("effect", "reissue", False, DRY),
    ("effect", "reissue", True, "paid a"),
    ("effect", "share", False, "paid a"),
    ("effect", "share", True, "paid a"),
    ("effect", "script", False, "scripted"),
    ("effect", "script", True, "scripted"),
    ("effect", "unmatched", False, OPEN),
    ("effect", "unmatched", True, OPEN),
    ("ask", "drop", False, OPEN),
    ("ask", "drop", True, OPEN),
    ("ask", "reissue", False, DRY),
    ("ask", "reissue", True, 5),
    ("ask", "share", False, 5),
    ("ask", "share", True, 5),
    ("ask", "script", False, 7),
    ("ask", "script", True, 7),
    ("ask", "unmatched", False, OPEN),
    ("send", "drop", False, OPEN),
    ("send", "drop", True, OPEN),
    ("send", "reissue", False, "told"),
    ("send", "reissue", True, "told"),
    ("send", "share", False, "told"),
    ("send", "share", True, "told"),
    ("send", "script", False, OPEN),
    ("send", "script", True, OPEN),
]
# A message to another universe is an effect, and fares like one to a world of the same.
FATES += [(f"{what} away", *rest) for what, *rest in FATES if what != "effect"]


@pytest.mark.parametrize(("what", "policy", "live", "said"), FATES)
def test_each_open_operation_has_its_fate(what: str, policy: Any, live: bool, said: Any) -> None:
    rules = {"script": RULES, "unmatched": [{"effect": "charge", "arguments": {"order": "b"}, "answer": ""}]}
    with testing.world(app, script()) as world:
        bank = world.also("city/bank" if what.endswith("away") else "bank", app)
        bank.send(Added(5))
        world.start(CALLS[what](), id="r")
        what = what.removesuffix(" away")
        # Where it was asked for and has no answer: behind the first step.
        forked = world.fork(
            "fork",
            at=world.journal()[-1].height if what == "effect" else last_of_first_step(world),
            effects="script" if policy in rules else policy,
            script=rules.get(policy),
            live=live,
        )
        found = outcome(forked)
        assert said in found if isinstance(said, str) else found == said
        assert outcome(world) == {"effect": "paid a", "ask": 5, "send": "told"}[what]
        sent_again = what == "send" and policy == "reissue" and live
        assert bank.state(Till).cents == 5 + (what == "send") + sent_again
        check(world, forked)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("policy", ["drop", "reissue", "share", "script"])
def test_everything_that_needs_no_outside_goes_on_under_every_policy(policy: Any, live: bool) -> None:
    with testing.world(app) as world:
        world.send(Added(1))
        for call in (parent, hurries, waits, rings):
            world.start(call(), id=call.name)
        world.start(waits(), id="late")
        world.schedule("tick", Added(10), every=50)
        world.advance(10)
        both = (world, world.fork(effects=policy, script=RULES, live=live))
        world.advance(10)
        for each in both:
            each.send(Added(9), to="waits")
        world.advance(100)
        for each in both:
            named = [outcome(each, name) for name in ("parent", "hurries", "waits", "rings", "late")]
            assert named == ["child at 00:30", "timed out: True", 9, None, 100]
            assert each.state(Till).cents == 121
            assert [schedule.fired for schedule in each.schedules()] == [2]
        check(*both)


def test_a_timer_that_is_due_before_the_fork_begins_fires_at_once() -> None:
    with testing.world(app) as world:
        world.start(naps(30), id="r")
        height = world.head.height
        world.advance(300)
        forked = world.fork(at=height)
        assert forked.attach("r").result() == "05:00"
        check(world, forked)


# --- Work and runs that stand still --------------------------------------------------------------------------------


def test_parked_effects() -> None:
    with testing.world(app, wl.Script().on(charge, ConnectionError, ConnectionError, "at last")) as world:
        world.start(charges("a"), id="r")
        world.advance(60)
        assert len(world._stage.parked(world._actor, "charge")) == 1
        dropped = world.fork("dropped")
        shared = world.fork("shared", effects="share")
        by_hand = world.fork("by-hand", effects="share")
        live = world.fork("live", effects="reissue", live=True)
        assert OPEN in outcome(dropped)
        assert outcome(live) == "at last"  # it is tried again, and not parked any more
        assert "waits for effect charge" in outcome(shared)
        assert world.retry(charge) == 1
        assert outcome(shared) == outcome(by_hand) == "at last"
        again = world.start(charges("b"), id="again")
        again.result()
        check(world, dropped, shared, by_hand, live)


@pytest.mark.parametrize("policy", ["drop", "reissue", "share"])
def test_what_a_dry_fork_has_parked_is_not_parked_in_a_live_fork_of_it(policy: Any) -> None:
    with testing.world(app, script(), drops=False) as world:
        dry = world.fork("dry")
        dry.start(patient(2), id="r")
        live = dry.fork("live", effects=policy, live=True, script=script())
        check(dry, live)
        if policy == "share":
            assert dry.answer(charge, "by hand") == 2
        said = {"drop": "cancelled", "share": "by hand"}
        assert live.attach("r").result() == [said.get(policy, f"paid o{number}") for number in range(2)]
        check(dry, live)


def test_an_answer_by_hand_is_shared() -> None:
    with testing.world(app, wl.Script().on(charge, ConnectionError)) as world:
        world.start(charges("a"), id="r")
        world.start(charges("b"), id="s")
        world.advance(60)
        shared = world.fork("shared", effects="share")
        intents = world._stage.parked(world._actor, "charge")
        world.command(run_repair.ANSWER_EFFECT, run_repair.AnswerEffect(intents[1], user_values.dump("by hand"), None))
        world.command(run_repair.ANSWER_EFFECT, run_repair.AnswerEffect(intents[0], b"", "no money"))
        assert outcome(shared, "s") == "by hand"
        assert "no money" in outcome(shared, "r")
        check(world, shared)


def test_what_the_parent_gives_up_ends_for_the_fork_too() -> None:
    with testing.world(app, script()) as world:
        run = world.start(charges("a"), id="r")
        shared = world.fork("shared", effects="share")
        run.cancel("no")
        assert "has given it up" in outcome(shared)
        late = world.fork("late", at=last_of_first_step(world), effects="share")  # it was given up before
        assert "has given it up" in outcome(late)
        check(world, shared, late)


def test_the_retry_of_a_dry_forks_effect_is_refused() -> None:
    with testing.world(app, script()) as world:
        forked = world.fork()
        forked.start(charges("a"), id="r")
        with pytest.raises(wl.errors.Closed, match=r"dry fork.*answer\(\)"):
            forked.retry(charge)
        assert forked.answer(charge, "by hand") == 1
        assert outcome(forked) == "by hand"


def other_code() -> wl.Program:
    """The same program with a `charges` that does something else first."""
    other = wl.Program("forks")
    other.reducer(Till)
    other.effect(name="charge", retry=wl.Retry(attempts=2, initial_delay=1, on_exhausted="park"))(charge.function)

    @other.workflow(name="charges")
    async def other_charges(order: str) -> str:
        await wl.sleep(1)
        return order

    return other


@pytest.mark.parametrize("policy", ["drop", "share", "script"])
def test_a_blocked_run_gets_its_answer_and_waits_for_its_code(policy: Any) -> None:
    with testing.world(app, script()) as world:
        world.start(charges("a"), id="r")
        assert world.adopt(other_code())
        world.advance(20)
        assert world.attach("r").status is RunStatus.BLOCKED
        before = world.head
        forked = world.fork(at=last_of_first_step(world), effects=policy, script=RULES)
        assert world.head == before
        forked.advance(60)
        assert forked.attach("r").status is RunStatus.BLOCKED
        fork_of_blocked = world.fork(effects=policy, script=RULES)
        assert fork_of_blocked.attach("r").status is RunStatus.BLOCKED
        forked.adopt(app)
        expected = {"drop": OPEN, "share": "paid a", "script": "scripted"}[policy]
        assert expected in outcome(forked)


def test_events_that_came_too_early_are_there_in_the_fork() -> None:
    with testing.world(app, script(30)) as world:

        def buffered(each: testing.TestWorld) -> int:
            return len(each.machine.runs["r"].record.buffer)

        world.start(then_waits(), id="r")
        world.send(Added(3), to="r")
        assert buffered(world) == 1
        forked = world.fork(effects="script", script=RULES)
        assert forked.attach("r").result() == 3
        assert buffered(world) == 1
        check(world, forked)


# --- Keys, draws, lineage ------------------------------------------------------------------------------------------


def test_chosen_keys_are_the_forks_own_in_a_live_one() -> None:
    with testing.world(app, script()) as world:
        KEYS.clear()
        world.start(keyed("a"), id="r")
        one = world.fork("one", effects="reissue", live=True)
        two = one.fork("two", effects="reissue", live=True)
        for each in (world, one, two):
            each.attach("r").result()
            each.run(keyed("b"), id="s")
        names = {each.address.world.hex() for each in (one, two)}
        assert sorted(key for key in KEYS if ":" not in key) == ["key-a", "key-b"]
        assert {tuple(key.split(":")) for key in KEYS if ":" in key} == {
            (name, key) for name in names for key in ("key-a", "key-b")
        }
        check(world, one, two)


def test_draws() -> None:
    with testing.world(app) as world:
        world.start(chooses(), id="r")
        world.advance(5)
        forks = {False: world.fork("dry"), True: world.fork("live", live=True)}
        twin = world.fork("twin", live=True)
        mine = world.attach("r").result()
        for each in (world, twin, *forks.values()):
            each.send(Added(1))
        dry, live, other = (each.attach("r").result() for each in (forks[False], forks[True], twin))
        assert dry == mine
        assert live[:2] == other[:2] == mine[:2], "what was drawn before the fork stays"
        assert len({mine[2], live[2], other[2]}) == 3
        drawn = [each.state(Till).drawn for each in (world, *forks.values(), twin)]
        assert drawn[0] == drawn[1]
        assert len({*drawn}) == 3
        check(world, twin, *forks.values())


def test_a_live_fork_at_the_time_of_the_step_before() -> None:
    """Runs are rebuilt with what they had drawn, however little time has passed."""
    with testing.world(app) as world:
        world.start(chooses(), id="r")
        first = world.fork("first", live=True)
        second = first.fork("second", live=True)
        first.advance(5)
        third = second.fork("third", live=True)
        results = [each.attach("r").result() for each in (world, first, second, third)]
        assert len({each[0] for each in results}) == 1
        assert len({each[1] for each in results}) == 3, "the third began behind the second draw"
        assert len({each[2] for each in results}) == 4
        check(world, first, second, third)


def test_forks_of_forks_share_with_the_world_that_asked() -> None:
    with testing.world(app, script(), drops=False) as world:
        world.start(patient(COUNT), id="r")
        first = world.fork("first", effects="share")
        second = first.fork("second", effects="share")
        started = world.head.height
        # Inside the steps in which the first settles what it has inherited.
        inside = next(each.height for each in first.journal() if each.height > started and each.chain)
        third = first.fork("third", at=inside, effects="share")
        fourth = first.fork("fourth", at=inside)
        paid = [f"paid o{n}" for n in range(COUNT)]
        for each in (third, second, first, world):
            assert each.attach("r").result() == paid
        assert fourth.attach("r").result() == ["cancelled"] * COUNT
        check(world, first, second, third, fourth)


def test_a_fork_below_the_point_where_its_parent_was_forked() -> None:
    with testing.world(app) as world:
        for cents in (1, 2, 4):
            world.send(Added(cents))
        first = world.fork("first", at=2)
        first.send(Added(8))
        low = first.fork("low", at=1)
        assert low.machine.branch is not None
        assert low.machine.branch.owners[-1].world == world.address.world
        sums = [each.state(Till).cents for each in (world, first, low)]
        assert sums == [7, 11, 1]
        assert first.state(Till, at=1).cents == 1
        assert [each.height for each in first.journal()] == [*range(1, first.head.height + 1)]
        check(world, first, low)


def test_the_script_of_a_fork_is_not_that_of_its_forks() -> None:
    with testing.world(app) as world:
        first = world.fork(script=RULES * 3)
        second = first.fork(script=[{"effect": "charge", "answer": "other"}])
        third = second.fork()
        assert first.run(charges("a")) == "scripted"
        assert second.run(charges("a")) == "other"
        third.start(charges("a"), id="r")
        assert DRY in outcome(third)
        check(first, second, third)
