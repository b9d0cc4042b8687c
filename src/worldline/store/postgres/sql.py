"""The SQL of the PostgreSQL engine: the table, the commit function, the read statement. Text only.

**One table.** `kv(key, value)` in key order (bytea compares as unsigned bytes). Values are not compressed, so a byte
bound can be worked out from lengths alone; updated rows have room on their page. `store` has one row: the layout's
version, and where the stamps of this cluster begin.

**Commit: lock, then look, then write.** One call of a function is one autocommitted statement and one round trip. The
function is VOLATILE and the isolation READ COMMITTED, so each statement inside has a snapshot of its own:

1. Lock every row that the group expects or writes, in key order: FOR UPDATE what is written or swept, FOR SHARE what is
   only expected. The caller cuts the sorted keys into runs of one kind. A long run of keys that are deleted with
   any value is deleted here already, which locks as well and saves a visit to each row.
2. Look at the expectations on a snapshot taken *after* the locks: every transaction we waited for is in it. What was
   found can no longer change, so a batch is judged, and its conflict told, by one consistent view.
3. Write for the batches that held: puts, counters and appends first, deletes and ranges last, so that a row met by a
   put means that its writer's other rows are met by the deletes. If a batch did not hold after rows were deleted in
   step 1, the whole statement is undone, and run again with locks only.

A key that is expected absent has no row to lock. It is inserted plainly: if another transaction was quicker, the unique
index waits for it, then unique_violation undoes the whole statement and it is run again, on a snapshot that shows the
row. The same holds for appended keys. So every batch that is applied saw a state that was still current when it
committed.

Locks are taken in one order, so groups cannot wait for each other in a circle. New rows are the exception (they
cannot be locked before they exist); the server finds such a circle and undoes one of the two, which is run again.

**Stamps** are (`base` + the transaction's 64-bit id, ordinal). An id below the oldest one still running can write no
more, which is what `stable` says. Ids start anew in a cluster restored from a dump, so `store.base` is raised there. A
standby that is promoted without the last commits hands out their ids once more; its timeline is a new one, and each
timeline raises the base as well. So no stamp of a lost commit comes again, and none is below one that was seen.

The function's name holds a digest of its text: releases with different texts live beside each other.
"""

from __future__ import annotations

import hashlib

from worldline.base import limits
from worldline.store.postgres import postgres_settings

LAYOUT = 1
# More transaction ids than a cluster uses in its life; what a move to another cluster adds to `store.base`.
BASE_STEP = 1 << 48
# More transactions than a promotion can lose; what each timeline of a cluster after the first adds.
TIMELINE_STEP = 1 << 32

# Kinds of runs of locked keys. A range run holds two keys, its bounds; a delete run is deleted instead of locked.
RUN_SHARE, RUN_WRITE, RUN_RANGE, RUN_DELETE = 0, 1, 2, 3
# What the function raises if it deleted too early.
HASTY = "WL001"

# Only generic plans, and only ones that walk the primary key: the planner knows nothing of a table that was empty when
# the plan was made. Isolation is part of the algorithm, so a server's other default must not reach it.
FREEZE = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL idle_in_transaction_session_timeout = 0"
SESSION = """
SET search_path = pg_catalog;
SET default_transaction_isolation = 'read committed';
SET default_transaction_deferrable = off;
SET plan_cache_mode = force_generic_plan;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_mergejoin = off;
SET max_parallel_workers_per_gather = 0;
SET jit = off;
SET lock_timeout = 0;
SET idle_session_timeout = 0;
SET client_min_messages = warning;
"""

IDENTITY = """
SELECT current_setting('server_version_num')::integer,
       pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
       (SELECT system_identifier FROM pg_control_system()),
       EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = $1 AND c.relname = 'kv'),
       EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = $1 AND c.relname = 'store'),
       EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
               WHERE n.nspname = $1 AND p.proname = $2),
       EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = $1),
       CASE WHEN pg_is_in_recovery() THEN 0
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END
"""

DURABILITY = """
SELECT name, setting FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names')
"""

CREATE_LOCK = "SELECT pg_advisory_xact_lock(hashtext('worldline store'), hashtext($1))"
NOTIFY = "SELECT pg_notify($1, $2)"
PING = "SELECT 1"

# The room that inserts leave in each page is for new versions of its rows: heads and heartbeats change all the time,
# and a version in the same page needs no entry in the index. While an old transaction is open, no version can be
# removed, and every entry of a key is walked by the next change of it.
_CREATE = """
CREATE TABLE {schema}.kv (key bytea NOT NULL PRIMARY KEY, value bytea NOT NULL) WITH (
    fillfactor = 60,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_threshold = 2000
);
ALTER TABLE {schema}.kv ALTER COLUMN key SET STORAGE PLAIN, ALTER COLUMN value SET STORAGE EXTERNAL;
CREATE TABLE {schema}.store (layout integer NOT NULL, system bigint NOT NULL, base bigint NOT NULL);
INSERT INTO {schema}.store SELECT {layout}, system_identifier, 0 FROM pg_control_system();
COMMENT ON TABLE {schema}.kv IS 'A Worldline store: one ordered key-value space.';
"""

# Counters are eight bytes, little-endian, signed, and wrap: added as two unsigned halves with a carry.
_COUNTER_ADD = """
CREATE FUNCTION {schema}.{counter_add}(a bytea, b bytea) RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT AS $body$
DECLARE
    low bigint := 0;
    high bigint := 0;
    sent bytea;
BEGIN
    a := substr(a || int8send(0), 1, {counter_bytes});
    FOR i IN 0 .. 3 LOOP
        low := low + ((get_byte(a, i) + get_byte(b, i))::bigint << (8 * i));
        high := high + ((get_byte(a, i + 4) + get_byte(b, i + 4))::bigint << (8 * i));
    END LOOP;
    sent := int8send(((high + (low >> 32)) << 32) | (low & 4294967295));
    RETURN substr(sent, 8, 1) || substr(sent, 7, 1) || substr(sent, 6, 1) || substr(sent, 5, 1)
        || substr(sent, 4, 1) || substr(sent, 3, 1) || substr(sent, 2, 1) || substr(sent, 1, 1);
END
$body$;
"""

# The row of the key `k.key`, as a condition and what follows it. While an old transaction is open, the server keeps all
# versions of a row, and the index holds them in the order of their places in the table: newer ones behind older ones,
# as a rule. So the walk goes backwards and ends at the first that is visible. Forwards it would visit all dead versions
# first, one for every commit since that transaction began. Equality would let the planner drop the order.
_NEWEST = "kv.key >= k.key AND kv.key <= k.key ORDER BY kv.key DESC LIMIT 1"

# In the order of the function's parameters; `groups.encode` makes them, with NULL for what a group does not have.
# Deletes that are not runs of their own are parts of runs, or keys.
COMMIT_PARAMETERS = (
    ("base", "bigint"),
    ("lock_keys", "bytea[]"),
    ("run_ends", "integer[]"),
    ("run_kinds", "integer[]"),
    ("expect_keys", "bytea[]"),
    ("expect_values", "bytea[]"),
    ("expect_batches", "integer[]"),
    ("insert_keys", "bytea[]"),
    ("insert_values", "bytea[]"),
    ("insert_key_stamps", "integer[]"),
    ("insert_value_stamps", "integer[]"),
    ("insert_batches", "integer[]"),
    ("put_keys", "bytea[]"),
    ("put_values", "bytea[]"),
    ("put_value_stamps", "integer[]"),
    ("put_batches", "integer[]"),
    ("count_keys", "bytea[]"),
    ("count_values", "bytea[]"),
    ("count_batches", "integer[]"),
    ("delete_keys", "bytea[]"),
    ("delete_firsts", "integer[]"),
    ("delete_lasts", "integer[]"),
    ("delete_batches", "integer[]"),
    ("range_begins", "bytea[]"),
    ("range_ends", "bytea[]"),
    ("range_batches", "integer[]"),
)

_COMMIT = """
CREATE FUNCTION {schema}.{commit}(
    {parameters},
    OUT version bigint,
    OUT found_batches integer[], OUT found_keys bytea[], OUT found_values bytea[]
) LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    first integer := 1;
    swept bytea[];
    present bytea[] := ARRAY[]::bytea[];
    done bytea[];
    stamp bytea;
    deleted bigint;
    hasty boolean := false;
    missing boolean := false;
BEGIN
    FOR run IN 1 .. cardinality(run_ends) LOOP
        IF run_kinds[run] = {share} THEN
            PERFORM FROM unnest(lock_keys[first:run_ends[run]]) AS k(key)
            CROSS JOIN LATERAL (SELECT FROM {schema}.kv WHERE {newest} FOR SHARE) AS held;
        ELSIF run_kinds[run] = {write} THEN
            present := present || ARRAY(
                SELECT k.key FROM unnest(lock_keys[first:run_ends[run]]) AS k(key)
                CROSS JOIN LATERAL (SELECT FROM {schema}.kv WHERE {newest} FOR UPDATE) AS held);
        ELSIF run_kinds[run] = {delete} THEN
            DELETE FROM {schema}.kv WHERE kv.key = ANY (lock_keys[first:run_ends[run]]);
            GET DIAGNOSTICS deleted = ROW_COUNT;
            hasty := true;
            missing := missing OR deleted <= run_ends[run] - first;
        ELSE
            PERFORM FROM {schema}.kv WHERE kv.key >= lock_keys[first] AND kv.key < lock_keys[first + 1]
            ORDER BY kv.key FOR UPDATE;
        END IF;
        first := run_ends[run] + 1;
    END LOOP;

    -- The rows are locked already, all but those that appeared since: FOR SHARE holds these as well.
    SELECT array_agg(k.batch), array_agg(k.key), array_agg(held.value)
    INTO found_batches, found_keys, found_values
    FROM unnest(expect_keys, expect_values, expect_batches) AS k(key, value, batch)
    LEFT JOIN LATERAL (SELECT kv.value FROM {schema}.kv WHERE {newest} FOR SHARE) AS held ON true
    WHERE held.value IS DISTINCT FROM k.value;

    IF found_batches IS NOT NULL AND hasty THEN
        RAISE EXCEPTION USING ERRCODE = '{hasty}', MESSAGE = 'a batch did not hold, and rows were deleted already';
    END IF;
    IF found_batches IS NOT NULL THEN
        SELECT array_agg(w.key), array_agg(w.value), array_agg(w.key_stamp), array_agg(w.value_stamp)
        INTO insert_keys, insert_values, insert_key_stamps, insert_value_stamps
        FROM unnest(insert_keys, insert_values, insert_key_stamps, insert_value_stamps, insert_batches)
            AS w(key, value, key_stamp, value_stamp, batch)
        WHERE w.batch <> ALL (found_batches);
        SELECT array_agg(w.key), array_agg(w.value), array_agg(w.value_stamp)
        INTO put_keys, put_values, put_value_stamps
        FROM unnest(put_keys, put_values, put_value_stamps, put_batches) AS w(key, value, value_stamp, batch)
        WHERE w.batch <> ALL (found_batches);
        SELECT array_agg(w.key), array_agg(w.value) INTO count_keys, count_values
        FROM unnest(count_keys, count_values, count_batches) AS w(key, value, batch)
        WHERE w.batch <> ALL (found_batches);
        SELECT array_agg(w.key) FILTER (WHERE w.key IS NOT NULL),
               array_agg(w.first) FILTER (WHERE w.first IS NOT NULL), array_agg(w.last)
        INTO delete_keys, delete_firsts, delete_lasts
        FROM unnest(delete_keys, delete_firsts, delete_lasts, delete_batches) AS w(key, first, last, batch)
        WHERE w.batch <> ALL (found_batches);
        SELECT array_agg(w.begins), array_agg(w.ends) INTO range_begins, range_ends
        FROM unnest(range_begins, range_ends, range_batches) AS w(begins, ends, batch)
        WHERE w.batch <> ALL (found_batches);
    END IF;

    version := base + pg_current_xact_id()::text::bigint;
    stamp := int8send(version);

    IF cardinality(put_keys) > 0 THEN
        -- Rows that are there are updated in their places; the insert would look for each by a walk of its own.
        WITH updated AS (
            UPDATE {schema}.kv SET value = found.value
            FROM (SELECT held.place, CASE WHEN k.value_stamp IS NULL THEN k.value
                                          ELSE k.value || stamp || int4send(k.value_stamp) END AS value
                  FROM unnest(put_keys, put_values, put_value_stamps) AS k(key, value, value_stamp)
                  CROSS JOIN LATERAL (SELECT kv.ctid AS place FROM {schema}.kv WHERE {newest}) AS held
                  WHERE k.key = ANY (present)) AS found
            WHERE kv.ctid = found.place RETURNING kv.key)
        SELECT array_agg(updated.key) INTO done FROM updated;
        IF done IS NULL OR cardinality(done) < cardinality(put_keys) THEN
            INSERT INTO {schema}.kv
            SELECT w.key,
                   CASE WHEN w.value_stamp IS NULL THEN w.value ELSE w.value || stamp || int4send(w.value_stamp) END
            FROM unnest(put_keys, put_values, put_value_stamps) AS w(key, value, value_stamp)
            WHERE done IS NULL OR w.key <> ALL (done)
            ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value;
        END IF;
    END IF;
    IF cardinality(count_keys) > 0 THEN
        INSERT INTO {schema}.kv SELECT w.key, w.value FROM unnest(count_keys, count_values) AS w(key, value)
        ON CONFLICT (key) DO UPDATE SET value = {schema}.{counter_add}(kv.value, EXCLUDED.value);
    END IF;
    IF cardinality(insert_keys) > 0 THEN
        INSERT INTO {schema}.kv
        SELECT CASE WHEN w.key_stamp IS NULL THEN w.key ELSE w.key || stamp || int4send(w.key_stamp) END,
               CASE WHEN w.value_stamp IS NULL THEN w.value ELSE w.value || stamp || int4send(w.value_stamp) END
        FROM unnest(insert_keys, insert_values, insert_key_stamps, insert_value_stamps)
            AS w(key, value, key_stamp, value_stamp);
    END IF;
    FOR part IN 1 .. coalesce(cardinality(delete_firsts), 0) LOOP
        DELETE FROM {schema}.kv
        USING unnest(lock_keys[delete_firsts[part]:delete_lasts[part]]) AS k(key)
        CROSS JOIN LATERAL (SELECT kv.ctid AS place FROM {schema}.kv WHERE {newest}) AS held
        WHERE kv.ctid = held.place;
        GET DIAGNOSTICS deleted = ROW_COUNT;
        IF deleted <= delete_lasts[part] - delete_firsts[part] THEN
            DELETE FROM {schema}.kv WHERE kv.key = ANY (lock_keys[delete_firsts[part]:delete_lasts[part]]);
        END IF;
    END LOOP;
    IF cardinality(delete_keys) > 0 THEN
        DELETE FROM {schema}.kv WHERE kv.key = ANY (delete_keys);
    END IF;
    IF missing THEN
        -- What was not there when its turn came may have been made by a transaction that a later lock waited for.
        first := 1;
        FOR run IN 1 .. cardinality(run_ends) LOOP
            IF run_kinds[run] = {delete} THEN
                DELETE FROM {schema}.kv WHERE kv.key = ANY (lock_keys[first:run_ends[run]]);
            END IF;
            first := run_ends[run] + 1;
        END LOOP;
    END IF;
    IF cardinality(range_begins) > 0 THEN
        swept := ARRAY(
            SELECT held.key FROM unnest(range_begins, range_ends) AS r(begins, ends)
            CROSS JOIN LATERAL (SELECT kv.key FROM {schema}.kv WHERE kv.key >= r.begins AND kv.key < r.ends
                                ORDER BY kv.key FOR UPDATE) AS held);
        DELETE FROM {schema}.kv WHERE kv.key = ANY (swept);
    END IF;
END
$body$;
"""

# One row for the gets, with the store's time and the oldest running transaction; one row for each range, with how many
# keys it has up to one beyond its bound. A range is walked once. Lengths do not touch what is stored out of line, so
# values that the running sum cuts off are not read.
_READ = """
SELECT 0 AS place, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS total,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest, NULL::bytea[] AS keys,
       ARRAY(SELECT (SELECT kv.value FROM {schema}.kv WHERE {newest})
             FROM unnest($1::bytea[]) AS k(key)) AS values
"""

_READ_RANGES = """
UNION ALL
SELECT r.place::integer, page.total, 0, page.keys, page.values
FROM unnest($2::bytea[], $3::bytea[], $4::integer[], $5::integer[], $6::integer[])
    WITH ORDINALITY AS r(begins, ends, count_max, bytes_max, reverse, place)
CROSS JOIN LATERAL (
    SELECT count(*) AS total,
           array_agg(near.key) FILTER (WHERE near.fits) AS keys,
           array_agg(near.value) FILTER (WHERE near.fits) AS values
    FROM (SELECT near.key, near.value,
                 near.number = 1 OR near.number <= r.count_max AND near.bytes <= r.bytes_max AS fits
          FROM (SELECT near.key, near.value, row_number() OVER run AS number,
                       sum(octet_length(near.key) + octet_length(near.value)) OVER run AS bytes
                FROM (SELECT kv.key, kv.value FROM {schema}.kv WHERE kv.key >= r.begins AND kv.key < r.ends
                      ORDER BY kv.key {direction} LIMIT r.count_max + 1) AS near
                WINDOW run AS (ORDER BY near.key {direction} ROWS UNBOUNDED PRECEDING)) AS near
          ORDER BY near.key {direction}) AS near
) AS page
WHERE r.reverse = {reverse}
"""


def create(schema: str) -> str:
    return _CREATE.format(schema=postgres_settings.check_schema(schema), layout=LAYOUT)


def create_schema(schema: str) -> str:
    return f"CREATE SCHEMA {postgres_settings.check_schema(schema)}"


def commit_name() -> str:
    """The function's name: its text's digest is in it."""
    text = _COMMIT + _COUNTER_ADD + _NEWEST + str(COMMIT_PARAMETERS)
    return "commit_" + hashlib.sha256(text.encode()).hexdigest()[:12]


def commit_functions(schema: str) -> str:
    """The definitions of the commit function and of what it calls."""
    commit = commit_name()
    counter_add = commit.replace("commit_", "counter_add_")
    parameters = ", ".join(f"{name} {kind}" for name, kind in COMMIT_PARAMETERS)
    text = _COUNTER_ADD + _COMMIT
    return text.format(
        schema=postgres_settings.check_schema(schema),
        commit=commit,
        counter_add=counter_add,
        parameters=parameters,
        share=RUN_SHARE,
        write=RUN_WRITE,
        delete=RUN_DELETE,
        hasty=HASTY,
        newest=_NEWEST,
        counter_bytes=limits.COUNTER_BYTES,
    )


def commit_call(schema: str) -> str:
    places = ", ".join(f"${index + 1}" for index in range(len(COMMIT_PARAMETERS)))
    return f"SELECT * FROM {postgres_settings.check_schema(schema)}.{commit_name()}({places})"  # noqa: S608


def read(schema: str, *, backwards: bool) -> str:
    """The read statement; without `backwards` a shorter one, for when no range is read in reverse."""
    name = postgres_settings.check_schema(schema)
    text = _READ.format(schema=name, newest=_NEWEST) + _READ_RANGES.format(schema=name, direction="ASC", reverse=0)
    return text + _READ_RANGES.format(schema=name, direction="DESC", reverse=1) if backwards else text


def store_row(schema: str) -> str:
    return f"SELECT layout, system, base FROM {postgres_settings.check_schema(schema)}.store"  # noqa: S608


def store_moved(schema: str) -> str:
    return f"UPDATE {postgres_settings.check_schema(schema)}.store SET system = $1, base = base + {BASE_STEP}"  # noqa: S608


# What is older than a transaction's snapshot sees rows that are dead for all others, and VACUUM leaves these.
OLDEST = "SELECT pg_current_xact_id()::xid::text"
OLDER = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND age(backend_xmin) >= age($1::text::xid)
ORDER BY pid
"""


def vacuum(schema: str) -> str:
    return f"VACUUM (INDEX_CLEANUP ON) {postgres_settings.check_schema(schema)}.kv"


def raise_base(schema: str) -> str:
    """Stamps begin at a version at least. The base is what transaction ids are added to, and so is never below it."""
    name = postgres_settings.check_schema(schema)
    return f"UPDATE {name}.store SET base = greatest(base, $1::bigint) RETURNING base"  # noqa: S608


def channel(schema: str) -> str:
    return "worldline_" + postgres_settings.check_schema(schema)
