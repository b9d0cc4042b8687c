"""The rows of one run: which of them a transition changes."""

from __future__ import annotations

from collections.abc import Iterator

from worldline.kernel.rows.row_ledger import Group, RowLedger, Write
from worldline.kernel.rows.row_records import Record, RunStatus
from worldline.model import row_keys as keys


class RunRows:
    """Called behind each change of the record."""

    __slots__ = ("_arrived", "_itself", "_progress", "_record")

    def __init__(self, record: Record, ledger: RowLedger, *, is_new: bool) -> None:
        self._record = record
        name = keys.text(record.id)
        # In three groups, because they are dropped at different times: progress also when a run starts over.
        self._itself = Group(ledger, keys.RUN + name, is_new=is_new)
        self._progress = Group(ledger, keys.PROGRESS + name, is_new=is_new)
        self._arrived = Group(ledger, keys.ARRIVED + name, is_new=is_new)
        record.interrupts.bind(self._progress, keys.INTERRUPT)
        record.buffer.bind(self._arrived, keys.BUFFERED)
        record.followers.bind(self._arrived, keys.FOLLOWER)
        if is_new:
            self.started()

    def started(self) -> None:
        """Note that what it was started with has changed."""
        self._itself.put(keys.START, self._record.write)

    def stands(self) -> None:
        """Note that its status has changed."""
        # A run without this row is RUNNING, so most runs never have one.
        if self._record.status is RunStatus.RUNNING:
            self._itself.gone(keys.STATUS)
        else:
            self._itself.put(keys.STATUS, self._record.write_status)

    def issued(self) -> None:
        """Note the last operation, which is new."""
        number = len(self._record.ops) - 1
        self._progress.put(keys.OP + keys.number(number), self._record.ops[number].write, is_new=True)

    def opened(self, number: int) -> None:
        """Note that an operation's work is open, or not any more."""
        op = self._record.ops[number]
        if op.asked is None or op.asked.step != op.step:  # else the row is new in this step, and noted
            self._progress.put(keys.OP + keys.number(number), op.write)

    def parked(self, number: int) -> None:
        """Note that an operation's effect is not tried any more, or is tried again."""
        parked = self._record.ops[number].parked
        if parked is None:
            self._progress.gone(keys.PARKED + keys.number(number))
        else:
            self._progress.put(keys.PARKED + keys.number(number), parked.write)

    def done(self, number: int, *, is_new: bool = True) -> None:
        """Note that an operation has an outcome, or another one."""
        outcome = self._record.ops[number].outcome
        assert outcome is not None
        self._progress.put(keys.OUTCOME + keys.number(number), outcome.write, is_new=is_new)

    def fed(self) -> None:
        """Note the last feeding, which is new."""
        number = len(self._record.log) - 1
        self._progress.put(keys.FEEDING + keys.number(number), self._record.log[number].write, is_new=True)

    def drop_from(self, first: int, fed: int) -> None:
        """The operations from this one on, and the feedings behind so many, are about to go."""
        for number, op in enumerate(self._record.ops[first:], first):
            self._progress.gone(keys.OP + keys.number(number))
            if op.outcome is not None:
                self._progress.gone(keys.OUTCOME + keys.number(number))
            if op.parked is not None:
                self._progress.gone(keys.PARKED + keys.number(number))
        for number in range(fed, len(self._record.log)):
            self._progress.gone(keys.FEEDING + keys.number(number))

    def drop_progress(self) -> None:
        """Drop the rows of operations, outcomes, feedings and cancellations."""
        self._progress.drop()

    def drop_arrived(self) -> None:
        """Drop the rows of events and followers."""
        self._arrived.drop()

    def forgotten(self) -> None:
        """Note that the run is gone, with its last rows."""
        self._itself.drop()

    def all(self) -> Iterator[tuple[bytes, Write]]:
        """Yield every row that there is."""
        record = self._record
        yield self._itself.prefix + keys.START, record.write
        if record.status is not RunStatus.RUNNING:
            yield self._itself.prefix + keys.STATUS, record.write_status
        prefix = self._progress.prefix
        for number, op in enumerate(record.ops):
            yield prefix + keys.OP + keys.number(number), op.write
            if op.outcome is not None:
                yield prefix + keys.OUTCOME + keys.number(number), op.outcome.write
            if op.parked is not None:
                yield prefix + keys.PARKED + keys.number(number), op.parked.write
        for number, resume in enumerate(record.log):
            yield prefix + keys.FEEDING + keys.number(number), resume.write
        for key, write in record.interrupts.rows():
            yield prefix + key, write
        for queue in (record.buffer, record.followers):
            for key, write in queue.rows():
                yield self._arrived.prefix + key, write
