"""A host outside the cluster that answers effects without having claimed them.

Its answers come much later, once more, or for an intent that no world has asked for. Worlds must ignore them.
"""

from __future__ import annotations

import asyncio
import random

from worldline.layers import inbox as inboxes
from worldline.model import inbox, payload
from worldline.model.world_records import TAKES_INPUT
from worldline.sim.faults.faulty_store import Faults
from worldline.sim.hosts import remaining
from worldline.sim.hosts.company import Find
from worldline.sim.load.history import Called
from worldline.sim.runtime.sim_loop import ROGUE, SimLoop, SimMachine
from worldline.sim.runtime.truth import Truth
from worldline.store import kv

DEDUPE_US = 10**12


class Rogue:
    """`find`: the world that asked for an intent, and whether it still waits for the answer."""

    def __init__(self, loop: SimLoop, seed: int, truth: Truth, faults: Faults, *, find: Find) -> None:
        self._loop = loop
        self._truth = truth
        self._faults = faults
        self._find = find
        self._draws = random.Random(f"{seed}:rogue")

    def called(self, call: Called) -> None:
        """An effect has reached the outside; it may be answered a second time."""
        if self._faults.active and self._draws.random() * 100 < self._faults.profile.adapters.double:
            self._loop.start(SimMachine(ROGUE), self._answer_again(call), name="answers again")

    async def _answer_again(self, call: Called) -> None:
        await asyncio.sleep(self._draws.choice([5, 15]))
        intent, wrong = bytes.fromhex(call.key), self._draws.random() < 0.3
        at, open_still = self._find(intent)
        if at is None or (open_still and not wrong) or remaining.status(self._truth, at) not in TAKES_INPUT:
            return  # an early answer would be an answer
        receipt = inbox.EffectReceipt(
            self._draws.randbytes(16) if wrong else intent, inbox.ReceiptStatus.OK, payload.EMPTY, call.attempt
        )
        batch = kv.Batch()
        client_id = f"rogue-{self._draws.randbytes(8).hex()}"
        now_us = self._truth.time_us()
        inboxes.enqueue(batch, at, receipt, client_id=client_id, time_us=now_us, window_us=DEDUPE_US)
        await self._truth.commit(SimMachine(ROGUE), batch)
