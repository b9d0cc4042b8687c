"""Where a step seals and opens personal values (`kernel/personal/personal_value.py`).

A value that is written gets a number from the step and the order in it, so a replay finds the salt that was made then,
and makes the same token. Code that a rebuilt run repeats writes nothing: it gets the tokens that were recorded.

Whether a value is still there is no part of the state, so a step that finds one gone says so (ERASED_READ), and a
replay takes that as given. A step that is replayed, and had a value that is gone now, cannot be done again
(`ErasedValue`): nothing is wrong with it, and nothing more can be said of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from worldline.base import errors, failures, limits, probes
from worldline.codec import digest, sealed_token
from worldline.kernel import context, user_values
from worldline.kernel.machine import Machine
from worldline.kernel.personal import personal_value, vault_interface
from worldline.kernel.runs import LiveRun
from worldline.model.journal import Kind
from worldline.model.personal_records import New, PersonalRecord


@contextmanager
def at(machine: Machine) -> Iterator[None]:
    """A desk for code of the machine that runs outside of a step, if there is none."""
    # Inside a step its own desk stays, which counts what the step writes.
    outside = personal_value.desk.get()
    if not isinstance(outside, StepDesk):
        personal_value.desk.set(StepDesk(machine))
    try:
        yield
    finally:
        personal_value.desk.reset(outside)


TOO_MUCH = (
    f"at most {limits.PERSONAL_STEP_MAX} personal values, of {limits.PERSONAL_STEP_BYTES_MAX} bytes in all, can be "
    "written at once"
)


class StepDesk:
    """For one step, or for a run that is rebuilt outside of one."""

    __slots__ = ("_machine", "_repeated")

    opens_at_once = False

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._repeated: dict[tuple[str, int], int] = {}  # how many values of an operation were written again

    def seal(self, subject: bytes, data: bytes) -> bytes:
        machine = self._machine
        run = self._run()
        # Repeated code must come to the recorded token: a new one would have another salt.
        if run is not None and run.rebuilding:
            return self._again(run, subject)
        if type(context.current.get()) is context.Nowhere:
            return _nothing(subject)
        if machine.where is None:
            raise errors.BadInput("a wl.Personal is sealed by a step")
        now = machine.now
        sealing = now.with_personal()
        number = sealing.write(len(data))
        # Before anything is kept: the exception may be caught by the user's code.
        if sealing.bytes > limits.PERSONAL_STEP_BYTES_MAX or sealing.count > limits.PERSONAL_STEP_MAX:
            raise failures.LimitExceeded(TOO_MUCH)
        place = now.context.step.to_bytes(8, "big") + number.to_bytes(4, "big")
        value = digest.hash_parts(b"personal", now.context.address.world, place)[: limits.ID_BYTES]
        kept = self._kept(subject, value, data)
        return sealed_token.seal(subject, value, salt=kept.salt, data=data).pack()

    def _kept(self, subject: bytes, value: bytes, data: bytes) -> PersonalRecord:
        machine = self._machine
        try:
            if not machine.replaying:
                kept = machine.vault.keep(subject, value, data)
                machine.now.with_personal().new.append(New(subject, value, kept))
                return kept
            found = machine.vault.again(subject, value, data)
        except errors.CannotStep as error:
            # Noted before it is raised again, because user code may catch it.
            machine.drop_step(error)
            raise
        if found is None:
            raise self._gone()
        return found

    def _run(self) -> LiveRun | None:
        """Return the run whose code runs now, if it is a run's code."""
        running = context.current.get()
        return None if running is None else self._machine.runs.get(running.run_id)

    def _again(self, run: LiveRun, subject: bytes) -> bytes:
        """Return the token that this very code wrote before. What has none is written nowhere, so any will do."""
        ops, next_op = run.record.ops, (run.record.id, run.issued)
        count = self._repeated[next_op] = self._repeated.get(next_op, 0) + 1
        found = sealed_token.find(ops[run.issued].params) if run.issued < len(ops) else []
        return found[count - 1].pack() if count <= len(found) else _nothing(subject)

    def open(self, token: bytes) -> bytes | None:
        machine = self._machine
        wanted = sealed_token.parse(token)
        # A replay takes the recorded absence as given, also where the value can be read here.
        if machine.where is not None and wanted.value in machine.now.given_erased:
            self._missed(wanted)
            return None
        try:
            found = vault_interface.opened(machine.vault, wanted)
        except errors.CannotStep as error:
            machine.drop_step(error)
            raise
        except errors.Corrupt as error:
            damaged = errors.DamagedCell(f"a personal value is damaged: {error}")
            machine.drop_step(damaged)
            raise damaged from error
        if found is None:
            if machine.replaying:
                raise self._gone()
            self._missed(wanted)
        return found

    def _missed(self, token: sealed_token.Token) -> None:
        """Say that a value was gone when this step read it: once, and not while code is repeated."""
        run = self._run()
        if self._machine.where is None or (run is not None and run.rebuilding):
            return
        now = self._machine.now
        if now.with_personal().miss(token.value):
            probes.hit("personal.erased-read")
            now.draft(Kind.ERASED_READ, user_values.dump([token.subject, token.value]))

    def _gone(self) -> errors.ErasedValue:
        error = errors.ErasedValue("it read a personal value that was erased since")
        self._machine.drop_step(error)
        return error


def _nothing(subject: bytes) -> bytes:
    """Make a token that stands for no value."""
    return sealed_token.Token(subject, bytes(limits.ID_BYTES), bytes(limits.DIGEST_BYTES)).pack()
