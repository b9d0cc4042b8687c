"""One address, and one full record of every kind of stored value: what the golden tables are made of."""

from __future__ import annotations

from typing import Any

from worldline.features.collection import keyspace as collection_keyspace
from worldline.features.copies import dormant_keyspace
from worldline.features.copies import keyspace as copy_keyspace
from worldline.features.copies import records as copy_records
from worldline.features.deletion import keyspace as deletion_keyspace
from worldline.features.deletion import universe_keyspace
from worldline.features.encryption import keyspace as encryption_keyspace
from worldline.features.encryption import master_key_keyspace
from worldline.features.erasure import keyspace as erasure_keyspace
from worldline.features.erasure import records as ledger_model
from worldline.features.erasure import scrub_keyspace
from worldline.features.quotas import keyspace as quota_keyspace
from worldline.features.quotas import records as quota_records
from worldline.keys import (
    age,
    cas,
    chunks,
    inbox,
    journal,
    leases,
    lineage,
    personal_records,
    personal_subjects,
    ready,
    schema,
    segments,
    snapshots,
    space,
    traces,
    trial,
    universe_settings,
    universes,
    work,
    worlds,
)
from worldline.model import age as age_model
from worldline.model import blobs, ids, payload, policy
from worldline.model import inbox as inbox_model
from worldline.model import journal as journal_model
from worldline.model import leases as lease
from worldline.model import personal_records as sealed_model
from worldline.model import snapshots as snapshot
from worldline.model import traces as trace
from worldline.model import work as work_model
from worldline.model import world_records as world_model
from worldline.model.universe_settings import UniverseSettings


def counted(first: int, count: int = 16) -> bytes:
    """Bytes that are easy to find in a hex dump."""
    return bytes(range(first, first + count))


UNIVERSE = ids.UniverseId(counted(0x10))
WORLD = ids.WorldId(counted(0x20))
WORKER = ids.WorkerId(counted(0x30))
INTENT = ids.IntentId(counted(0x40))
STAMP = counted(0x50, 12)
DIGEST = counted(0x60, 32)
AT = ids.Address(UNIVERSE, WORLD)
TIME_US = 1_700_000_000_000_000

PAYLOAD = payload.inline(b"\xa1aa\x01")
BIG = payload.reference(DIGEST, size=70_000)
LINEAGE = world_model.Lineage(
    counted(0x80),
    "alice",
    3,
    7,
    [world_model.Section(WORLD, 2, 5), world_model.Section(counted(0x80), 3, 7)],
    world_model.ForkPolicy.SHARE,
    True,
    TIME_US,
    DIGEST,
    bytes(range(32)),
    [world_model.Origin(UNIVERSE, WORLD, 1, 2)],
    DIGEST,
    bytes(32),
    TIME_US,
    bytes(range(32)),
)
META = world_model.WorldMeta(
    "alice", "greeter", DIGEST, world_model.Status.PAUSED, {"tier": "1", "eu": ""}, TIME_US, 3, True
)
ENTRY = journal_model.JournalEntry(
    7, 3, journal_model.Kind.RUN_FINISHED, TIME_US, b"\xf6", STAMP, "trace", bytes(32), bytes(range(32))
)
RAISED = lease.Raised(3, DIGEST, 2, "KeyError: 'r' (kernel/work.py:7 in arrive)")
TAKEN = snapshot.StateSnapshot(3, 7, DIGEST, bytes(range(32)), 4096, b"hash", TIME_US, 77_000_000)
SEGMENT = journal_model.Segment(2, 70_001, 2, 300, DIGEST, 4096, True, 77_000_000)
WORK = work_model.Work(
    work_model.WorkKind.EFFECT,
    work_model.WorkState.CLAIMED,
    "mail",
    5,
    "send",
    PAYLOAD,
    3,
    1,
    TIME_US,
    TIME_US + 1,
    2,
    counted(0x70),
    WORKER,
    TIME_US + 2,
    "no route",
    "trace",
    "Traceback",
    1,
    counted(0x80, 32),
    True,
    [WORKER],
    TIME_US + 3,
    [work_model.EffectAttempt(1, TIME_US, TIME_US + 1, WORKER, "retried", "no route")],
    "order-7",
)
RULE = policy.PolicyRule(2, policy.Verb.ONLY, policy.PolicyScope.SEND, "till*", "shop", "vault", "inbox:*")
GRANT = world_model.Grant(UNIVERSE, "shop", "till*", "vault", "inbox:*")
KEPT = trace.StepTraces(
    3,
    TIME_US,
    [
        trace.TracedFailure(trace.TraceSource.RUN, "order-1", "Traceback"),
        trace.TracedFailure(trace.TraceSource.EFFECT, "4041", "ü"),
    ],
)

ERASURE = ledger_model.LedgerEntry(ledger_model.ErasedKind.VALUES, UNIVERSE, WORLD, WORLD, [counted(0x70)], TIME_US)


def message() -> inbox_model.Message:
    return inbox_model.Message(
        INTENT,
        UNIVERSE,
        WORLD,
        3,
        inbox_model.MessageMode.INBOX,
        "post",
        BIG,
        {"b": "2", "a": "1"},
        "trace",
        "order-1",
        inbox_model.Reply.RECEIPT,
        "shop",
        "alice",
    )


VALUES: list[tuple[str, space.ValueKind, space.ValueCodec[Any], Any]] = [
    ("personal value", space.ValueKind.SEALED, personal_records.KEPT, sealed_model.PersonalRecord(DIGEST, b"\x63ada")),
    ("subject", space.ValueKind.SUBJECT, personal_subjects.ERASURES, sealed_model.Erasures(2, TIME_US)),
    ("schema", space.ValueKind.SCHEMA, schema.VALUE, world_model.Schema(1, 0)),
    ("universe name", space.ValueKind.UNIVERSE_NAME, universes.NAME, universes.UniverseName(UNIVERSE)),
    ("universe meta", space.ValueKind.UNIVERSE_META, universes.META, world_model.UniverseMeta("main", TIME_US, True)),
    ("generation", space.ValueKind.GENERATION, universes.GENERATION, blobs.Generation(300)),
    ("marking", space.ValueKind.GENERATION, universes.GENERATION, blobs.Generation(300, marking=True)),
    (
        "collection",
        space.ValueKind.COLLECTION,
        collection_keyspace.COLLECTION,
        blobs.Collection(300, WORKER, TIME_US, TIME_US + 1, TIME_US + 2, DIGEST, WORKER, INTENT),
    ),
    (
        "holds",
        space.ValueKind.HOLDS,
        collection_keyspace.HOLDS,
        blobs.Holds(2, [blobs.Hold(WORKER, TIME_US, "backup", 77_000_000)]),
    ),
    ("age", space.ValueKind.AGE, age.AGE, age_model.Age(77_000_000, 60_000_000)),
    (
        "condemned",
        space.ValueKind.CONDEMNED,
        collection_keyspace.CONDEMNED,
        blobs.Condemned(300, TIME_US, 77_000_000, 301),
    ),
    ("name", space.ValueKind.NAME, worlds.NAME, worlds.NameRecord(WORLD)),
    ("index", space.ValueKind.INDEX, worlds.INDEX, META),
    ("inline blob", space.ValueKind.BLOB, cas.BLOB, blobs.Blob(3, 1, inline=b"abc")),
    ("object blob", space.ValueKind.BLOB, cas.BLOB, blobs.Blob(70_000, 1, object="aa/cas/bb")),
    ("blob in chunks", space.ValueKind.BLOB, cas.BLOB, blobs.Blob(70_000, 1, chunks=counted(0x70))),
    ("chunk", space.ValueKind.CHUNK, chunks.CHUNK, blobs.BlobChunk(b"abc")),
    ("grants", space.ValueKind.GRANTS, universes.GRANTS, world_model.Grants(2, [GRANT], [RULE])),
    (
        "grant change",
        space.ValueKind.GRANT_CHANGE,
        universes.GRANT_CHANGE,
        world_model.GrantChange(2, True, [GRANT], TIME_US, [RULE]),
    ),
    (
        "quotas",
        space.ValueKind.QUOTAS,
        quota_keyspace.QUOTAS,
        quota_records.Quotas(2, quota_records.QuotaRecord(10, None, 300, 0), 7, None, 4),
    ),
    (
        "quota change",
        space.ValueKind.QUOTA_CHANGE,
        quota_keyspace.QUOTA_CHANGE,
        quota_records.QuotaChangeRecord(2, quota_records.QuotaRecord(10, None, 300, 0), TIME_US),
    ),
    (
        "settings",
        space.ValueKind.SETTINGS,
        universe_settings.SETTINGS,
        UniverseSettings(2, {"pressure.inbox_items_max": "50"}, {"worker.segment_changes": "true"}, TIME_US),
    ),
    ("usage", space.ValueKind.USAGE, quota_keyspace.USAGE, quota_records.Usage(3, 70_000, 2, 1, TIME_US, TIME_US + 1)),
    ("scrub", space.ValueKind.SCRUB, scrub_keyspace.RECORD, scrub_keyspace.ScrubRecord(3, TIME_US)),
    ("erasure", space.ValueKind.LEDGER, erasure_keyspace.ENTRY, ERASURE),
    ("deletion", space.ValueKind.DELETION, deletion_keyspace.DELETION, deletion_keyspace.DeletionRecord(TIME_US, 300)),
    (
        "universe deletion",
        space.ValueKind.UNIVERSE_DELETION,
        universe_keyspace.DELETION,
        universe_keyspace.UniverseDeletion(TIME_US, "main", True, True, 300, 7),
    ),
    ("upload", space.ValueKind.UPLOAD, chunks.UPLOAD, blobs.Upload(16_000_000, TIME_US, 77_000_000)),
    ("world meta", space.ValueKind.WORLD_META, worlds.META, META),
    ("epoch", space.ValueKind.EPOCH, leases.EPOCH, lease.Epoch(5, WORKER)),
    ("holder", space.ValueKind.HOLDER, leases.HOLDER, lease.Holder(WORKER, counted(0x70), 5, TIME_US)),
    ("assignment", space.ValueKind.ASSIGNMENT, leases.ASSIGNMENT, lease.Assignment(WORKER, 1, "moved", 2)),
    (
        "trial",
        space.ValueKind.TRIAL,
        trial.TRIAL,
        lease.CrashTrial(
            5,
            3,
            lease.HolderActivity.STEP,
            DIGEST,
            2,
            1,
            WORKER,
            counted(0x70),
            beside=True,
            blamed=[lease.Blamed(WORKER, counted(0x70), lease.HolderActivity.RESTORE)],
            acquitted=1,
            verdict="signal 9",
            until_us=TIME_US,
            quarantines=4,
            raised=RAISED,
        ),
    ),
    ("lineage", space.ValueKind.LINEAGE, lineage.LINEAGE, LINEAGE),
    ("pin", space.ValueKind.PIN, lineage.PIN, world_model.Pin(3, 7)),
    ("head", space.ValueKind.HEAD, journal.HEAD, journal_model.Head(3, 7, DIGEST, bytes(32), TIME_US)),
    ("genesis", space.ValueKind.HEAD, journal.HEAD, journal_model.GENESIS),
    ("baseline", space.ValueKind.BASELINE, snapshots.BASELINE, TAKEN),
    ("snapshot", space.ValueKind.SNAPSHOT, snapshots.SNAPSHOT, TAKEN),
    (
        "segment",
        space.ValueKind.SEGMENT,
        segments.SEGMENT,
        SEGMENT,
    ),
    (
        "dropped",
        space.ValueKind.DROPPED,
        segments.DROPPED,
        journal_model.DroppedEntries(2, journal_model.Head(3, 70_001, DIGEST, bytes(32), TIME_US)),
    ),
    ("event", space.ValueKind.INBOX, inbox.ITEM, inbox_model.InboxEvent("order.placed", PAYLOAD, "order-1", "trace")),
    (
        "correlated event",
        space.ValueKind.INBOX,
        inbox.ITEM,
        inbox_model.CorrelatedEvent("order.placed", PAYLOAD, "order-1", "trace", "order-7"),
    ),
    (
        "correlated receipt",
        space.ValueKind.INBOX,
        inbox.ITEM,
        inbox_model.CorrelatedReceipt(INTENT, inbox_model.ReceiptStatus.OK, PAYLOAD, 2, "run-1", "order-7"),
    ),
    (
        "signed receipt",
        space.ValueKind.INBOX,
        inbox.ITEM,
        inbox_model.SignedReceipt(
            INTENT, inbox_model.ReceiptStatus.OK, PAYLOAD, 2, "run-1", "order-7", DIGEST, counted(0, 64)
        ),
    ),
    ("bare event", space.ValueKind.INBOX, inbox.ITEM, inbox_model.InboxEvent("e", payload.EMPTY)),
    (
        "receipt",
        space.ValueKind.INBOX,
        inbox.ITEM,
        inbox_model.EffectReceipt(INTENT, inbox_model.ReceiptStatus.TIMEOUT, BIG, 4, "trace"),
    ),
    ("timer fired", space.ValueKind.INBOX, inbox.ITEM, inbox_model.TimerFired(INTENT, TIME_US, "trace")),
    ("message", space.ValueKind.INBOX, inbox.ITEM, message()),
    ("brought", space.ValueKind.BROUGHT, inbox.BROUGHT, inbox_model.Brought(300)),
    ("vouched message", space.ValueKind.INBOX, inbox.ITEM, message().vouched(ticket=INTENT, from_file=True)),
    ("control", space.ValueKind.INBOX, inbox.ITEM, inbox_model.Control("pause", PAYLOAD, "trace")),
    ("seen", space.ValueKind.SEEN, inbox.SEEN, inbox_model.SeenId(DIGEST, TIME_US, 77_000_000)),
    ("dead", space.ValueKind.DEAD, inbox.DEAD, inbox_model.DeadItem(b"\xb1\x10garbage", "not a record", 3, TIME_US)),
    ("trace", space.ValueKind.TRACE, traces.KEPT, KEPT),
    ("work", space.ValueKind.WORK, work.WORK, WORK),
    ("due", space.ValueKind.DUE, work.DUE, work.Due(work_model.WorkKind.TIMER)),
    ("hint", space.ValueKind.HINT, ready.HINT, ready.HintRecord(WORLD)),
    (
        "worker",
        space.ValueKind.WORKER,
        leases.WORKER,
        lease.Worker(counted(0x70), 9, TIME_US, 10_000_000, 64, {"zone": "a"}, draining=True),
    ),
    (
        "encryption",
        space.ValueKind.ENCRYPTION,
        master_key_keyspace.VALUE,
        master_key_keyspace.Encryption(
            "aes-gcm", 3, [master_key_keyspace.MasterKey("2026", counted(0x70), True)], b"probe"
        ),
    ),
    (
        "data key",
        space.ValueKind.DATA_KEY,
        encryption_keyspace.VALUE,
        encryption_keyspace.DataKey("2026", counted(0x60, 60), TIME_US, older=[counted(0x10)], rewriting=True),
    ),
    (
        "destroyed data key",
        space.ValueKind.DATA_KEY,
        encryption_keyspace.VALUE,
        encryption_keyspace.DataKey("", b"", TIME_US, TIME_US + 1),
    ),
    ("held", space.ValueKind.HELD, leases.HELD, leases.HeldRecord(5)),
    (
        "held copy",
        space.ValueKind.HELD_COPY,
        dormant_keyspace.HELD,
        copy_records.DormantCopy(world_model.Status.PAUSED, "the file a.world", TIME_US),
    ),
    (
        "copying",
        space.ValueKind.COPYING,
        copy_keyspace.COPYING,
        copy_records.Copying(WORKER, "the file a.world", TIME_US, 7, 77_000_000),
    ),
]
