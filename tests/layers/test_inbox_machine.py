"""The inbox against a model of dicts, with answers that get lost.

J1: every item that was acknowledged is in exactly one place. J2: one id is one item, with the first stamp. J5: items
are consumed in the order of their stamps.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.layers import scenario
from worldline.base import env as envs
from worldline.base import errors
from worldline.codec import digest
from worldline.keys import inbox as keys
from worldline.layers import inbox, worlds
from worldline.model import inbox as model
from worldline.model import world_records as world_model
from worldline.model.age import Age
from worldline.store import kv, transact

AT = scenario.address()
WINDOW_US = scenario.WINDOW_US
GARBAGE = b"garbage"

fates = st.lists(st.sampled_from(["lost", "applied", "late"]), max_size=2)
texts = st.sampled_from(["a", "b"])
slots = st.integers(0, 1)


class Known(NamedTuple):
    """What the model knows of an id's record."""

    text: str
    time_us: int
    stamp: kv.Stamp
    found_us: int | None = None  # the age of the universe when a janitor came across it


class InboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = scenario.Store()
        self.world = self.store.create_world()
        self.made = [self._new_id() for _ in range(2)]
        self.chosen = ["order-1", "long" * 20]
        self.seen: dict[bytes | str, Known] = {}
        self.unread: dict[kv.Stamp, bytes] = {}
        self.dead: dict[kv.Stamp, bytes] = {}
        self.journaled: list[kv.Stamp] = []
        self.gone: list[kv.Stamp] = []  # dropped, or put back under another stamp
        self.acked: dict[kv.Stamp, None] = {}
        self.letters: list[inbox.DeadLetterRecord] = []  # as somebody read them some time ago
        self.guards = 0
        self.age_us = 1

    def _new_id(self) -> bytes:
        return envs.new_id(self.store.env)

    def _commit(self, batch: kv.Batch, plan: list[str]) -> transact.Certain:
        """Through the retry loop, on an engine that loses answers."""
        unsure = scenario.Unsure(self.store.engine, plan)
        [outcome] = scenario.now(transact.commit(unsure, self.store.env, batch))
        return outcome

    def _guarded(self) -> kv.Batch:
        """A step's batch; the guard stands for the head."""
        self.guards += 1
        batch = kv.Batch()
        batch.absent(b"head%d" % self.guards)
        batch.put(b"head%d" % self.guards, b"")
        return batch

    def _took(self, stamp: kv.Stamp, raw: bytes) -> None:
        assert all(stamp > other for other in self.acked)
        self.acked[stamp] = None
        self.unread[stamp] = raw

    @rule(slot=slots, text=texts, plan=fates)
    def enqueue_made(self, slot: int, text: str, plan: list[str]) -> None:
        made = self.made[slot]
        age_us = self.store.time_us - envs.id_time_us(made)
        if age_us > WINDOW_US:
            with pytest.raises(errors.DedupeExpired):
                self._enqueue(made, text, plan)
        else:
            self._enqueue(made, text, plan)

    @rule(slot=slots, text=texts, plan=fates)
    def enqueue_chosen(self, slot: int, text: str, plan: list[str]) -> None:
        self._enqueue(self.chosen[slot], text, plan)

    def _enqueue(self, client_id: bytes | str, text: str, plan: list[str]) -> None:
        item = scenario.event(text)
        time_us = self.store.time_us
        batch = kv.Batch()
        worlds.expect_open(batch, self.world)
        inbox.enqueue(batch, AT, item, client_id=client_id, time_us=time_us, window_us=WINDOW_US)
        outcome = self._commit(batch, plan)
        known = self.seen.get(client_id)
        if known is None:
            assert isinstance(outcome, kv.Ok)
            [stamp] = outcome.stamps
            self._took(stamp, keys.ITEM.pack(item))
            self.seen[client_id] = Known(text, time_us, stamp)
        elif isinstance(outcome, kv.Ok):
            # A repeat whose own answer was lost finds its very record, and takes the first success for its own.
            assert (known.text, known.time_us, [known.stamp]) == (text, time_us, [*outcome.stamps])
            assert plan
        elif known.text == text:
            assert scenario.first_stamp(outcome, AT, item, client_id=client_id) == known.stamp
        else:
            with pytest.raises(errors.IdReused):
                scenario.first_stamp(outcome, AT, item, client_id=client_id)

    @rule(plan=fates)
    def enqueue_once(self, plan: list[str]) -> None:
        batch = self._guarded()
        inbox.enqueue_once(batch, AT, scenario.event("once"))
        outcome = self._commit(batch, plan)
        assert isinstance(outcome, kv.Ok)
        [stamp] = [each.stamp for each in self.store.unread(AT) if each.stamp not in self.acked]
        assert [*outcome.stamps] in ([], [stamp])
        self._took(stamp, keys.ITEM.pack(scenario.event("once")))

    @rule()
    def garbage_gets_in(self) -> None:
        batch = self._guarded()
        batch.append(keys.item_prefix(AT), GARBAGE)
        [stamp] = self.store.ok(batch).stamps
        self._took(stamp, GARBAGE)

    @rule(count_max=st.integers(1, 4), fails=st.integers(0, 3), plan=fates)
    def step(self, count_max: int, fails: int, plan: list[str]) -> None:
        """Consume the first items in order; bury what cannot be decoded, and one that the handler refuses."""
        page = self.store.read(inbox.read_range(AT, count_max=count_max)).page(0)
        batch = self._guarded()
        taken = inbox.decode(page.items)
        assert [each.stamp for each in taken] == sorted(self.unread)[: len(taken)]
        assert page.more == (len(self.unread) > count_max)
        buried = [each for index, each in enumerate(taken) if each.item is None or index == fails]
        inbox.consume(batch, AT, [each.stamp for each in taken if each not in buried])
        for each in buried:
            inbox.bury(batch, AT, each, reason=each.error or "refused", step=1, time_us=2)
        assert isinstance(self._commit(batch, plan), kv.Ok)
        for each in taken:
            raw = self.unread.pop(each.stamp)
            assert raw == each.raw
            assert (each.item is None) == (raw == GARBAGE)
            if each in buried:
                self.dead[each.stamp] = raw
            else:
                self.journaled.append(each.stamp)
        self.letters += inbox.decode_dead(self.store.read(inbox.dead_range(AT, count_max=100)).page(0).items)

    @precondition(lambda self: self.letters)
    @rule(data=st.data(), plan=fates, retry=st.booleans())
    def take_out_a_letter(self, data: st.DataObject, plan: list[str], retry: bool) -> None:
        letter = data.draw(st.sampled_from(self.letters))
        batch = kv.Batch()
        if retry:
            worlds.expect_open(batch, self.world)
            inbox.retry_dead(batch, AT, letter, client_id=self._new_id(), time_us=self.store.time_us)
        else:
            inbox.drop_dead(batch, AT, letter)
        outcome = self._commit(batch, plan)
        if letter.stamp not in self.dead:
            # To drop what is gone is no loss, so a repeated drop may take another's success for its own.
            assert isinstance(outcome, kv.Conflict) or (plan and not retry)
            return
        assert isinstance(outcome, kv.Ok)
        raw = self.dead.pop(letter.stamp)
        assert raw == letter.dead.item
        self.gone.append(letter.stamp)
        if retry:
            [stamp] = outcome.stamps
            self._took(stamp, raw)

    @rule(status=st.sampled_from([world_model.Status.PAUSED, world_model.Status.ACTIVE]))
    def change_the_world(self, status: world_model.Status) -> None:
        self.world = self.store.set_status(AT, status)

    @rule(by_us=st.sampled_from([1_000, WINDOW_US // 2, WINDOW_US, 2 * WINDOW_US]))
    def time_passes(self, by_us: int) -> None:
        self.store.env.advance_us(by_us)

    @rule(slot=slots)
    def make_another_id(self, slot: int) -> None:
        self.made[slot] = self._new_id()

    @rule(plan=fates, count_max=st.integers(1, 5), passes_us=st.sampled_from([0, WINDOW_US // 2, WINDOW_US]))
    def forget(self, plan: list[str], count_max: int, passes_us: int) -> None:
        """A janitor looks at some records. The time it has counted is less than what has passed by the clock."""
        self.age_us += passes_us
        self.store.env.advance_us(passes_us)
        before_us = self.store.time_us - WINDOW_US
        ranges = (
            inbox.made_range(AT, before_us=before_us, count_max=count_max),
            inbox.chosen_range(AT, count_max=count_max),
        )
        items = [item for each in ranges for item in self.store.read(each).page(0).items]
        batch = kv.Batch()
        inbox.forget(batch, items, now=Age(self.age_us), window_us=WINDOW_US)
        if batch.expects:
            assert isinstance(self._commit(batch, plan), kv.Ok)
        read = [key for key, _ in items]
        for client_id, known in list(self.seen.items()):
            if keys.seen_key(AT, client_id) not in read:
                continue
            if known.found_us is None:
                self.seen[client_id] = known._replace(found_us=self.age_us)
            elif known.found_us <= self.age_us - WINDOW_US:
                del self.seen[client_id]
                if isinstance(client_id, bytes):
                    with pytest.raises(errors.DedupeExpired):
                        inbox.check_age(client_id, time_us=self.store.time_us, window_us=WINDOW_US)

    @invariant()
    def the_inbox_holds_what_is_unread_in_order(self) -> None:
        assert [(each.stamp, each.raw) for each in self.store.unread(AT)] == sorted(self.unread.items())

    @invariant()
    def the_dead_letters_are_those_buried(self) -> None:
        page = self.store.read(inbox.dead_range(AT, count_max=1000)).page(0)
        found = [(letter.stamp, letter.dead.item) for letter in inbox.decode_dead(page.items)]
        assert found == sorted(self.dead.items())

    @invariant()
    def nothing_acknowledged_is_lost_or_doubled(self) -> None:
        places = [*self.unread, *self.dead, *self.journaled, *self.gone]
        assert sorted(places) == sorted(self.acked)

    @invariant()
    def the_records_are_those_of_the_ids_in_use(self) -> None:
        used: list[bytes | str] = [*self.made, *self.chosen]
        for client_id in used:
            raw = self.store.value(keys.seen_key(AT, client_id))
            known = self.seen.get(client_id)
            assert (raw is None) == (known is None)
            if raw is not None and known is not None:
                item = scenario.event(known.text)
                assert inbox.seen_stamp(raw, item, client_id=client_id) == known.stamp
                found = model.SeenId(digest.sha256(keys.ITEM.pack(item)), known.time_us, known.found_us or 0)
                assert keys.SEEN.unpack(raw[:-12]) == found


TestInboxMachine = InboxMachine.TestCase
TestInboxMachine.settings = settings(max_examples=100, stateful_step_count=40)
