"""Guards that can be switched off, in simulation alone: the test of the tester.

Each guard of the design that a batch carries can be taken out of it right before it is applied. The simulator must then
find the invariant that the guard was there for; a guard whose removal goes unnoticed is a hole in the simulator. Real
engines never see any of this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import msgspec

from tests.campaign.faults import flow_ablations, forgery_ablations, fork_ablations, message_ablations, trial_ablations
from worldline.base import env as envs
from worldline.client import world_answers
from worldline.codec import digest, tuples
from worldline.kernel import step as kernel_step
from worldline.kernel import user_errors
from worldline.kernel.machine import Machine
from worldline.kernel.parts import StepParts
from worldline.kernel.runs import LiveRun
from worldline.keys import leases as lease_keys
from worldline.layers.history import step_reader
from worldline.model import ids, inbox, leases
from worldline.model import step_records as step
from worldline.model.change import Change
from worldline.model.settings import Settings
from worldline.runtime import death_witness
from worldline.sim.faults.guards import Guard, Guards, Intact
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.sim_loop import SimMachine
from worldline.sim.runtime.truth import Truth
from worldline.store import kv
from worldline.worker import cycle, cycle_steps, inbox_read, world_turn

NEVER_MS = 100_000_000
STAMPS_APART = 1_000


FORKS = "forks=2,flows=0,clients=1,kinds=add,anonymous=0,doors=0,hostile=0,fragile=0,backlog=0,excursion=0"


SENDING = (
    "abroad=2,flows=0,clients=1,kinds=add,forks=0,anonymous=0,doors=0,hostile=0,fragile=0,backlog=0,excursion=0,"
    "store_jump=0"
)
SHORT_WINDOW = (
    ",window_ms=5000,focus=deliver,skew_us=0,drift_ppm=0,janitors=0,janitor.round_ms=300,adapter.claim_ttl_ms=8000,"
    "adapter.renew_ms=2500"
)
COMPACTING = "worker.segment_entries=3,worker.segment_margin=0,worker.snapshots_kept=1,worker.snapshot_entries=4"

# Garbage is collected all the time, without a grace, and there is some, which is put again; little else goes wrong.
COLLECTING = (
    "sketches=3,flows=0,kinds=add,latency_us=5000,chaos_seconds=20,split=true,heal=all,anonymous=0,doors=0,hostile=0,"
    "fragile=0,excursion=0,backlog=0,abroad=0,forks=0,slow=0,crash=0,pause=0,partition=0,late=0,unavailable=0,conflict=0,"
    "overtaken=0,held=0,objects=0,damaged=0,store_jump=0,bodies=0,worker.heartbeat_ms=250,worker.lease_ttl_ms=1000,"
    "janitor.turn_ms=100,janitor.round_ms=300,janitor.collect_ms=200,janitor.collect_rest_ms=1,janitor.collect_grace_ms=0,"
) + COMPACTING


FLOWS = (
    "flows=2,clients=1,kinds=add,forks=0,abroad=0,anonymous=0,doors=0,hostile=0,fragile=0,backlog=0,excursion=0,"
    "sketches=0,crash=0,pause=0,partition=0,slow=0"
)


# Holders die, and little else happens: several in a row do so over the same input, or in the same restore.
TRIALS = (
    "kinds=add+ask,clients=3,split=false,hosts=2,heal=all,chaos_seconds=20,flows=0,forks=0,abroad=0,sketches=0,anonymous=0,"
    "doors=0,hostile=0,fragile=0,backlog=0,excursion=0,pause=0,partition=0,worker.heartbeat_ms=250,worker.lease_ttl_ms=1000,"
    "worker.scan_ms=300"
)
# With pauses of 2, 8 and 32 s, four deaths alone take longer than all faults together. Late effects are under way when
# their host is stopped.
DYING = (
    TRIALS + ",kinds=order,clients=1,focus=claim,crash=10,adapters=100+0+0+0,adapter.renew_ms=300,"
    "adapter.claim_ttl_ms=1000,adapter.scan_ms=300,adapter.dead_attempts_max=4"
)
SUSPECTS = TRIALS + ",kinds=order+add,crash=40,adapter.renew_ms=300,adapter.claim_ttl_ms=1000,adapter.scan_ms=300"


GUARDS = {
    "epoch": Guard("steps and snapshots expect the lease's epoch", ("L3", "L6"), "pause=15,focus=step"),
    "acquire": Guard("taking a lease expects the epoch and the holder that were read", ("L1", "L2")),
    "epoch-kept": Guard("releasing a lease keeps its epoch", ("L2",)),
    "head": Guard("a step expects the head it was made upon", ("J3", "J4", "J6")),
    "consume": Guard("a step deletes what it consumed in the same batch", ("J6",)),
    "seen": Guard("an enqueue expects its id to be new", ("J2",), "unknown=100,late=50,kinds=add+ask"),
    "claim": Guard("answering, renewing or giving back work expects its claim", ("E4", "E5", "E7")),
    "atomic-ack": Guard("answer and settlement are one batch", ("E6",)),
    "durable-ok": Guard("an answered commit is applied", ("E2", "E3", "J1", "V1", "V3", "BUG")),
    "unknown": Guard(
        "a lost answer is not taken for success", ("E2", "E3", "E7", "J1", "R3", "V1", "V3", "BUG", "PROGRAM")
    ),
    "output-gate": Guard("nothing is acted upon before its commit is applied", ("E3", "J3", "J6")),
    "store-time": Guard("due and expired is what the store's clock says", ("T2", "E5", "L6", "R3")),
    "hash-verify": Guard("bytes are checked whenever they are read", ("C1",), "objects=600,kinds=add"),
    "scan": Guard("workers look for themselves when no hint comes", ("V1", "V3"), "hints=none"),
    "meta": Guard(
        "a batch that gives a world something expects that it takes input",
        ("J1",),
        "latency_us=200000,slow=50,kinds=tend+transfer",
    ),
    "ignore-late": Guard(
        "an answer that nothing waits for is journaled as ignored", ("E1",), "adapters=0+0+0+60,kinds=agent+order"
    ),
    "dead-letter": Guard("what no world can take is kept as a dead letter", ("V2",), "kinds=poison+add"),
    "commit-order": Guard(
        "stamps are given in the order of commits", ("J5", "J6", "V1", "V3"), "kinds=add+transfer,held=0"
    ),
    "world-scoped-id": Guard("an intent's id covers its world", ("F3",)),
    "overtaken": Guard(
        "a step whose answer was lost is looked for in the journal before its input is sent again",
        ("ONCE",),
        "overtaken=150,kinds=send,split=false,clients=3,anonymous=0,doors=0,backlog=0,hostile=0,excursion=0",
    ),
    "inbox-first": Guard(
        "the inbox is read before what was handed over is taken",
        ("ORDER",),
        "doors=2,split=false,kinds=send,partition=0,unavailable=0,overtaken=0,backlog=0,hostile=0,excursion=0",
    ),
    "appended": Guard(
        "an empty inbox is read again if anything was appended since",
        ("ORDER",),
        "doors=2,split=false,kinds=send,partition=0,unavailable=0,overtaken=0,held=0,backlog=0,hostile=0,excursion=0",
    ),
    "inbox-whole": Guard(
        "what was handed over goes through the inbox if that holds more than one page",
        ("ORDER",),
        "backlog=200,split=false,kinds=add,anonymous=0,doors=0,hostile=0,excursion=0,worker.max_inbox_batch=3",
    ),
    "look-again": Guard(
        "a caller looks into the journal again when its world has moved",
        ("WAIT", "V1", "V3"),
        "lag=100,patient=true,doors=2,kinds=tally,split=false,clients=3,conflict=100,slow=0,partition=0,unavailable=0,"
        "overtaken=0,anonymous=0,hostile=0,excursion=0,backlog=0,worker.idle_release_ms=60000",
    ),
    "due": Guard(
        "due times are counted from the store's time of a step",
        ("TIME", "V1", "V3"),
        "excursion=60,kinds=agent+herd,anonymous=0,doors=0,hostile=0",
    ),
    "witness": Guard(
        "a heartbeat seen unchanged for a TTL has run out, whatever the store's clock says",
        ("V1", "V3", "TIME"),
        "excursion=60,crash=20,kinds=add+ask,anonymous=0,doors=0,hostile=0",
    ),
    "age": Guard(
        "what is forgotten after a time is forgotten by the age of its universe, which no clock alone can raise",
        ("KEPT",),
        "excursion=60,janitors=1,janitor.round_ms=1000,kinds=add+ask,anonymous=0,doors=0,hostile=0",
    ),
    "message-seen": Guard(
        "a message from another universe expects its id to be new",
        ("F1",),
        SENDING + ",focus=deliver",
    ),
    "grants": Guard(
        "a message from another universe needs a grant",
        ("F4",),
        SENDING,
    ),
    "message-age": Guard(
        "a message that may have been taken and forgotten is refused",
        ("F1", "E8"),
        SENDING + SHORT_WINDOW,
    ),
    "message-kept": Guard(
        "the record of a message is kept as long as it may be brought again",
        ("E8", "F1"),
        SENDING + SHORT_WINDOW,
    ),
    "answer-asked": Guard(
        "an answer shows the ticket of the world that was asked, and is of that world", ("F5",), forgery_ablations.LOOK
    ),
    "question-id": Guard("the id of a question holds a secret of its world", ("F6", "F5"), forgery_ablations.LOOK),
    "system-names": Guard("names of the runtime's own are refused at every door", ("F7",), forgery_ablations.LOOK),
    "envelope-sender": Guard("what comes from outside names no sender", ("F7",), forgery_ablations.LOOK),
    "unprintable": Guard(
        "what an exception says of itself is read with care", ("V1", "V3", "BUG"), "hostile=2,anonymous=0,doors=0"
    ),
    "containment": Guard(
        "whatever escapes a world's step concerns that world alone", ("BUG",), "hostile=2,anonymous=0,doors=0"
    ),
    "stable": Guard(
        "no scan starts above `stable`",
        ("ORDER", "V1", "V3"),
        "held=200,kinds=send,clients=3,hints=all,anonymous=0,doors=0,hostile=0,excursion=0,worker.scan_ms=10000",
    ),
    "changes": Guard(
        "the changes of a step are checked by its digests when they are read",
        ("R3", "R4", "J1", "E2", "PROGRAM"),
        "damaged=600,crash=20,kinds=add+ask+transfer,anonymous=0,doors=0,hostile=0,fragile=0,excursion=0",
    ),
    "crash-budget": Guard(
        "an input that processes die of is resolved without its code",
        ("V1", "V3"),
        "fragile=1,anonymous=0,doors=0,hostile=0,excursion=0,backlog=0,worker.heartbeat_ms=250,"
        "worker.lease_ttl_ms=1000",
    ),
    "returned": Guard(
        "that a step's code has returned is written before its commit",
        ("BLAME",),
        TRIALS + ",crash=20",
    ),
    "acquittal": Guard(
        "a holder whose heartbeat is there is not counted as dead",
        ("BLAME",),
        TRIALS + ",focus=mark,conflict=100",
    ),
    "last-attempt": Guard(
        "before an input is resolved without its code, a child process tries it",
        ("INNOCENT", "V1", "V3"),
        TRIALS + ",focus=mark,worker.crash_budget=1",
    ),
    "quarantine-ends": Guard(
        "a quarantine ends by itself",
        ("INNOCENT", "V1", "V3"),
        TRIALS + ",focus=mark,worker.crash_budget=1",
    ),
    "beside": Guard(
        "a mark says that its process performs an effect that processes may have died of",
        ("BLAME",),
        SUSPECTS,
    ),
    "disturbed": Guard(
        "a claim says that its effect is not alone any more before another begins",
        ("BLAME",),
        SUSPECTS,
    ),
    "death-pause": Guard(
        "there is a pause after each death alone, which grows",
        ("INNOCENT",),
        DYING,
    ),
    "interests": Guard(
        "a run gets the events that its code waited for, whatever the code is now",
        ("PROGRAM",),
        "fragile=1,code=removed,crash=20,anonymous=0,doors=0,hostile=0,excursion=0,backlog=0,worker.heartbeat_ms=250,"
        "worker.lease_ttl_ms=1000",
    ),
    "fork-ids": Guard("an intent's id covers its world, also in a fork", ("F3", "W2", "E1", "E2"), FORKS),
    "fork-begins": Guard(
        "a fork settles what it has inherited before it does anything else", ("W2", "W3", "E1", "E2", "R4"), FORKS
    ),
    "dry": Guard("what a dry fork asks for is parked", ("W2",), FORKS),
    "share-from-fork": Guard("the parent's answer is looked for from the fork on", ("W3",), FORKS),
    "script-position": Guard(
        "how far a script was used is part of the state", ("R3", "R4", "FORK", "BUG"), FORKS + ",crash=20"
    ),
    "pins": Guard("a fork pins what a restore of it reads", ("FORK",), FORKS),
    "pin-counter": Guard("a pin that comes or goes moves the counter", ("FORK",), FORKS),
    "retain": Guard("what is compacted expects the count of pins", ("FORK",), FORKS + "," + COMPACTING),
    "read-back": Guard(
        "a segment is read back and checked before its frames are deleted",
        ("R3", "R4", "C3", "E2", "W1", "BUG", "V1"),
        "bodies=500,kinds=add+ask+transfer,anonymous=0,doors=0,hostile=0,fragile=0,excursion=0," + COMPACTING,
    ),
    "delete-fence": Guard(
        "the batch that deletes a world takes the lease from its holder",
        ("L3", "GONE", "BUG"),
        "kinds=doom,crash=0,anonymous=0,doors=0,hostile=0,fragile=0,excursion=0,backlog=0",
    ),
    "generation": Guard(
        "a batch that publishes a reference expects the generation",
        ("C3", "E2", "R3", "V1", "BUG"),
        COLLECTING + ",janitors=2,focus=blob",
    ),
    "collect-recheck": Guard(
        "a blob is deleted as it was condemned, and not if it was put again",
        ("C4", "C3"),
        COLLECTING + ",janitors=1,focus=,held=150,sketches=4",
    ),
    "flow-pending": Guard(
        "an outcome of what is not pending is dropped", ("H5", "H3", "H2"), FLOWS + ",adapters=0+0+0+60"
    ),
    "flow-clear": Guard("a requirement is cleared, also if its effect has failed", ("H1", "H2", "H3"), FLOWS),
    "flow-tombstone": Guard("what has failed is not asked for again", ("H4",), FLOWS),
    "flow-order": Guard("outcomes are applied in the order in which they were asked for", ("H3",), FLOWS),
    "flow-seed": Guard("the random seed of a job is its own intent's id", ("H3",), FLOWS),
    "flow-interlock": Guard("what a flow requires leaves in the batch that has its cell", ("E2", "E3"), FLOWS),
    "memory": Guard(
        "what a process lacked is no part of a world's history",
        ("E2", "R3", "R4", "J1", "V2"),
        "hostile=2,anonymous=0,doors=0",
    ),
}


class Ablated(Intact):
    """A run without one guard."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.held_back = name != "stable"

    def settings(self, settings: Settings) -> Settings:
        """Without scanning, no role reads before a hint wakes it."""
        if self.name != "scan":
            return settings
        replace = msgspec.structs.replace
        return replace(
            settings,
            worker=replace(settings.worker, scan_ms=NEVER_MS),
            adapter=replace(settings.adapter, scan_ms=NEVER_MS),
            timer=replace(settings.timer, scan_ms=NEVER_MS),
        )

    def patched(self) -> contextlib.AbstractContextManager[None]:
        return patched(self.name)

    def seen(self, found: kv.ReadResult, env: envs.Env) -> kv.ReadResult | None:
        if self.name == "store-time":
            return msgspec.structs.replace(found, time_us=env.wall_us())
        return msgspec.structs.replace(found, version=1) if self.name == "appended" else None

    def early(self, truth: Truth, batches: Sequence[kv.Batch], about: str) -> list[kv.Outcome] | None:
        gate_is_off = self.name == "output-gate" and about == "step"
        return [pretended(truth, batch) for batch in batches] if gate_is_off else None

    def unanswered(self, truth: Truth, batches: Sequence[kv.Batch], why: str) -> list[kv.Outcome]:
        if self.name != "unknown":
            return super().unanswered(truth, batches, why)
        return [pretended(truth, batch) for batch in batches]

    async def apply(self, truth: Truth, host: SimMachine, batch: kv.Batch, version: int | None = None) -> kv.Outcome:
        match self.name:
            case "epoch":
                batch = relaxed(truth, batch, ("epoch",), unless_put=True)
            case "acquire" if keyspaces.about(batch) == "acquire":
                batch = relaxed(truth, batch, ("epoch", "holder", "worker"))
            case "epoch-kept" if keyspaces.about(batch) == "release":
                batch = _forgetting_epoch(batch)
            case "head":
                batch = relaxed(truth, batch, ("head",))
            case "consume" if keyspaces.about(batch) == "step":
                batch = _not_deleting(batch, "inbox")
            case "seen":
                batch = relaxed(truth, batch, ("seen",))
            case "meta" if not any(keyspaces.place(key).what in keyspaces.METAS for key in batch.puts):
                batch = relaxed(truth, batch, keyspaces.METAS)
            case "claim":
                batch = relaxed(truth, batch, ("open",))
            case "atomic-ack" if keyspaces.about(batch) == "settle":
                return await _in_two(truth, host, batch)
            case "dead-letter":
                batch = _not_putting(batch, "dead")
            case "commit-order" if batch.appends:
                return await _out_of_order(truth, host, batch)
            case "fork-ids" if keyspaces.about(batch) == "fork":
                fork_ablations.note_root(batch)
            case "pins" if keyspaces.about(batch) == "fork":
                batch = _not_putting(batch, "retain")
            case "generation" if not any(keyspaces.place(key).what == "generation" for key in batch.puts):
                batch = relaxed(truth, batch, ("generation",))
            case "collect-recheck" if keyspaces.about(batch) == "sweep":
                batch = relaxed(truth, batch, ("cas",))
            case "retain" if keyspaces.about(batch) == "compact":
                batch = relaxed(truth, batch, ("retain",))
            case "pin-counter" if batch.counts:
                batch = _copy(batch)
                batch.counts.clear()
            case "flow-interlock" if any(map(flow_ablations.is_required, batch.puts.values())):
                return await _leaving_first(truth, host, batch)
            case "durable-ok" if keyspaces.about(batch) in ("enqueue", "settle", "step") and truth.commits % 7 == 0:
                return pretended(truth, batch)
            case _:
                pass
        return await truth.commit(host, batch, version=version)


def pretended(truth: Truth, batch: kv.Batch) -> kv.Ok:
    """The answer to a batch that was not applied, under stamps that no engine gives."""
    number = truth.pretend()
    return kv.Ok(tuple(kv.stamp(2**40 + number, index) for index in range(len(batch.appends))))


@contextlib.contextmanager
def patched(without: str) -> Iterator[None]:
    """The guards that are no part of a batch, switched off for the length of a block."""
    match without:
        case "hash-verify":
            with mock.patch.object(digest, "check", return_value=None):
                yield
        case "world-scoped-id":
            with mock.patch.object(ids, "intent_id", _unscoped(ids.intent_id)):
                yield
        case "ignore-late":
            with mock.patch.object(kernel_step, "_receipt", _taking_all(kernel_step._receipt)):
                yield
        case "overtaken":
            with mock.patch.object(cycle.Cycle, "_settle_overtaken", _nothing):
                yield
        case "inbox-first":
            with mock.patch.object(inbox_read.Intake, "read", _not_first(inbox_read.Intake.read)):
                yield
        case "inbox-whole":
            with mock.patch.object(world_turn, "_defer", lambda handed: handed):
                yield
        case "look-again":
            with mock.patch.object(world_answers, "_already", _nothing):
                yield
        case "due":
            with mock.patch.object(step.StepContext, "store_us", property(lambda self: self.time_us)):
                yield
        case "witness":
            with mock.patch.object(death_witness.DeathWitness, "look", lambda _, life: life):
                yield
        case "unprintable":
            with mock.patch.object(user_errors, "text_at", _careless):
                yield
        case "containment":
            escaping = mock.patch.object(cycle_steps, "_keep_failed", _escape)
            with mock.patch.object(user_errors, "text_at", _careless), escaping:
                yield
        case "changes":
            with mock.patch.object(step_reader, "_follow", _unchecked):
                yield
        case "interests":
            with mock.patch.object(Machine, "interested", _by_present_code(Machine.interested)):
                yield
        case "memory":
            with mock.patch.object(user_errors, "let_pass", return_value=False):
                yield
        case _:
            forks, forgery = fork_ablations.patched(without), forgery_ablations.patched(without)
            judging = trial_ablations.patched(without)
            with message_ablations.patched(without), flow_ablations.patched(without), forks, forgery, judging:
                yield


def _careless(error: BaseException, attribute: str) -> str:
    return str(getattr(error, attribute, ""))


def _escape(each: world_turn.WorldTurn, worked: list[world_turn.Worked], raised: BaseException) -> None:
    raise raised


def _unchecked(before: list[Any], step: step_reader.StoredStep, changed: Sequence[Change]) -> list[Any]:
    """Where a step says that it leads to."""
    head = step.head()
    return [head.step, head.height, head.time_us, head.state, head.chain]


def _by_present_code(real: Callable[[Machine, str], list[LiveRun]]) -> Callable[[Machine, str], list[LiveRun]]:
    def interested(machine: Machine, schema: str) -> list[LiveRun]:
        return [run for run in real(machine, schema) if run.record.workflow in machine.program.workflows]

    return interested


async def _nothing(*_: object) -> None:
    pass


def _not_first(
    real: Callable[[inbox_read.Intake, Sequence[world_turn.WorldTurn]], Awaitable[int]],
) -> Callable[..., object]:
    """An inbox that holds nothing new as far as is known is not read because of what was handed over."""

    async def read(self: inbox_read.Intake, turns: Sequence[world_turn.WorldTurn]) -> int:
        handed = [(each, each.take_handed()) for each in turns if each.handed and not each.held.unread]
        time_us = await real(self, turns)
        for each, its in handed:
            each.handed.extend(its)
        return time_us

    return read


def _unscoped(real: Callable[..., ids.IntentId]) -> Callable[..., ids.IntentId]:
    def unscoped(address: ids.Address, **rest: object) -> ids.IntentId:
        nowhere = ids.Address(address.universe, ids.WorldId(bytes(16)))
        return real(nowhere, **rest)

    return unscoped


def _taking_all(real: Callable[[Machine, inbox.EffectReceipt, bytes, StepParts], str]) -> Callable[..., str]:
    """An answer is an answer, asked for or not."""

    def receipt(machine: Machine, item: inbox.EffectReceipt, data: bytes, parts: StepParts) -> str:
        return real(machine, item, data, parts) if ids.IntentId(item.intent) in machine.work.open else ""

    return receipt


def relaxed(truth: Truth, batch: kv.Batch, whats: tuple[str, ...], *, unless_put: bool = False) -> kv.Batch:
    """The batch without its expectations of such keys."""
    made = _copy(batch)
    for key in batch.expects:
        if keyspaces.place(key).what in whats and not (unless_put and key in batch.puts):
            del made.expects[key]
    return _guarded(truth, made)


def _guarded(truth: Truth, batch: kv.Batch) -> kv.Batch:
    """Engines refuse a batch without a guard: give it one that always holds, under a key of no meaning."""
    key = tuples.pack(("ablated", truth.commits))
    batch.absent(key)
    batch.put(key, b"")
    return batch


def _copy(
    batch: kv.Batch,
    *,
    deletes: Callable[[bytes], bool] = lambda _: True,
    puts: Callable[[kv.Put], bool] = lambda _: True,
    appends: bool = True,
) -> kv.Batch:
    """The batch again, with only the deletes and puts that pass, and with or without its appends."""
    made = kv.Batch()
    made.expects = dict(batch.expects)
    made.puts = {key: put for key, put in batch.puts.items() if puts(put)}
    made.deletes = {key: None for key in batch.deletes if deletes(key)}
    made.ranges = list(batch.ranges)
    made.counts = dict(batch.counts)
    made.appends = list(batch.appends) if appends else []
    return made


def _not_deleting(batch: kv.Batch, what: str) -> kv.Batch:
    return _copy(batch, deletes=lambda key: keyspaces.place(key).what != what)


def _not_putting(batch: kv.Batch, what: str) -> kv.Batch:
    return _copy(batch, puts=lambda put: keyspaces.place(put.key).what != what)


async def _out_of_order(truth: Truth, host: SimMachine, batch: kv.Batch) -> kv.Outcome:
    """Commit under a version that is not the next: every other time, one of long ago that was left out then."""
    engine = vars(truth.engine)
    version = engine["_version"] = engine["_version"] + STAMPS_APART
    if truth.commits % 2:
        engine["_version"] = max(0, version - 3 * STAMPS_APART) + truth.commits % STAMPS_APART
    outcome = await truth.commit(host, batch)
    engine["_version"] = version + 1
    return outcome


def _forgetting_epoch(batch: kv.Batch) -> kv.Batch:
    made = _copy(batch)
    for key in batch.expects:
        if keyspaces.place(key).what == "epoch":
            made.put(key, lease_keys.EPOCH.pack(leases.Epoch(0, bytes(16))))
    return made


async def _leaving_first(truth: Truth, host: SimMachine, batch: kv.Batch) -> kv.Outcome:
    """Open what flow domains require first, commit their cells afterwards."""
    opened = kv.Batch()
    for put in filter(flow_ablations.is_required, batch.puts.values()):
        opened.absent(put.key)
        opened.put(put.key, put.value)
    rest = _copy(batch, puts=lambda put: put.key not in opened.puts)
    first = await truth.commit(host, opened)
    return await truth.commit(host, rest) if isinstance(first, kv.Ok) else first


async def _in_two(truth: Truth, host: SimMachine, batch: kv.Batch) -> kv.Outcome:
    """Settle first, answer afterwards."""
    settled, answered = _copy(batch, puts=lambda put: put.stamp is None, appends=False), kv.Batch()
    first = await truth.commit(host, settled)
    if not isinstance(first, kv.Ok):
        return first
    for append in batch.appends:
        answered.append(append.prefix, append.value)
    for put in batch.puts.values():
        if put.stamp is not None:
            answered.put(put.key, put.value, stamp=put.stamp)
    return await truth.commit(host, _guarded(truth, answered))


ALL = Guards(GUARDS, Ablated)
