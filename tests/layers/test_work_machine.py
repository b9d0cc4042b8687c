"""Open work against a model: adapters that are paused and act on what they read long ago, timers, cancels, disasters.

The model counts the changes of every intent. An act that rests on the present version must succeed, one that rests on
an older version must lose and change nothing. After every rule the whole store is read: states are the model's, every
intent that somebody must act on has exactly one matching pointer, and has been answered at most once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st

from tests.layers import desk, scenario
from tests.layers.scenario import SECOND, Store
from worldline.base import errors
from worldline.keys import work as keys
from worldline.layers import work
from worldline.model import ids
from worldline.model import inbox as inbox_model
from worldline.model.work import Work, WorkKind, WorkState
from worldline.store import kv, transact

AT = scenario.address(0)
QUEUES = ("http", "timers")
FATES = st.lists(st.sampled_from(["lost", "applied", "late"]), max_size=2)


@dataclasses.dataclass
class Intent:
    number: int
    wanted: Work
    state: WorkState = WorkState.WAITING
    due_us: int = 0
    attempt: int = 0
    version: int = 0
    is_open: bool = True
    answers: int = 0
    repaired: bool = False  # then it may have the very bytes of an older version again


@dataclasses.dataclass(frozen=True)
class View:
    """What an adapter read or wrote last of an intent."""

    intent: Intent
    opened: work.Open
    version: int

    @property
    def is_fresh(self) -> bool:
        return self.intent.is_open and self.version == self.intent.version


class Works(stateful.RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.unsure = scenario.Unsure(self.store.engine)
        self.world = self.store.create_world(0)
        self.intents: list[Intent] = []
        self.views: list[View] = []
        self.found: list[tuple[work.DuePointer, work.Open | None]] = []  # garbage that somebody means to delete
        self.counter = 0

    # --- the world's steps --------------------------------------------------------------------------------

    @stateful.rule(
        kind=st.sampled_from([WorkKind.EFFECT, WorkKind.TIMER]),
        queue=st.sampled_from(QUEUES),
        delay_us=st.sampled_from([0, SECOND, 60 * SECOND]),
        claimed=st.booleans(),
    )
    def open(self, kind: WorkKind, queue: str, delay_us: int, claimed: bool) -> None:
        number = self.next()
        due_us = self.store.time_us + delay_us
        wanted = desk.wanted(self.store, kind=kind, queue=queue, due_us=due_us)
        intent = Intent(number, wanted, due_us=due_us)
        self.intents.append(intent)
        batch = desk.stepping(number)
        if not claimed or kind is WorkKind.TIMER:
            work.open_work(batch, AT, desk.intent_id(number), wanted)
            self.store.ok(batch)
            return
        token, worker, until_us = scenario.token(number), scenario.worker_id(number), self.store.time_us + SECOND
        held = work.open_claimed(
            batch, AT, desk.intent_id(number), wanted, token=token, worker=worker, until_us=until_us
        )
        self.store.ok(batch)
        intent.state, intent.attempt, intent.due_us = WorkState.CLAIMED, 1, until_us
        self.views.append(View(intent, held, intent.version))

    @stateful.precondition(lambda self: any(intent.is_open for intent in self.intents))
    @stateful.rule(data=st.data(), cancel=st.booleans())
    def close(self, data: st.DataObject, cancel: bool) -> None:
        """The answer was consumed, or the world changes its mind whatever the state is."""
        intent = data.draw(st.sampled_from([each for each in self.intents if each.is_open]))
        if not cancel and intent.state is not WorkState.SETTLED:
            return
        wanted = intent.wanted if cancel else None
        self.store.ok(desk.cancelling(AT, intent.number, wanted, step=self.next()))
        intent.is_open = False

    # --- adapters and timer workers -----------------------------------------------------------------------

    @stateful.rule(by_us=st.sampled_from([SECOND, 30 * SECOND, 60 * SECOND]))
    def time_passes(self, by_us: int) -> None:
        self.store.env.advance_us(by_us)

    @stateful.rule(queue=st.sampled_from(QUEUES), count_max=st.integers(1, 3))
    def look(self, queue: str, count_max: int) -> None:
        found = desk.due(self.store, queue=queue, count_max=count_max)
        order = [(each.pointer.due_us, each.pointer.at.world, each.pointer.intent) for each in found]
        assert order == sorted(order)
        for each in found:
            authority = desk.find(self.store, AT, each.pointer.intent)
            if authority is not None and work.matches(each, authority):
                intent = self.intent(each.pointer.intent)
                assert intent.due_us <= self.store.time_us
                self.views.append(View(intent, authority, intent.version))
            else:
                self.found.append((each, authority))

    @stateful.precondition(lambda self: any(intent.is_open for intent in self.intents))
    @stateful.rule(data=st.data())
    def show(self, data: st.DataObject) -> None:
        """An operator looks at something open, due or not."""
        intent = data.draw(st.sampled_from([each for each in self.intents if each.is_open]))
        self.views.append(View(intent, desk.authority(self.store, AT, intent.number), intent.version))

    @stateful.precondition(lambda self: self.found)
    @stateful.rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        found, authority = data.draw(st.sampled_from(self.found))
        batch = kv.Batch()
        work.discard(batch, found, authority)
        present = desk.find(self.store, AT, found.pointer.intent)
        there = self.store.value(found.key) == found.raw
        if there and (authority is None or (present is not None and present.raw == authority.raw)):
            self.store.ok(batch)
        else:
            self.store.conflict(batch)

    @stateful.precondition(lambda self: self.views)
    @stateful.rule(data=st.data(), fates=FATES)
    def claim(self, data: st.DataObject, fates: list[str]) -> None:
        view = data.draw(st.sampled_from(self.views))
        if view.opened.work.kind is WorkKind.TIMER:
            return
        now_us, number = self.store.time_us, self.next()

        def build(batch: kv.Batch) -> work.Open:
            if work.has_died_again(view.opened) and view.opened.work.due_us <= now_us:
                return work.count_death(batch, view.opened, now_us=now_us)
            return work.claim(
                batch,
                view.opened,
                worker=scenario.worker_id(number),
                token=scenario.token(number),
                now_us=now_us,
                until_us=now_us + desk.CLAIM_US,
            )

        claimable = view.opened.work.state in (WorkState.WAITING, WorkState.CLAIMED)
        self.act(view, build, fates, allowed=claimable and view.opened.work.due_us <= now_us)

    @stateful.precondition(lambda self: self.views)
    @stateful.rule(data=st.data(), fates=FATES, move=st.sampled_from(["renew", "back_off", "park", "take_back"]))
    def hold(self, data: st.DataObject, fates: list[str], move: str) -> None:
        view = data.draw(st.sampled_from(self.views))
        later_us = self.store.time_us + data.draw(st.sampled_from([0, SECOND, 60 * SECOND]))

        def build(batch: kv.Batch) -> work.Open:
            if move == "renew":
                return work.renew(batch, view.opened, until_us=later_us)
            if move == "back_off":
                return work.back_off(batch, view.opened, due_us=later_us, now_us=self.store.time_us, error="refused")
            if move == "take_back":
                return work.take_back(batch, view.opened, now_us=later_us, died=False)
            return work.park(batch, view.opened, now_us=self.store.time_us, error="gave up")

        self.act(view, build, fates, allowed=view.opened.work.state is WorkState.CLAIMED)

    @stateful.precondition(lambda self: self.views)
    @stateful.rule(data=st.data(), fates=FATES)
    def retry(self, data: st.DataObject, fates: list[str]) -> None:
        view = data.draw(st.sampled_from(self.views))
        due_us = self.store.time_us

        def build(batch: kv.Batch) -> work.Open:
            return work.retry(batch, view.opened, due_us=due_us)

        self.act(view, build, fates, allowed=view.opened.work.state is WorkState.PARKED)

    @stateful.precondition(lambda self: self.views)
    @stateful.rule(data=st.data(), fates=FATES)
    def move_by_hand(self, data: st.DataObject, fates: list[str]) -> None:
        view = data.draw(st.sampled_from(self.views))
        now_us, before = self.store.time_us, view.opened.work

        def build(batch: kv.Batch) -> work.Open:
            if before.kind is WorkKind.TIMER:
                return work.move_due(batch, view.opened, now_us=now_us, due_us=now_us + SECOND)
            return work.set_aside(batch, view.opened, now_us=now_us, error="by hand")

        if before.kind is WorkKind.TIMER:
            allowed = before.state is WorkState.WAITING and before.due_us != now_us + SECOND
        else:
            expired = before.state is WorkState.CLAIMED and before.due_us <= now_us
            allowed = before.state is WorkState.WAITING or expired
        self.act(view, build, fates, allowed=allowed)

    @stateful.precondition(lambda self: self.views)
    @stateful.rule(data=st.data(), fates=FATES)
    def settle(self, data: st.DataObject, fates: list[str]) -> None:
        view = data.draw(st.sampled_from(self.views))

        def build(batch: kv.Batch) -> work.Open | None:
            made = desk.settling(view.opened, self.world)
            copy(made, batch)
            return None

        if self.act(view, build, fates, allowed=view.opened.work.state is WorkState.CLAIMED):
            view.intent.answers += 1

    @stateful.precondition(lambda self: self.views)
    @stateful.rule(data=st.data(), fates=FATES)
    def fire(self, data: st.DataObject, fates: list[str]) -> None:
        view = data.draw(st.sampled_from(self.views))
        if view.opened.work.kind is WorkKind.EFFECT:
            return
        number = self.next()

        def build(batch: kv.Batch) -> work.Open | None:
            copy(desk.firing(self.store, view.opened, number, self.world), batch)
            return None

        waiting = view.opened.work.state is WorkState.WAITING
        if self.act(view, build, fates, allowed=waiting and view.opened.work.due_us <= self.store.time_us):
            view.intent.answers += 1

    def act(
        self, view: View, build: Callable[[kv.Batch], work.Open | None], fates: list[str], *, allowed: bool
    ) -> bool:
        """Build and commit a change. It must be refused, lose or succeed as the model says."""
        batch = kv.Batch()
        try:
            after = build(batch)
        except (errors.Closed, errors.Exists):
            assert not allowed, "refused without a reason"
            return False
        assert allowed, "must be refused"
        before = self.store.everything()
        same = before.get(keys.open_key(AT, view.opened.intent)) == view.opened.raw
        fresh = view.is_fresh or (view.intent.repaired and view.intent.is_open and same)
        self.unsure.plan.extend(fates)
        [outcome] = scenario.now(transact.commit(self.unsure, self.store.env, batch))
        self.unsure.plan.clear()
        if not fresh:
            assert self.store.everything() == before
            if isinstance(outcome, kv.Conflict):
                assert work.lost(outcome, view.opened)
            else:  # the same act of the same claimant once more: it finds its own bytes, and nothing happens twice
                key = keys.open_key(AT, view.opened.intent)
                assert fates
                assert before[key] == batch.puts[key].value
            return False
        assert isinstance(outcome, kv.Ok)
        intent = view.intent
        present = desk.authority(self.store, AT, intent.number)
        assert after is None or present == after
        intent.state, intent.due_us, intent.attempt = present.work.state, present.work.due_us, present.work.attempt
        intent.version += 1
        self.views.append(View(intent, present, intent.version))
        return True

    # --- disasters ----------------------------------------------------------------------------------------

    @stateful.rule(lost=st.sampled_from(["due", "open", "both"]))
    def lose_the_queues_and_repair(self, lost: str) -> None:
        """Queues are derived: what the journal says is open and unanswered is all that is needed."""
        before = self.store.everything()
        if lost in ("due", "both"):
            self.store.erase([found.key for found in desk.pointers(self.store)])
        if lost in ("open", "both"):
            self.store.erase([key for key, _ in self.store.under(*keys.open_work(AT))])
        for intent in self.intents:
            if not intent.is_open:
                continue
            if intent.answers:
                intent.is_open = lost == "due"
                continue
            authority = desk.find(self.store, AT, desk.intent_id(intent.number))
            changed, batch = self.repairing(intent, authority)
            assert changed == (authority is None or intent.state in work.CLAIMABLE)
            if changed:
                self.store.ok(batch)
            if authority is None:
                present = desk.authority(self.store, AT, intent.number)
                assert present.work.due_us >= intent.wanted.due_us
                intent.state, intent.due_us, intent.attempt = WorkState.WAITING, present.work.due_us, 0
                intent.repaired = True
                intent.version += before[keys.open_key(AT, present.intent)] != present.raw

    @stateful.invariant()
    def repair_finds_nothing_to_do(self) -> None:
        for intent in self.intents:
            if intent.is_open:
                changed, batch = self.repairing(intent, desk.authority(self.store, AT, intent.number))
                assert not changed
                assert not batch.puts

    # --- what must hold -----------------------------------------------------------------------------------

    @stateful.invariant()
    def store_is_the_model(self) -> None:
        self.store.env.advance_us(1)
        desk.check_reachable(self.store, AT)
        opened = work.decode_open(AT, self.store.read(work.open_range(AT, count_max=100_000)).page(0))
        stored = {each.intent: (each.work.state, each.work.due_us, each.work.attempt) for each in opened}
        assert stored == {
            desk.intent_id(intent.number): (intent.state, intent.due_us, intent.attempt)
            for intent in self.intents
            if intent.is_open
        }
        answers: dict[bytes, int] = {}
        for item in self.store.items(AT):
            assert isinstance(item, inbox_model.EffectReceipt | inbox_model.TimerFired)
            answers[item.intent] = answers.get(item.intent, 0) + 1
        assert answers == {desk.intent_id(each.number): each.answers for each in self.intents if each.answers}
        assert all(intent.answers <= 1 for intent in self.intents)

    def teardown(self) -> None:
        """Whatever happened: honest workers finish what is open and sweep what is garbage, from the queues alone."""
        for intent in self.intents:
            if intent.is_open and intent.state is WorkState.PARKED:
                self.store.ok(desk.cancelling(AT, intent.number, None, step=self.next()))
                intent.is_open = False
        self.store.env.advance_us(3_600 * SECOND)
        for queue in QUEUES:
            while found := desk.due(self.store, queue=queue, count_max=2):
                for each in found:
                    self.finish(each)
        assert desk.pointers(self.store) == []
        states = [state for state, _ in desk.states(self.store, AT)]
        assert states == [WorkState.SETTLED] * len(states)

    def finish(self, found: work.DuePointer) -> None:
        authority = desk.find(self.store, AT, found.pointer.intent)
        if authority is None or not work.matches(found, authority):
            batch = kv.Batch()
            work.discard(batch, found, authority)
            self.store.ok(batch)
        elif authority.work.kind is WorkKind.TIMER:
            self.store.ok(desk.firing(self.store, authority, self.next(), self.world))
        elif work.has_died_again(authority):
            batch = kv.Batch()
            work.count_death(batch, authority, now_us=self.store.time_us)
            self.store.ok(batch)
            self.store.env.advance_us(work.DEATH_PAUSE_MAX_US)
        else:
            held = desk.claim(self.store, authority, self.next())
            self.store.ok(desk.settling(held, self.world))

    # --- helpers ------------------------------------------------------------------------------------------

    def repairing(self, intent: Intent, authority: work.Open | None) -> tuple[bool, kv.Batch]:
        batch = kv.Batch()
        changed = work.repair(
            batch,
            AT,
            desk.intent_id(intent.number),
            intent.wanted,
            head_raw=self.store.head_raw(AT),
            now_us=self.store.time_us,
            authority=authority,
            pointers=desk.pointing_to(self.store, AT, intent.number),
        )
        return changed, batch

    def next(self) -> int:
        self.counter += 1
        return self.counter

    def intent(self, of: ids.IntentId) -> Intent:
        [intent] = [each for each in self.intents if desk.intent_id(each.number) == of]
        return intent


def copy(made: kv.Batch, batch: kv.Batch) -> None:
    """Fill a batch with what another one holds."""
    batch.expects, batch.puts, batch.deletes, batch.appends = made.expects, made.puts, made.deletes, made.appends


TestWorks = Works.TestCase
TestWorks.settings = hypothesis.settings(max_examples=60, stateful_step_count=50)
