"""The golden tables: every key, range and parser of `keys/`, with what it comes to, written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.keys import samples
from tests.keys.samples import AT, DIGEST, INTENT, STAMP, UNIVERSE, WORKER
from worldline.base import limits
from worldline.features.collection import keyspace as collection_keyspace
from worldline.features.copies import dormant_keyspace
from worldline.features.copies import keyspace as copy_keyspace
from worldline.features.deletion import keyspace as deletion_keyspace
from worldline.features.deletion import universe_keyspace
from worldline.features.encryption import keyspace as encryption_keyspace
from worldline.features.encryption import master_key_keyspace
from worldline.features.erasure import keyspace as erasure_keyspace
from worldline.features.erasure import scrub_keyspace
from worldline.features.quotas import keyspace as quota_keyspace
from worldline.keys import (
    age,
    cas,
    chunks,
    imports,
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
    traces,
    trial,
    universe_settings,
    universes,
    work,
    worlds,
)

# Written out, so that a change of any of them is noticed: the first is "in universe U", the second "in its world W".
U = "1502" + "30101112131415161718191a1b1c1d1e1f"
W = U + "1506" + "30202122232425262728292a2b2c2d2e2f"
WORKER_HEX = "1503" + "30303132333435363738393a3b3c3d3e3f"
UNIVERSE_ID = "30101112131415161718191a1b1c1d1e1f"
WORLD_ID = "30202122232425262728292a2b2c2d2e2f"
INTENT_ID = "30404142434445464748494a4b4c4d4e4f"
STAMP_HEX = "33505152535455565758595a5b"
DIGEST_HEX = "01" + DIGEST.hex() + "00"
NONCE = samples.counted(0x70)
NONCE_ID = "30707172737475767778797a7b7c7d7e7f"

KEYS: list[tuple[str, Callable[[], bytes], str]] = [
    ("schema.KEY", lambda: schema.KEY, "1501" + "1501"),
    ("master_key_keyspace.KEY", lambda: master_key_keyspace.KEY, "1501" + "1516"),
    ("encryption_keyspace.universe_key", lambda: encryption_keyspace.universe_key(UNIVERSE), U + "1519"),
    ("encryption_keyspace.world_key", lambda: encryption_keyspace.world_key(AT), U + "151a" + WORLD_ID),
    ("universes.name_key", lambda: universes.name_key("main"), "1501" + "1502" + "026d61696e00"),
    ("universes.meta_key", lambda: universes.meta_key(UNIVERSE), U + "1501"),
    ("universes.generation_key", lambda: universes.generation_key(UNIVERSE), U + "1502"),
    ("worlds.name_key", lambda: worlds.name_key(UNIVERSE, "zoë/1"), U + "1503" + "027a6fc3ab2f3100"),
    ("scrub_keyspace.COUNT", lambda: scrub_keyspace.COUNT, "1501" + "151a" + "14"),
    ("scrub_keyspace.LAST", lambda: scrub_keyspace.LAST, "1501" + "151a" + "1501"),
    (
        "erasure_keyspace.entry_key",
        lambda: erasure_keyspace.entry_key(samples.ERASURE),
        "1501" + "151b" + "1b060a24181e4000" + "30cb2e6f196fd21926395ad21f9f2511dd",
    ),
    ("copy_keyspace.restoring_key", copy_keyspace.restoring_key, "1501" + "1518"),
    ("copy_keyspace.backup_key", copy_keyspace.backup_key, "1501" + "1519"),
    ("imports.import_key", lambda: imports.import_key(AT), U + "151b" + WORLD_ID),
    ("dormant_keyspace.held_key", lambda: dormant_keyspace.held_key(AT), W + "151f"),
    ("inbox.seen_prefix", lambda: inbox.seen_prefix(AT), W + "150d"),
    ("inbox.dead_prefix", lambda: inbox.dead_prefix(AT), W + "150e" + "33"),
    ("worlds.index_key", lambda: worlds.index_key(AT), U + "1504" + WORLD_ID),
    ("cas.blob_key", lambda: cas.blob_key(UNIVERSE, DIGEST), U + "1505" + DIGEST_HEX),
    ("cas.blob_key", lambda: cas.blob_key(UNIVERSE, bytes(32)), U + "1505" + "01" + "00ff" * 32 + "00"),
    (
        "chunks.chunk_key",
        lambda: chunks.chunk_key(UNIVERSE, DIGEST, NONCE, 0),
        U + "150f" + DIGEST_HEX + NONCE_ID + "14",
    ),
    (
        "chunks.chunk_key",
        lambda: chunks.chunk_key(UNIVERSE, DIGEST, NONCE, 266),
        U + "150f" + DIGEST_HEX + NONCE_ID + "16010a",
    ),
    ("deletion_keyspace.deletion_key", lambda: deletion_keyspace.deletion_key(AT), U + "1514" + WORLD_ID),
    (
        "universe_keyspace.deletion_key",
        lambda: universe_keyspace.deletion_key(UNIVERSE),
        "1501" + "1514" + "30101112131415161718191a1b1c1d1e1f",
    ),
    ("universes.grants_key", lambda: universes.grants_key(UNIVERSE), U + "153c"),
    ("universes.grant_log_key", lambda: universes.grant_log_key(UNIVERSE, STAMP), U + "153d" + STAMP_HEX),
    ("universes.grant_log_prefix", lambda: universes.grant_log_prefix(UNIVERSE), U + "153d33"),
    (
        "encryption_keyspace.seals_key",
        lambda: encryption_keyspace.seals_key(encryption_keyspace.universe_key(UNIVERSE)),
        U + "151f" + "14",
    ),
    (
        "encryption_keyspace.seals_key",
        lambda: encryption_keyspace.seals_key(encryption_keyspace.world_key(AT)),
        U + "151f" + "1501" + WORLD_ID,
    ),
    ("universe_settings.settings_key", lambda: universe_settings.settings_key(UNIVERSE), U + "1526"),
    ("quota_keyspace.quotas_key", lambda: quota_keyspace.quotas_key(UNIVERSE), U + "151d" + "14"),
    ("quota_keyspace.usage_key", lambda: quota_keyspace.usage_key(UNIVERSE), U + "151d" + "1501"),
    ("quota_keyspace.log_key", lambda: quota_keyspace.log_key(UNIVERSE, STAMP), U + "151e" + STAMP_HEX),
    ("quota_keyspace.log_prefix", lambda: quota_keyspace.log_prefix(UNIVERSE), U + "151e33"),
    (
        "personal_records.value_key",
        lambda: personal_records.value_key(AT, NONCE, INTENT),
        U + "1516" + WORLD_ID + NONCE_ID + INTENT_ID,
    ),
    (
        "personal_subjects.subject_key",
        lambda: personal_subjects.subject_key(AT, NONCE),
        U + "1517" + WORLD_ID + "14" + NONCE_ID,
    ),
    (
        "personal_subjects.value_key",
        lambda: personal_subjects.value_key(AT, NONCE, INTENT),
        U + "1517" + WORLD_ID + "1501" + NONCE_ID + INTENT_ID,
    ),
    ("chunks.upload_key", lambda: chunks.upload_key(UNIVERSE, DIGEST, NONCE), U + "1510" + DIGEST_HEX + NONCE_ID),
    ("age.age_key", lambda: age.age_key(UNIVERSE), U + "1525"),
    ("collection_keyspace.collection_key", lambda: collection_keyspace.collection_key(UNIVERSE), U + "1511"),
    ("collection_keyspace.holds_key", lambda: collection_keyspace.holds_key(UNIVERSE), U + "1512"),
    (
        "collection_keyspace.condemned_key",
        lambda: collection_keyspace.condemned_key(UNIVERSE, DIGEST),
        U + "1513" + DIGEST_HEX,
    ),
    ("worlds.meta_key", lambda: worlds.meta_key(AT), W + "1501"),
    ("leases.epoch_key", lambda: leases.epoch_key(AT), W + "1502"),
    ("leases.holder_key", lambda: leases.holder_key(AT), W + "1503"),
    ("leases.assignment_key", lambda: leases.assignment_key(AT), W + "1504"),
    ("trial.trial_key", lambda: trial.trial_key(AT), W + "150f"),
    ("journal.head_key", lambda: journal.head_key(AT), W + "1505"),
    ("journal.frame_key", lambda: journal.frame_key(AT, 1), W + "1506" + "1501"),
    ("journal.frame_key", lambda: journal.frame_key(AT, 70_000), W + "1506" + "17011170"),
    ("journal.part_key", lambda: journal.part_key(AT, 70_000, 3), W + "1506" + "17011170" + "1503"),
    ("snapshots.baseline_key", lambda: snapshots.baseline_key(AT), W + "1507"),
    ("snapshots.snapshot_key", lambda: snapshots.snapshot_key(AT, 0), W + "1508" + "14"),
    ("snapshots.snapshot_key", lambda: snapshots.snapshot_key(AT, 300), W + "1508" + "16012c"),
    ("lineage.lineage_key", lambda: lineage.lineage_key(AT), W + "150a"),
    ("segments.segment_key", lambda: segments.segment_key(AT, 1), W + "1509" + "1501"),
    ("segments.segment_key", lambda: segments.segment_key(AT, 70_000), W + "1509" + "17011170"),
    ("lineage.pin_count_key", lambda: lineage.pin_count_key(AT), W + "150b" + "14"),
    ("lineage.pin_key", lambda: lineage.pin_key(AT, samples.WORLD), W + "150b" + "1501" + WORLD_ID),
    ("inbox.item_prefix", lambda: inbox.item_prefix(AT), W + "150c" + "33"),
    ("inbox.item_key", lambda: inbox.item_key(AT, STAMP), W + "150c" + STAMP_HEX),
    (
        "inbox.seen_key",
        lambda: inbox.seen_key(AT, samples.counted(0x70)),
        W + "150d" + "14" + "30707172737475767778797a7b7c7d7e7f",
    ),
    ("inbox.seen_key", lambda: inbox.seen_key(AT, "order\x001"), W + "150d" + "1501" + "016f7264657200ff3100"),
    ("inbox.seen_key", lambda: inbox.seen_key(AT, "a" * 64), W + "150d" + "1501" + "01" + "61" * 64 + "00"),
    (
        "inbox.seen_key",
        lambda: inbox.seen_key(AT, "a" * 65),
        W + "150d" + "1502" + "01635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae000",
    ),
    ("inbox.dead_key", lambda: inbox.dead_key(AT, STAMP), W + "150e" + STAMP_HEX),
    ("inbox.brought_prefix", lambda: inbox.brought_prefix(AT, UNIVERSE), W + "1523" + UNIVERSE_ID),
    ("inbox.brought_key", lambda: inbox.brought_key(AT, AT, INTENT), W + "1523" + UNIVERSE_ID + WORLD_ID + INTENT_ID),
    ("traces.trace_key", lambda: traces.trace_key(AT, limits.TRACE_SLOTS + 3), W + "1514" + "1503"),
    ("work.open_key", lambda: work.open_key(AT, INTENT), U + "1507" + WORLD_ID + INTENT_ID),
    (
        "work.queue_prefix",
        lambda: work.queue_prefix(UNIVERSE, "mail"),
        U + "1508" + "026d61696c00" + "14",
    ),
    ("work.queues_prefix", lambda: work.queues_prefix(UNIVERSE, "ma"), U + "1508" + "026d61"),
    ("work.queues_prefix", lambda: work.queues_prefix(UNIVERSE, "mail"), U + "1508" + "026d61696c"),
    (
        "work.due_key",
        lambda: work.due_key(AT, INTENT, queue="mail", due_us=samples.TIME_US),
        U + "1508" + "026d61696c00" + "14" + "1b060a24181e4000" + WORLD_ID + INTENT_ID,
    ),
    ("ready.hint_prefix", lambda: ready.hint_prefix(UNIVERSE, 0), U + "150a" + "14" + "33"),
    ("ready.hint_key", lambda: ready.hint_key(UNIVERSE, 3, STAMP), U + "150a" + "1503" + STAMP_HEX),
    ("ready.blocked_key", lambda: ready.blocked_key(AT), U + "150a" + "1503" + "33" + WORLD_ID[-24:]),
    ("leases.worker_key", lambda: leases.worker_key(WORKER), WORKER_HEX + "1501"),
    ("leases.held_key", lambda: leases.held_key(WORKER, AT), WORKER_HEX + "1502" + U[4:] + WORLD_ID),
]

RANGES: list[tuple[str, Callable[[], tuple[bytes, bytes]], str, str]] = [
    ("universes.names", universes.names, "1501" + "1502", "1501" + "1503"),
    ("encryption_keyspace.world_keys", lambda: encryption_keyspace.world_keys(UNIVERSE), U + "151a", U + "151b"),
    ("worlds.names", lambda: worlds.names(UNIVERSE), U + "1503", U + "1504"),
    ("worlds.index", lambda: worlds.index(UNIVERSE), U + "1504", U + "1505"),
    ("cas.blobs", lambda: cas.blobs(UNIVERSE), U + "1505", U + "1506"),
    (
        "chunks.chunks",
        lambda: chunks.chunks(UNIVERSE, DIGEST, NONCE),
        U + "150f" + DIGEST_HEX + NONCE_ID,
        U + "150f" + DIGEST_HEX + NONCE_ID[:-2] + "80",
    ),
    ("deletion_keyspace.deletions", lambda: deletion_keyspace.deletions(UNIVERSE), U + "1514", U + "1515"),
    ("erasure_keyspace.entries", erasure_keyspace.entries, "1501" + "151b", "1501" + "151c"),
    ("universe_keyspace.deletions", universe_keyspace.deletions, "1501" + "1514", "1501" + "1515"),
    ("universes.grant_log", lambda: universes.grant_log(UNIVERSE), U + "153d33", U + "153d34"),
    ("imports.imports", lambda: imports.imports(UNIVERSE), U + "151b", U + "151c"),
    ("quota_keyspace.log", lambda: quota_keyspace.log(UNIVERSE), U + "151e33", U + "151e34"),
    ("chunks.uploads", lambda: chunks.uploads(UNIVERSE), U + "1510", U + "1511"),
    ("worlds.all_worlds", lambda: worlds.all_worlds(UNIVERSE), U + "1506", U + "1507"),
    ("collection_keyspace.condemned", lambda: collection_keyspace.condemned(UNIVERSE), U + "1513", U + "1514"),
    (
        "personal_records.values",
        lambda: personal_records.values(AT, NONCE),
        U + "1516" + WORLD_ID + NONCE_ID,
        U + "1516" + WORLD_ID + NONCE_ID[:-2] + "80",
    ),
    ("personal_records.lineages", lambda: personal_records.lineages(UNIVERSE), U + "1516", U + "1517"),
    (
        "personal_records.all_values",
        lambda: personal_records.all_values(AT),
        U + "1516" + WORLD_ID,
        U + "1516" + WORLD_ID[:-2] + "30",
    ),
    (
        "personal_subjects.records",
        lambda: personal_subjects.records(AT),
        U + "1517" + WORLD_ID,
        U + "1517" + WORLD_ID[:-2] + "30",
    ),
    (
        "personal_subjects.subjects",
        lambda: personal_subjects.subjects(AT),
        U + "1517" + WORLD_ID + "14",
        U + "1517" + WORLD_ID + "15",
    ),
    ("journal.frames", lambda: journal.frames(AT), W + "1506" + "1501", W + "1507"),
    ("journal.frames", lambda: journal.frames(AT, above=255), W + "1506" + "160100", W + "1507"),
    ("snapshots.snapshots", lambda: snapshots.snapshots(AT), W + "1508", W + "1509"),
    ("snapshots.snapshots", lambda: snapshots.snapshots(AT, up_to=6), W + "1508", W + "1508" + "1507"),
    ("segments.segments", lambda: segments.segments(AT), W + "1509" + "1501", W + "150a"),
    ("segments.segments", lambda: segments.segments(AT, above=255), W + "1509" + "160100", W + "150a"),
    ("lineage.pins", lambda: lineage.pins(AT), W + "150b" + "1501", W + "150b" + "1502"),
    ("inbox.items", lambda: inbox.items(AT), W + "150c" + "33", W + "150c" + "34"),
    ("inbox.items", lambda: inbox.items(AT, start=STAMP), W + "150c" + STAMP_HEX, W + "150c" + "34"),
    ("inbox.seen_made", lambda: inbox.seen_made(AT), W + "150d" + "14", W + "150d" + "15"),
    (
        "inbox.seen_made_before",
        lambda: inbox.seen_made_before(AT, samples.counted(0x70)),
        W + "150d" + "14",
        W + "150d" + "14" + "30707172737475767778797a7b7c7d7e7f",
    ),
    ("inbox.seen_chosen", lambda: inbox.seen_chosen(AT), W + "150d" + "1501", W + "150d" + "1503"),
    ("inbox.dead", lambda: inbox.dead(AT), W + "150e" + "33", W + "150e" + "34"),
    ("inbox.brought", lambda: inbox.brought(AT), W + "1523", W + "1524"),
    ("traces.traces", lambda: traces.traces(AT), W + "1514", W + "1515"),
    ("work.open_work", lambda: work.open_work(AT), U + "1507" + WORLD_ID, U + "1507" + WORLD_ID[:-2] + "30"),
    ("work.open_all", lambda: work.open_all(UNIVERSE), U + "1507", U + "1508"),
    (
        "work.due_until",
        lambda: work.due_until(UNIVERSE, queue="mail", until_us=samples.TIME_US),
        U + "1508" + "026d61696c00" + "14",
        U + "1508" + "026d61696c00" + "14" + "1b060a24181e4001",
    ),
    ("work.due_all", lambda: work.due_all(UNIVERSE), U + "1508", U + "1509"),
    ("ready.former_hints", lambda: ready.former_hints(UNIVERSE), U + "1509", U + "150a"),
    ("ready.every_hint", lambda: ready.every_hint(UNIVERSE), U + "150a", U + "150b"),
    ("ready.hints", lambda: ready.hints(UNIVERSE, 3), U + "150a" + "1503" + "33", U + "150a" + "1503" + "34"),
    (
        "ready.hints",
        lambda: ready.hints(UNIVERSE, 3, start=STAMP),
        U + "150a" + "1503" + STAMP_HEX,
        U + "150a" + "1503" + "34",
    ),
    ("leases.held", lambda: leases.held(WORKER), WORKER_HEX + "1502", WORKER_HEX + "1503"),
    (
        "leases.held_in",
        lambda: leases.held_in(WORKER, UNIVERSE),
        WORKER_HEX + "1502" + U[4:],
        WORKER_HEX + "1502" + U[4:-2] + "20",
    ),
    ("leases.workers", leases.workers, "1503", "1504"),
]

# How each key is taken apart, and what must come out: parse(build(x)) == x.
PARSED: list[tuple[str, Callable[[bytes], Any], bytes, Any]] = [
    ("worlds.index_world", lambda key: worlds.index_world(UNIVERSE, key), worlds.index_key(AT), samples.WORLD),
    ("lineage.pin_fork", lambda key: lineage.pin_fork(AT, key), lineage.pin_key(AT, samples.WORLD), samples.WORLD),
    ("universes.name_of", universes.name_of, universes.name_key("zoë"), "zoë"),
    ("worlds.name_of", lambda key: worlds.name_of(UNIVERSE, key), worlds.name_key(UNIVERSE, "zoë/1"), "zoë/1"),
    ("work.open_address", lambda key: work.open_address(UNIVERSE, key), work.open_key(AT, INTENT), (AT, INTENT)),
    ("journal.frame_height", lambda key: journal.frame_height(AT, key), journal.frame_key(AT, 70_000), 70_000),
    ("journal.frame_place", lambda key: journal.frame_place(AT, key), journal.part_key(AT, 70_000, 3), (70_000, 3)),
    ("snapshots.snapshot_step", lambda key: snapshots.snapshot_step(AT, key), snapshots.snapshot_key(AT, 0), 0),
    (
        "deletion_keyspace.deletion_world",
        lambda key: deletion_keyspace.deletion_world(UNIVERSE, key),
        deletion_keyspace.deletion_key(AT),
        samples.WORLD,
    ),
    (
        "universe_keyspace.deletion_universe",
        universe_keyspace.deletion_universe,
        universe_keyspace.deletion_key(UNIVERSE),
        UNIVERSE,
    ),
    ("segments.segment_height", lambda key: segments.segment_height(AT, key), segments.segment_key(AT, 9), 9),
    ("inbox.stamp_of", inbox.stamp_of, inbox.item_key(AT, STAMP), STAMP),
    ("inbox.stamp_of", inbox.stamp_of, inbox.dead_key(AT, STAMP), STAMP),
    ("work.open_intent", lambda key: work.open_intent(AT, key), work.open_key(AT, INTENT), INTENT),
    (
        "work.pointer",
        lambda key: work.pointer(UNIVERSE, key),
        work.due_key(AT, INTENT, queue="mail", due_us=0),
        work.Pointer("mail", 0, AT, INTENT),
    ),
    ("leases.held_address", lambda key: leases.held_address(WORKER, key), leases.held_key(WORKER, AT), AT),
    ("leases.worker_of", leases.worker_of, leases.worker_key(WORKER), WORKER),
    (
        "encryption_keyspace.owner",
        encryption_keyspace.owner,
        encryption_keyspace.world_key(AT),
        (UNIVERSE, samples.WORLD),
    ),
    (
        "encryption_keyspace.owner",
        encryption_keyspace.owner,
        encryption_keyspace.universe_key(UNIVERSE),
        (UNIVERSE, None),
    ),
    (
        "chunks.chunk_number",
        lambda key: chunks.chunk_number(UNIVERSE, DIGEST, NONCE, key),
        chunks.chunk_key(UNIVERSE, DIGEST, NONCE, 266),
        266,
    ),
    (
        "chunks.upload_name",
        lambda key: chunks.upload_name(UNIVERSE, key),
        chunks.upload_key(UNIVERSE, DIGEST, NONCE),
        (DIGEST, NONCE),
    ),
    ("worlds.world_of", lambda key: worlds.world_of(UNIVERSE, key), journal.frame_key(AT, 7), samples.WORLD),
    ("cas.blob_address", lambda key: cas.blob_address(UNIVERSE, key), cas.blob_key(UNIVERSE, DIGEST), DIGEST),
    (
        "collection_keyspace.condemned_address",
        lambda key: collection_keyspace.condemned_address(UNIVERSE, key),
        collection_keyspace.condemned_key(UNIVERSE, DIGEST),
        DIGEST,
    ),
    (
        "imports.import_world",
        lambda key: imports.import_world(UNIVERSE, key),
        imports.import_key(AT),
        AT,
    ),
    (
        "personal_records.parse",
        lambda key: personal_records.parse(UNIVERSE, key),
        personal_records.value_key(AT, NONCE, INTENT),
        (AT, NONCE, INTENT),
    ),
    ("leases.owner_of", leases.owner_of, leases.held_key(WORKER, AT), WORKER),
]
