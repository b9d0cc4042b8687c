"""The whole error hierarchy, and whose fault each error is.

::

    Error                         everything Worldline raises on purpose
    ├── BadInput                  the caller's fault: refused before anything was written
    │   ├── ReservedName          an event by a name that only the runtime may use
    │   ├── BadUrl                a store or objects URL that names nothing we can open
    │   ├── BatchRefused          a batch without guard, over a limit, or with two writes to one key
    │   ├── TooLarge              a key, value, payload or name over its limit
    │   │   └── CopyTooLarge      or a file or backup that would unpack to far more than it has
    │   ├── EncodeError           a value that has no canonical form
    │   │   └── ValueTooLarge     or would have too many bytes or items
    │   ├── CellUnfit             a cell whose data does not fit the class that it is read with
    │   ├── UnknownZone           a time zone that neither the system nor tzdata has
    │   └── IdReused              the same client id with another payload
    ├── Lost                      an expected loss: another process was first, or the thing is not there
    │   ├── Conflicted            retries ran out against other writers
    │   ├── Fenced                the lease moved on; stop at once
    │   ├── NotFound              no such world, name, blob, intent
    │   │   └── NotRetained       a state of the past that is not kept any more: its changes were dropped
    │   ├── Exists                the name or id is taken
    │   ├── Closed                the world does not take this any more
    │   ├── InUse                 it cannot be deleted: forks, worlds or processes need it
    │   └── DedupeExpired         a client id older than the window in which repeats are recognised
    ├── StoreError                an outside fault: the driver's error is kept as the cause
    │   ├── StoreUnavailable      cannot be reached now; trying again is sensible
    │   ├── StoreUncertain        whether a commit was applied could not be found out
    │   ├── StoreFull             no space; nothing of the batch was applied
    │   ├── StoreFailed           the engine lost its footing (a failed sync): re-open it
    │   ├── StoreVersion          a server or store format this release does not speak
    │   ├── CodecMismatch         a store that is encoded otherwise than this process was told
    │   ├── KeyMissing            a key that the store was encrypted with was not given
    │   ├── WrongKey              a key was given under the name of another
    │   ├── KeyWorn               a data key has sealed as many values as it may
    │   ├── CodecFailed           a user's codec raised, or returned what it cannot decode
    │   └── StoreMissing          no store there, and creating one was not asked for
    ├── CannotStep                this process lacks what a step needs (memory, stack, a time zone); another may not
    │   ├── ErasedValue           or replays one whose personal value was erased since
    │   └── CannotRead            or cannot read a cell that is not in memory
    │       └── DamagedCell       because what is stored of it is damaged or missing
    ├── NotHosted                 no process runs the world now; the input is durable and is processed when one does
    ├── RunBlocked                a run waits for a person: its code does not fit, or an effect of it is parked
    ├── Unhandled                 an event that its world did not process: it is a dead letter
    ├── StepFailed                the step over an input could not be recorded: the input was not processed, and why
    ├── Overloaded                there is too much to do already; try again after a while
    ├── QuotaExceeded             the universe has all that it may have: which quota, how much, of how much
    └── Corrupt                   stored bytes are not what was written
        ├── BadCopy               a file or a backup that is not what was written, or is not one
        ├── BadAnchor             no valid anchor, or not signed by the expected key
        ├── DecodeError           bytes that are not canonical, not a frame, or not a key
        │   └── KeyDestroyed      bytes whose key was destroyed
        └── DigestMismatch        content that does not match its address

Bugs are not in this tree: they are assertions, and the role that runs into one stops.
"""

from __future__ import annotations

from worldline.base import exit_codes


class Error(Exception):
    """Base of everything raised on purpose. `code` is stable; the message is for people."""

    code = "error"
    exit_code = exit_codes.NEGATIVE  # of a command that ends with it
    http_status = 500  # of a request that ends with it; 500: it is a fault of the server


class BadInput(Error):
    """A caller passed something that cannot be accepted: the message says what, and what is accepted."""

    code = "bad_input"
    exit_code = exit_codes.USAGE
    http_status = 400


class ReservedName(BadInput):
    """An event has a name that is the runtime's own."""

    code = "reserved_name"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"no event may be named {name!r}: 'Envelope' and what begins with 'worldline/', 'worldline.', 'inbox:' or "
            f"'message:' are names of the runtime's own; give the event another"
        )


class BadUrl(BadInput):
    code = "bad_url"


class BatchRefused(BadInput):
    code = "batch_refused"


class TooLarge(BadInput):
    code = "too_large"

    def __init__(self, what: str, *, size: int, limit: int, advice: str = "") -> None:
        super().__init__(f"{what} is {size} bytes; the limit is {limit}{f'; {advice}' if advice else ''}")
        self.what = what
        self.size = size
        self.limit = limit


class CopyTooLarge(TooLarge):
    """A world file or a backup that would take far more room or memory than one of its size. Nothing was made of it."""

    code = "copy_too_large"


class EncodeError(BadInput):
    code = "encode_error"


class ValueTooLarge(EncodeError):
    code = "value_too_large"


class UnknownZone(BadInput):
    code = "unknown_zone"

    def __init__(self, zone: str) -> None:
        super().__init__(f"tz={zone!r} is no time zone known here; it looks like 'Europe/Lisbon'")
        self.zone = zone


class CellUnfit(BadInput):
    """A cell's data does not fit the class that it is read with. It is kept as it is."""

    code = "cell_unfit"


class IdReused(BadInput):
    """An id stands for another input already: choose a new one, or send the same again."""

    code = "id_reused"
    exit_code = exit_codes.REFUSED
    http_status = 409

    def __init__(self, client_id: str) -> None:
        super().__init__(f"id {client_id!r} was used before with another payload; use a new id")
        self.client_id = client_id

    @classmethod
    def of(cls, message: str) -> IdReused:
        """Make the error as another process reported it."""
        made = cls("")
        # Not by the constructor, which would put the whole message in the place of the id.
        made.args = (message,)
        return made


class Lost(Error):
    code = "lost"
    exit_code = exit_codes.REFUSED


class Conflicted(Lost):
    """Another writer was faster. Read again, and try again."""

    code = "conflicted"
    http_status = 503


class Fenced(Lost):
    code = "fenced"


class NotFound(Lost):
    """What was named is not there."""

    code = "not_found"
    exit_code = exit_codes.NOT_FOUND
    http_status = 404


class NotRetained(NotFound):
    """What is asked for was there and is not kept any more. `height`: where."""

    code = "not_retained"

    def __init__(self, height: int, why: str) -> None:
        super().__init__(f"height {height}: {why}")
        self.height = height


class Exists(Lost):
    """What should be made is there already."""

    code = "exists"


class Closed(Lost):
    """A world or connection takes nothing: it is closed, paused or archived."""

    code = "closed"
    http_status = 409


class InUse(Lost):
    """Nothing was deleted. `by`: what needs it, by name, as far as it was looked for."""

    code = "in_use"

    def __init__(self, why: str, *, by: tuple[str, ...]) -> None:
        super().__init__(why)
        self.by = by


class DedupeExpired(Lost):
    """Whether an input with this id was taken is not known any more: it is too old."""

    code = "dedupe_expired"


class StoreError(Error):
    """The store could not do what was asked; the cause is kept."""

    code = "store_error"
    exit_code = exit_codes.STORE
    http_status = 503


class StoreUnavailable(StoreError):
    code = "store_unavailable"


class StoreUncertain(StoreError):
    """The store gave no answer: a commit may have been made or not."""

    code = "store_uncertain"


class StoreFull(StoreError):
    code = "store_full"


class StoreFailed(StoreError):
    code = "store_failed"


class StoreVersion(StoreError):
    code = "store_version"


class StoreMissing(StoreError):
    code = "store_missing"


class CodecMismatch(StoreError):
    """The store is encrypted and no codec was given, or the other way round, or it is another codec."""

    code = "codec_mismatch"


class KeyMissing(StoreError):
    """A key that the store was encrypted with was not given to this process. `key_id`: which."""

    code = "key_missing"

    def __init__(self, key_id: str) -> None:
        super().__init__(f"key {key_id!r} is needed to read this store and was not given; add it to the keys")
        self.key_id = key_id


class WrongKey(StoreError):
    """What was given under this id is not the key that the store was encrypted with."""

    code = "wrong_key"

    def __init__(self, key_id: str) -> None:
        super().__init__(f"key {key_id!r} is not the one that this store was encrypted with under this id")
        self.key_id = key_id


class KeyWorn(StoreError):
    """A data key has sealed as many values as one may: nothing more is written with it. Reading goes on."""

    code = "key_worn"


class CodecFailed(StoreError):
    """A user's codec raised, or returned what it does not decode. Nothing was written."""

    code = "codec_failed"


class CannotStep(Error):
    """A step was abandoned for want of something that is no part of its world: nothing of it may be journaled.

    `lasting`: this process will lack it for as long as it runs. Else the same step may succeed a little later.
    """

    code = "cannot_step"

    def __init__(self, why: str, *, lasting: bool) -> None:
        super().__init__(why)
        self.lasting = lasting


class CannotRead(CannotStep):
    """A cell that is not in memory cannot be read now. It is no fault of the input that the step was over."""

    code = "cannot_read"

    def __init__(self, why: str, *, request: bytes = b"") -> None:
        super().__init__(why, lasting=False)
        self.wanted = request  # in a child process: what its parent could read for it (`runtime/cold_cells.py`)


class ErasedValue(CannotStep):
    """A step that is replayed had a personal value that was erased since: it cannot be done again."""

    code = "erased_value"

    def __init__(self, message: str) -> None:
        super().__init__(message, lasting=True)


class DamagedCell(CannotRead):
    """What is stored of a cell that is not in memory is damaged or missing: the world is left alone like one that
    cannot be restored.
    """

    code = "damaged_cell"


class NotHosted(Error):
    """No process has run the world for too long to go on waiting. What was sent is durable: do not send it again."""

    code = "not_hosted"
    exit_code = exit_codes.TIMEOUT


class RunBlocked(Error):
    """A run has waited for a person for too long to go on waiting for it. It is kept, and resumes when its code is
    fixed, or the effect that it waits for is retried or answered. `run`: which; `report`: all that is known of it.
    """

    code = "run_blocked"
    exit_code = exit_codes.REFUSED

    def __init__(self, run: str, world: str, why: str, *, report: str = "") -> None:
        super().__init__(f"run {run!r} of world {world!r} waits for a person: {why}")
        self.run = run
        self.world = world
        self.report = report or why


class Unhandled(Error):
    """An event was not processed: nothing in its world's program handles it, or what does has failed. It is a dead
    letter, and can be given again. `height`: where the journal says so.
    """

    code = "unhandled"

    def __init__(self, message: str, *, height: int = 0) -> None:
        super().__init__(message)
        self.height = height


class StepFailed(Error):
    """An input was not processed: the step over it ended in a way that cannot be recorded. Again will not help."""

    code = "step_failed"


class Overloaded(Error):
    """Nothing was taken. `retry_after` is in seconds, and an estimate."""

    code = "overloaded"
    exit_code = exit_codes.REFUSED
    http_status = 503

    def __init__(self, why: str, *, retry_after: float) -> None:
        super().__init__(f"{why}; try again in {retry_after:.1f} s")
        self.retry_after = retry_after


class QuotaExceeded(Error):
    """Nothing was taken. `quota`: which, as `worldline universe quota` names it; `used` of `limit`."""

    code = "quota_exceeded"
    exit_code = exit_codes.REFUSED
    http_status = 503

    def __init__(self, quota: str, *, used: int, limit: int, advice: str) -> None:
        raised = f"raise the quota with `worldline universe quota --{quota} N`"
        super().__init__(f"this universe has {used} {QUOTA_NAMES[quota]}, its quota is {limit}; {advice}, or {raised}")
        self.quota = quota
        self.used = used
        self.limit = limit


QUOTA_NAMES = {"worlds": "worlds", "bytes": "bytes stored", "effects": "open effects", "pins": "forks that pin"}


class Corrupt(Error):
    """Stored bytes are not what was written."""

    code = "corrupt"
    exit_code = exit_codes.STORE


class BadCopy(Corrupt):
    """An exported world or a backup is damaged, cut short or none. Nothing was made of it."""

    code = "bad_copy"


class BadAnchor(Corrupt):
    """An anchor that is none, was changed, or is not signed by the key that it should be."""

    code = "bad_anchor"


class DecodeError(Corrupt):
    code = "decode_error"


class KeyDestroyed(DecodeError):
    """What stood here was made unreadable permanently, by the destruction of its key."""

    code = "key_destroyed"


class DigestMismatch(Corrupt):
    code = "digest_mismatch"

    def __init__(self, what: str, *, expected: bytes, actual: bytes) -> None:
        super().__init__(f"{what}: expected sha256 {expected.hex()}, found {actual.hex()}")
        self.expected = expected
        self.actual = actual


class ModeWarning(UserWarning):
    """Other users of the machine can read a store."""


class DurabilityWarning(UserWarning):
    """An engine was opened with less than full durability: an ack no longer means synced."""
