"""What waits in an inbox before the hosts start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.campaign.load import programs
from worldline.kernel import user_values
from worldline.layers import inbox as inboxes
from worldline.layers import worlds
from worldline.model import ids, inbox, payload
from worldline.sim.load.history import ClientOp, History
from worldline.sim.runtime.truth import Truth
from worldline.store import kv

AT_ONCE = 50
DEDUPE_US = 10**12


async def fill(
    engine: kv.Engine, ops: Sequence[ClientOp], addresses: Mapping[str, ids.Address], history: History, truth: Truth
) -> None:
    for first in range(0, len(ops), AT_ONCE):
        part, batch = ops[first : first + AT_ONCE], kv.Batch()
        at = addresses[part[0].world]
        worlds.expect_open(batch, worlds.decode(at, (await engine.read(worlds.get(at))).value(0)))
        for op in part:
            history.begin(op)
            event = programs.Add(op.id, op.amount)
            history.sends(op, event)
            item = inbox.InboxEvent(user_values.schema_name(programs.Add), payload.inline(user_values.dump(event)))
            now_us = truth.time_us()
            inboxes.enqueue(batch, at, item, client_id=op.id, time_us=now_us, window_us=DEDUPE_US)
        await engine.commit(batch)
        for op in part:
            history.acked(op)
            history.answer(op, "waits")
