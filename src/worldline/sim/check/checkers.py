"""The invariants of the system by id, what holds each of them in simulation, and the checks at the end of a run.

`INVARIANTS` is the table. `audit` are checked with every commit (`sim/check/audit.py`), `end` here at quiescence,
`other` by a test elsewhere, `absent` when this design has nothing to break.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.api.universe_api import Universe
from worldline.base import errors, limits
from worldline.base.failures import Diverged
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.features.proofs import calls as proof_calls
from worldline.host.feature_list import FEATURES
from worldline.inspect import doctor, store_queries
from worldline.layers import snapshots as snapshot_layer
from worldline.layers.history import journal_pages
from worldline.model import journal
from worldline.runtime import store_opening, world_restore
from worldline.runtime import world_reader as readers
from worldline.sim.check import fork_checks, garbage_checks
from worldline.sim.check.audit import Audit, Violation
from worldline.sim.check.promises import Promises
from worldline.sim.hosts.cluster import Cluster
from worldline.sim.load.scenarios import UNIVERSE
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.sim_env import SimEnv
from worldline.store import kv, paging

COPIED_AT_ONCE = limits.BATCH_BYTES_MAX // (limits.VALUE_BYTES_MAX + limits.KEY_BYTES_MAX) // 2


class InvariantCheck(msgspec.Struct, frozen=True):
    """How an invariant is held: where it is checked, or why it cannot be broken."""

    where: str
    how: str


INVARIANTS = {
    "K1": InvariantCheck("end", "the engine's contents equal a plain copy made commit by commit"),
    "K2": InvariantCheck("end", "what was answered is there: K1, and every answered operation is found (J1)"),
    "K3": InvariantCheck("other", "conformance: a batch whose expectation changed is refused"),
    "K4": InvariantCheck("other", "conformance: `stable`; here by J5"),
    "K5": InvariantCheck("other", "conformance: limits"),
    "K6": InvariantCheck("end", "hints are lost, late and made up in most seeds; all other invariants hold"),
    "L1": InvariantCheck("audit", "the holder's epoch is the world's"),
    "L2": InvariantCheck("audit", "an epoch is never deleted and never repeated"),
    "L3": InvariantCheck("audit", "steps and snapshots come from the host that acquired the current epoch"),
    "L4": InvariantCheck("audit", "follows from L3: a fenced host's next commit would be one of another's epoch"),
    "L5": InvariantCheck("audit", "clocks are skewed, drift and jump in half of the seeds; L1 to L3 hold"),
    "L6": InvariantCheck("audit", "a lease is given back only by who has it"),
    "J1": InvariantCheck("end", "every answered operation is found exactly once in its world's state"),
    "J2": InvariantCheck("audit", "an id is recorded once; at the end each counts once"),
    "KEPT": InvariantCheck("audit", "an id is remembered for the dedupe window in true time, whatever any clock says"),
    "J3": InvariantCheck("audit", "heights and steps are contiguous and the head names the last"),
    "J4": InvariantCheck("audit", "a frame is written once; the chain is recomputed at the end"),
    "J5": InvariantCheck("audit", "stamps in the journal only grow"),
    "J6": InvariantCheck("audit", "a step deletes exactly the items it journals, and they were there"),
    "J7": InvariantCheck("audit", "every entry that is written comes out of decoding and encoding as it was"),
    "J8": InvariantCheck("audit", "entry times never decrease"),
    "E1": InvariantCheck("audit", "a receipt that is not ignored answers an open intent, once"),
    "E2": InvariantCheck(
        "end", "in the middle and at rest, the open work of the restored worlds is exactly what is queued"
    ),
    "E3": InvariantCheck("audit", "an effect reaches the outside only for a journaled intent"),
    "E4": InvariantCheck("audit", "the authority moves along the table of `layers/work.py` only"),
    "E5": InvariantCheck(
        "audit", "claims come when due, with the next attempt; answers and renewals under the same token"
    ),
    "E6": InvariantCheck("audit", "settlement and answer are one batch"),
    "E7": InvariantCheck("audit", "an attempt is made once"),
    "E8": InvariantCheck(
        "audit", "the record of a message is forgotten only when another attempt is refused for its age"
    ),
    "T1": InvariantCheck("audit", "a timer fires into its world once; at the end none is left (V1)"),
    "T2": InvariantCheck("audit", "nothing fires before its time on the store's clock"),
    "T3": InvariantCheck("audit", "nothing is answered after it was cancelled; replay agrees (R3)"),
    "T4": InvariantCheck("other", "layers: due order is (time, world, intent)"),
    "F1": InvariantCheck("audit", "a message id is posted once, to a world of this store or of another"),
    "F2": InvariantCheck("end", "a send is answered by one receipt (E1), which has the stamp of the one item"),
    "F3": InvariantCheck("audit", "ids of two asks never meet, also between worlds"),
    "F4": InvariantCheck(
        "audit", "a message of another universe was asked for there, and a grant covers it as it is enqueued"
    ),
    "F5": InvariantCheck("audit", "a question is answered by the world that it was put to, whatever is forged"),
    "F6": InvariantCheck("audit", "the id of a question is none that another world can compute"),
    "F7": InvariantCheck(
        "audit", "nothing comes through a door that speaks for the runtime, or says itself who sent it"
    ),
    "W1": InvariantCheck("end", "a fork has its parent's entries and rows up to its height, byte for byte"),
    "W2": InvariantCheck(
        "audit",
        "no call, intent or receipt of a fork is another world's, a dry one makes no call; shared answers come once",
    ),
    "W3": InvariantCheck("end", "at rest, whatever a fork has inherited has ended or is parked"),
    "W4": InvariantCheck("audit", "making a fork writes pins of its parent and nothing else; R4 proves the parent"),
    "W5": InvariantCheck("end", "every world is restored from its first snapshot on"),
    "GONE": InvariantCheck(
        "audit", "nothing of a deleted world is written any more, and at the end nothing of it is left"
    ),
    "C1": InvariantCheck(
        "audit", "every blob that is handed out is hashed; objects are damaged on the way in half of the seeds"
    ),
    "C2": InvariantCheck("end", "follows from C1: a blob is its digest"),
    "C3": InvariantCheck(
        "audit", "what a batch refers to is there, what is referred to is not swept; at the end all is read"
    ),
    "C4": InvariantCheck("audit", "a blob is swept as it was condemned: one that was put again since stays"),
    "C5": InvariantCheck("end", "a collection without a grace leaves nothing that is not referred to"),
    "R1": InvariantCheck(
        "audit", "with every segment, each height is in one segment or frame; at the end all are read"
    ),
    "R2": InvariantCheck(
        "end", "segments that are damaged before they are stored are never indexed: all are read (R3)"
    ),
    "R3": InvariantCheck("end", "replayed from every retained snapshot, the end is the same"),
    "R4": InvariantCheck("end", "every snapshot comes out of the replay from birth as it was saved"),
    "R5": InvariantCheck("absent", "a snapshot carries open work, so there is no horizon"),
    "D1": InvariantCheck("end", "another host's restore has the same state and open work: R3, E2"),
    "D2": InvariantCheck("other", "import contracts and the tidy test"),
    "V1": InvariantCheck("end", "after the faults end, everything is done within a bound"),
    "V2": InvariantCheck("end", "inputs that no world can take are dead letters, once, and everything else goes on"),
    "V3": InvariantCheck(
        "end", "V1 in the seeds whose hints are all lost; to the scan in `tests/sim/test_liveness.py`"
    ),
    "V4": InvariantCheck("absent", "throughput is measured by the benchmark"),
    "V5": InvariantCheck("absent", "cycles take ready worlds in order; V1 bounds the wait"),
    "V6": InvariantCheck("end", "V1 in the seeds where a host stays dead; to the TTL in `tests/sim/test_liveness.py`"),
    "H1": InvariantCheck(
        "audit", "with every step, what is pending in the cells of flow domains is what is open for them"
    ),
    "H2": InvariantCheck(
        "audit", "an intent ends once, as its callers are told, runs too; the same id gets the same end, or is refused"
    ),
    "H3": InvariantCheck(
        "audit", "a cell holds what a sequential model makes of the journal, however its effects are performed"
    ),
    "H4": InvariantCheck("audit", "a requirement that has failed is never asked for again"),
    "H5": InvariantCheck("audit", "an answer that comes too late changes no cell"),
    "H6": InvariantCheck(
        "end", "worlds of flow domains alone are proved by a process that does not have their program"
    ),
    "ONCE": InvariantCheck("audit", "an input is journaled once; an anonymous one as often as its client was told"),
    "ORDER": InvariantCheck(
        "audit", "an input acked before another was begun is journaled first, whichever processes sent them"
    ),
    "TIME": InvariantCheck(
        "end", "what is begun after the store's clock was off is on time, and no lease is prolonged (V1)"
    ),
    "WAIT": InvariantCheck(
        "end", "the end of a run, once journaled, is told to every client that waits for it, within a bound"
    ),
    "POISON": InvariantCheck(
        "audit", "no input is resolved without its code before the budget of holders have marked it"
    ),
    "BLAME": InvariantCheck(
        "audit", "a holder is counted as dead when its heartbeat is; a step is committed when its code is through"
    ),
    "INNOCENT": InvariantCheck(
        "end", "no harmless input is resolved without its code, and no world is quarantined in the end"
    ),
    "FORK": InvariantCheck(
        "audit",
        "one request is one world, a name is one world's, a fork that leans on another is pinned, and that stays",
    ),
    "PROGRAM": InvariantCheck("end", "what the programs promise: sums, payments, compensations"),
    "BUG": InvariantCheck("end", "no role is stopped by a bug, no task fails unseen"),
}


async def in_between(cluster: Cluster, audit: Audit) -> None:
    """E2 in the middle of everything: in a copy of the store as it is, the repair scan finds nothing to do."""
    env = SimEnv(cluster.loop, f"{cluster.seed}:doctor", skew_us=cluster.env.skew_us)
    # A copy: looking must not move the virtual time or the draws of the hosts, which go on meanwhile.
    engine = await store_opening.open_engine("memory://", env, create=True)
    items = list(cluster.truth.copy.items())
    for first in range(0, len(items), COPIED_AT_ONCE):
        batch = kv.Batch()
        for key, value in items[first : first + COPIED_AT_ONCE]:
            batch.absent(key)  # the guard that every batch must have
            batch.put(key, value)
        await engine.commit(batch)
    store = store_opening.Store("memory://", engine, cluster.bodies, env, FEATURES)
    report = await doctor.examine(reader(cluster, store), repair=False)
    for finding in report.findings:
        if finding.kind in ("missing_ready", "quarantined"):
            continue  # a hint may be lost, and the next scan finds the world (V3); a quarantine ends (INNOCENT)
        audit.broken("E2", f"{finding.world} {finding.kind}: {finding.what}")


async def at_end(cluster: Cluster, audit: Audit, left: list[str], born: fork_checks.Forks, promises: Promises) -> None:
    """Everything that is checked when a run has come to rest."""
    for invariant, what in cluster.company.complaints():
        audit.broken(invariant, what)
    for member in cluster.members:
        for bug in member.bugs:
            audit.broken("BUG", f"{member.name}: {type(bug).__name__}: {bug}")
    for complaint in cluster.loop.complaints:
        audit.broken("BUG", complaint)
    # By what is late, the invariant is chosen: a seed without hints tests the scan, one with forks their fates.
    if left:
        hints_lost = cluster.profile.hints == "none"
        late = "W3" if born.are_concerned(left) else "V3" if hints_lost else "V1"
        audit.broken(late, f"not done after {cluster.quiet_after_seconds()} s: {left[:8]}")
    same_contents(await contents(cluster.truth.engine), cluster.truth.copy, audit)
    promises.told()
    universe = reader(cluster, cluster.calm())
    for name in [meta.name async for meta in Universe(universe).worlds()]:
        at, status = await Handle(universe, name).address(), (await Handle(universe, name).describe()).meta.status
        if await store_queries.quarantined(universe, at, status) is not None:
            audit.broken("INNOCENT", f"{name} is quarantined, and no restore ends a process")
        try:
            await replayed(universe, name, audit, promises.unproven)
        # One world that cannot be replayed must not keep the others from being looked at.
        except (errors.Error, Diverged) as error:
            audit.broken("R3", f"{name}: {error}")
    if not left:  # promises are about finished work
        await promises.kept(universe, born)
    if cluster.profile.collects:
        await garbage_checks.check(universe, audit)


def reader(cluster: Cluster, store: store_opening.Store) -> Connection:
    """A universe that hosts nothing and knows every program."""
    universe = Connection(store, cluster.universe, UNIVERSE, cluster.settings)
    known = [*cluster.programs, *cluster.company.edited, *cluster.company.mended]
    universe.programs.update({program.name: program for program in known})
    return universe


def stranger(cluster: Cluster) -> Connection:
    """A universe that hosts nothing and knows no program."""
    return Connection(cluster.calm(), cluster.universe, UNIVERSE, cluster.settings)


async def contents(engine: kv.Engine) -> dict[bytes, bytes]:
    """Everything that is in a store."""
    everything = kv.Range(b"\x00", b"\xff", count_max=10_000)
    return {key: raw async for key, raw in paging.RangeItems(engine, everything)}


def same_contents(contents: dict[bytes, bytes], copy: dict[bytes, bytes], audit: Audit) -> None:
    """K1: what the engine holds is what was applied."""
    if contents != copy:
        wrong = [key for key in sorted({**contents, **copy}) if contents.get(key) != copy.get(key)]
        audit.broken("K1", f"the store does not hold what was committed: {keyspaces.place(wrong[0])}")


async def replayed(connection: Connection, name: str, audit: Audit, unproven: Sequence[str] = ()) -> None:
    """R3, R4, D1, E2: from birth, and from every snapshot there is. Code that is not deterministic proves nothing; the
    state that its steps led to is in their changes all the same. `unproven`: programs of such code.
    """
    world = Handle(connection, name)
    if (await world.describe()).meta.program not in unproven:
        proof = await proof_calls.prove(world)
        if proof.difference is not None or proof.unverifiable:
            audit.broken("R4", f"{name}: {proof.difference or proof.unverifiable}")
    at, engine = await world.address(), connection.store.engine
    read = await engine.read(snapshot_layer.latest_range(at, up_to=2**40, count_max=1_000))
    head = await world.head()
    program = connection.programs[(await world.describe()).meta.program]
    dropped = await journal_pages.changes_above(engine, await readers.line_of(engine, at))
    for saved in snapshot_layer.decode(at, read.page(0)):
        if saved.record.height < dropped:
            continue  # what steps changed above it was dropped; the proof has run them again
        material = await world_restore.gather(engine, connection.blobs, at, baseline=saved.record, up_to=head.height)
        restored = world_restore.build(material, program)
        _same_end(name, saved.record.step, head, restored, audit)
        restored.machine.close()  # a state each: many snapshots of a large world would not fit


def _same_end(name: str, step: int, head: journal.Head, restored: world_restore.RestoredWorld, audit: Audit) -> None:
    if (restored.head.height, restored.head.chain) != (head.height, head.chain):
        audit.broken("R3", f"{name}: another end when replayed from step {step}")
    if restored.entries and restored.machine.state != head.state:
        audit.broken("R3", f"{name}: another state when replayed from step {step}")


def first(violations: list[Violation]) -> str:
    return violations[0].invariant if violations else ""
