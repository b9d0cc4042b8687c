"""Every bound in one place, with the relations between them asserted.

The store's limits are the smallest of all engines, so that what passes on a laptop passes in a cluster: LMDB
stops keys at 511 bytes, FoundationDB values at 100 kB and transactions at 10 MB. Changing a number here that
names stored data is a change of format.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# --- Store: what one key, value and batch may be ---------------------------------------------------------
KEY_BYTES_MAX = 480
VALUE_BYTES_MAX = 64 * KIB
BATCH_BYTES_MAX = 4 * MIB
SEALED_BATCH_BYTES_MAX = 2 * BATCH_BYTES_MAX  # of a batch whose values a codec has made longer
SEALED_ROOM_BYTES_MAX = 1 * KIB  # by how much a codec may make a value longer
BATCH_APPENDS_MAX = 65_535  # a stamp's ordinal has two bytes of its own on FoundationDB
STAMP_BYTES = 12
COUNTER_BYTES = 8
READ_REQUESTS_MAX = 4_096
RANGE_COUNT_DEFAULT = 1_000
RANGE_BYTES_DEFAULT = 1 * MIB

# --- Names ---------------------------------------------------------------------------------------------
ID_BYTES = 16
DIGEST_BYTES = 32
NAME_BYTES_MAX = 128
TUPLE_DEPTH_MAX = 16  # tuples inside tuples, in a key
CLIENT_ID_BYTES_MAX = 64  # longer client ids are hashed
KEY_ID_BYTES_MAX = 64  # of a master key
KEY_FILE_BYTES_MAX = 64 * KIB
KEY_BYTES = 32  # of a master key, and of a data key
KEY_CHECK_BYTES = 16  # by which a master key is told from every other
OLDER_KEYS_MAX = 16  # data keys that one follows, and that may still be needed
# Nonces have 96 bits and are as good as random: among 2^32 values of one key, two are the same less often than once in
# 2^32 keys. One value of 65,536 is counted, by chance, and no body of an object: so half of that is the bound.
SEALS_COUNTED = 65_536
SEALS_LOW = 2**30 // SEALS_COUNTED  # from here on, a rotation is asked for
SEALS_MAX = 2**31 // SEALS_COUNTED  # nothing more is sealed with the key
MASTER_KEYS_MAX = 64  # that a store is encrypted with at a time
DATA_KEYS_KNOWN_MAX = 65_536  # that a process remembers
DATA_KEYS_PAGE = 100  # looked at together when keys are changed
CELL_KEY_BYTES_MAX = 4_096  # of a reducer with a key
HEADERS_MAX = 32  # of a message
RELAY_BYTES_MAX = 1 * MIB  # of a line or a webhook's body, unless less is asked for
WEBHOOK_HEAD_BYTES_MAX = 16 * KIB
WEBHOOK_CONNECTIONS_MAX = 256
WEBHOOK_ADDRESS_CONNECTIONS_MAX = 64  # of these, that one address has
WEBHOOK_ADDRESSES_MAX = 4_096  # whose rates are remembered
WEBHOOK_HEAD_SECONDS = 3  # for the head of a request to arrive
WEBHOOK_BODY_SECONDS = 2  # for its body, and as much again as it would take at the slowest rate
WEBHOOK_BODY_BYTES_PER_SECOND_MIN = 128 * KIB
WEBHOOK_LINGER_SECONDS = 1  # how long what a refused client still sends is read, so that it can read its answer
WEBHOOK_SECONDS = 10  # for an answer to be read, and for requests under way when the server ends
WEBHOOK_SECRET_BYTES_MIN = 16
WEBHOOK_STANDARD_SECRET_BYTES_MIN = 24  # of a secret in the form whsec_...
WEBHOOK_SECRETS_MAX = 8  # in use at a time
WEBHOOK_SIGNATURES_MAX = 16  # of one request
WEBHOOK_TOLERANCE_SECONDS = 300  # how far a timestamp may be from the clock, unless told otherwise
WEBHOOK_TOLERANCE_SECONDS_MAX = 11 * 3_600  # less than half of the dedupe window, which remembers ids for 24 h
GRANTS_MAX = 64  # of a universe: what others may send to it
GRANT_CHANGES_SHOWN_MAX = 1_000
RULES_MAX = (
    64  # of a universe: what its own worlds may do; with its grants they are one value, so both are rarely so many
)
QUOTA_MAX = 2**62  # of any quota of a universe
QUOTA_CHANGES_SHOWN_MAX = 1_000
HEADERS_BYTES_MAX = 8 * KIB  # of all of them, names and values
CHOSEN_ID_BYTES_MAX = 1_024  # of an input, a question or a run, as a client may choose it

# --- Secrets -------------------------------------------------------------------------------------------
SECRET_CHARACTERS_MIN = 6  # a shorter value could not be told from other text, and hidden
SECRET_CHARACTERS_MAX = 16 * KIB
SECRET_LINE_CHARACTERS_MIN = 16  # of a line of a secret that is hidden by itself
SECRETS_KNOWN_MAX = 1_000  # values that a process hides

# --- Workflows -----------------------------------------------------------------------------------------
RUN_DEPTH_MAX = 100  # runs that wait for one another, or were started by one another, the outermost included
RUN_CHILDREN_MAX = 10_000  # runs that one run has started and that have not ended
WORLD_CHILDREN_MAX = 20_000  # of all runs of a world together
GRACE_SECONDS = 10  # how long a scope waits for the runs that it has cancelled, unless told otherwise

# --- Canonical values ----------------------------------------------------------------------------------
CBOR_DEPTH_MAX = 64
CBOR_ITEMS_MAX = 1_000_000
CBOR_BYTES_MAX = 16 * MIB

# --- JSON from outside -----------------------------------------------------------------------------------
JSON_DEPTH_MAX = 320  # containers in containers; more than any document nests, and far less than Python's stack holds
TOML_BYTES_MAX = 1 * MIB  # of a worldline.toml
JSON_BYTES_MAX = 4 * CBOR_BYTES_MAX  # of one text: with escapes, it is longer than the value

# --- Frames and payloads --------------------------------------------------------------------------------
FRAME_BYTES_MAX = 60 * KIB  # entries of one journal value, before the envelope
INLINE_BYTES_MAX = 16 * KIB  # larger payloads and blobs are kept in chunks, or as objects
ITEM_BYTES_MAX = 48 * KIB  # an inbox item, whole: it must become an entry, or a dead letter
REASON_CHARACTERS_MAX = 1_024  # why a letter is dead
TRACE_BYTES_MAX = 8 * KIB  # of one traceback
PUBLIC_KEY_BYTES, SIGNATURE_BYTES = 32, 64  # of Ed25519
ATTEMPTS_KEPT = 8  # of one effect
ATTEMPT_ERROR_CHARACTERS_MAX = 200
STEP_TRACES_MAX = 4  # tracebacks that a step keeps
TRACE_SLOTS = 1_024  # steps of a world whose tracebacks are kept
FAILURE_FIELDS_MAX = 64  # of an exception that are kept with its failure
FAILURE_DATA_BYTES_MAX = 4 * KIB  # of all of them together
PERSONAL_BYTES_MAX = 60 * KIB  # of a value that is kept apart, so that it can be erased
PERSONAL_STEP_BYTES_MAX = 512 * KIB  # of all that one step keeps apart
PERSONAL_STEP_MAX = 1_000  # values that one step keeps apart
PERSONAL_PAGE = 1_000  # values that are read together
ERASED_FORKS_MAX = 10_000  # worlds of one lineage that are told of an erasure
STEP_EFFECTS_MAX = 64
STEP_EVENTS_MAX = 256
STEP_BYTES_MAX = 1 * MIB
STEP_CHANGES_BYTES_MAX = 256 * KIB  # of a step's changed rows in its frames; more is one blob
STEP_TURNS_MAX = 10_000  # resumptions of runs; with more, the rest goes on in the next step
RUN_OPERATIONS_MAX = 100_000  # what one run may ask for before it has to continue as new
STEP_ENTRIES_MAX = 2_048  # with more, what can wait goes on in the next step
USER_VALUE_BYTES_MAX = CBOR_BYTES_MAX - 64 * KIB  # what users give, so that records around it still fit
LABELS_MAX = 32
WORKER_LABELS_BYTES_MAX = 40 * KIB  # of a heartbeat: a label for each program, about a thousand of them
JOB_LABELS_BYTES_MAX = 3_232  # of a heartbeat: what jobs beside the steps say (`runtime/holder_job.py`)
BLOB_BYTES_MAX = 1024 * MIB
CHUNKED_BYTES_MAX = 16 * MIB  # of a blob that is kept in the store itself; objects are for more
CHUNK_BYTES = 63 * KIB  # of such a blob in one value
CHUNKS_BATCH_MAX = 32  # chunks of one batch; a blob of so many at most is written whole, with its record
CHUNKS_PAGE_BYTES_MAX = 4 * MIB  # read at once
BLOBS_READ_MAX = 500  # small blobs that are read or written together
BLOBS_TOUCH_MAX = 100  # records that are rewritten together; expected and put, each may have INLINE_BYTES_MAX
BLOBS_BATCH_BYTES_MAX = 1 * MIB  # of small blobs in one batch
SEGMENT_BYTES_MAX = 10 * MIB  # of a segment's steps, before they are compressed; the last may go beyond it
SEGMENT_BLOCK_BYTES = 256 * KIB  # of its steps that are compressed together; the last may go beyond it
SEGMENT_BLOCK_BYTES_MAX = 8 * MIB  # of a block, whatever its last step has
SEGMENT_FRAMES_MAX = 20_000  # frames that one batch deletes
DELETE_KEYS_MAX = 1_000  # of a deleted world or universe, removed by one batch
DELETE_BYTES_MAX = 1 * MIB  # of their values, read with them; one may go beyond it
UPLOADS_PAGE = 100  # uploads looked at together when abandoned ones are swept

# --- Garbage collection --------------------------------------------------------------------------------
MARKED_MAX = 8_000_000  # addresses that one collection keeps, in 128 MiB; with more, it judges a part of them
HOLDS_MAX = 64  # of a universe, at the same time
HOLD_MS_MAX = 24 * 3_600_000  # how long one hold stands, unless it is renewed
HOLD_CHARACTERS_MAX = 200  # of what it is for
ORPHANS_MAX = 10_000  # objects without a record that one collection deletes

# --- Copies: exports and backups -------------------------------------------------------------------------
PACK_BLOCK_BYTES = 256 * KIB  # of a pack file that are compressed together
PACK_BLOCK_BYTES_MAX = 2 * MIB  # of a block, uncompressed; a record is never larger
PIECE_BYTES = 1 * MIB  # of a large blob in one record
EXPORT_SEGMENT_BYTES = 2 * MIB  # of the steps in one segment of an exported journal, before they are compressed
COPY_KEYS_BYTES = 1 * MIB  # of keys that are written together when a copy is made of a file
COPY_BYTES_FREE = 64 * MIB  # that any file may unpack to; a larger one, to COPY_RATIO_MAX times its size
COPY_RATIO_MAX = 200  # about ten times what journals compress to
COPY_RECORD_BYTES = 256  # that a record counts for besides its bytes: about what is remembered of one
COPY_STATE_BYTES_MAX = 512 * MIB  # of a state, or of one step's blobs, that checking a world file keeps in memory
BACKUP_PACK_BYTES = 8 * MIB  # of one file of a backup, compressed, more or less
BACKUP_SHARDS = 16  # parts that a universe's blobs are backed up in, by the first digit of their addresses
LEDGER_LINE_BYTES_MAX = 64 * KIB  # of an erasure in a file
BACKUPS_MAX = 10_000  # in one folder

# --- Objects -------------------------------------------------------------------------------------------
OBJECT_NAME_BYTES_MAX = 512
OBJECT_LIST_MAX = 10_000
OBJECT_THREADS_MAX = 8  # file work of one objects folder that may run at the same time
OBJECT_FOLDERS_KNOWN_MAX = 4_096
OBJECT_RETRIES_MAX = 100
OBJECT_CLOSING_MS = 5_000  # how long calls of objects have left when a process begins to close
OBJECT_BYTES_PER_SECOND_MIN = 1 * MIB  # a slower transfer counts as stuck
CACHE_BYTES_MIN = 1 * MIB
CACHE_BYTES_DEFAULT = 1024 * MIB
CACHE_BYTES_MAX = 1024 * 1024 * 1024 * MIB

# --- HTTP requests of effects ------------------------------------------------------------------------------
HTTP_RESPONSE_BYTES = 1 * MIB  # unless the host's policy says otherwise
HTTP_RESPONSE_BYTES_MAX = 8 * MIB  # a bound on the policy: an answer is journaled as one value
HTTP_REDIRECTS_MAX = 20
HTTP_ADDRESSES_MAX = 8  # of one host that are tried in turn
RETRY_AFTER_SECONDS_MAX = 3_600  # how long a server may ask an effect to wait

# --- Schedules ---------------------------------------------------------------------------------------------
SCHEDULES_MAX = 1_000  # of one world
SCHEDULE_EVERY_US_MIN = 10_000

# --- Settings: what roles can be told ------------------------------------------------------------------------
SETTING_MS_MAX = 366 * 24 * 3_600_000  # of a duration
SETTING_COUNT_MAX = 1_000_000_000
INBOX_BATCH_MAX = 10_000  # items of one world that one read takes

# --- Flow domains: what a document may be, and what one evaluation of it may do -------------------------------
FLOW_DEPTH_MAX = 96  # of nested expressions, nodes, calls, specs and values
FLOW_NODES_MAX = 20_000  # expressions, nodes and specs of one document
FLOW_WORK_MAX = 2_000_000  # expressions and items that one call of Core evaluates: about a second
FLOW_NODE_WORK = 16  # what a node of a flow counts for, besides its expressions
FLOW_TEXT_LENGTH_MAX = 1_000_000  # characters of a text that an expression makes
FLOW_VALUE_ITEMS_MAX = 100_000  # elements and members of one value of a snapshot
FLOW_ERRORS_MAX = 32  # that a snapshot keeps, the last ones; and those its host keeps
FLOW_PATCHES_MAX = 10_000  # of one call
FLOW_ITERATIONS_MAX = 100  # computes of one intent
FLOW_EFFECT_TIMEOUT_MS = 30_000
FLOW_RETRY_DELAY_MS = 1_000
FLOW_JOBS_MAX = 10 * FLOW_ITERATIONS_MAX  # of one intent in one step; a correct host needs three for each compute
FLOW_CELL_BYTES_MAX = 512 * KIB  # of a flow domain's cell in a world
FLOW_CELL_RESERVE_BYTES = 128 * KIB  # beyond that, for the errors of intents that a full cell has ended
FLOW_QUEUE_MAX = 256  # intents that wait in one cell
FLOW_WAITERS_MAX = 16  # that are told of the end of one intent
FLOW_CELL_WAITERS_MAX = 2 * FLOW_QUEUE_MAX  # of all intents of one cell
FLOW_DONE_KEPT_MAX = 64  # intents with ids of their callers that a cell remembers the end of
FLOW_STATE_BYTES_MAX = 4 * KIB  # of a state that is answered with the end of an intent; a larger one is read
FLOW_BLOCKED_MAX = 1_024  # cells that are tried again when a document changes; others, at their next intent
FLOW_ENV_BYTES_MAX = 16 * KIB
FLOW_ATTACHED_BYTES_MAX = 8 * MIB  # of snapshots for effects that one turn of a cell asks for
FLOW_TRACE_ENTRIES = 1_000  # of a journal, the last ones, that a trace is of unless a height is given
FLOW_TRACE_EVENTS_MAX = 10_000  # of one trace
FLOW_TRACE_BYTES_MAX = 16 * MIB  # of their fields
FLOW_RESULTS_KEPT_MAX = 1_024  # of intents that have ended, in one standalone host

# --- Retries of the store --------------------------------------------------------------------------------
TRANSACT_ATTEMPTS_MAX = 64
UNKNOWN_ATTEMPTS_MAX = 64
RETRY_FIRST_MS = 5
RETRY_MOST_MS = 1_000

# --- Wake-up hints -----------------------------------------------------------------------------------------
HINT_RING_MAX = 1_024
HINT_KEYS_MAX = 256
HINT_LOCAL_KEYS_MAX = 4_096  # inside one process, where a hint costs no copy
HINT_DATAGRAM_BYTES_MAX = 16 * KIB
HINT_PEERS_MAX = 256  # other processes on one folder that are told
HINT_RELIST_GROUPS = 256  # commits after which a process looks for others that it does not know
HINT_POLL_MS = 250  # how long a lost hint of another process can go unnoticed while a caller waits

# --- The embedded engine ----------------------------------------------------------------------------------
LMDB_MAP_BYTES = 64 * 1024 * MIB  # address space, not disk; doubled when it is full
LMDB_MAP_BYTES_MIN = 64 * KIB
LMDB_READERS_MAX = 1_024
LMDB_LOCK_BYTES = (LMDB_READERS_MAX + 8) * 64  # a slot for each reader, and a header, as LMDB lays them out
LMDB_REMAPS_MAX = 64  # attempts at one commit or read while this process or others grow the map
LMDB_GROUP_BATCHES_MAX = 256
LMDB_GROUP_BYTES_MAX = 8 * MIB
LMDB_READER_CHECK_GROUPS = 1_024
LMDB_MAPPED_CHECK_GROUPS = 16  # between two looks at how much of the map is in memory
LMDB_MAPPED_BYTES_MAX = 96 * MIB  # of the map that stay in memory of a process that writes, more or less
LMDB_SCRUB_PAGES = 256  # that are looked at while no other process can write
LMDB_SCRUB_REST_MS = 1  # between two such looks
LMDB_SCRUB_LOOKS = 50  # for a reader that is in the way to be done
LMDB_FREE_BYTES_LOW = 64 * MIB  # with less free, a write cut short is taken for a full disk

assert SEALED_BATCH_BYTES_MAX <= LMDB_GROUP_BYTES_MAX, "the largest batch must fit into a group"
assert 0 < WEBHOOK_ADDRESS_CONNECTIONS_MAX < WEBHOOK_CONNECTIONS_MAX, "no address has all places"
assert HTTP_RESPONSE_BYTES <= HTTP_RESPONSE_BYTES_MAX <= CBOR_BYTES_MAX // 2, "an answer is one canonical value"
assert KEY_BYTES_MAX <= 511, "LMDB's own bound"
assert BATCH_BYTES_MAX <= LMDB_GROUP_BYTES_MAX, "any batch must fit into a group"
assert FRAME_BYTES_MAX < VALUE_BYTES_MAX, "a frame's envelope must fit"
assert BLOBS_TOUCH_MAX * 2 * (INLINE_BYTES_MAX + KIB) < BATCH_BYTES_MAX, "records of small blobs are one batch"
assert PIECE_BYTES < PACK_BLOCK_BYTES_MAX, "a piece of a blob is a record"
assert INLINE_BYTES_MAX < FRAME_BYTES_MAX, "an inline payload must fit into a frame with room to spare"
assert INLINE_BYTES_MAX < ITEM_BYTES_MAX < FRAME_BYTES_MAX - 8 * KIB, "an item must fit into a frame as an entry"
assert ITEM_BYTES_MAX + 4 * REASON_CHARACTERS_MAX + KIB <= VALUE_BYTES_MAX, "an item must fit into a dead letter"
assert INLINE_BYTES_MAX + HEADERS_BYTES_MAX + 8 * CHOSEN_ID_BYTES_MAX < ITEM_BYTES_MAX, "a message is one item"
assert GRANTS_MAX * (5 * NAME_BYTES_MAX + 100) < VALUE_BYTES_MAX, "the grants of a universe are one value"
assert 64 * (INLINE_BYTES_MAX + KIB) <= BATCH_BYTES_MAX // 2, "the records of blobs that go together fit in a batch"
assert HOLDS_MAX * (4 * HOLD_CHARACTERS_MAX + 100) < VALUE_BYTES_MAX, "the holds of a universe are one value"
assert STEP_TRACES_MAX * (TRACE_BYTES_MAX + 4 * CHOSEN_ID_BYTES_MAX) < VALUE_BYTES_MAX, "a step's traces are one value"
assert ATTEMPTS_KEPT * (4 * ATTEMPT_ERROR_CHARACTERS_MAX + 100) < TRACE_BYTES_MAX, "attempts are kept as a trace"
assert INLINE_BYTES_MAX + 2 * TRACE_BYTES_MAX + 8 * KIB < VALUE_BYTES_MAX, "open work has these, and its attempts"
assert 2 * max(PERSONAL_STEP_MAX, PERSONAL_PAGE) < READ_REQUESTS_MAX, "values are read with their subjects"
assert PERSONAL_STEP_BYTES_MAX + PERSONAL_STEP_MAX * KIB < BATCH_BYTES_MAX // 2, (
    "values and their keys fit into one batch"
)
assert PERSONAL_BYTES_MAX + KIB < VALUE_BYTES_MAX, "a personal value, its salt and the envelope are one value"
assert 256 * STEP_ENTRIES_MAX <= STEP_BYTES_MAX, "entries must fit into a step with their own overhead"
assert FAILURE_DATA_BYTES_MAX <= INLINE_BYTES_MAX // 4, "a failure stands in an entry with its message"
assert STEP_BYTES_MAX * 2 <= BATCH_BYTES_MAX, "a step and its queue records must fit into one batch"
assert BATCH_BYTES_MAX <= 10_000_000, "FoundationDB's transaction bound"
assert VALUE_BYTES_MAX <= 100_000, "FoundationDB's value bound"
assert CLIENT_ID_BYTES_MAX <= CHOSEN_ID_BYTES_MAX <= INLINE_BYTES_MAX // 4, "it stands in an item with its payload"
assert NAME_BYTES_MAX * 2 + 100 < KEY_BYTES_MAX, "an escaped name must fit into a key"
assert CBOR_BYTES_MAX <= CHUNKED_BYTES_MAX <= BLOB_BYTES_MAX, "any value must fit into a store without objects"
assert INLINE_BYTES_MAX < CHUNK_BYTES <= VALUE_BYTES_MAX - KIB, "a chunk's envelope must fit"
assert CHUNKS_BATCH_MAX * VALUE_BYTES_MAX <= BATCH_BYTES_MAX // 2, "chunks and their keys must fit into one batch"
assert SEGMENT_BYTES_MAX + BATCH_BYTES_MAX + MIB <= CHUNKED_BYTES_MAX, "a segment must fit into a store without objects"
assert SEGMENT_BLOCK_BYTES + BATCH_BYTES_MAX <= SEGMENT_BLOCK_BYTES_MAX, "a block has at least one step"
assert 2 * (DELETE_BYTES_MAX + VALUE_BYTES_MAX + DELETE_KEYS_MAX * KEY_BYTES_MAX) <= BATCH_BYTES_MAX, (
    "what a batch removes may be expected with all its bytes"
)
assert BLOBS_READ_MAX < READ_REQUESTS_MAX, "their records are read together"
assert BLOBS_BATCH_BYTES_MAX + BLOBS_READ_MAX * KIB <= BATCH_BYTES_MAX // 2, (
    "small blobs and keys must fit into a batch"
)
assert CACHE_BYTES_MIN // 4 >= INLINE_BYTES_MAX, "a small cache must take more than a blob that is in no object"
assert OBJECT_NAME_BYTES_MAX <= 1_024 // 2, "S3's own bound, with as much left for the bucket's prefix"
assert FLOW_WAITERS_MAX * INLINE_BYTES_MAX <= STEP_BYTES_MAX // 4, "a step that is nearly full can end one intent more"
assert FLOW_CELL_WAITERS_MAX * KIB <= STEP_BYTES_MAX // 2, "a step can say to all that a cell is fatal"
assert FLOW_CELL_BYTES_MAX < FLOW_ATTACHED_BYTES_MAX, "one effect can be given the snapshot of any cell"
assert 3 * FLOW_DEPTH_MAX < JSON_DEPTH_MAX, "a document that nests too deep is refused as a document"
assert JSON_DEPTH_MAX < 500, "Python's own stack holds what a text nests, a frame or two for each level"
assert 3 * FLOW_DEPTH_MAX < 500, "Python's own stack holds what a document nests, a frame or two for each level"
