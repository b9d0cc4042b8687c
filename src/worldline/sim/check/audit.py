"""The auditor: looks at every batch as it is applied and keeps account of what must never happen.

It knows the store's format and nothing of the layers' code paths: what a batch did is read from its keys and values,
who did it from the host that sent it. So it also notices what a layer forgot to guard. Violations are collected, not
raised: a run goes on, and the first one is what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from worldline.codec import structs
from worldline.kernel import user_values
from worldline.keys import inbox as inbox_keys
from worldline.keys import journal as journal_keys
from worldline.keys import keyspace_table
from worldline.keys import leases as lease_keys
from worldline.keys import work as work_keys
from worldline.keys import worlds as world_keys
from worldline.model import ids, inbox, journal, leases
from worldline.model import work as works
from worldline.model.journal import Kind
from worldline.model.work import WorkKind
from worldline.model.world_records import TAKES_INPUT, Status
from worldline.sim.check import deletion_checks, work_moves
from worldline.sim.check.client_id_checks import ClientIds
from worldline.sim.load.history import Called
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.sim_loop import ROGUE
from worldline.sim.runtime.truth import AppliedBatch
from worldline.worker import waiting_input

VIOLATIONS_MAX = 20
# Hints, and logs of a universe: what is appended and is no input.
_APPENDED = tuple(each.metric for each in keyspace_table.KEYSPACES if each.stamped is keyspace_table.Stamped.APPENDED)

ProvenDead = Callable[[leases.Holder, int], bool]
DRIFT_MAX = 0.01  # of one clock against another


def never_proven(holder: leases.Holder, now_us: int) -> bool:
    """Say that no holder is proven dead, where its death shows by its heartbeat alone."""
    del holder, now_us
    return False


class Violation(msgspec.Struct, frozen=True):
    invariant: str
    what: str
    time_us: int = 0


class AuditedWorld:
    """What the auditor knows of one world."""

    def __init__(self) -> None:
        self.epoch = -1
        self.owner = ""  # the label of the host that last acquired it
        self.status = Status.ACTIVE
        self.head = journal.GENESIS
        self.stamp = b""
        self.intents: dict[bytes, WorkKind] = {}
        self.consumed: dict[bytes, None] = {}
        self.cancelled: dict[bytes, None] = {}
        self.messages: dict[bytes, None] = {}


class Audit:
    """`in_stamp_order`: items can be seen in the order of their stamps only. Not so on PostgreSQL: see `store/kv.py`.

    `proven_dead`: a holder is dead beyond doubt at some time, where others can know that before its heartbeat expires.
    `on_broken`: called at every violation. `violations`: where they are collected, if together with those of another.
    `window_us`: how long ids are kept; 0: that is not looked at.
    """

    def __init__(
        self,
        *,
        in_stamp_order: bool = True,
        proven_dead: ProvenDead = never_proven,
        on_broken: Callable[[], None] = lambda: None,
        violations: list[Violation] | None = None,
        window_us: int = 0,
    ) -> None:
        self.worlds: dict[ids.Address, AuditedWorld] = {}
        self.violations: list[Violation] = [] if violations is None else violations
        self.checked = 0
        self.on_entry: list[Callable[[journal.JournalEntry], None]] = []  # told of every entry, in order
        self.on_step: list[
            Callable[[ids.Address, list[journal.JournalEntry]], None]
        ] = []  # of the entries of every step
        self._in_stamp_order = in_stamp_order
        self._proven_dead = proven_dead
        self.on_broken = on_broken
        self._intents: dict[bytes, tuple[bytes, int, int]] = {}  # of all worlds: where each was asked for
        self._lives: dict[bytes, leases.Worker | None] = {}
        self._signed_us: dict[bytes, int] = {}  # when each of them was written, in virtual time
        self._removed_us: dict[bytes, int] = {}  # when each of them was removed last, in virtual time
        self._ids = ClientIds(self.broken, window_us=window_us)
        self._posted: dict[bytes, None] = {}
        self._called: dict[tuple[str, int], None] = {}
        self._now_us = 0
        self._latest_us = 0  # the latest that the store's clock has shown: what was due once may be done, also later

    def broken(self, invariant: str, what: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:  # the first counts; a broken store breaks something with every batch
            self.violations.append(Violation(invariant, what, self._now_us))
        self.on_broken()

    # --- Each commit ----------------------------------------------------------------------------------------

    def look(self, applied: AppliedBatch) -> None:
        self._now_us = applied.time_us
        # The clock may be set back after it was off: what was due by what it showed stays rightly done.
        self._latest_us = max(self._latest_us, applied.time_us, applied.latest_us)
        self.checked += 1
        # One head at most: a batch writes the journal of one world, and moving the head is what makes it a step.
        at = next((where.at for where in map(keyspaces.place, applied.batch.puts) if where.what == "head"), None)
        if at is not None and any(
            keyspaces.place(key).what == "world_meta" and not old for key, old in applied.before.items()
        ):
            self._born(at, journal_keys.HEAD.unpack(applied.batch.puts[journal_keys.head_key(at)].value))
            return
        for each in deletion_checks.deleted_by(applied):  # no rules hold any more but those of that file
            # Before the changes are looked at: deleting its keys is then no violation.
            self._life(each).status = Status.DELETED
        entries = self._step(applied, at) if at is not None else []
        for key, old in applied.before.items():
            self._changed(applied, key, old, entries)
        for append, stamp in zip(applied.batch.appends, applied.stamps, strict=True):
            where = keyspaces.place(append.prefix + stamp)
            if where.what == "inbox":
                self._taken(where.at)
                self._appended(applied, append.value)
            elif where.what not in _APPENDED:
                self.broken("J1", f"something was appended to {where.what}")

    def _born(self, at: ids.Address, head: journal.Head) -> None:
        if at in self.worlds:
            self.broken("L2", "a world was made twice")
        self.worlds[at] = AuditedWorld()
        self.worlds[at].epoch = 0
        self.worlds[at].head = head  # of a fork: where it goes on

    def _changed(
        self, applied: AppliedBatch, key: bytes, old: bytes | None, entries: list[journal.JournalEntry]
    ) -> None:
        where = keyspaces.place(key)
        put = applied.batch.puts.get(key)
        new = None if put is None else put.value
        if new is None and where.what != "epoch" and where.at and self._life(where.at).status is Status.DELETED:
            return  # it is being removed
        match where.what:
            case "epoch":
                self._epoch(applied, where, new)
            case "worker":
                self._lives[key] = lease_keys.WORKER.get(new)
                self._signed_us[key] = applied.now_us
                if new is None:
                    self._removed_us[key] = applied.now_us
            case "holder":
                self._holder(applied, where, old, new)
            case "world_meta" if new is not None and where.at is not None:
                self._life(where.at).status = world_keys.META.unpack(new).status
            case "snapshot" | "baseline" | "segment":
                self._owner_only(applied, where.at, "L3", "wrote a snapshot")
            case "seen":
                self._ids.changed(applied, key, old, new)
            case "open":
                self._work(applied, where, old, new, entries)
            case "inbox" if not entries:
                self.broken("J6", "an item was deleted without a step")
            case _:
                pass

    def _life(self, at: ids.Address | None) -> AuditedWorld:
        assert at is not None
        return self.worlds.setdefault(at, AuditedWorld())

    def _taken(self, at: ids.Address | None) -> None:
        life = self._life(at)
        if life.status not in TAKES_INPUT:
            self.broken("J1", f"a world that is {life.status.name.lower()} was given something it will never take")

    def _epoch(self, applied: AppliedBatch, where: keyspaces.KeyPurpose, new: bytes | None) -> None:
        life = self._life(where.at)
        if new is None:
            self.broken("L2", "an epoch was deleted")
            return
        number = lease_keys.EPOCH.unpack(new).number
        if number <= life.epoch:  # equal is wrong, too: two holders would pass each other's guard
            self.broken("L2", f"epoch {number} after {life.epoch}")
        # By the host that sent the batch, not by what the batch says: a layer that names the wrong holder is caught.
        life.epoch, life.owner = number, applied.host.label

    def _holder(self, applied: AppliedBatch, where: keyspaces.KeyPurpose, old: bytes | None, new: bytes | None) -> None:
        """A lease is released by its holder, or on behalf of a holder whose heartbeat has expired."""
        if new is not None:
            if lease_keys.HOLDER.unpack(new).epoch != self._life(where.at).epoch:
                self.broken("L1", "a holder under another epoch than the world's")
        elif old is not None and not self.is_dead(lease_keys.HOLDER.unpack(old), applied):
            self._owner_only(applied, where.at, "L6", "gave the lease back")

    def is_dead(self, holder: leases.Holder, applied: AppliedBatch) -> bool:
        """By the store's clock, or because the heartbeat has not changed for a TTL by every host's clock."""
        key = lease_keys.worker_key(ids.WorkerId(holder.worker))
        sign = self._lives.get(key)
        # Its record is gone, or of a later life of the process.
        if sign is None or sign.incarnation != holder.incarnation:
            return True
        if applied.now_us - self._signed_us[key] >= sign.ttl_us * (1 - DRIFT_MAX):
            return True
        return sign.heartbeat_us + sign.ttl_us <= self._latest_us or self._proven_dead(holder, self._now_us)

    def was_removed(self, holder: leases.Holder, since_us: int) -> bool:
        """Whether its heartbeat was missing at some time since then. A worker that was silent for so long that others
        removed it may give a sign again between the read and the commit of the process that counts it as dead: no batch
        can expect that a key stays missing. It is taken off again when its heartbeat is seen.
        """
        return self._removed_us.get(lease_keys.worker_key(ids.WorkerId(holder.worker)), -1) >= since_us

    def _owner_only(self, applied: AppliedBatch, at: ids.Address | None, invariant: str, did: str) -> None:
        life = self._life(at)
        if life.owner != applied.host.label:
            self.broken(invariant, f"{applied.host.label} {did}; {life.owner} has the lease, epoch {life.epoch}")

    # --- Steps ----------------------------------------------------------------------------------------------

    def _step(self, applied: AppliedBatch, at: ids.Address) -> list[journal.JournalEntry]:
        """A batch that moves a head. Returns the entries it wrote."""
        self._owner_only(applied, at, "L3", "journaled a step")
        life = self._life(at)
        if life.status is not Status.ACTIVE:
            self.broken("L3", f"a world that is {life.status.name.lower()} has gone on")
        entries: list[journal.JournalEntry] = []
        for key, put in sorted(applied.batch.puts.items()):
            if keyspaces.place(key).what == "journal":
                if applied.before[key] is not None:
                    self.broken("J4", "a frame was written again")
                entries += [self._decoded(raw) for raw in journal_keys.unpack_frame(put.value).entries]
        # Frames are in the order of their keys; heights must be checked, not taken from there.
        entries.sort(key=lambda entry: entry.height)
        head = journal_keys.HEAD.unpack(applied.batch.puts[journal_keys.head_key(at)].value)
        self._contiguous(life, entries, head)
        self._consumed(applied, at, life, entries)
        life.head = head
        for group in _by_step(entries):
            self._entries_of_step(at, life, group)
        return entries

    def _decoded(self, raw: bytes) -> journal.JournalEntry:
        entry = structs.decode(journal.JournalEntry, raw)
        if structs.encode(entry) != raw:
            self.broken("J7", f"the entry at height {entry.height} is not canonical")
        return entry

    def _contiguous(self, life: AuditedWorld, entries: list[journal.JournalEntry], head: journal.Head) -> None:
        heights = [entry.height for entry in entries]
        if heights != list(range(life.head.height + 1, head.height + 1)):
            self.broken("J3", f"heights {heights} after {life.head.height}, and the head says {head.height}")
        steps = list(dict.fromkeys(entry.step for entry in entries))
        if steps != list(range(life.head.step + 1, head.step + 1)):
            self.broken("J3", f"steps {steps} after {life.head.step}, and the head says {head.step}")
        times = [life.head.time_us, *(entry.time_us for entry in entries)]
        if times != sorted(times):
            self.broken("J8", "logical time has gone back")

    def _consumed(
        self, applied: AppliedBatch, at: ids.Address, life: AuditedWorld, entries: list[journal.JournalEntry]
    ) -> None:
        """What is journaled from the inbox leaves it in the same batch, in order, and was there."""
        taken = [entry.stamp for entry in entries if entry.stamp and not waiting_input.was_handed(entry.stamp)]
        deleted = [inbox_keys.stamp_of(key) for key in applied.batch.deletes if keyspaces.place(key).what == "inbox"]
        deleted = [stamp for stamp in deleted if not waiting_input.was_handed(stamp)]  # never was in the inbox
        if sorted(taken) != sorted(deleted):
            self.broken("J6", f"{len(taken)} items journaled, {len(deleted)} deleted")
        for stamp in deleted:
            if applied.before[inbox_keys.item_key(at, stamp)] is None:
                self.broken("J6", "an item was journaled that was not in the inbox any more")
        for stamp in taken:
            if stamp <= life.stamp and self._in_stamp_order:
                self.broken("J5", "items were journaled in another order than they came, or twice")
            life.stamp = stamp

    def _entries_of_step(self, at: ids.Address, life: AuditedWorld, entries: list[journal.JournalEntry]) -> None:
        first = entries[0]
        # A late answer is journaled and dropped, so it may come for work that is closed.
        ignored = any(entry.kind is Kind.LATE_ANSWER for entry in entries)
        if first.kind in (Kind.EFFECT_RESULT, Kind.TIMER_FIRED) and not first.blob:
            item: inbox.Item = structs.decode(inbox.Item, first.payload)  # type: ignore[arg-type]
            assert isinstance(item, inbox.EffectReceipt | inbox.TimerFired)
            if self.asked_by(item.intent) not in (None, at.world):
                self.broken("W2", f"intent {item.intent.hex()} was answered in another world than asked for it")
            if isinstance(item, inbox.TimerFired) and item.due_us > self._latest_us:
                self.broken("T2", f"a timer fired {item.due_us - self._latest_us} us before its time")
            if not ignored:
                self._answer(life, item.intent, "T1" if isinstance(item, inbox.TimerFired) else "E1")
        for look_at in self.on_step:
            look_at(at, entries)
        for entry in entries:
            self._derived(at, life, entry)
            for look in self.on_entry:
                look(entry)

    def _answer(self, life: AuditedWorld, intent: bytes, invariant: str) -> None:
        if intent in life.consumed:
            self.broken(invariant, f"intent {intent.hex()} was answered twice")
        if intent in life.cancelled:
            self.broken("T3", f"intent {intent.hex()} was answered after it was cancelled")
        if intent not in life.intents and intent not in life.messages:
            self.broken(invariant, f"intent {intent.hex()} was answered and never asked for")
        life.consumed[intent] = None

    def _derived(self, at: ids.Address, life: AuditedWorld, entry: journal.JournalEntry) -> None:
        match entry.kind:
            case Kind.EFFECT_REQUESTED | Kind.TIMER_SET if not entry.blob:
                ordinal, name, _, _, params, _ = user_values.load(tuple[int, str, str, int, bytes, int], entry.payload)
                intent = ids.intent_id(at, step=entry.step, ordinal=ordinal, kind=name, params=params)
                life.intents[intent] = WorkKind.EFFECT if entry.kind is Kind.EFFECT_REQUESTED else WorkKind.TIMER
                self._unique(at, intent, entry.step, ordinal)
            case Kind.MESSAGE_SENT if entry.correlation:
                life.messages[bytes.fromhex(entry.correlation)] = None
            case _:
                pass

    def _unique(self, at: ids.Address, intent: bytes, step: int, ordinal: int) -> None:
        here = (at.world, step, ordinal)
        if self._intents.setdefault(intent, here) != here:  # the same place again is a step that was done again
            self.broken("F3", f"two worlds share the id {intent.hex()}")

    # --- Open work ------------------------------------------------------------------------------------------

    def _work(
        self,
        applied: AppliedBatch,
        where: keyspaces.KeyPurpose,
        old_raw: bytes | None,
        new_raw: bytes | None,
        entries: list[journal.JournalEntry],
    ) -> None:
        life, intent = self._life(where.at), keyspaces.intent_of(where)
        old, new = work_keys.WORK.get(old_raw), work_keys.WORK.get(new_raw)
        if new is None:
            self._closed(applied, life, intent, old, entries)
        elif old is None:
            if intent not in life.intents:
                self.broken("E2", "work was opened that no step has asked for")
        else:
            for invariant, what in work_moves.violations(applied, intent, old, new, latest_us=self._latest_us):
                self.broken(invariant, what)

    def _closed(
        self,
        applied: AppliedBatch,
        life: AuditedWorld,
        intent: ids.IntentId,
        old: works.Work | None,
        entries: list[journal.JournalEntry],
    ) -> None:
        """Deleted: answered or cancelled by the world's own step."""
        if not entries:
            self.broken("E4", "open work was deleted without a step")
            return
        if intent not in life.consumed:  # an answer closes the work with the same step
            life.cancelled[intent] = None
        for item in _handed(entries):
            if item.intent == intent and (old is None or item.attempt != old.attempt):
                self.broken("E5", f"{applied.host.label} answered an attempt that is not the current one")

    def _appended(self, applied: AppliedBatch, value: bytes) -> None:
        item = inbox_keys.ITEM.unpack(value)
        if isinstance(item, inbox.Message):
            if item.message in self._posted:
                self.broken("F1", f"message {item.message.hex()} was posted twice")
            self._posted[item.message] = None
        elif (
            isinstance(item, inbox.EffectReceipt) and applied.host.name != ROGUE and not _settles(applied, item.intent)
        ):
            self.broken("E6", "an answer by a batch that settles nothing")

    def find(self, intent: bytes) -> tuple[ids.Address | None, bool]:
        """The world that asked for an intent, and whether it still waits for the answer."""
        for at, life in self.worlds.items():
            if intent in life.intents:
                return at, intent not in life.consumed and intent not in life.cancelled
        return None, False

    def asked_by(self, intent: bytes) -> bytes | None:
        """The world that was the first to ask for an intent."""
        where = self._intents.get(intent)
        return None if where is None else where[0]

    # --- The outside ----------------------------------------------------------------------------------------

    def called(self, call: Called) -> None:
        """An effect has reached the outside."""
        intent = bytes.fromhex(call.key)
        if intent not in self._intents:
            self.broken("E3", f"{call.name} was called for an intent that is in no journal")
        if (call.key, call.attempt) in self._called:
            self.broken("E7", f"attempt {call.attempt} of {call.name} was made twice")
        self._called[call.key, call.attempt] = None


def _settles(applied: AppliedBatch, intent: bytes) -> bool:
    """Whether the batch settles this work, or is the step of a world that answers its own message."""
    if applied.host.name == ROGUE:
        return True  # an outsider may always answer; what comes of it is E1
    for key in applied.batch.puts:
        where = keyspaces.place(key)
        if where.what == "head" or (where.what == "open" and keyspaces.intent_of(where) == intent):
            return True
    return False


def _handed(entries: list[journal.JournalEntry]) -> Iterator[inbox.EffectReceipt]:
    """The answers that did not go through the inbox, without those that steps have dropped."""
    dropped = [entry.step for entry in entries if entry.kind is Kind.LATE_ANSWER]
    for entry in entries:
        if entry.kind is Kind.EFFECT_RESULT and not entry.stamp and not entry.blob and entry.step not in dropped:
            item: inbox.Item = structs.decode(inbox.Item, entry.payload)  # type: ignore[arg-type]
            assert isinstance(item, inbox.EffectReceipt)
            yield item


def _by_step(entries: list[journal.JournalEntry]) -> list[list[journal.JournalEntry]]:
    groups: dict[int, list[journal.JournalEntry]] = {}
    for entry in entries:
        groups.setdefault(entry.step, []).append(entry)
    return list(groups.values())
