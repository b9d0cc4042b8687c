"""Where the kernel keeps and finds personal values: an interface, and the one of tests, in memory."""

from __future__ import annotations

from typing import Final, Protocol

from worldline.codec import digest, sealed_token
from worldline.codec.sealed_token import Token
from worldline.kernel import context
from worldline.model.personal_records import PersonalRecord


class Vault(Protocol):
    """Called in the kernel's thread. What cannot be read now is a `CannotStep`."""

    def begin(self) -> None:
        """Steps begin, and those before are durable."""

    def find(self, subject: bytes, value: bytes) -> PersonalRecord | None:
        """A value; None if it is not there any more."""

    def again(self, subject: bytes, value: bytes, data: bytes) -> PersonalRecord | None:
        """A value that a step which is done again writes: as it was kept then; None if it is not there any more."""

    def keep(self, subject: bytes, value: bytes, data: bytes) -> PersonalRecord:
        """Keep a value under a new salt: with the step that refers to it, or not at all."""

    def forget(self, subject: bytes) -> None:
        """Values of this subject were erased: none of them stays in memory."""


class MemoryVault:
    """For worlds without a store. Salts are made of places, so that a step done twice comes out the same."""

    def __init__(self) -> None:
        self.values: dict[tuple[bytes, bytes], PersonalRecord] = {}

    def begin(self) -> None:
        pass

    def find(self, subject: bytes, value: bytes) -> PersonalRecord | None:
        return self.values.get((subject, value))

    def again(self, subject: bytes, value: bytes, data: bytes) -> PersonalRecord | None:  # noqa: ARG002
        return self.find(subject, value)

    def keep(self, subject: bytes, value: bytes, data: bytes) -> PersonalRecord:
        kept = self.values[subject, value] = PersonalRecord(digest.hash_parts(b"salt", subject, value), data)
        return kept

    def forget(self, subject: bytes) -> None:
        # Collected first: the map cannot change while it is walked.
        for each in [each for each in self.values if each[0] == subject]:
            del self.values[each]


class TrialVault:
    """For other code that is tried on recorded steps: it reads what is kept, and nothing that it writes is."""

    def __init__(self, kept: Vault) -> None:
        self._kept = kept
        self._made = MemoryVault()

    def begin(self) -> None:
        self._kept.begin()

    def find(self, subject: bytes, value: bytes) -> PersonalRecord | None:
        return self._made.find(subject, value) or self._kept.find(subject, value)

    def again(self, subject: bytes, value: bytes, data: bytes) -> PersonalRecord | None:
        found = self._kept.find(subject, value)
        # The code that is tried may write another value at this place.
        return found if found is not None and found.data == data else self.keep(subject, value, data)

    def keep(self, subject: bytes, value: bytes, data: bytes) -> PersonalRecord:
        return self._made.keep(subject, value, data)

    def forget(self, subject: bytes) -> None:
        # Only what it has made: a trial erases nothing.
        self._made.forget(subject)


in_memory: Final[context.OfThread[MemoryVault]] = context.OfThread(MemoryVault())


def opened(vault: Vault, token: Token) -> bytes | None:
    """Return the value that a token stands for, checked; None if it is gone."""
    kept = vault.find(token.subject, token.value)
    if kept is None:
        return None
    # The token is what was journaled: a value that was changed in the store must not pass for it.
    sealed_token.check(token, salt=kept.salt, data=kept.data)
    return kept.data
