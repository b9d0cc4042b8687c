"""A forger with the whole store before its eyes: it knows the id of every question, and the ticket that goes with it.

It puts answers of other worlds than the one that was asked right into the inbox of the world that asks, most often
before the answer. No door would let them through: this is for the last guard, in the kernel of the asking world.
"""

from __future__ import annotations

import asyncio
import random

from tests.campaign.hosts.rogue import DEDUPE_US
from tests.campaign.load import forgers
from worldline.codec import structs
from worldline.kernel import event_dispatch, user_values
from worldline.keys import inbox as inbox_keys
from worldline.layers import inbox as inboxes
from worldline.model import ids, inbox, payload
from worldline.model.inbox import MessageMode, Reply
from worldline.model.world_records import TAKES_INPUT
from worldline.sim.faults.faulty_store import Faults
from worldline.sim.hosts import remaining
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.sim_loop import ROGUE, SimLoop, SimMachine
from worldline.sim.runtime.truth import AppliedBatch, Truth
from worldline.store import kv


class Forger:
    """`others`: worlds that answers are forged of."""

    def __init__(self, loop: SimLoop, seed: int, truth: Truth, faults: Faults, *, others: list[ids.Address]) -> None:
        self._loop = loop
        self._truth = truth
        self._faults = faults
        self._others = others
        self._draws = random.Random(f"{seed}:forger")

    def look(self, applied: AppliedBatch) -> None:
        """A batch was applied: questions in it may be answered in another's place."""
        for append in applied.batch.appends:
            where = keyspaces.place(append.prefix + kv.ZERO_STAMP)
            if where.what != "inbox" or not self._faults.active:
                continue
            item = inbox_keys.ITEM.unpack(append.value)
            if isinstance(item, inbox.Message) and item.reply is Reply.MESSAGE and self._draws.random() < 0.5:
                self._loop.start(SimMachine(ROGUE), self._answer(item), name="forges")

    async def _answer(self, question: inbox.Message) -> None:
        await asyncio.sleep(self._draws.choice([0, 0, 0.01, 1]))
        asker = ids.Address(ids.UniverseId(question.from_universe), ids.WorldId(question.from_world))
        sender = self._draws.choice(self._others)
        if remaining.status(self._truth, asker) not in TAKES_INPUT:
            return
        data = structs.encode(event_dispatch.Answer(True, user_values.dump(forgers.FORGED)))
        reply = inbox.Message(
            self._draws.randbytes(16),
            sender.universe,
            sender.world,
            1,
            MessageMode.TYPED,
            event_dispatch.REPLY,
            payload.inline(data),
            {},
            correlation=question.message.hex(),
            world="forged",
        )
        if isinstance(question, inbox.Vouched) and self._draws.random() < 0.5:
            reply = reply.vouched(ticket=question.ticket)  # stolen
        batch = kv.Batch()
        client_id = f"forged-{self._draws.randbytes(8).hex()}"
        now_us = self._truth.time_us()
        inboxes.enqueue(batch, asker, reply, client_id=client_id, time_us=now_us, window_us=DEDUPE_US)
        await self._truth.commit(SimMachine(ROGUE), batch)
