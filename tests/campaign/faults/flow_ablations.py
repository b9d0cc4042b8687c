"""The guards of flow domains, switched off: see `ablations.py`.

Two guards of the Host contract are about runners, which worlds do not have: that the mailbox is checked again, and that
a kick which a runner blocks is remembered. `tests/flow/test_contract_ablations.py` switches them off in the standalone
host. In a world, `scan` does what they do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

from worldline.flow_core import jobs
from worldline.kernel import step as kernel_step
from worldline.kernel.authoring.program import RESERVED
from worldline.kernel.machine import Machine
from worldline.kernel.parts import StepParts
from worldline.kernel.rows.row_records import Outcome
from worldline.keys import work as work_keys
from worldline.model import ids, inbox
from worldline.model.work import WorkKind
from worldline.sim.runtime import keyspaces
from worldline.store import kv

_Receipt = Callable[[Machine, inbox.EffectReceipt, bytes, StepParts], str]


@contextlib.contextmanager
def patched(without: str) -> Iterator[None]:
    """Switched off for the length of a block. What is no guard of flow domains stays on."""
    match without:
        case "flow-pending":
            taking = mock.patch.object(kernel_step, "_receipt", _taking_late(kernel_step._receipt))
            with taking, mock.patch.object(jobs, "is_pending", return_value=True):
                yield
        case "flow-clear":
            with mock.patch.object(jobs, "must_clear", lambda failure: failure is None):
                yield
        case "flow-tombstone":
            with mock.patch.object(jobs, "refused_again", return_value=None):
                yield
        case "flow-order":
            with mock.patch.object(jobs, "is_next", return_value=True):
                yield
        case "flow-seed":
            with mock.patch.object(jobs, "seed", lambda _, head: head.meta.random_seed):
                yield
        case _:
            yield


def _taking_late(real: _Receipt) -> _Receipt:
    """An outcome is taken by its cell, whether its effect is still open or not."""
    targets: dict[bytes, str] = {}

    def receipt(machine: Machine, item: inbox.EffectReceipt, data: bytes, parts: StepParts) -> str:
        pending = machine.work.find_open(ids.IntentId(item.intent))
        if pending is not None and pending.event:
            targets[item.intent] = pending.event
        dead = real(machine, item, data, parts)
        if pending is None and item.intent in targets:
            parts.domains.fulfil(machine, targets[item.intent], Outcome(item.status, data))
        return dead

    return receipt


def is_required(put: kv.Put) -> bool:
    """Whether a batch opens this for a flow domain: an effect of no run, and none of the hosts' own."""
    if keyspaces.place(put.key).what != "open":
        return False
    work = work_keys.WORK.unpack(put.value)
    return work.kind is WorkKind.EFFECT and not work.correlation and not work.name.startswith(RESERVED)
