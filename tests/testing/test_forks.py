"""Forks of worlds in a test, and forks behind every step of a scenario."""

from __future__ import annotations

from typing import Any

import pytest

import worldline as wl
from tests.features.forks import everything_open as forks
from tests.features.forks.everything_open import Added, Till, app, charge, charges
from tests.kernel import shop
from worldline import testing
from worldline.features.forks.pure import part as kernel_fork
from worldline.testing import fork_following


def test_three_lines() -> None:
    with testing.world(app, wl.Script().on(charge, "ch_1")) as world:
        run = world.start(charges("a"), id="r")
        what_if = world.fork(before="effect charge", script=wl.Script().on(charge, wl.Fatal("declined")))
        with pytest.raises(wl.RunFailed, match="declined"):
            what_if.run(charges("a"), id="r")
        assert run.result() == "ch_1"


def test_where_a_fork_begins() -> None:
    with testing.world(app, forks.script(1)) as world:
        world.send(Added(1))
        world.run(charges("a"), id="r")
        world.send(Added(2))
        assert world.fork().state(Till).cents == 3
        assert world.fork(at=1).state(Till).cents == 1
        assert world.fork(at=0).state(Till).cents == 0
        assert world.fork(before="event Added").state(Till).cents == 1
        with pytest.raises(wl.NotFound):
            world.fork(before="effect charge").attach("r")
        for wrong, said in (
            ({"at": 99}, "no height 99"),
            ({"at": -1}, "a number from 0 on"),
            ({"at": 1, "before": "effect charge"}, "not both"),
            ({"before": "charge"}, "say before what"),
            ({"effects": "keep"}, "effects must be one of"),
            ({"effects": "script"}, "needs a script"),
            ({"script": [{"effect": "ship", "answer": 1}]}, "does not have"),
            ({"script": 7}, "a list of rules"),
        ):
            with pytest.raises(wl.BadInput, match=said):
                world.fork("x", **wrong)
        with pytest.raises(wl.NotFound, match="no effect 'ship'"):
            world.fork(before="effect ship")
        with pytest.raises(wl.Exists):
            world.fork("test")


def test_scripts_may_have_functions_and_answers_that_come_later() -> None:
    with testing.world(app, forks.script(100)) as world:
        world.start(charges("a"), id="r")

        def result(effects: Any, script: wl.Script, *, live: bool = False) -> tuple[str, int]:
            before = world.now
            forked = world.fork(effects=effects, script=script, live=live)
            said = forked.attach("r").result()
            forked.crash()
            forked.prove()
            return said, (world.now - before).seconds

        by_function = wl.Script().on(charge, lambda order: f"function {order}")
        assert result("reissue", by_function) == ("function a", 0)
        assert result("script", by_function) == ("function a", 0)
        assert result("reissue", by_function, live=True) == ("function a", 0)
        assert result("reissue", wl.Script().on(charge, wl.Script.later(7, "late"))) == ("late", 7)
        assert result("reissue", wl.Script().on(charge, ConnectionError, charge)) == ("a", 1)  # with its retry
        assert result("script", wl.Script().on(charge, "data")) == ("data", 0)
        with pytest.raises(wl.RunFailed, match="declined"):
            result("script", wl.Script().on(charge, lambda order: (_ for _ in ()).throw(wl.Fatal("declined"))))
        with pytest.raises(wl.BadInput, match='needs effects="reissue"'):
            result("script", wl.Script().on(charge, wl.Script.later(7, "late")))
        assert not world.attach("r").done


def test_a_live_fork_goes_on_in_its_parents_script() -> None:
    with testing.world(app, wl.Script().on(charge, "one", "two", "three")) as world:
        assert world.run(charges("a")) == "one"
        live = world.fork(live=True)
        assert live.run(charges("b")) == "two"
        assert world.run(charges("b")) == "two"
        assert live.fork(live=True).run(charges("c")) == "three"


def test_what_a_dry_fork_asks_for_waits_for_an_answer() -> None:
    with testing.world(app, forks.script()) as world:
        bank = world.also("bank", app)
        dry = world.fork("dry")
        paid, asked, told = dry.start(charges("a")), dry.start(forks.asks()), dry.start(forks.tells())
        assert told.result() == "told"
        with pytest.raises(testing.Stuck, match=r"the fork is dry.*answer\(\) them.*script=.*live=True"):
            paid.result()
        with pytest.raises(testing.Stuck, match=r"waits for an answer of world bank.*the fork is dry"):
            asked.result()
        assert dry.answer("bank", 12) == 1
        assert asked.result() == 12
        assert dry.answer(charge, error="no money") == 1
        with pytest.raises(wl.RunFailed, match="no money"):
            paid.result()
        assert bank.journal() == []
        assert world.journal() == []


def test_a_fork_crashes_and_is_exported_like_any_world(tmp_path: Any) -> None:
    with testing.world(app, forks.script()) as world:
        world.send(Added(1))
        world.start(charges("a"), id="r")
        forked = world.fork(effects="share")
        forked.crash(at=forked.head.height + 1)
        forked.send(Added(2))
        assert forked.attach("r").result() == "paid a"
        assert forked.crashes == 1
        forked.export(tmp_path / "fork.jsonl")
        assert testing.replay(tmp_path / "fork.jsonl", app) == forked.prove()
        assert forked.state(Till, at=1).cents == 1
        assert [each.height for each in forked.journal()][-1] == forked.head.height


def test_the_shuffle_of_a_world_does_not_depend_on_its_forks() -> None:
    def lived(forked: bool) -> list[bytes]:
        with testing.world(app, forks.script(1), shuffle=True, seed=3) as world:
            world.start(forks.patient(6), id="r")
            if forked:
                world.fork(effects="reissue", live=True)
            world.advance(20)
            return [each.chain for each in world.journal()]

    assert lived(forked=True) == lived(forked=False)


# --- Everywhere ------------------------------------------------------------------------------------------------------


def everything(world: testing.TestWorld) -> list[str]:
    bank = world.also("bank", app)
    bank.send(Added(5))
    world.schedule("tick", Added(10), every=50)
    calls = (forks.parent, forks.hurries, forks.waits, forks.rings, forks.asks, forks.tells, forks.chooses)
    for call in calls:
        world.start(call(), id=call.name)
    world.start(forks.patient(3), id="patient")
    world.start(forks.many(2), id="many").cancel("enough")
    world.send(Added(4))
    world.advance(20)
    return [world.attach(name).status.name for name in ("patient", "many", "parent")]


def test_forks_behind_every_step() -> None:
    assert testing.everywhere.fork(everything, app, forks.script()) > 60


def test_the_shop_can_be_forked_anywhere() -> None:
    def scenario(world: testing.TestWorld) -> str:
        world.send(shop.Deposited("ada", 10))
        return world.run(shop.greet("Ada"))

    assert testing.everywhere.fork(scenario, shop.app, shop.script()) > 10


def test_a_world_that_could_not_be_reached_makes_no_difference() -> None:
    """The parent hears of it, a dry fork does not: that is no divergence."""

    def scenario(world: testing.TestWorld) -> str:
        return world.start(forks.tells(), id="r").status.name

    assert testing.everywhere.fork(scenario, app) > 5


def test_an_operation_that_nothing_answers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(machine: Any, branch: Any, pending: Any, domains: Any) -> None:
        machine.work.disown(pending)

    monkeypatch.setattr(kernel_fork, "_settle", forget)
    with pytest.raises(wl.errors.Diverged, match=r"waits for .*, which is open nowhere"):
        testing.everywhere.fork(everything, app, forks.script())


def test_a_fork_that_ends_otherwise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_following, "_translated", lambda fork, names, item, data: None)
    with pytest.raises(
        wl.errors.Diverged, match=r"a fork at height 0 that got the same answers ended differently; cell Till"
    ):
        testing.everywhere.fork(everything, app, forks.script())


def test_a_world_that_forks_change_is_found() -> None:
    count = 0

    def scenario(world: testing.TestWorld) -> None:
        nonlocal count
        count += 1
        world.send(Added(count))

    with pytest.raises(wl.errors.Diverged, match="with forks, world 'test' ended differently"):
        testing.everywhere.fork(scenario, app)
