"""The store's interface: one ordered key-value space with three calls, `read`, `commit` and `wait`.

Every durable thing is a key here. An engine is what passes `tests/conformance`; `memory` is the reference.

* `read` answers any number of gets and ranges from one consistent snapshot in one round trip.
* `commit` takes batches. Each batch is one atomic mini-transaction of its own; all batches of a call, and
  whatever else is waiting, share one sync. The answer to each is `Ok`, `Conflict` or `CommitUnknown`. A returned
  `Ok` means synced.
* `wait` is a wake-up hint. Hints may be lost, late or doubled; correctness never rests on them.
* `freeze`, for copies of a whole store alone: reads that all see the store as it is at that moment.

**Batches are data.** A `Batch` collects expectations and writes; nothing happens before `commit`. Expectations are
checked against the state right before the batch, then range deletes, deletes, puts, counters and appends are
applied as one. `check` holds the rules every engine enforces by refusing the batch:

* Every batch has a *guard*: an expectation that its own success makes false. So a lost answer (`CommitUnknown`) is
  resolved by committing the same batch again; see `transact.commit`. Reading back proves nothing while the first
  commit may still be running. To expect a key and delete it is a guard only if no batch makes the key again with the
  same bytes: expect something unique, a stamp or a token.
* `absent` may be expected only of a key the same batch puts.
* A key is written at most once in a batch, and not inside a range the batch deletes.
* The sizes of `limits`, the same on every engine.

**Stamps.** An append writes a key that ends in a 12-byte stamp the engine assigns. Stamps are unique, and of two
batches where one began after the other's `Ok`, the later has the greater stamps. Concurrent batches may become
visible out of stamp order, so every page carries `stable`: no key with a stamp below it can appear any more. A
scan that wants to skip what it has seen may start at a mark, but never at one above `stable`.

A delete without an expectation, of a key or a range, removes what was committed before the batch; a key committed at
the same time may survive it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, NewType, NoReturn, Protocol

import msgspec

from worldline.base import errors, limits

Stamp = NewType("Stamp", bytes)

ZERO_STAMP = Stamp(bytes(limits.STAMP_BYTES))


class Get(msgspec.Struct, frozen=True, gc=False):
    """Ask for one key."""

    key: bytes


class Range(msgspec.Struct, frozen=True, gc=False):
    """Ask for the keys in [begin, end), in key order, or from the end backwards.

    The page stops at the first bound that is reached, but always holds the first key there is.
    """

    begin: bytes
    end: bytes
    count_max: int = limits.RANGE_COUNT_DEFAULT
    bytes_max: int = limits.RANGE_BYTES_DEFAULT
    reverse: bool = False


Request = Get | Range


class Page(msgspec.Struct, frozen=True):
    """What a range holds. `more`: a bound cut it short. `stable`: see the module."""

    items: list[tuple[bytes, bytes]]
    more: bool
    stable: Stamp


class ReadResult(msgspec.Struct, frozen=True):
    """The answers of one `read`, in the order of the requests.

    `time_us` is the store's time, the only clock for expiry, due times and logical time. It follows the clock it is
    taken from, also back. `seen` is what `wait` wants back: the hints this process had noticed before the snapshot was
    taken. Between two snapshots with the same `version` nothing was appended; 0 if the engine cannot tell.
    """

    answers: list[bytes | Page | None]
    time_us: int
    seen: int
    version: int = 0

    def value(self, index: int) -> bytes | None:
        answer = self.answers[index]
        assert not isinstance(answer, Page), "this request was a range"
        return answer

    def page(self, index: int) -> Page:
        answer = self.answers[index]
        assert isinstance(answer, Page), "this request was a get"
        return answer


class Ok(msgspec.Struct, frozen=True):
    """Applied and synced. One stamp for each append of the batch, in order."""

    stamps: tuple[Stamp, ...] = ()


class Conflict(msgspec.Struct, frozen=True):
    """Not applied: these expectations did not hold. Each key with what was found there, in key order.

    `repeated` is never set by an engine: `transact.commit` sets it if the batch was committed before and that answer
    was lost. Then the batch was not applied, or it was applied and another writer has changed its guard since.
    """

    found: tuple[tuple[bytes, bytes | None], ...]
    repeated: bool = False

    def at(self, key: bytes) -> tuple[bool, bytes | None]:
        """Whether this key's expectation failed, and what was there."""
        for name, value in self.found:
            if name == key:
                return True, value
        return False, None


class CommitUnknown(msgspec.Struct, frozen=True):
    """The answer was lost: all of the batch was applied, or nothing, or it may still happen."""

    reason: str = ""


Outcome = Ok | Conflict | CommitUnknown


class Put(msgspec.Struct, frozen=True, gc=False):
    """Write `value`; with `stamp`, the stamp of the batch's append of that index follows the value."""

    key: bytes
    value: bytes
    stamp: int | None = None


class Append(msgspec.Struct, frozen=True, gc=False):
    """Write `value` under the key `prefix` + stamp."""

    prefix: bytes
    value: bytes


class Batch:
    """One atomic mini-transaction, as data. Layers add to it; an engine applies it whole or not at all."""

    __slots__ = ("appends", "counts", "deletes", "expects", "puts", "ranges")

    room_bytes: ClassVar[int] = 0  # by how much its values may exceed the limit

    def __init__(self) -> None:
        self.expects: dict[bytes, bytes | None] = {}
        self.puts: dict[bytes, Put] = {}
        self.deletes: dict[bytes, None] = {}
        self.ranges: list[tuple[bytes, bytes]] = []
        self.counts: dict[bytes, int] = {}
        self.appends: list[Append] = []

    def expect(self, key: bytes, value: bytes) -> None:
        """The key must hold exactly these bytes. Expecting the same twice is expecting it once."""
        if self.expects.setdefault(key, value) != value:
            raise errors.BatchRefused(f"two different expectations of key {key.hex()}")

    def absent(self, key: bytes) -> None:
        """The key must not exist. Only for a key this batch puts."""
        if key in self.expects and self.expects[key] is not None:
            raise errors.BatchRefused(f"two different expectations of key {key.hex()}")
        self.expects[key] = None

    def put(self, key: bytes, value: bytes, *, stamp: int | None = None) -> None:
        if key in self.puts or key in self.deletes or key in self.counts:
            self._refuse(key)
        self.puts[key] = Put(key, value, stamp)

    def delete(self, key: bytes) -> None:
        """Remove the key if it is there. Deleting the same key twice is deleting it once."""
        if key in self.puts or key in self.counts:
            self._refuse(key)
        self.deletes[key] = None

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self.ranges.append((begin, end))

    def add(self, key: bytes, delta: int) -> None:
        """Add to a counter: eight bytes, little-endian, signed; a missing counter is zero. This cannot fail: of a value
        of another length the first eight bytes count, and what it lacks is zero.
        """
        if key in self.puts or key in self.deletes:
            self._refuse(key)
        self.counts[key] = self.counts.get(key, 0) + delta

    def append(self, prefix: bytes, value: bytes) -> int:
        """Write under `prefix` + a new stamp. Returns the append's index, for `Ok.stamps` and `put(stamp=)`."""
        self.appends.append(Append(prefix, value))
        return len(self.appends) - 1

    @staticmethod
    def _refuse(key: bytes) -> NoReturn:
        raise errors.BatchRefused(f"two writes to key {key.hex()}")

    def __repr__(self) -> str:
        parts = [f"{'absent' if value is None else 'expect'} {key.hex()}" for key, value in self.expects.items()]
        parts += [f"delete [{begin.hex()}, {end.hex()})" for begin, end in self.ranges]
        parts += [f"delete {key.hex()}" for key in self.deletes]
        parts += [f"put {put.key.hex()} ({len(put.value)} bytes)" for put in self.puts.values()]
        parts += [f"add {key.hex()} {delta:+d}" for key, delta in self.counts.items()]
        parts += [f"append {append.prefix.hex()} ({len(append.value)} bytes)" for append in self.appends]
        return f"Batch({'; '.join(parts)})"


class SealedBatch(Batch):
    """A batch that was checked before its values were sealed, which made them longer."""

    __slots__ = ()

    room_bytes: ClassVar[int] = limits.SEALED_ROOM_BYTES_MAX


class Durability(msgspec.Struct, frozen=True):
    """What an `Ok` is worth, as the live engine reports it."""

    full: bool
    settings: dict[str, str]


class Scrubbed(msgspec.Struct, frozen=True):
    """What came of overwriting what no key has any more. `complete`: all of it, as far as the engine can. `held_by`:
    the processes whose copies of an older state are in the way.
    """

    complete: bool
    held_by: tuple[int, ...] = ()


class Engine(Protocol):
    """An engine belongs to the event loop that opened it."""

    async def read(self, *requests: Request) -> ReadResult: ...

    async def commit(self, *batches: Batch) -> list[Outcome]:
        """One outcome for each batch, in order.

        Raises `BatchRefused` or `TooLarge` before anything is applied if any batch breaks a rule, and a `StoreError`
        when it is certain that no batch was applied.
        """

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        """Return when something under `prefix` may have been written since `seen` or the engine closes, or False at the
        timeout.
        """

    async def durability(self) -> Durability: ...

    async def close(self) -> None:
        """Finish what was accepted, then release everything. Closing twice is closing once."""


class Frozen(Protocol):
    """The store as it was at one moment, read in as many calls as it takes. It costs the engine something as long as it
    is open: close it soon. `StoreUnavailable` if it is lost: freeze again, and begin at the start.
    """

    async def read(self, *requests: Request) -> ReadResult: ...

    async def close(self) -> None:
        """Closing twice is closing once."""


class Freezing(Protocol):
    """What an engine may also do. Every one of this package does; one that stands around another passes it on."""

    async def freeze(self) -> Frozen: ...

    async def raise_stamps(self, above: Stamp) -> None:
        """Every stamp that is assigned from now on is greater than this one. For a store that is made of a copy and has
        no other user yet: it has keys with stamps of another store.
        """


async def raise_stamps(engine: Engine, above: Stamp) -> None:
    """`Freezing.raise_stamps`. `BadInput` if the engine cannot do that."""
    found = getattr(engine, "raise_stamps", None)
    if found is None:
        raise errors.BadInput(f"{type(engine).__name__} cannot go on from the stamps of another store")
    await found(above)


def can_scrub(engine: Engine) -> bool:
    """Whether what is deleted may stay in files of the engine, and `scrub` does something about it."""
    return getattr(engine, "scrub", None) is not None


async def scrub(engine: Engine) -> Scrubbed:
    """Overwrite what was deleted or replaced before this call, where the engine's files still have it. An engine that
    has no such files does nothing. It may be cut off anywhere, and be begun by many at once.
    """
    found = getattr(engine, "scrub", None)
    if found is None:
        return Scrubbed(complete=True)
    done: Scrubbed = await found()
    return done


async def freeze(engine: Engine) -> Frozen:
    """The store as it is now. `BadInput` if the engine cannot keep it."""
    found = getattr(engine, "freeze", None)
    if found is None:
        raise errors.BadInput(f"{type(engine).__name__} cannot keep the store as it is at one moment")
    frozen: Frozen = await found()
    return frozen


def check(batch: Batch) -> int:
    """Refuse a batch that breaks a rule; returns its bytes. Every engine calls this first, so all refuse alike.

    This stands before every commit, so what is in order is passed without a call.
    """
    size = 0
    guarded = False
    puts = batch.puts
    room = batch.room_bytes
    key_max, value_max = limits.KEY_BYTES_MAX, limits.VALUE_BYTES_MAX + room
    for key, value in batch.expects.items():
        length = len(key)
        size += length if 0 < length <= key_max else _check_key(key)
        if value is None:
            if key not in puts:
                raise errors.BatchRefused(f"absent is expected of key {key.hex()}, which this batch does not put")
            guarded = True
            continue
        length = len(value)
        size += length if length <= value_max else _check_value(length, value_max)
        if not guarded and key in puts:
            put = puts[key]
            # Puts with stamps and deletes guard, too. They are looked at below, only where nothing simpler was found.
            guarded = put.stamp is None and put.value != value
    for key, put in puts.items():
        length = len(key)
        size += length if 0 < length <= key_max else _check_key(key)
        if put.stamp is None:
            length = len(put.value)
            size += length if length <= value_max else _check_value(length, value_max)
        else:
            size += _check_value(len(put.value) + limits.STAMP_BYTES, value_max)
            if not 0 <= put.stamp < len(batch.appends):
                raise errors.BatchRefused(
                    f"put of key {key.hex()} wants the stamp of append {put.stamp}, which is not there"
                )
    for key in batch.deletes:
        length = len(key)
        size += length if 0 < length <= key_max else _check_key(key)
    for append in batch.appends:
        size += _check_key(append.prefix, extra=limits.STAMP_BYTES)
        size += _check_value(len(append.value), value_max)
    if batch.counts or batch.ranges:
        size += _check_counts(batch) + _check_ranges(batch)
    if batch.appends and len(batch.appends) > limits.BATCH_APPENDS_MAX:
        raise errors.BatchRefused(f"{len(batch.appends)} appends; the limit is {limits.BATCH_APPENDS_MAX}")
    size_max = limits.SEALED_BATCH_BYTES_MAX if room else limits.BATCH_BYTES_MAX
    if size > size_max:
        raise errors.TooLarge("batch", size=size, limit=size_max)
    # The slow way, for the few batches whose guard was not seen on the way through.
    if not guarded and next(guards(batch), None) is None:
        raise errors.BatchRefused("no guard: a batch must expect something that its own success makes false")
    return size


def guards(batch: Batch) -> Iterator[bytes]:
    """The keys whose expectation the batch's own success makes false."""
    for key, value in batch.expects.items():
        put = batch.puts.get(key)
        if value is None or key in batch.deletes:
            yield key
        elif put is not None:
            if put.stamp is not None or put.value != value:
                yield key
        elif any(begin <= key < end for begin, end in batch.ranges):
            yield key


def applied_before(batch: Batch, conflict: Conflict) -> bool:
    """Whether a conflict, met when committing a batch again, shows that the first time succeeded.

    True if every guard is found as the batch leaves it. That is proof only because guards are made of bytes no one
    else writes (a digest, a token, a fresh id); layers choose them so. False means not applied, or applied and
    overwritten since: either way this writer has lost the key and must read again.
    """
    for key in guards(batch):
        failed, found = conflict.at(key)
        # This guard still holds, and the batch's success would have made it false.
        if not failed:
            return False
        put = batch.puts.get(key)
        if put is None:
            if found is not None:
                return False
        elif found is None:
            return False
        elif put.stamp is None:
            if found != put.value:
                return False
        # Which stamp the first commit had is not known here: the bytes before it must do.
        elif len(found) != len(put.value) + limits.STAMP_BYTES or not found.startswith(put.value):
            return False
    return True


def conflict(batch: Batch, get: Callable[[bytes], bytes | None]) -> Conflict | None:
    """Check a batch's expectations against the state that `get` shows."""
    found: list[tuple[bytes, bytes | None]] = []
    for key, value in batch.expects.items():
        actual = get(key)
        if actual != value:
            found.append((key, actual))
    return Conflict(tuple(sorted(found))) if found else None


def stamp(version: int, ordinal: int) -> Stamp:
    """A stamp of the engines that count versions: eight bytes of version, four of ordinal."""
    return Stamp(version.to_bytes(8, "big") + ordinal.to_bytes(4, "big"))


def stamp_version(of: bytes) -> int:
    """The version of a stamp of any engine: its first eight bytes."""
    return int.from_bytes(of[:8], "big")


def stamps(version: int, first: int, count: int) -> tuple[Stamp, ...]:
    """The stamps of a batch's appends: one version, `count` ordinals from `first` on."""
    start = version.to_bytes(8, "big")
    return tuple([Stamp(start + ordinal.to_bytes(4, "big")) for ordinal in range(first, first + count)])


def counter_add(value: bytes | None, delta: int) -> bytes:
    """A counter's next value. Wraps at 64 bits and takes any value for a counter, as FoundationDB does."""
    # Any bytes are taken for a counter: a commit must not fail half-way, because of what another release stored.
    held = b"" if value is None else value
    total = delta + counter(held[: limits.COUNTER_BYTES].ljust(limits.COUNTER_BYTES, b"\x00"))
    return ((total + 2**63) % 2**64 - 2**63).to_bytes(limits.COUNTER_BYTES, "little", signed=True)


def counter(value: bytes) -> int:
    if len(value) != limits.COUNTER_BYTES:
        raise errors.DecodeError(f"a counter has {limits.COUNTER_BYTES} bytes, not {len(value)}")
    return int.from_bytes(value, "little", signed=True)


def fill_page(items: Iterable[tuple[bytes, bytes]], request: Range, at: Stamp) -> Page:
    """Take from `items` until a bound of the request is met. The first item always fits."""
    taken: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in items:
        size += len(key) + len(value)
        # At least one, or a scan would never get past a value that is larger than its bound.
        if taken and (len(taken) >= request.count_max or size > request.bytes_max):
            return Page(taken, more=True, stable=at)
        taken.append((key, value))
    return Page(taken, more=False, stable=at)


def check_requests(requests: Sequence[Request]) -> None:
    if len(requests) > limits.READ_REQUESTS_MAX:
        raise errors.BadInput(f"{len(requests)} requests in one read; the limit is {limits.READ_REQUESTS_MAX}")
    key_max = limits.KEY_BYTES_MAX
    for request in requests:
        if isinstance(request, Range):
            if request.count_max < 1 or request.bytes_max < 1:
                raise errors.BadInput("a range must allow at least one key and one byte")
            if not (0 < len(request.begin) <= key_max and 0 < len(request.end) <= key_max):
                _check_key(request.begin)
                # An end may be a byte longer than a key: so a range can end right behind the longest one.
                _check_key(request.end, extra=-1)
        elif not 0 < len(request.key) <= key_max:
            _check_key(request.key)


def _check_key(key: bytes, *, extra: int = 0) -> int:
    size = len(key) + extra
    if size > limits.KEY_BYTES_MAX:
        raise errors.TooLarge("key", size=size, limit=limits.KEY_BYTES_MAX)
    if not key:
        raise errors.BatchRefused("the empty key")
    return size


def _check_value(size: int, limit: int) -> int:
    if size > limit:
        raise errors.TooLarge("value", size=size, limit=limit)
    return size


def _check_counts(batch: Batch) -> int:
    size = 0
    for key, delta in batch.counts.items():
        size += _check_key(key) + limits.COUNTER_BYTES
        if not -(2**63) <= delta < 2**63:
            raise errors.BatchRefused(f"counter delta {delta} does not fit into 64 bits")
    return size


def _check_ranges(batch: Batch) -> int:
    size = 0
    for begin, end in batch.ranges:
        size += _check_key(begin) + _check_key(end, extra=-1) + 1
        if begin >= end:
            raise errors.BatchRefused(f"range [{begin.hex()}, {end.hex()}) is empty")
        for written in (batch.puts, batch.deletes, batch.counts):
            for key in written:
                if begin <= key < end:
                    raise errors.BatchRefused(f"key {key.hex()} is written inside a range the batch deletes")
        for append in batch.appends:
            # Whatever stamp the engine assigns, the key is below this bound.
            if append.prefix < end and begin < append.prefix + b"\xff" * (limits.STAMP_BYTES + 1):
                raise errors.BatchRefused(f"append under {append.prefix.hex()} inside a range the batch deletes")
    return size
