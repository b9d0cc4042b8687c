"""What the offices promise when all is over: each parcel and each question is there once or not at all, as its sender
was told; and worlds elsewhere are checked as those here are.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.campaign.hosts import crew as crews
from tests.campaign.load import offices
from worldline.api.world_api import World
from worldline.base import errors
from worldline.base.failures import Diverged
from worldline.sim.check import checkers, message_checks
from worldline.sim.check.audit import Audit
from worldline.sim.hosts.cluster import Cluster
from worldline.sim.load.history import ClientOp
from worldline.sim.load.scenarios import UNIVERSE

UNCERTAIN = ("expired",)  # whether it was taken before cannot be known


async def at_end(cluster: Cluster, audit: Audit, sent: message_checks.Messages, left: Sequence[str]) -> None:
    """Everything that is checked of other universes when a run has come to rest."""
    crew = crews.of(cluster)
    elsewhere = crew.elsewhere
    if elsewhere is None:
        return
    truth = elsewhere.truth
    checkers.same_contents(await checkers.contents(truth.engine), truth.copy, audit)
    ledgers: dict[str, offices.Ledger] = {}
    for away, prefix in (
        (elsewhere.next, f"{offices.NEXT}/"),
        (elsewhere.abroad, f"{offices.OVERSEAS}:{offices.ABROAD}/"),
    ):
        link = elsewhere.reader(away)
        for name in offices.WORLDS:
            try:
                await checkers.replayed(link, name, audit)
            except (errors.Error, Diverged) as error:
                audit.broken("R3", f"{prefix}{name}: {error}")
            ledgers[prefix + name] = await World(link, name).state(offices.Ledger)
    if left:
        return
    for op in [each for each in crew.acted() if each.kind in ("dispatch", "enquire")]:
        _kept(op, cluster.history.answered.get(op.id), ledgers, audit, sent)


def _kept(
    op: ClientOp, answer: object, ledgers: dict[str, offices.Ledger], audit: Audit, sent: message_checks.Messages
) -> None:
    if not isinstance(answer, list):
        return  # J1 says so
    ledger = ledgers[op.to]
    times, failed = ledger.came.get(op.id, 0), len(answer) == 1
    wanted = (0, 1) if answer[0] in UNCERTAIN else (0,) if failed else (1,)
    if times not in wanted:
        audit.broken("PROGRAM", f"{op.kind} {op.id} to {op.to} ended {answer} and came {times} times")
    if times and ledger.senders[op.id] != UNIVERSE:
        audit.broken("F4", f"{op.id} came from {ledger.senders[op.id]!r}")
    if times and "/sealed" in op.to:
        audit.broken("F4", f"{op.id} came to {op.to}, which takes nothing")
    if not failed and op.kind == "dispatch":
        sent.receipt(op.id, answer)
    if not failed and op.kind == "enquire" and answer != ["answer", f"told {op.id}"]:
        audit.broken("PROGRAM", f"{op.id} got the answer {answer}")
