"""A secret as an effect holds it, and the values that must stand in no text of this process.

`Secret` shows its name wherever it is printed, and has no stored form. `KNOWN` has the value of every secret that this
process has read, in the forms in which it may turn up (as it is, quoted, percent-encoded, in base64), so that failures,
log lines and streamed pieces can be cleaned by value, whatever code put the value there. It is one for the process
because logs and errors are. It forgets none but the oldest: a value that was exchanged for another one stays hidden.

What it does not see: a value that was changed in another way, such as cut into pieces, or encrypted.
"""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
from collections.abc import Iterable
from typing import Any, NoReturn, Protocol

from worldline.base import limits
from worldline.base.bounded_map import BoundedMap


class Secret:
    """What `wl.secret` gives. `reveal()` is its value; everything else shows its name."""

    __slots__ = ("_value", "name")

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        self._value = value

    def reveal(self) -> str:
        """Return the value itself. Give it to what needs it, and keep it nowhere: the next attempt may have another."""
        return self._value

    def __repr__(self) -> str:
        return shown(self.name)

    def __format__(self, spec: str) -> str:
        return format(shown(self.name), spec)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{shown(self.name)} is not copied and not pickled")


def shown(name: str) -> str:
    """What stands in the place of a secret's value."""
    return f"<secret {name}>"


class SecretSource(Protocol):
    """Where a host has secrets from."""

    def find(self, name: str) -> str | None: ...

    def hint(self, name: str) -> str:
        """What to do if there is none, as a sentence for the person who runs the host."""


class KnownSecrets:
    """The values to hide. May be used from any thread."""

    def __init__(self) -> None:
        # By value, in the order in which they were read.
        self._names: BoundedMap[str, str] = BoundedMap(limits.SECRETS_KNOWN_MAX)
        self._forms: tuple[tuple[str, str], ...] = ()  # what may stand in a text, the longest first; and whose it is
        self._bytes: tuple[tuple[bytes, str], ...] = ()  # the same, encoded
        self._lock = threading.Lock()  # secrets are read in the threads of effects, and texts are made in any

    def __bool__(self) -> bool:
        return bool(self._forms)

    def learn(self, secret: Secret) -> Secret:
        value = secret.reveal()
        # Looked at without the lock: nearly always the value is known, and learning it twice changes nothing.
        if self._names.get(value) != secret.name:
            with self._lock:
                self._names[value] = secret.name
                self._rebuild()
        return secret

    def forget(self, values: Iterable[str]) -> None:
        """Of secrets that are none: a test's."""
        with self._lock:
            for value in values:
                self._names.pop(value, None)
            self._rebuild()

    def _rebuild(self) -> None:
        found = {form: name for value, name in self._names.items() for form in _forms(value)}
        # The longest first: a value that contains another one is replaced as a whole.
        self._forms = tuple(sorted(found.items(), key=lambda each: (-len(each[0]), each[0])))
        self._bytes = tuple((form.encode(), name) for form, name in self._forms)

    # --- Cleaning ------------------------------------------------------------------------------------------------

    def text(self, said: str) -> str:
        """A text without values of secrets. Texts are shortened before they come here: what is left of a value at the
        beginning or the end of a line goes too.
        """
        if not self._forms:
            return said
        for form, name in self._forms:
            if form in said:
                said = said.replace(form, shown(name))
        return "\n".join(map(self._edges, said.split("\n")))

    def _edges(self, line: str) -> str:
        least = limits.SECRET_CHARACTERS_MIN
        for form, name in self._forms:
            # What a line ends or begins with is looked for first: a key has thousands of beginnings, and few lines one.
            if line[-least:] in form:
                sizes = range(min(len(form) - 1, len(line)), least - 1, -1)
                size = next((each for each in sizes if line.endswith(form[:each])), 0)
                line = line[:-size] + shown(name) if size else line
            if line[:least] in form:
                sizes = range(min(len(form) - 1, len(line)), least - 1, -1)
                size = next((each for each in sizes if line.startswith(form[-each:])), 0)
                line = shown(name) + line[size:] if size else line
        return line

    def inside(self, data: bytes) -> str:
        """The name of a secret whose value stands in these bytes. Empty if none does."""
        return next((name for form, name in self._bytes if form in data), "")

    def plain(self, value: Any, depth: int = 0) -> Any:
        """Plain data without values of secrets. What is nested too deep to look at is left out."""
        if not self._forms:
            return value
        if depth > limits.CBOR_DEPTH_MAX:
            return "..."
        if type(value) is str:
            return self.text(value)
        if type(value) is bytes:
            name = self.inside(value)
            return shown(name).encode() if name else value
        if type(value) is dict:
            return {self.plain(key, depth + 1): self.plain(item, depth + 1) for key, item in value.items()}
        if type(value) is list or type(value) is tuple:
            return type(value)(self.plain(item, depth + 1) for item in value)
        return value


KNOWN = KnownSecrets()


def _forms(value: str) -> set[str]:
    """How a value may stand in a text."""
    data = value.encode()
    found = {
        value,
        repr(value)[1:-1],
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        urllib.parse.quote(value, safe=""),
        urllib.parse.quote_plus(value),
        # Without the padding: inside a longer text there is none, and what begins alike is found, too.
        base64.b64encode(data).decode().rstrip("="),
        base64.urlsafe_b64encode(data).decode().rstrip("="),
        data.hex(),
    }
    lines = [line.strip() for line in value.splitlines()]  # of a key in PEM, but for what every such file has
    found.update(line for line in lines if len(line) >= limits.SECRET_LINE_CHARACTERS_MIN and not line.startswith("--"))
    return {each for each in found if len(each) >= limits.SECRET_CHARACTERS_MIN}
