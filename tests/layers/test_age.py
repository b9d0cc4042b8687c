"""The age of a universe: it grows by what both clocks of a janitor agree on, and proves how long a thing was there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kits import kit as kits
from tests.layers.scenario import UNIVERSE, Store, now
from worldline.base import env as envs
from worldline.cluster.age_counter import AgeCounter
from worldline.layers import age
from worldline.model.age import Age
from worldline.store import kv

SECOND = 1_000_000
HOUR = 3_600 * SECOND


@pytest.mark.parametrize(
    ("monotonic_us", "time_us", "grown_us"),
    [
        (SECOND, SECOND, SECOND),
        (SECOND, 2 * SECOND, SECOND),
        (2 * SECOND, SECOND, SECOND),
        (SECOND, 26 * HOUR, SECOND),
        (SECOND, -26 * HOUR, 0),
        (0, HOUR, 0),
        (26 * HOUR, 26 * HOUR, age.STEP_US_MAX),
    ],
)
def test_what_both_clocks_agree_on_has_passed(monotonic_us: int, time_us: int, grown_us: int) -> None:
    since = age.AgeAnchor(7, 100, 10**15)
    assert age.grown(since, monotonic_us=100 + monotonic_us, time_us=10**15 + time_us) == 7 + grown_us


def test_a_period_has_passed_when_so_much_was_counted_and_what_may_have_been_before() -> None:
    assert Age(11).has_passed(10, since_us=1)
    assert not Age(11).has_passed(11, since_us=1)
    assert not Age(11, step_us=1).has_passed(10, since_us=1)


class Machine(kits.Around):
    """A process with clocks of its own, the store's among them, as with a folder; and a janitor that counts."""

    def __init__(self, store: Store, *, every_us: int = 0) -> None:
        super().__init__(store.engine)
        self.env = envs.FixedEnv()
        self.stopped_us = 0  # behind the next read: the whole machine
        self.stop: Callable[[int], None] = lambda _: None
        self.counter = AgeCounter(self, self.env, UNIVERSE, every_us=every_us)

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        snapshot = await self._engine.read(*requests)
        time_us = self.env.wall_us()
        stopped_us, self.stopped_us = self.stopped_us, 0
        self.stop(stopped_us)
        return kv.ReadResult(snapshot.answers, time_us, snapshot.seen)

    def look(self, *, store: bool = False) -> None:
        now(self.counter.look(store=store))


def age_of(store: Store) -> Age:
    return age.decode(store.read(age.get(UNIVERSE)).value(0))


def test_a_janitor_counts_from_its_first_look_on() -> None:
    store = Store()
    machine = Machine(store, every_us=SECOND)
    machine.env.advance_us(HOUR)
    machine.look()
    assert age_of(store) == Age(1, 0), "what was before it is not known"
    machine.env.advance_us(SECOND - 1)
    machine.look()
    assert age_of(store) == Age(1, 0), "too little to be stored"
    machine.env.advance_us(1)
    machine.look()
    assert age_of(store) == Age(1 + SECOND, SECOND)
    machine.env.advance_us(5)
    machine.look(store=True)
    assert age_of(store) == Age(6 + SECOND, SECOND)


@pytest.mark.parametrize("hours", [26, -26, 24 * 365 * 50])
def test_a_wrong_clock_adds_nothing(hours: int) -> None:
    """For some seconds, for good, or from the start of a process on."""
    store = Store()
    machine, other = Machine(store), Machine(store)
    other.env.jump_wall_us(hours * HOUR)
    for each in (machine, other):
        each.look()
    for jump in (hours, -hours, hours, 0, 0):
        machine.env.jump_wall_us(jump * HOUR)
        for each in (machine, other):
            each.env.advance_us(SECOND)
            each.look()
    assert 3 * SECOND < age_of(store).age_us <= 1 + 5 * SECOND, "they have counted the same seconds"


@pytest.mark.probe("age.counted-by-another")
def test_two_janitors_do_not_count_twice() -> None:
    store = Store()
    machine, other = Machine(store), Machine(store)
    for each in (machine, other):
        each.look()
        each.env.advance_us(SECOND)
    machine.stop = lambda _: other.look()  # between its read and its commit
    machine.look()
    assert age_of(store).age_us == 1 + SECOND


def test_what_a_stopped_process_has_not_seen_pass_is_not_counted_again() -> None:
    """It is stopped behind its first read: the others have counted that time already."""
    store = Store()
    machine, other = Machine(store), Machine(store)
    other.look()

    def stopped(_: int) -> None:
        for each in (machine, other):
            each.env.advance_us(SECOND)

    machine.stop = stopped
    machine.look()
    machine.stop = lambda _: None
    other.look()
    machine.look()
    assert age_of(store).age_us == 1 + SECOND


acts = st.lists(
    st.tuples(
        st.sampled_from(["look", "store", "jump", "pass", "stop", "new"]),
        st.integers(0, 2),
        st.integers(-3 * HOUR, 3 * HOUR),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=300)
@given(acts=acts, found_at=st.integers(0, 20))
def test_an_age_never_proves_more_than_has_passed(acts: list[tuple[str, int, int]], found_at: int) -> None:
    """Machines whose clocks jump, which stop anywhere and begin anew, and something that is found at some time."""
    store = Store()
    machines = [Machine(store, every_us=each) for each in (0, SECOND, HOUR)]
    real_us, found_us, since_us = 0, 0, 1

    def passes(by_us: int) -> None:
        nonlocal real_us
        real_us += by_us
        for each in machines:
            each.env.advance_us(by_us)

    for number, (act, which, by_us) in enumerate(acts):
        machine = machines[which]
        if number == found_at:
            found_us, since_us = real_us, age_of(store).age_us
        match act:
            case "look" | "store":
                machine.look(store=act == "store")
            case "jump":
                machine.env.jump_wall_us(by_us)
            case "pass":
                passes(abs(by_us) // 100)
            case "stop":
                machine.stopped_us, machine.stop = abs(by_us) // 100, passes
                machine.look(store=True)
            case _:
                machines[which] = Machine(store, every_us=which * SECOND)
                machines[which].env.advance_us(real_us)
        found = age_of(store)
        proved_us = found.age_us - since_us - found.step_us
        if number >= found_at:
            assert proved_us <= real_us - found_us
            assert not found.has_passed(real_us - found_us + 1, since_us=since_us)
