"""Settings of the roles: frozen data with defaults, handed in by constructors.

Each field's type says its range. Settings are checked when they are made, also by `msgspec.structs.replace`: a value
that no role could work with is refused at once (`BadInput`), not by the role that uses it.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any

import msgspec

from worldline.base import errors, grammar, limits
from worldline.model import ids

Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=limits.SETTING_MS_MAX)]
MillisecondsOrNone = Annotated[int, msgspec.Meta(ge=0, le=limits.SETTING_MS_MAX)]
Count = Annotated[int, msgspec.Meta(ge=1, le=limits.SETTING_COUNT_MAX)]
CountOrNone = Annotated[int, msgspec.Meta(ge=0, le=limits.SETTING_COUNT_MAX)]
ReadBatch = Annotated[
    int, msgspec.Meta(ge=1, le=limits.READ_REQUESTS_MAX // 2)
]  # one read takes up to two keys of each


ON_HANG = ("report", "exit")


class WorkerSettings(msgspec.Struct, frozen=True):
    """How a world worker behaves. They decide when and how much at a time; the only ones that decide an outcome are
    `step_timeout_ms` and `crash_budget`, about code that hangs or ends its process.
    """

    lease_ttl_ms: Annotated[int, msgspec.Meta(ge=2, le=limits.SETTING_MS_MAX)] = 10_000
    heartbeat_ms: Milliseconds = 2_500  # half of `lease_ttl_ms` at most: one heartbeat may be lost
    scan_ms: Milliseconds = 10_000  # how long a lost hint can go unnoticed
    max_inbox_batch: Annotated[int, msgspec.Meta(ge=1, le=limits.INBOX_BATCH_MAX)] = 256
    max_tick_steps_per_cycle: Count = 1_024  # of one world
    max_effects_per_cycle: Count = 1_024  # asked for by one world
    max_cycle_wall_ms: Annotated[int, msgspec.Meta(ge=0, le=limits.SETTING_MS_MAX)] = 250  # 0: one step of each world
    max_worlds_per_cycle: ReadBatch = 256
    max_worlds_warm: Count = 4_096
    idle_release_ms: Milliseconds = 60_000
    snapshot_entries: Count = 5_000
    snapshot_ms: Milliseconds = 300_000
    snapshot_idle_ms: Milliseconds = 2_000  # a world with live runs is saved when idle, so that new code can be judged
    # Of one world, in bytes, more or less, with what objects of Python take. Of a larger one only so many cells stay in
    # memory: the others are read from its saved state when they are needed. Up to a quarter of it may be changes that
    # were not saved yet; with more of them the state is saved at once.
    cells_memory_max: Count = 256 * 1024 * 1024
    # Old entries are moved into segments: when there are so many that nothing keeps where they are, or so old ones; 0
    # entries: never. So many below the last snapshot stay.
    segment_entries: CountOrNone = 50_000
    segment_ms: Milliseconds = 24 * 3_600_000
    segment_margin: CountOrNone = 1_000
    segment_changes: bool = False  # segments also keep what steps changed: every state of the past can be read
    # So many snapshots stay, and what steps changed above the oldest of them; 0: all, for ever. Above what is in
    # segments, one for each `segment_margin` entries stays as well: entries are moved up to one.
    snapshots_kept: CountOrNone = 3
    # Besides these, every snapshot that is younger, while a janitor runs, and what steps changed above the oldest of
    # them. 0: none besides.
    snapshots_kept_ms: MillisecondsOrNone = 0
    # How long entries are kept at least, from when they were moved into a segment, while a janitor runs; then whole
    # segments are dropped. 0: for ever. Twice `dedupe_window_ms` at least.
    journal_kept_ms: MillisecondsOrNone = 0
    run_outcomes_warn: Count = 10_000
    step_timeout_ms: Milliseconds = (
        30_000  # a step that takes longer is interrupted, and counts as a death over its input
    )
    crash_budget: Count = 3  # deaths over one input, or in restores in a row, before a last attempt in a child decides
    # How long a world is paused that processes die restoring: the first time, and at most; twice as long each time.
    quarantine_ms: Milliseconds = 30_000
    quarantine_max_ms: Milliseconds = 3_600_000
    # Public keys in hexadecimal digits, with commas. If there are some, a receipt of an effect counts only if one of
    # them has signed it; else it becomes a dead letter.
    receipt_keys: str = ""
    labels: dict[str, str] = {}  # said with every heartbeat; what pins and needs of worlds are compared with

    def __post_init__(self) -> None:
        _check(self)
        _check_half(self, "heartbeat_ms", of="lease_ttl_ms")
        self.trusted_keys()
        for name, value in self.labels.items():
            if any(type(text) is not str for text in (name, value)):
                raise errors.BadInput(f"WorkerSettings.labels has {name!r}: {value!r}; names and values are text")
            ids.check_name(name, "a label's name")

    def trusted_keys(self) -> tuple[bytes, ...]:
        """Read the keys of `receipt_keys`."""
        found = [each.strip() for each in self.receipt_keys.split(",") if each.strip()]
        try:
            keys = tuple(bytes.fromhex(each) for each in found)
        except ValueError:
            # No key is so short, so the check below refuses it, with the message for all.
            keys = (b"",)
        if any(len(each) != limits.PUBLIC_KEY_BYTES for each in keys):
            raise errors.BadInput("WorkerSettings.receipt_keys has public keys of 64 hexadecimal digits, with commas")
        return keys


class AdapterSettings(msgspec.Struct, frozen=True):
    """How an effect worker behaves."""

    claim_ttl_ms: Annotated[int, msgspec.Meta(ge=2, le=limits.SETTING_MS_MAX)] = 15_000
    renew_ms: Milliseconds = 5_000  # half of `claim_ttl_ms` at most: one renewal may be lost
    scan_ms: Milliseconds = 5_000
    concurrency: Count = 288  # effects at once
    # Of these, places for kinds of effects that have few: so many, and at most an eighth. A kind alone gets the others.
    reserved: CountOrNone = 32
    claim_batch: ReadBatch = 64
    receipt_key: str = ""  # a file of `worldline anchor --new-key`: receipts are signed with its key
    dead_attempts_max: Count = 5  # in a row, made alone, of an effect without a limit of attempts: then it is parked

    def __post_init__(self) -> None:
        _check(self)
        _check_half(self, "renew_ms", of="claim_ttl_ms")


class TimerSettings(msgspec.Struct, frozen=True):
    """How a timer worker behaves."""

    scan_ms: Milliseconds = 5_000
    batch: ReadBatch = 512

    def __post_init__(self) -> None:
        _check(self)


class OrchestratorSettings(msgspec.Struct, frozen=True):
    """How an orchestrator behaves."""

    turn_ms: Milliseconds = 1_000
    moves_max: CountOrNone = 32  # worlds moved for balance in one turn

    def __post_init__(self) -> None:
        _check(self)


class JanitorSettings(msgspec.Struct, frozen=True):
    """How a janitor behaves."""

    turn_ms: Milliseconds = 1_000  # between turns of a round
    round_ms: Milliseconds = 600_000  # between rounds through everything
    worlds_max: ReadBatch = 256  # looked at in one turn
    # Garbage collection of a universe: how often, by whichever janitor comes first (0: never), how long what nothing
    # refers to stays, and the rest between two turns of work, which take about `COLLECT_TURN_US` each.
    collect_ms: MillisecondsOrNone = 3_600_000
    collect_grace_ms: MillisecondsOrNone = 3_600_000
    collect_rest_ms: Milliseconds = 100
    backlog_ms: MillisecondsOrNone = 60_000  # between two counts of the backlog, if metrics are wanted; 0: never
    usage_ms: MillisecondsOrNone = 60_000  # between two counts of what universes with a quota have stored; 0: never
    # Of each minute: how long a process that runs worlds runs their steps again, to prove them. 0: it does not.
    prove_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 600

    def __post_init__(self) -> None:
        _check(self)


class PressureSettings(msgspec.Struct, frozen=True):
    """When inputs from outside are refused (`Overloaded`). All are estimates; a number of 0 means without bound.

    What worlds of one universe send each other, receipts, timers and control are never refused. A message from another
    universe waits while there is no room for it, and is refused then.
    """

    inbox_items_max: CountOrNone = 10_000  # unread, of one world
    inbox_bytes_max: Count = 8 * 1024 * 1024  # of the same items, if their number is bounded
    inbox_sender_part: Count = 8  # one other universe may fill an eighth of both with its messages
    inbox_others_part: Count = 2  # all other universes together a half: the rest is the owner's
    inbox_sender_wait_ms: Milliseconds = 30_000  # how long a message is tried that finds no room; then it is refused
    open_effects_max: CountOrNone = 50_000  # of a universe: waiting for an effect worker, or with one
    waiting_world_max: CountOrNone = 10_000  # handed over to one world of a process and not yet journaled
    waiting_max: CountOrNone = 50_000  # to all worlds of a process
    sample_ms: Annotated[int, msgspec.Meta(ge=0, le=limits.SETTING_MS_MAX)] = 1_000  # how old an estimate may be

    def __post_init__(self) -> None:
        _check(self)


class CacheSettings(msgspec.Struct, frozen=True):
    """A cache on disk of objects that are kept in S3. Without a folder there is none."""

    folder: str = ""
    bytes_max: Annotated[int, msgspec.Meta(ge=limits.CACHE_BYTES_MIN, le=limits.CACHE_BYTES_MAX)] = (
        limits.CACHE_BYTES_DEFAULT
    )

    def __post_init__(self) -> None:
        _check(self)


class Settings(msgspec.Struct, frozen=True):
    """Everything that can be set, by what it is about."""

    worker: WorkerSettings = msgspec.field(default_factory=WorkerSettings)
    adapter: AdapterSettings = msgspec.field(default_factory=AdapterSettings)
    timer: TimerSettings = msgspec.field(default_factory=TimerSettings)
    orchestrator: OrchestratorSettings = msgspec.field(default_factory=OrchestratorSettings)
    janitor: JanitorSettings = msgspec.field(default_factory=JanitorSettings)
    pressure: PressureSettings = msgspec.field(default_factory=PressureSettings)
    cache: CacheSettings = msgspec.field(default_factory=CacheSettings)
    hang_ms: Milliseconds = 30_000  # how long a cycle may take, and the event loop be held up, before it is reported
    on_hang: str = "report"  # or "exit": end the process when code does not return and cannot be interrupted
    dedupe_window_ms: Milliseconds = 24 * 3_600_000
    host_wait_ms: MillisecondsOrNone = 30_000  # how long a caller waits while no process runs its world; 0: for ever
    blocked_wait_ms: MillisecondsOrNone = 30_000  # while its run waits for a person: blocked, or an effect is parked

    def __post_init__(self) -> None:
        _check(self)
        if self.on_hang not in ON_HANG:
            raise errors.BadInput(f'Settings.on_hang is {self.on_hang!r}; use "report" or "exit"')
        least = 2 * self.dedupe_window_ms
        if 0 < self.worker.journal_kept_ms < least:
            raise errors.BadInput(
                f"WorkerSettings.journal_kept_ms is {self.worker.journal_kept_ms}; use 0, or twice dedupe_window_ms at "
                f"least ({least}): a repeated id finds its answer in the journal"
            )


def given(settings: Settings | None) -> Settings:
    """The settings that a caller gave, or the defaults."""
    if settings is None:
        return Settings()
    if not isinstance(settings, Settings):
        raise errors.BadInput(f"settings is {grammar.an(type(settings).__name__)}; use Settings(...)")
    return settings


def _check(settings: msgspec.Struct) -> None:
    """Every field is what its type says, bounds included."""
    for field in fields(type(settings)):
        value = getattr(settings, field.name)
        name = f"{type(settings).__name__}.{field.name}"
        match field.type:
            case msgspec.inspect.IntType(ge=int(low), le=int(high)):
                # `isinstance` would let True pass for 1.
                if type(value) is not int or not low <= value <= high:
                    raise errors.BadInput(f"{name} is {value!r}; use a whole number from {low} to {high}")
            case msgspec.inspect.StructType(cls=wanted):
                if not isinstance(value, wanted):
                    raise errors.BadInput(f"{name} is {grammar.an(type(value).__name__)}; use {wanted.__name__}(...)")
            case msgspec.inspect.BoolType():
                if type(value) is not bool:
                    raise errors.BadInput(f"{name} is {value!r}; use True or False")
            case msgspec.inspect.StrType():
                if type(value) is not str:
                    raise errors.BadInput(f"{name} is {value!r}; use text")
            case msgspec.inspect.DictType():
                if not isinstance(value, dict):
                    raise errors.BadInput(f"{name} is {value!r}; use a dict of names and values")
            case other:
                raise AssertionError(f"{name}: no check for {other}")


def _check_half(settings: msgspec.Struct, name: str, *, of: str) -> None:
    value, most = getattr(settings, name), getattr(settings, of) // 2
    if value > most:
        whole = f"{type(settings).__name__}.{name}"
        raise errors.BadInput(f"{whole} is {value}; use a whole number from 1 to {most}, half of {of}")


@functools.cache
def fields(of: type[msgspec.Struct]) -> tuple[msgspec.inspect.Field, ...]:
    """The fields of settings, with their types and bounds."""
    described: Any = msgspec.inspect.type_info(of)
    found: tuple[msgspec.inspect.Field, ...] = described.fields
    return found
