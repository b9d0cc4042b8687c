"""Personal values: what authors wrap so that it can be erased.

`wl.Personal("ada@example.org", of="ada")` may stand anywhere in an event, a cell, an argument, a result or an answer.
Wherever it is written, a token stands in its place (`codec/sealed_token.py`), and the value is kept apart under its
subject. Code that is given one has a `Personal` again, and `value` reads it.

Who seals and opens depends on where the code runs: a *desk* is set while values are written and read. The kernel's is
that of its step (`kernel/execution/step_desk.py`); clients and effect workers have one that collects, and write the
values before what refers to them (`runtime/personal/outside_desk.py`). Without a desk, a personal value is refused:
nothing is ever written in the clear instead.

An object that was read from a store outside of the kernel has the value with it; one in the kernel has the token alone,
and asks for the value each time, so that none stays in memory behind an erasure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from worldline.base import errors, failures
from worldline.codec import sealed_token
from worldline.kernel import context

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_NOTHING: Final[Any] = object()  # the value is not here


class NoDesk(errors.EncodeError):
    """A personal value was written where none can be sealed; a caller that can do it tries again."""

    def __init__(self, what: str) -> None:
        super().__init__(f"a wl.Personal: {what}")


class Desk(Protocol):
    """Where values are sealed and opened."""

    def seal(self, subject: bytes, data: bytes) -> bytes:
        """Keep a value apart, under the hash of whose it is. Returns its token."""

    def open(self, token: bytes) -> bytes | None:
        """Return the value that a token stands for; None if it was erased."""

    @property
    def opens_at_once(self) -> bool:
        """Whether an object gets its value when it is read, and not when it is asked."""


desk: Final[context.OfThread[Desk | None]] = context.OfThread(None)


class PersonalUse:
    """Whether this process has anything to do with personal values: if not, steps need no desk. A program that declares
    them says so before its first step.
    """

    def __init__(self) -> None:
        self.seen = False

    def note(self) -> None:
        """There is a personal value, or a type of one. If that shows only now, in code that runs already, its step is
        dropped and done again at a desk.
        """
        if self.seen:
            return
        self.seen = True
        running = context.current.get()
        if running is not None:
            error = errors.CannotStep(
                "the process did not expect personal values; the step is done again", lasting=False
            )
            running.drop_step(error)
            raise error


use: Final = PersonalUse()


class Personal(Generic[T_co]):
    """A value about a person, that `worldline erase` can erase. `of`: whose it is, such as the key of their cell.

    Its text never shows the value.
    """

    __slots__ = ("_erased", "_of", "_read", "_token", "_value")

    def __init__(self, value: T_co, *, of: str) -> None:
        use.note()
        if type(of) is not str or not of:
            raise errors.BadInput("wl.Personal(of=) names whose value it is: text that is not empty")
        if isinstance(value, Personal):
            raise errors.BadInput("a wl.Personal holds a value, not another wl.Personal")
        self._of = of
        self._value: Any = value
        self._token = b""
        self._erased = False
        self._read: Callable[[bytes], Any] | None = None

    @property
    def value(self) -> T_co:
        """The value. `wl.errors.Erased` if it was erased."""
        if self._erased:
            raise failures.Erased
        if self._value is not _NOTHING:
            found: T_co = self._value
            return found
        data = _desk("its value can be read where it was given").open(self._token)
        if data is None:
            raise failures.Erased
        assert self._read is not None
        read: T_co = self._read(data)
        return read

    @property
    def erased(self) -> bool:
        """Whether the value is gone."""
        if self._erased or self._value is not _NOTHING:
            return self._erased
        return _desk("whether it is erased can be seen where it was given").open(self._token) is None

    def stored(self, dump: Callable[[object], bytes]) -> bytes:
        """Return the token that is written for it. `dump`: how the value becomes bytes.

        One that the kernel has read is written as it stood. Any other is kept anew, as often as it is written: an
        object may be written in more than one world, as the default of a field for example.
        """
        if self._value is _NOTHING and not self._erased:
            return self._token
        if self._erased:
            raise failures.Erased
        # One that was read outside of the kernel has no name of its subject, only the hash in its token.
        subject = sealed_token.parse(self._token).subject if self._token else sealed_token.subject_of(self._of)
        at = _desk("it can be sent to a world, given to a run or returned; here it cannot be stored")
        return at.seal(subject, dump(self._value))

    @staticmethod
    def of_token(token: bytes, read: Callable[[bytes], T]) -> Personal[T]:
        """Read a value of its token, as that stands in a stored value. `read`: how bytes become the value."""
        made: Personal[T] = Personal.__new__(Personal)
        use.note()
        sealed_token.parse(token)  # what is no token is refused where it is read
        made._of, made._value, made._token, made._erased, made._read = "", _NOTHING, token, False, read
        # There may be none: the object then has the token alone.
        at = desk.get()
        if at is not None and at.opens_at_once:
            data = at.open(token)
            if data is None:
                made._erased = True
            else:
                made._value = read(data)
        return made

    def __repr__(self) -> str:
        # Without asking a desk: a text must cause no reading, and no entry that says a value was missed.
        return "Personal(erased)" if self._erased else "Personal(...)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Personal):
            return NotImplemented
        # Each writing of a value has a token of its own, so equal ones need no vault.
        if self._token and other._token:
            return self._token == other._token
        return self.erased == other.erased and (self.erased or self.value == other.value)

    def __hash__(self) -> int:
        raise TypeError("a wl.Personal has no hash: it would tell something of its value")


class TrialDesk:
    """Where it is tried whether something can be written and read. Nothing is kept."""

    opens_at_once = False

    def seal(self, subject: bytes, data: bytes) -> bytes:
        # Nothing of a trial is kept, so id and salt need not differ.
        return sealed_token.seal(subject, bytes(16), salt=bytes(sealed_token.SALT_BYTES), data=data).pack()

    def open(self, token: bytes) -> None:  # noqa: ARG002
        return None


def _desk(what: str) -> Desk:
    found = desk.get()
    if found is None:
        raise NoDesk(what)
    return found
